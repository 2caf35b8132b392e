//! The engram's gate as an operation with a backward pass of its own.

use std::iter::zip;

use burn::tensor::{Tensor, backend::Backend, ops::FloatTensor};
use dsv41_ops::{
    CustomOp, CustomOps, from_primitive,
    host::{HostFloat, HostOp, Values, View, add_scaled, dot},
    into_primitive, vectorised,
};
use rayon::prelude::*;

use crate::{activation::sigmoid, norm::Order};

/// Smallest magnitude whose square root the gate takes.
const DOT_FLOOR: f64 = 1e-6;
/// Tokens that a thread takes at a time.
const TOKENS: usize = 8;

/// `h[c] + g[c] * v`: the stream h and keys k `[n, C, D]`, the value v `[n, D]` and weights w `[C, D]` to the stream.
///
/// With `a = sum(h w k)`, the scales `s_h` and `s_k` of the norms of h and k, and `u = a s_h s_k D^-0.5`, the gate is
/// `g = sigmoid(copysign(sqrt(max(|u|, 1e-6)), u))`. Given the gradient G of the result, with `u' = sum(G v) g (1 - g) /
/// (2 sqrt|u|)`, or 0 below the floor, and `f = u' D^-0.5`:
///
/// - of h, `G + f s_h s_k w k - f a s_k s_h^3 h / D`;
/// - of k, `f s_h s_k w h - f a s_h s_k^3 k / D`;
/// - of v, `sum_c g G`; of w, the sum over tokens of `f s_h s_k h k`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gate {
    pub(super) eps: f64,
    pub(super) order: Order,
}

/// What the gates of all tokens and copies come from, each `[n, C, 1]`.
struct Parts<B: Backend> {
    along: Tensor<B, 3>,
    of_h: Tensor<B, 3>,
    of_k: Tensor<B, 3>,
    scaled: Tensor<B, 3>,
    gate: Tensor<B, 3>,
}

impl Gate {
    fn parts<B: Backend>(&self, h: &Tensor<B, 3>, k: &Tensor<B, 3>, w: &Tensor<B, 2>) -> Parts<B> {
        let dim = h.dims()[2];
        let scale = |x: &Tensor<B, 3>| x.clone().square().mean_dim(2).add_scalar(self.eps).sqrt().recip();
        let along = (h.clone() * w.clone().unsqueeze::<3>() * k.clone()).sum_dim(2);
        let (of_h, of_k) = (scale(h), scale(k));
        let scaled = (along.clone() * of_h.clone() * of_k.clone()).mul_scalar((dim as f64).powf(-0.5));
        let negative = scaled.clone().lower_elem(0.0);
        let root = scaled.clone().abs().clamp_min(DOT_FLOOR).sqrt();
        let gate = sigmoid(root.clone().mask_where(negative, root.neg()));
        Parts { along, of_h, of_k, scaled, gate }
    }
}

impl CustomOp<4> for Gate {
    fn forward<B: CustomOps>(&self, inputs: [FloatTensor<B>; 4]) -> FloatTensor<B> {
        if let Some(result) = B::host_forward(self, &inputs) {
            return result;
        }
        let [h, k, v, w] = inputs;
        let (h, k) = (from_primitive::<B, 3>(h), from_primitive::<B, 3>(k));
        let parts = self.parts(&h, &k, &from_primitive(w));
        into_primitive(h + parts.gate * from_primitive::<B, 2>(v).unsqueeze_dim::<3>(1))
    }

