//! Sinkhorn's iterations as an operation with a backward pass of its own.
//!
//! As separate operations, every division would be a node that keeps its operands, some eighty for a mixer; and under
//! Burn's balanced checkpointing, which looks for what to compute again without remembering where it has been, each
//! matrix that is used twice would double the search.

use burn::tensor::{Tensor, activation::softmax, backend::Backend, ops::FloatTensor};
use dsv41_ops::{CustomOp, CustomOps, from_primitive, into_primitive};

pub(super) const ROWS: usize = 3;
const COLUMNS: usize = 2;

/// From logits `[.., .., C, C]` towards a doubly stochastic matrix: a softmax of the rows and one division of the
/// columns, then rows and columns in turn. Every denominator is guarded.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sinkhorn {
    /// Divisions of the columns.
    pub(super) iterations: usize,
    /// What every sum is guarded by, and what the softmax is raised by.
    pub(super) eps: f64,
}

/// A division of a matrix by its sums along an axis.
struct Division<B: Backend> {
    axis: usize,
    /// The guarded sums.
    sums: Tensor<B, 4>,
    result: Tensor<B, 4>,
}

impl Sinkhorn {
    fn divide<B: Backend>(&self, matrix: Tensor<B, 4>, axis: usize) -> Division<B> {
        let sums = matrix.clone().sum_dim(axis).add_scalar(self.eps);
        Division { axis, result: matrix / sums.clone(), sums }
    }

    /// The axes of the divisions, in order.
    pub(super) fn axes(&self) -> impl Iterator<Item = usize> {
        [COLUMNS].into_iter().chain((1..self.iterations).flat_map(|_| [ROWS, COLUMNS]))
    }
}

impl CustomOp<1> for Sinkhorn {
    fn forward<B: CustomOps>(&self, inputs: [FloatTensor<B>; 1]) -> FloatTensor<B> {
        if let Some(matrices) = B::host_forward(self, &inputs) {
            return matrices;
        }
        let [logits] = inputs;
        let first = softmax(from_primitive::<B, 4>(logits), ROWS).add_scalar(self.eps);
        into_primitive(self.axes().fold(first, |matrix, axis| self.divide(matrix, axis).result))
    }

    /// With `y = x / s` and `s = sum(x) + eps` along an axis, `dx = (dy - sum(dy y)) / s`; through the softmax p of the
    /// logits, `dl = p (dp - sum(dp p))`.
    fn backward<B: CustomOps>(
        &self,
        inputs: [FloatTensor<B>; 1],
        gradient: FloatTensor<B>,
        wanted: [bool; 1],
    ) -> [Option<FloatTensor<B>>; 1] {
        if let Some(gradients) = B::host_backward(self, &inputs, &gradient, wanted) {
            return gradients;
        }
        let [logits] = inputs;
        let probs = softmax(from_primitive::<B, 4>(logits), ROWS);
        let mut matrix = probs.clone().add_scalar(self.eps);
        let divisions: Vec<Division<B>> = self
            .axes()
            .map(|axis| {
                let division = self.divide(matrix.clone(), axis);
                matrix = division.result.clone();
                division
            })
            .collect();
        let along = |gradient: Tensor<B, 4>, values: &Tensor<B, 4>, axis| {
            gradient.clone() - (gradient * values.clone()).sum_dim(axis)
        };
        let gradient = divisions.into_iter().rev().fold(from_primitive(gradient), |gradient, division| {
            along(gradient, &division.result, division.axis) / division.sums
        });
        [Some(into_primitive(probs.clone() * along(gradient, &probs, ROWS)))]
    }
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

    const SINKHORN: Sinkhorn = Sinkhorn { iterations: 5, eps: 1e-3 };

    fn logits() -> Tensor<B, 4> {
        let values: Vec<f64> = (0..32).map(|index| 2.0 * f64::from(index * index % 17).sin()).collect();
        Tensor::<B, 4>::from_data(TensorData::new(values, [1, 2, 4, 4]), &Default::default()).require_grad()
    }

    /// The same in operations of the graph.
    fn plain(logits: Tensor<B, 4>) -> Tensor<B, 4> {
        let first = softmax(logits, ROWS).add_scalar(SINKHORN.eps);
        SINKHORN.axes().fold(first, |matrix, axis| SINKHORN.divide(matrix, axis).result)
    }

    fn gradient(of: impl Fn(Tensor<B, 4>) -> Tensor<B, 4>) -> (Vec<f64>, Vec<f64>) {
        let logits = logits();
        let result = of(logits.clone());
        let weights = Tensor::<B, 4>::ones([1, 2, 4, 4], &Default::default()) + result.clone().detach().sin();
        let gradients = (result.clone().square() * weights).sum().backward();
        let gradient = logits.grad(&gradients).expect("logits are tracked");
        (result.into_data().iter().collect(), gradient.into_data().iter().collect())
    }

    #[test]
    fn the_backward_pass_is_that_of_the_separate_operations() {
        let (result, found) = gradient(|logits| custom(SINKHORN, [into_primitive::<B, 4>(logits)]));
        let (expected_result, expected) = gradient(plain);
        assert_eq!(result, expected_result);
        for (found, expected) in found.iter().zip(&expected) {
            assert!((found - expected).abs() <= 1e-12, "{found:e}, expected {expected:e}");
        }
    }

    #[test]
    fn kernels_and_gradients_are_those_of_the_composed_operations() {
        check_op(&SINKHORN, [numbers(&[1, 3, 4, 4], 0.1)]);
        check_op(&Sinkhorn { iterations: 1, eps: 1e-6 }, [numbers(&[2, 1, 2, 2], 0.3)]);
    }
}
