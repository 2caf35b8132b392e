//! Out of the residual stream and back into it, as operations with backward passes of their own.
//!
//! The stream goes from layer to layer through sums and products alone. Burn's balanced checkpointing computes those
//! again from what they came from, back to the first layer, unless operations like these, whose results are kept, stand
//! between.

use burn::tensor::{Tensor, backend::Backend, ops::FloatTensor};
use dsv41_ops::{CustomOp, CustomOps, from_primitive, into_primitive};

/// `x = sum_c mix[c] * h[c]`: `[B, S, C, D]` and `[B, S, C]` to `[B, S, D]`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Collapse;

impl CustomOp<2> for Collapse {
    fn forward<B: CustomOps>(&self, inputs: [FloatTensor<B>; 2]) -> FloatTensor<B> {
        if let Some(result) = B::host_forward(self, &inputs) {
            return result;
        }
        let [h, mix] = inputs;
        let (h, mix) = (from_primitive::<B, 4>(h), from_primitive::<B, 3>(mix));
        into_primitive((h * mix.unsqueeze_dim::<4>(3)).sum_dim(2).squeeze_dim::<3>(2))
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
        let [h, mix] = inputs;
        let gradient = from_primitive::<B, 3>(gradient).unsqueeze_dim::<4>(2);
        let of_h = || from_primitive::<B, 3>(mix).unsqueeze_dim::<4>(3) * gradient.clone();
        let of_mix = || (from_primitive::<B, 4>(h) * gradient.clone()).sum_dim(3).squeeze_dim::<3>(3);
        [wanted[0].then(|| into_primitive(of_h())), wanted[1].then(|| into_primitive(of_mix()))]
    }
}

/// `h'[k] = post[k] * y + sum_j comb[j][k] * h[j]`: the stream `[B, S, C, D]`, the sublayer's result `[B, S, D]`, `[B, S, C]`
/// and `[B, S, C, C]` to the stream.
///
/// The sum is written out, since a matrix product would contract it into fused multiply-adds, which the released code's
/// elementwise products and sums do not.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expand;

impl CustomOp<4> for Expand {
    fn forward<B: CustomOps>(&self, inputs: [FloatTensor<B>; 4]) -> FloatTensor<B> {
        if let Some(result) = B::host_forward(self, &inputs) {
            return result;
        }
        let [h, y, post, comb] = inputs;
        let (h, comb) = (from_primitive::<B, 4>(h), from_primitive::<B, 4>(comb));
        let (y, post) = (from_primitive::<B, 3>(y), from_primitive::<B, 3>(post));
        let mixed = sum_over_copies(h, |j| comb.clone().narrow(2, j, 1).swap_dims(2, 3));
        into_primitive(post.unsqueeze_dim::<4>(3) * y.unsqueeze_dim::<4>(2) + mixed)
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
        let [h, y, post, comb] = inputs;
        let gradient = from_primitive::<B, 4>(gradient);
        let copies = gradient.dims()[2];
        let of_h = || sum_over_copies(gradient.clone(), |k| from_primitive::<B, 4>(comb.clone()).narrow(3, k, 1));
        let of_y = || {
            let weights = from_primitive::<B, 3>(post).unsqueeze_dim::<4>(3);
            (weights * gradient.clone()).sum_dim(2).squeeze_dim::<3>(2)
        };
        let of_post = || {
            let y = from_primitive::<B, 3>(y).unsqueeze_dim::<4>(2);
            (y * gradient.clone()).sum_dim(3).squeeze_dim::<3>(3)
        };
        let of_comb = || {
            let h = from_primitive::<B, 4>(h);
            let rows = (0..copies).map(|j| (h.clone().narrow(2, j, 1) * gradient.clone()).sum_dim(3).swap_dims(2, 3));
            Tensor::<B, 4>::cat(rows.collect(), 2)
        };
        [
            wanted[0].then(|| into_primitive(of_h())),
            wanted[1].then(|| into_primitive(of_y())),
            wanted[2].then(|| into_primitive(of_post())),
            wanted[3].then(|| into_primitive(of_comb())),
        ]
    }
}

