//! Sparse attention as an operation with a backward pass that gathers keys again.

use burn::tensor::{IndexingUpdateOp, Tensor, backend::Backend, ops::FloatTensor};
use dsv41_ops::{CustomOp, CustomOps, from_primitive, into_primitive};

use super::{
    KeyLists,
    softmax::{Softmax, scale},
    tiles::{Tile, Tiles},
};
use crate::Numerics;

/// Attention of queries `[B, S, H, d]` to keys `[B, N, d]` with a sink `[H]`, not rounded in the end.
#[derive(Debug)]
pub(super) struct SparseAttention {
    pub(super) lists: KeyLists,
    pub(super) numerics: Numerics,
    pub(super) round_probs: bool,
    /// Numbers gathered at a time.
    pub(super) tile_elements: usize,
}

impl CustomOp<3> for SparseAttention {
    fn forward<B: CustomOps>(&self, inputs: [FloatTensor<B>; 3]) -> FloatTensor<B> {
        if let Some(result) = B::host_forward(self, &inputs) {
            return result;
        }
        let [query, keys, sink] = inputs;
        into_primitive(self.attend::<B>(from_primitive(query), from_primitive(keys), from_primitive(sink)))
    }

    fn backward<B: CustomOps>(
        &self,
        inputs: [FloatTensor<B>; 3],
        gradient: FloatTensor<B>,
        wanted: [bool; 3],
    ) -> [Option<FloatTensor<B>>; 3] {
        if let Some(gradients) = B::host_backward(self, &inputs, &gradient, wanted) {
            return gradients;
        }
        let [query, keys, sink] = inputs;
        let (query, keys) = (from_primitive::<B, 4>(query), from_primitive::<B, 3>(keys));
        let shapes = (query.dims(), keys.dims());
        let [batch, seq, heads, width] = shapes.0;
        let softmax = Softmax::new(from_primitive(sink), self.numerics, self.round_probs);
        let gradient = from_primitive::<B, 4>(gradient).reshape([batch * seq, heads, width]);

        let mut sums = Sums::new(shapes.1, heads, &gradient, wanted);
        for tile in Tiles::new(query, keys, &self.lists, self.tile_elements).iter() {
            let gradient = gradient.clone().narrow(0, tile.queries.start, tile.queries.len());
            sums.add(&softmax, tile, gradient);
        }
        [
            sums.query.map(|tiles| into_primitive(Tensor::cat(tiles, 0).reshape(shapes.0))),
            sums.keys.map(|keys| into_primitive(keys.reshape(shapes.1))),
            sums.sink.map(into_primitive),
        ]
    }
}

impl SparseAttention {
    /// The forward pass in tensor operations.
    pub(super) fn attend<B: Backend>(
        &self,
        query: Tensor<B, 4>,
        keys: Tensor<B, 3>,
        sink: Tensor<B, 1>,
    ) -> Tensor<B, 4> {
        let shape = query.dims();
        let softmax = Softmax::new(sink, self.numerics, self.round_probs);
        let tiles = Tiles::new(query, keys, &self.lists, self.tile_elements);
        Tensor::cat(tiles.iter().map(|tile| softmax.attend(tile)).collect(), 0).reshape(shape)
    }
}

/// Gradients of the inputs that take one, from the tiles so far.
struct Sums<B: Backend> {
    /// `[n, H, d]` of each tile.
    query: Option<Vec<Tensor<B, 3>>>,
    /// `[B*N, d]`
    keys: Option<Tensor<B, 2>>,
    /// `[H]`
    sink: Option<Tensor<B, 1>>,
}

impl<B: Backend> Sums<B> {
    fn new([batch, rows, width]: [usize; 3], heads: usize, like: &Tensor<B, 3>, wanted: [bool; 3]) -> Self {
        let options = (&like.device(), like.dtype());
        Self {
            query: wanted[0].then(Vec::new),
            keys: wanted[1].then(|| Tensor::zeros([batch * rows, width], options)),
            sink: wanted[2].then(|| Tensor::zeros([heads], options)),
        }
    }

    /// Adds a tile's share, given the gradient of its results, `[n, H, d]`.
    fn add(&mut self, softmax: &Softmax<B>, tile: Tile<B>, gradient: Tensor<B, 3>) {
        let width = tile.keys.dims()[2];
        let weights = softmax.weights(&tile);
        let by_entry = gradient.clone().matmul(tile.keys.clone().swap_dims(1, 2));
        // The gradient times the result, which is what the applied weights make of its products with keys.
        let by_result = (weights.applied.clone() * by_entry.clone()).sum_dim(2);
        if let Some(sink) = self.sink.take() {
            let share = (weights.sink * by_result.clone()).sum_dim(0).flatten(0, 2);
            self.sink = Some(sink - share);
        }
        let scores = (weights.exact * (by_entry - by_result)).mul_scalar(scale(width));
        if let Some(keys) = self.keys.take() {
            // One product for both ways in which a key counts: as a value and in its score.
            let coefficients = Tensor::cat(vec![weights.applied, scores.clone()], 1).swap_dims(1, 2);
            let shares = coefficients.matmul(Tensor::cat(vec![gradient, tile.query], 1)).flatten::<2>(0, 1);
            self.keys = Some(keys.select_assign(0, tile.rows, shares, IndexingUpdateOp::Add));
        }
        if let Some(query) = &mut self.query {
            query.push(scores.matmul(tile.keys));
        }
    }
}