    fn backward<B: CustomOps>(
        &self,
        inputs: [FloatTensor<B>; 4],
        gradient: FloatTensor<B>,
        wanted: [bool; 4],
    ) -> [Option<FloatTensor<B>>; 4] {
        if let Some(gradients) = B::host_backward(self, &inputs, &gradient, wanted) {
            return gradients;
        }
        let [h, k, v, w] = inputs;
        let (h, k, gradient) = (from_primitive::<B, 3>(h), from_primitive::<B, 3>(k), from_primitive::<B, 3>(gradient));
        let (v, w) = (from_primitive::<B, 2>(v), from_primitive::<B, 2>(w));
        let dim = h.dims()[2] as f64;
        let Parts { along, of_h, of_k, scaled, gate } = self.parts(&h, &k, &w);

        let slope = gate.clone() * gate.clone().neg().add_scalar(1.0);
        let size = scaled.abs();
        let floored = size.clone().lower_equal_elem(DOT_FLOOR);
        let of_scaled = (gradient.clone() * v.unsqueeze_dim::<3>(1)).sum_dim(2) * slope
            / size.clamp_min(DOT_FLOOR).sqrt().mul_scalar(2.0);
        let factor = of_scaled.mask_fill(floored, 0.0).mul_scalar(dim.powf(-0.5));
        let both = factor.clone() * of_h.clone() * of_k.clone();
        let along = (factor * along).mul_scalar(-dim.recip());
        let weights = w.unsqueeze::<3>();
        let of_stream = || {
            let through_norm = along.clone() * of_k.clone() * of_h.clone().powi_scalar(3);
            gradient.clone() + both.clone() * weights.clone() * k.clone() + through_norm * h.clone()
        };
        let of_keys = || {
            let through_norm = along.clone() * of_h.clone() * of_k.clone().powi_scalar(3);
            both.clone() * weights.clone() * h.clone() + through_norm * k.clone()
        };
        let of_value = || (gate.clone() * gradient.clone()).sum_dim(1).squeeze_dim::<2>(1);
        let of_weights = || (both.clone() * h.clone() * k.clone()).sum_dim(0).squeeze_dim::<2>(0);
        [
            wanted[0].then(|| into_primitive(of_stream())),
            wanted[1].then(|| into_primitive(of_keys())),
            wanted[2].then(|| into_primitive(of_value())),
            wanted[3].then(|| into_primitive(of_weights())),
        ]
    }
}

/// What the gate of one token and copy comes from.
struct Scalars<T> {
    along: T,
    of_h: T,
    of_k: T,
    scaled: T,
    gate: T,
}

impl Gate {
    #[inline(always)]
    fn scalars<T: HostFloat>(&self, h: &[T], k: &[T], w: &[T], weighted: &mut [T]) -> Scalars<T> {
        let dim = T::of(h.len() as f64);
        zip(weighted.iter_mut(), zip(h, w)).for_each(|(weighted, (&h, &w))| *weighted = h * w);
        let scale = |x: &[T]| (dot(x, x) / dim + T::of(self.eps)).sqrt().recip();
        let (along, of_h, of_k) = (dot(weighted, k), scale(h), scale(k));
        let scaled = along * of_h * of_k / dim.sqrt();
        let root = scaled.abs().max(T::of(DOT_FLOOR)).sqrt();
        let root = if scaled < T::zero() { -root } else { root };
        Scalars { along, of_h, of_k, scaled, gate: (T::one() + (-root).exp()).recip() }
    }

    /// The gradients of the stream, the keys and the value of one token, and that of the weights, which is added to.
    #[inline(always)]
    fn backward_of_token<T: HostFloat>(
        &self,
        [h, k, v, w]: [&[T]; 4],
        gradient: &[T],
        [of_h, of_k, of_v, of_w]: [&mut [T]; 4],
    ) {
        let dim = v.len();
        let size = T::of(dim as f64);
        let mut weighted = vec![T::zero(); dim];
        for copy in 0..h.len() / dim {
            let at = copy * dim..(copy + 1) * dim;
            let (h, k, w, gradient) = (&h[at.clone()], &k[at.clone()], &w[at.clone()], &gradient[at.clone()]);
            let parts = self.scalars(h, k, w, &mut weighted);
            add_scaled(of_v, parts.gate, gradient);
            let of_h = &mut of_h[at.clone()];
            of_h.copy_from_slice(gradient);
            let magnitude = parts.scaled.abs();
            if magnitude <= T::of(DOT_FLOOR) {
                continue;
            }
            let of_gate = dot(gradient, v) * parts.gate * (T::one() - parts.gate);
            let factor = of_gate / (T::of(2.0) * magnitude.sqrt()) / size.sqrt();
            let both = factor * parts.of_h * parts.of_k;
            let through_h = -factor * parts.along * parts.of_k * parts.of_h.powi(3) / size;
            let through_k = -factor * parts.along * parts.of_h * parts.of_k.powi(3) / size;
            let (of_k, of_w) = (&mut of_k[at.clone()], &mut of_w[at]);
            for place in 0..dim {
                of_h[place] = of_h[place] + both * w[place] * k[place] + through_h * h[place];
                of_k[place] = both * weighted[place] + through_k * k[place];
                of_w[place] = of_w[place] + both * h[place] * k[place];
            }
        }
    }
}

