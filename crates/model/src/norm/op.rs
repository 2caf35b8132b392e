//! Root mean square norms as operations with backward passes of their own.

use burn::tensor::{Tensor, backend::Backend, ops::FloatTensor};
use dsv41_ops::{
    CustomOp, CustomOps, from_primitive,
    host::{HostFloat, HostOp, Values, View, dot},
    into_primitive, vectorised,
};
use rayon::prelude::*;

use crate::Numerics;

/// Rows that a thread takes at a time.
const ROWS: usize = 16;

/// `s = (mean(x^2) + eps)^-0.5` over the last axis: `[n, width]` to `[n, 1]`.
///
/// The gradient of x is `-s^3 x / width` times that of s.
#[derive(Debug, Clone, Copy)]
pub(super) struct InverseRms {
    pub(super) eps: f64,
    pub(super) order: Order,
}

/// `w * (x * s)` with the `s` of [`InverseRms`]: `[n, width]` and `[width]` to `[n, width]`.
///
/// With the gradient g of the result, that of x is `s (w g) - x s^3 sum(w g x) / width` and that of w is `sum_n g x s`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Normalise {
    pub(super) eps: f64,
    pub(super) order: Order,
}

/// In which order the numbers of a row are summed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// In the backend's own: results that are rounded afterwards depend on the last bit of a sum.
    Backend,
    /// In any.
    Any,
}

impl From<Numerics> for Order {
    fn from(numerics: Numerics) -> Self {
        if numerics.rounds() { Self::Backend } else { Self::Any }
    }
}

fn inverse_rms<B: Backend>(x: Tensor<B, 2>, eps: f64) -> Tensor<B, 2> {
    x.square().mean_dim(1).add_scalar(eps).sqrt().recip()
}

#[inline(always)]
fn inverse_rms_of_row<T: HostFloat>(x: &[T], eps: f64) -> T {
    (dot(x, x) / T::of(x.len() as f64) + T::of(eps)).sqrt().recip()
}

impl CustomOp<1> for InverseRms {
    fn forward<B: CustomOps>(&self, inputs: [FloatTensor<B>; 1]) -> FloatTensor<B> {
        if let Some(scales) = B::host_forward(self, &inputs) {
            return scales;
        }
        let [x] = inputs;
        into_primitive(inverse_rms::<B>(from_primitive(x), self.eps))
    }

    fn backward<B: CustomOps>(
        &self,
        inputs: [FloatTensor<B>; 1],
        gradient: FloatTensor<B>,
        wanted: [bool; 1],
    ) -> [Option<FloatTensor<B>>; 1] {
        if let Some(gradients) = B::host_backward(self, &inputs, &gradient, wanted) {
            return gradients;
        }
        let [x] = inputs;
        let x = from_primitive::<B, 2>(x);
        let width = x.dims()[1];
        let scale = inverse_rms(x.clone(), self.eps);
        let factor = scale.powi_scalar(3) * from_primitive(gradient);
        [Some(into_primitive(x * factor.mul_scalar(-(width as f64).recip())))]
    }
}

