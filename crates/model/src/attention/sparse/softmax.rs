//! The softmax over a tile's lists: its result in the forward pass, its weights in the backward pass.

use std::ops::Range;

use burn::tensor::{Bool, Tensor, backend::Backend};

use super::tiles::Tile;
use crate::Numerics;

/// Positions of a list that the released kernel takes at a time.
const BLOCK: usize = 64;

/// Scores that stand for "not attended" before the softmax. Finite, so that a list without any key gives no NaN.
const MASKED: f64 = -1e30;

/// A softmax with a sink in its denominator.
pub(super) struct Softmax<B: Backend> {
    /// `[1, H, 1]`
    sink: Tensor<B, 3>,
    numerics: Numerics,
    round_probs: bool,
}

/// Weights of a tile's entries.
pub(super) struct Weights<B: Backend> {
    /// Of a softmax without roundings, `[n, H, L]`.
    pub(super) exact: Tensor<B, 3>,
    /// As they multiply keys, `[n, H, L]`.
    pub(super) applied: Tensor<B, 3>,
    /// What the sink takes, `[n, H, 1]`.
    pub(super) sink: Tensor<B, 3>,
}

impl<B: Backend> Softmax<B> {
    /// `sink` is `[H]`.
    pub(super) fn new(sink: Tensor<B, 1>, numerics: Numerics, round_probs: bool) -> Self {
        let heads = sink.dims()[0];
        Self { sink: sink.reshape([1, heads, 1]), numerics, round_probs }
    }

    /// What each query attends, `[n, H, d]`.
    pub(super) fn attend(&self, tile: Tile<B>) -> Tensor<B, 3> {
        let (scores, absent) = scores(&tile);
        if self.numerics.rounds() {
            self.by_blocks(scores, tile.keys, absent)
        } else {
            self.at_once(scores, tile.keys, absent)
        }
    }

    /// The weights behind [`Self::attend`]. Their sums may differ from those of the forward pass in the last bits.
    pub(super) fn weights(&self, tile: &Tile<B>) -> Weights<B> {
        let (scores, absent) = scores(tile);
        let max = scores.clone().max_dim(2).max_pair(self.sink.clone());
        let probs = (scores.clone() - max.clone()).exp().mask_fill(absent.clone(), 0.0);
        let sink = (self.sink.clone() - max.clone()).exp();
        let denominator = probs.clone().sum_dim(2) + sink.clone();
        let exact = probs / denominator.clone();
        let applied = if self.numerics.rounds() && self.round_probs {
            self.rounded(scores, absent, max) / denominator.clone()
        } else {
            exact.clone()
        };
        Weights { exact, applied, sink: sink / denominator }
    }

    fn at_once(&self, scores: Tensor<B, 3>, keys: Tensor<B, 3>, absent: Tensor<B, 3, Bool>) -> Tensor<B, 3> {
        // The shift cancels, so no gradient needs to flow through it.
        let max = scores.clone().detach().max_dim(2).max_pair(self.sink.clone().detach());
        let probs = (scores - max.clone()).exp().mask_fill(absent, 0.0);
        let denominator = probs.clone().sum_dim(2) + (self.sink.clone() - max).exp();
        probs.matmul(keys) / denominator
    }

    /// As the released kernel: blocks of 64 in list order, each probability rounded to bf16 against the maximum so far
    /// and rescaled as that grows, the denominator summing unrounded ones, the sink last and against the final maximum.
    fn by_blocks(&self, scores: Tensor<B, 3>, keys: Tensor<B, 3>, absent: Tensor<B, 3, Bool>) -> Tensor<B, 3> {
        let [queries, heads, length] = scores.dims();
        let width = keys.dims()[2];
        let options = (&scores.device(), scores.dtype());
        let mut max = Tensor::full([queries, heads, 1], MASKED, options);
        let mut denominator = Tensor::zeros([queries, heads, 1], options);
        let mut output = Tensor::zeros([queries, heads, width], options);
        for Range { start, end } in blocks(length) {
            let block = scores.clone().narrow(2, start, end - start);
            let new_max = max.clone().max_pair(block.clone().detach().max_dim(2));
            let rescale = (max - new_max.clone()).exp();
            let probs = (block - new_max.clone()).exp().mask_fill(absent.clone().narrow(2, start, end - start), 0.0);
            denominator = denominator * rescale.clone() + probs.clone().sum_dim(2);
            let probs = if self.round_probs { self.numerics.bf16(probs) } else { probs };
            output = output * rescale + probs.matmul(keys.clone().narrow(1, start, end - start));
            max = new_max;
        }
        // Without any key the maximum is still the mask's, and the sink's term overflows to infinity: 0 / inf = 0.
        output / (denominator + (self.sink.clone() - max).exp())
    }

    /// Probabilities rounded as in [`Self::by_blocks`], then relative to `max`.
    fn rounded(&self, scores: Tensor<B, 3>, absent: Tensor<B, 3, Bool>, max: Tensor<B, 3>) -> Tensor<B, 3> {
        let [queries, heads, length] = scores.dims();
        let mut so_far = Tensor::full([queries, heads, 1], MASKED, (&scores.device(), scores.dtype()));
        let probs = blocks(length).map(|Range { start, end }| {
            let block = scores.clone().narrow(2, start, end - start);
            so_far = so_far.clone().max_pair(block.clone().max_dim(2));
            let probs = (block - so_far.clone()).exp().mask_fill(absent.clone().narrow(2, start, end - start), 0.0);
            self.numerics.bf16(probs) * (so_far.clone() - max.clone()).exp()
        });
        Tensor::cat(probs.collect(), 2)
    }
}

/// `q . k * d^-0.5` of every entry and which are absent, both `[n, H, L]`.
fn scores<B: Backend>(tile: &Tile<B>) -> (Tensor<B, 3>, Tensor<B, 3, Bool>) {
    let [_, heads, width] = tile.query.dims();
    let absent = tile.absent.clone().repeat_dim(1, heads);
    let products = tile.query.clone().matmul(tile.keys.clone().swap_dims(1, 2));
    (products.mul_scalar(scale(width)).mask_fill(absent.clone(), MASKED), absent)
}

/// What products of queries and keys of a width are multiplied by.
pub(super) fn scale(width: usize) -> f64 {
    (width as f64).powf(-0.5)
}

fn blocks(length: usize) -> impl Iterator<Item = Range<usize>> {
    (0..length).step_by(BLOCK).map(move |start| start..(start + BLOCK).min(length))
}
