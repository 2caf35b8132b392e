//! The scores of compressed positions, `sum_h w[h] * relu(q_h . k_t)`, of some queries at a time.

use std::ops::Range;

use burn::tensor::{DType, Int, Tensor, TensorData, activation::relu, backend::Backend, ops::FloatTensor};
use dsv41_ops::{
    CustomOp, CustomOps, constant, custom, from_primitive,
    host::{HostFloat, HostOp, Values, View},
    into_primitive, vectorised,
};
use rayon::prelude::*;

use crate::{ModelBackend, Numerics};

/// What an indexer scores with.
#[derive(Debug)]
pub(crate) struct IndexOperands<B: Backend> {
    /// `[B, S, heads, index_head_dim]`
    pub(crate) query: Tensor<B, 4>,
    /// `[B, S, heads]`
    pub(crate) weights: Tensor<B, 3>,
    /// `[B, T, index_head_dim]`
    pub(crate) keys: Tensor<B, 3>,
}

impl<B: ModelBackend> IndexOperands<B> {
    /// The same, outside of every graph.
    pub(super) fn constant(&self) -> Self {
        Self {
            query: constant(self.query.clone()),
            weights: constant(self.weights.clone()),
            keys: constant(self.keys.clone()),
        }
    }

    /// The scores of some queries of every sequence at the positions before `end`, `[B, n, end]`.
    pub(super) fn score(&self, queries: Range<usize>, end: usize, numerics: Numerics) -> Vec<f64> {
        let (query, weights) = self.of_queries(&queries);
        let [batch, count, heads, head_dim] = query.dims();
        let keys = self.keys.clone().narrow(1, 0, end).swap_dims(1, 2);
        let products = query.reshape([batch, count * heads, head_dim]).matmul(keys);
        weigh(products.reshape([batch, count, heads, end]), weights, numerics)
    }

    /// The scores of some queries of every sequence at `width` positions of each, `[B, n, width]`.
    pub(super) fn score_at(
        &self,
        queries: Range<usize>,
        positions: &[usize],
        width: usize,
        numerics: Numerics,
    ) -> Vec<f64> {
        let (query, weights) = self.of_queries(&queries);
        let [batch, count, heads, head_dim] = query.dims();
        let all = self.keys.dims()[1];
        let rows = positions.iter().enumerate().map(|(place, position)| place / (count * width) * all + position);
        let rows: Vec<i64> = rows.map(|row| row as i64).collect();
        let rows = Tensor::<B, 1, Int>::from_data(TensorData::new(rows, [batch * count * width]), &self.keys.device());
        let keys = self.keys.clone().flatten::<2>(0, 1).select(0, rows).reshape([batch * count, width, head_dim]);
        let products = query.reshape([batch * count, heads, head_dim]).matmul(keys.swap_dims(1, 2));
        weigh(products.reshape([batch, count, heads, width]), weights, numerics)
    }

    fn of_queries(&self, queries: &Range<usize>) -> (Tensor<B, 4>, Tensor<B, 3>) {
        let (first, count) = (queries.start, queries.len());
        (self.query.clone().narrow(1, first, count), self.weights.clone().narrow(1, first, count))
    }
}

/// From `q_h . k_t`, `[B, n, heads, T]`, and the heads' weights `[B, n, heads]` to scores `[B, n, T]`.
fn weigh<B: ModelBackend>(products: Tensor<B, 4>, weights: Tensor<B, 3>, numerics: Numerics) -> Vec<f64> {
    let scores: Tensor<B, 3> = match numerics {
        Numerics::Full => custom(WeighHeads, [into_primitive(products), into_primitive(weights)]),
        _ => {
            let weighted = numerics.bf16(relu(numerics.bf16(products)) * weights.unsqueeze_dim(3));
            numerics.bf16(weighted.sum_dim(2)).squeeze_dim(2)
        }
    };
    let scores = scores.into_data();
    match scores.dtype {
        DType::F32 => {
            let scores = scores.into_vec::<f32>().expect("f32, as it says");
            scores.into_iter().map(f64::from).collect()
        }
        _ => scores.iter::<f64>().collect(),
    }
}

/// `sum_h w[h] * relu(x[h])` from x `[B, n, heads, T]` and w `[B, n, heads]`, without rounding and without gradients: scores
/// are made to choose by.
#[derive(Debug)]
struct WeighHeads;