impl HostOp<4> for Gate {
    fn forward_on_host<T: HostFloat>(&self, [h, k, v, w]: [View<'_, T>; 4]) -> Option<Values<T>> {
        if self.order == Order::Backend {
            return None;
        }
        let &[_, copies, dim] = h.dims else { return None };
        let mut result = Values { dims: h.dims.to_vec(), values: h.values.to_vec() };
        let tokens = result.values.par_chunks_mut(copies * dim).zip(h.values.par_chunks(copies * dim));
        let tokens = tokens.zip(k.values.par_chunks(copies * dim)).zip(v.values.par_chunks(dim));
        tokens.with_min_len(TOKENS).for_each_init(
            || vec![T::zero(); dim],
            |weighted, (((result, h), k), v)| {
                let copies = zip(result.chunks_exact_mut(dim), zip(h.chunks_exact(dim), k.chunks_exact(dim)));
                vectorised!({
                    for ((result, (h, k)), w) in copies.zip(w.values.chunks_exact(dim)) {
                        add_scaled(result, self.scalars(h, k, w, weighted).gate, v);
                    }
                });
            },
        );
        Some(result)
    }

    fn backward_on_host<T: HostFloat>(
        &self,
        [h, k, v, w]: [View<'_, T>; 4],
        gradient: View<'_, T>,
        wanted: [bool; 4],
    ) -> Option<[Option<Values<T>>; 4]> {
        /// Tokens whose share of the weights' gradient is summed apart, so that it does not depend on the threads.
        const PART: usize = 256;

        if self.order == Order::Backend {
            return None;
        }

        let &[_, copies, dim] = h.dims else { return None };
        let (mut of_h, mut of_k, mut of_v) = (Values::zeros_like(h), Values::zeros_like(k), Values::zeros_like(v));
        let stream = PART * copies * dim;
        let parts = of_h.values.par_chunks_mut(stream).zip(of_k.values.par_chunks_mut(stream));
        let parts = parts.zip(of_v.values.par_chunks_mut(PART * dim)).enumerate();
        let shares: Vec<Vec<T>> = parts
            .map(|(part, ((of_h, of_k), of_v))| {
                let mut of_w = vec![T::zero(); copies * dim];
                let tokens = zip(of_h.chunks_exact_mut(copies * dim), of_k.chunks_exact_mut(copies * dim));
                for (index, ((of_h, of_k), of_v)) in tokens.zip(of_v.chunks_exact_mut(dim)).enumerate() {
                    let token = part * PART + index;
                    let stream = token * copies * dim..(token + 1) * copies * dim;
                    let (h, k) = (&h.values[stream.clone()], &k.values[stream.clone()]);
                    let inputs = [h, k, &v.values[token * dim..][..dim], w.values];
                    let gradients = [of_h, of_k, of_v, &mut of_w];
                    vectorised!(self.backward_of_token(inputs, &gradient.values[stream], gradients));
                }
                of_w
            })
            .collect();
        let mut of_w = Values::zeros_like(w);
        shares.iter().for_each(|share| add_scaled(&mut of_w.values, T::one(), share));
        Some([
            wanted[0].then_some(of_h),
            wanted[1].then_some(of_k),
            wanted[2].then_some(of_v),
            wanted[3].then_some(of_w),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{check_op, numbers};

    #[test]
    fn the_kernel_and_its_gradients_are_those_of_the_composed_operations() {
        let inputs = [numbers(&[3, 4, 7], 0.1), numbers(&[3, 4, 7], 0.2), numbers(&[3, 7], 0.3), numbers(&[4, 7], 0.4)];
        for order in [Order::Any, Order::Backend] {
            check_op(&Gate { eps: 1e-3, order }, inputs.clone());
        }
    }
}