impl HostOp<1> for InverseRms {
    fn forward_on_host<T: HostFloat>(&self, [x]: [View<'_, T>; 1]) -> Option<Values<T>> {
        if self.order == Order::Backend {
            return None;
        }
        let &[rows, width] = x.dims else { return None };
        let scales =
            x.values.par_chunks(width).with_min_len(ROWS).map(|x| vectorised!(inverse_rms_of_row(x, self.eps)));
        Some(Values { dims: vec![rows, 1], values: scales.collect() })
    }

    fn backward_on_host<T: HostFloat>(
        &self,
        [x]: [View<'_, T>; 1],
        gradient: View<'_, T>,
        _: [bool; 1],
    ) -> Option<[Option<Values<T>>; 1]> {
        if self.order == Order::Backend {
            return None;
        }
        let &[_, width] = x.dims else { return None };
        let mut of_x = Values::zeros_like(x);
        let rows = of_x.values.par_chunks_mut(width).zip(x.values.par_chunks(width)).zip(gradient.values);
        rows.with_min_len(ROWS).for_each(|((of_x, x), &gradient)| {
            let scale = inverse_rms_of_row(x, self.eps);
            let factor = -(scale * scale * scale) * gradient / T::of(width as f64);
            of_x.iter_mut().zip(x).for_each(|(of_x, &x)| *of_x = factor * x);
        });
        Some([Some(of_x)])
    }
}

impl CustomOp<2> for Normalise {
    fn forward<B: CustomOps>(&self, inputs: [FloatTensor<B>; 2]) -> FloatTensor<B> {
        if let Some(result) = B::host_forward(self, &inputs) {
            return result;
        }
        let [x, weight] = inputs;
        let x = from_primitive::<B, 2>(x);
        let scale = inverse_rms(x.clone(), self.eps);
        into_primitive(from_primitive::<B, 1>(weight).unsqueeze::<2>() * (x * scale))
    }

    fn backward<B: CustomOps>(
        &self,
        inputs: [FloatTensor<B>; 2],
        gradient: FloatTensor<B>,
        wanted: [bool; 2],
    ) -> [Option<FloatTensor<B>>; 2] {
        if let Some(gradients) = B::host_backward(self, &inputs, &gradient, wanted) {
            return gradients;
        }
        let [x, weight] = inputs;
        let (x, gradient) = (from_primitive::<B, 2>(x), from_primitive::<B, 2>(gradient));
        let width = x.dims()[1];
        let scale = inverse_rms(x.clone(), self.eps);
        let of_x = || {
            let weighted = from_primitive::<B, 1>(weight).unsqueeze::<2>() * gradient.clone();
            let along = (weighted.clone() * x.clone()).sum_dim(1).mul_scalar((width as f64).recip());
            weighted * scale.clone() - x.clone() * (scale.clone().powi_scalar(3) * along)
        };
        let of_weight = || (gradient.clone() * x.clone() * scale.clone()).sum_dim(0).squeeze_dim::<1>(0);
        [wanted[0].then(|| into_primitive(of_x())), wanted[1].then(|| into_primitive(of_weight()))]
    }
}

impl HostOp<2> for Normalise {
    fn forward_on_host<T: HostFloat>(&self, [x, weight]: [View<'_, T>; 2]) -> Option<Values<T>> {
        if self.order == Order::Backend {
            return None;
        }
        let &[_, width] = x.dims else { return None };
        let mut result = Values::zeros_like(x);
        let rows = result.values.par_chunks_mut(width).zip(x.values.par_chunks(width));
        rows.with_min_len(ROWS).for_each(|(result, x)| {
            vectorised!({
                let scale = inverse_rms_of_row(x, self.eps);
                let places = result.iter_mut().zip(x).zip(weight.values);
                places.for_each(|((result, &x), &weight)| *result = weight * (x * scale));
            })
        });
        Some(result)
    }

    fn backward_on_host<T: HostFloat>(
        &self,
        [x, weight]: [View<'_, T>; 2],
        gradient: View<'_, T>,
        wanted: [bool; 2],
    ) -> Option<[Option<Values<T>>; 2]> {
        if self.order == Order::Backend {
            return None;
        }
        let &[_, width] = x.dims else { return None };
        let of_x = || {
            let mut of_x = Values::zeros_like(x);
            let rows = of_x.values.par_chunks_mut(width).zip(x.values.par_chunks(width));
            let rows = rows.zip(gradient.values.par_chunks(width)).with_min_len(ROWS);
            rows.for_each(|((of_x, x), gradient)| {
                vectorised!({
                    let scale = inverse_rms_of_row(x, self.eps);
                    for ((of_x, &weight), &gradient) in of_x.iter_mut().zip(weight.values).zip(gradient) {
                        *of_x = weight * gradient;
                    }
                    let along = dot(of_x, x) * scale * scale * scale / T::of(width as f64);
                    of_x.iter_mut().zip(x).for_each(|(of_x, &x)| *of_x = *of_x * scale - x * along);
                })
            });
            of_x
        };
        let of_weight = || {
            let mut of_weight = Values::zeros_like(weight);
            vectorised!({
                for (x, gradient) in x.values.chunks_exact(width).zip(gradient.values.chunks_exact(width)) {
                    let scale = inverse_rms_of_row(x, self.eps);
                    for ((of_weight, &x), &gradient) in of_weight.values.iter_mut().zip(x).zip(gradient) {
                        *of_weight = *of_weight + gradient * x * scale;
                    }
                }
            });
            of_weight
        };
        Some([wanted[0].then(of_x), wanted[1].then(of_weight)])
    }
}