impl CustomOp<2> for WeighHeads {
    fn forward<B: CustomOps>(&self, inputs: [FloatTensor<B>; 2]) -> FloatTensor<B> {
        B::host_forward(self, &inputs).unwrap_or_else(|| {
            let [x, weights] = inputs;
            let (x, weights) = (from_primitive::<B, 4>(x), from_primitive::<B, 3>(weights));
            into_primitive((relu(x) * weights.unsqueeze_dim(3)).sum_dim(2).squeeze_dim::<3>(2))
        })
    }

    fn backward<B: CustomOps>(
        &self,
        _: [FloatTensor<B>; 2],
        _: FloatTensor<B>,
        _: [bool; 2],
    ) -> [Option<FloatTensor<B>>; 2] {
        [None, None]
    }
}

impl HostOp<2> for WeighHeads {
    fn forward_on_host<T: HostFloat>(&self, [x, weights]: [View<'_, T>; 2]) -> Option<Values<T>> {
        let &[batch, count, heads, width] = x.dims else { return None };
        let mut scores = vec![T::zero(); batch * count * width];
        let queries = scores.par_chunks_mut(width).zip(x.values.par_chunks(heads * width));
        queries.zip(weights.values.par_chunks(heads)).for_each(|((scores, x), weights)| {
            vectorised!({
                for (x, &weight) in x.chunks_exact(width).zip(weights) {
                    for (score, &x) in scores.iter_mut().zip(x) {
                        *score = *score + weight * if x < T::zero() { T::zero() } else { x };
                    }
                }
            });
        });
        Some(Values { dims: vec![batch, count, width], values: scores })
    }

    fn backward_on_host<T: HostFloat>(
        &self,
        _: [View<'_, T>; 2],
        _: View<'_, T>,
        _: [bool; 2],
    ) -> Option<[Option<Values<T>>; 2]> {
        Some([None, None])
    }
}

#[cfg(test)]
mod tests {
    use burn::backend::{Flex, NdArray};

    use super::*;
    use crate::testing::{check_op_of_none, numbers};

    fn operands<B: ModelBackend>() -> IndexOperands<B> {
        let device = (&B::Device::default(), DType::F64);
        IndexOperands {
            query: Tensor::from_data(numbers(&[2, 5, 3, 32], 0.1), device),
            weights: Tensor::from_data(numbers(&[2, 5, 3], 0.2), device),
            keys: Tensor::from_data(numbers(&[2, 7, 32], 0.3), device),
        }
    }

    fn by_hand(operands: &IndexOperands<Flex>, [row, query, position]: [usize; 3]) -> f64 {
        let values = |tensor: TensorData| tensor.iter::<f64>().collect::<Vec<_>>();
        let [q, w, k] = [&operands.query.to_data(), &operands.weights.to_data(), &operands.keys.to_data()]
            .map(|data| values(data.clone()));
        let of_head = |head: usize| {
            let at = (row * 5 + query) * 3 + head;
            let product: f64 = (0..32).map(|i| q[at * 32 + i] * k[(row * 7 + position) * 32 + i]).sum();
            w[at] * product.max(0.0)
        };
        (0..3).map(of_head).sum()
    }

    fn check<B: ModelBackend>() {
        let (operands, expected) = (operands::<B>(), operands::<Flex>());
        let close = |found: f64, place: [usize; 3]| {
            let expected = by_hand(&expected, place);
            assert!((found - expected).abs() < 1e-12, "{place:?}: {found}, expected {expected}");
        };
        let scores = operands.score(1..4, 6, Numerics::Full);
        assert_eq!(scores.len(), 2 * 3 * 6);
        for (index, &score) in scores.iter().enumerate() {
            close(score, [index / 18, 1 + index / 6 % 3, index % 6]);
        }
        let positions: Vec<usize> = (0..2 * 3 * 4).map(|place| place * 5 % 7).collect();
        let scores = operands.score_at(1..4, &positions, 4, Numerics::Full);
        for (index, &score) in scores.iter().enumerate() {
            close(score, [index / 12, 1 + index / 4 % 3, positions[index]]);
        }
    }

    #[test]
    fn heads_are_weighed_alike_by_the_kernel() {
        check_op_of_none(&WeighHeads, [numbers(&[2, 3, 4, 5], 0.7), numbers(&[2, 3, 4], 0.8)]);
    }

    #[test]
    fn scores_are_those_computed_by_hand() {
        check::<Flex>();
        check::<NdArray<f64>>();
    }
}
