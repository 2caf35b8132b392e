//! The rotation as an operation with a backward pass of its own.

use burn::tensor::{Tensor, backend::Backend, ops::FloatTensor};
use dsv41_ops::{
    CustomOp, CustomOps, from_primitive,
    host::{HostFloat, HostOp, Values, View},
    into_primitive,
};
use rayon::prelude::*;

/// Positions that a thread takes at a time.
const POSITIONS: usize = 16;

/// Turns the last `2 * pairs` channels of `[B, S, H, d]` by the angles whose cosines and sines are `[S, pairs]`.
///
/// The gradient of the vectors is that of the result, turned the other way; angles take none.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rotate {
    /// By the negative angles.
    pub(super) back: bool,
}

impl CustomOp<3> for Rotate {
    fn forward<B: CustomOps>(&self, inputs: [FloatTensor<B>; 3]) -> FloatTensor<B> {
        if let Some(turned) = B::host_forward(self, &inputs) {
            return turned;
        }
        let [x, cos, sin] = inputs;
        let sin = from_primitive::<B, 2>(sin);
        let sin = if self.back { sin.neg() } else { sin };
        into_primitive(rotate::<B>(from_primitive(x), from_primitive(cos), sin))
    }

    fn backward<B: CustomOps>(
        &self,
        [_, cos, sin]: [FloatTensor<B>; 3],
        gradient: FloatTensor<B>,
        _: [bool; 3],
    ) -> [Option<FloatTensor<B>>; 3] {
        [Some(Self { back: !self.back }.forward::<B>([gradient, cos, sin])), None, None]
    }
}

fn rotate<B: Backend>(x: Tensor<B, 4>, cos: Tensor<B, 2>, sin: Tensor<B, 2>) -> Tensor<B, 4> {
    let [batch, seq, heads, width] = x.dims();
    let [_, pairs] = cos.dims();
    let still = width - 2 * pairs;
    let rotating = x.clone().narrow(3, still, 2 * pairs).reshape([batch, seq, heads, pairs, 2]);
    let even = rotating.clone().narrow(4, 0, 1);
    let odd = rotating.narrow(4, 1, 1);
    let cos = cos.reshape([1, seq, 1, pairs, 1]);
    let sin = sin.reshape([1, seq, 1, pairs, 1]);
    let rotated = Tensor::cat(vec![even.clone() * cos.clone() - odd.clone() * sin.clone(), even * sin + odd * cos], 4)
        .reshape([batch, seq, heads, 2 * pairs]);
    if still == 0 {
        return rotated;
    }
    Tensor::cat(vec![x.narrow(3, 0, still), rotated], 3)
}

impl HostOp<3> for Rotate {
    fn forward_on_host<T: HostFloat>(&self, [x, cos, sin]: [View<'_, T>; 3]) -> Option<Values<T>> {
        let (&[_, seq, heads, width], &[_, pairs]) = (x.dims, cos.dims) else { return None };
        let mut turned = Values { dims: x.dims.to_vec(), values: x.values.to_vec() };
        let positions = turned.values.par_chunks_mut(heads * width).enumerate().with_min_len(POSITIONS);
        positions.for_each(|(position, vectors)| {
            let angles = (position % seq) * pairs..(position % seq + 1) * pairs;
            let (cos, sin) = (&cos.values[angles.clone()], &sin.values[angles]);
            for vector in vectors.chunks_exact_mut(width) {
                let (turning, _) = vector[width - 2 * pairs..].as_chunks_mut::<2>();
                for (pair, (&cos, &sin)) in turning.iter_mut().zip(cos.iter().zip(sin)) {
                    let sin = if self.back { -sin } else { sin };
                    let [even, odd] = *pair;
                    *pair = [even * cos - odd * sin, even * sin + odd * cos];
                }
            }
        });
        Some(turned)
    }

    fn backward_on_host<T: HostFloat>(
        &self,
        [_, cos, sin]: [View<'_, T>; 3],
        gradient: View<'_, T>,
        _: [bool; 3],
    ) -> Option<[Option<Values<T>>; 3]> {
        Some([Self { back: !self.back }.forward_on_host([gradient, cos, sin]), None, None])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{check_op_of_first, numbers};

    #[test]
    fn the_kernel_is_the_composed_operation_and_turns_gradients_back() {
        for back in [false, true] {
            for width in [6, 9] {
                check_op_of_first(
                    &Rotate { back },
                    [numbers(&[2, 4, 3, width], 0.1), numbers(&[4, 3], 0.2), numbers(&[4, 3], 0.3)],
                );
            }
        }
    }
}