/// `sum_j weights(j) * stream[j]`, weights `[B, S, C, 1]`: `[B, S, C, D]`.
fn sum_over_copies<B: Backend>(stream: Tensor<B, 4>, weights: impl Fn(usize) -> Tensor<B, 4>) -> Tensor<B, 4> {
    (0..stream.dims()[2])
        .map(|j| weights(j) * stream.clone().narrow(2, j, 1))
        .reduce(|sum, term| sum + term)
        .expect("the stream has at least one copy")
}

#[cfg(test)]
mod tests {
    use burn::{
        backend::{Autodiff, NdArray},
        tensor::TensorData,
    };
    use dsv41_ops::custom;

    use super::*;
    use crate::testing::{check_op, numbers};

    type B = Autodiff<NdArray<f64>>;

    fn leaf<const D: usize>(shape: [usize; D], salt: f64) -> Tensor<B, D> {
        let count = shape.iter().product::<usize>();
        let values: Vec<f64> = (0..count).map(|index| (1.7 * index as f64 + salt).sin()).collect();
        Tensor::<B, D>::from_data(TensorData::new(values, shape), &Default::default()).require_grad()
    }

    fn assert_close(found: TensorData, expected: TensorData) {
        assert_eq!(found.shape, expected.shape);
        for (found, expected) in found.iter::<f64>().zip(expected.iter::<f64>()) {
            assert!((found - expected).abs() <= 1e-12, "{found:e}, expected {expected:e}");
        }
    }

    #[test]
    fn kernels_and_gradients_are_those_of_the_composed_operations() {
        check_op(&Collapse, [numbers(&[2, 3, 4, 5], 0.1), numbers(&[2, 3, 4], 0.2)]);
        let inputs = [
            numbers(&[2, 2, 4, 5], 0.1),
            numbers(&[2, 2, 5], 0.2),
            numbers(&[2, 2, 4], 0.3),
            numbers(&[2, 2, 4, 4], 0.4),
        ];
        check_op(&Expand, inputs);
    }

    #[test]
    fn the_way_out_has_the_gradients_of_separate_operations() {
        let (h, mix) = (leaf([2, 3, 4, 5], 0.1), leaf([2, 3, 4], 0.2));
        let found: Tensor<B, 3> = custom(Collapse, [into_primitive(h.clone()), into_primitive(mix.clone())]);
        let found = found.square().sum().backward();
        let plain = (h.clone() * mix.clone().unsqueeze_dim::<4>(3)).sum_dim(2).square().sum().backward();
        assert_close(h.grad(&found).unwrap().into_data(), h.grad(&plain).unwrap().into_data());
        assert_close(mix.grad(&found).unwrap().into_data(), mix.grad(&plain).unwrap().into_data());
    }

    #[test]
    fn the_way_back_has_the_gradients_of_separate_operations() {
        let (h, y, post, comb) =
            (leaf([2, 3, 4, 5], 0.1), leaf([2, 3, 5], 0.2), leaf([2, 3, 4], 0.3), leaf([2, 3, 4, 4], 0.4));
        let inputs = [
            into_primitive(h.clone()),
            into_primitive(y.clone()),
            into_primitive(post.clone()),
            into_primitive(comb.clone()),
        ];
        let found = custom::<B, _, 4, 4>(Expand, inputs).square().sum().backward();
        let plain = post.clone().unsqueeze_dim::<4>(3) * y.clone().unsqueeze_dim::<4>(2)
            + comb.clone().swap_dims(2, 3).matmul(h.clone());
        let plain = plain.square().sum().backward();
        assert_close(h.grad(&found).unwrap().into_data(), h.grad(&plain).unwrap().into_data());
        assert_close(y.grad(&found).unwrap().into_data(), y.grad(&plain).unwrap().into_data());
        assert_close(post.grad(&found).unwrap().into_data(), post.grad(&plain).unwrap().into_data());
        assert_close(comb.grad(&found).unwrap().into_data(), comb.grad(&plain).unwrap().into_data());
    }
}
