//! What a training step takes from a call besides its result.

use burn::tensor::{Tensor, TensorData, backend::Backend};

/// Takes part in a call that is to be differentiated. Every method has a default, so that an objective implements what it
/// is about. Where blocks are computed again for the backward pass, it sees only that second time.
pub trait Objective<B: Backend> {
    /// Sees how a layer's tokens went to experts.
    fn routing(&mut self, layer: usize, routing: Routing<'_, B>) {
        let _ = (layer, routing);
    }

    /// Whether [`Self::indexing`] is to be called, which takes a second pass over the attention's weights.
    fn wants_indexing(&self) -> bool {
        false
    }

    /// Sees how an index source scored the positions that its layer then attended.
    fn indexing(&mut self, layer: usize, indexing: Indexing<'_, B>) {
        let _ = (layer, indexing);
    }

    /// Sees the rows that a layer's engram looked up, `[rows.len(), width]`; what it gives is used in their place.
    fn engram_rows(&mut self, layer: usize, rows: &[i64], values: Tensor<B, 2>) -> Tensor<B, 2> {
        let _ = (layer, rows);
        values
    }

    /// Told once a graph is differentiated: gives the gradient of a tensor of [`Self::engram_rows`].
    fn backward(&mut self, gradient: &dyn Fn(&Tensor<B, 2>) -> Option<TensorData>) {
        let _ = gradient;
    }

    /// The terms of the loss that came up since it was last asked.
    fn take_loss(&mut self) -> Option<Tensor<B, 1>> {
        None
    }
}

/// How N tokens, sequence by sequence, went to E experts.
#[derive(Debug)]
pub struct Routing<'a, B: Backend> {
    /// `[N, E]`, over the temperature.
    pub logits: Tensor<B, 2>,
    /// `[N, E]`, what weights are made of.
    pub scores: Tensor<B, 2>,
    /// The experts in force, `[N, activated]`.
    pub choices: &'a [i64],
}

/// How an index source scored. The layer's input and low-rank query enter as constants, so gradients reach the indexer's
/// own parameters alone.
#[derive(Debug)]
pub struct Indexing<'a, B: Backend> {
    /// `[B, S, heads, index_head_dim]`
    pub query: Tensor<B, 4>,
    /// Weight of each index head with its constant factor, `[B, S, heads]`.
    pub weights: Tensor<B, 3>,
    /// `[B, T, index_head_dim]`
    pub keys: Tensor<B, 3>,
    /// The compressed positions that each query attended, `[B, S, K]` with -1 for none.
    pub selected: &'a [i64],
    /// The attention's weights summed over its heads, of the listed compressed positions, `[B, S, K]`, where window and
    /// sink count in the denominator; a constant.
    pub attended: Tensor<B, 3>,
}
