//! Attention of each query to its own list of keys, with a sink.

use burn::tensor::{Tensor, TensorData, backend::Backend};

use crate::{Numerics, selections::NONE};

/// Positions of a list that the released kernel takes at a time.
const BLOCK: usize = 64;
/// Elements of the keys gathered at a time, `[queries, L, d]`.
const TILE_ELEMENTS: usize = 1 << 24;

/// Which keys each query attends.
#[derive(Debug, Clone)]
pub struct KeyLists {
    /// Rows of the key tensor, `[B, S, width]`, -1 for none.
    pub rows: Vec<i64>,
    /// Entries for a query.
    pub width: usize,
}

/// Scores that stand for "not attended" before the softmax. Finite, so that a list without any key gives no NaN.
const MASKED: f64 = -1e30;

/// `softmax(q . k * d^-0.5) v` over each query's list, where keys are values too and the head's sink (a logit, not
/// scaled) joins the denominator alone. A query without keys gives zeros.
///
/// `query` is `[B, S, H, d]`, `keys` `[B, N, d]`, `sink` `[H]`; the result is `[B, S, H, d]`, rounded to bf16.
pub fn sparse_attention<B: Backend>(
    query: Tensor<B, 4>,
    keys: Tensor<B, 3>,
    lists: &KeyLists,
    sink: Tensor<B, 1>,
    numerics: Numerics,
    round_probs: bool,
) -> Tensor<B, 4> {
    let [batch, seq, heads, width] = query.dims();
    let keys_per_sequence = keys.dims()[1];
    let keys = keys.reshape([batch * keys_per_sequence, width]);
    let query = query.reshape([batch * seq, heads, width]);
    let softmax = Softmax { sink: sink.reshape([1, heads, 1]), numerics, round_probs };

    let queries = batch * seq;
    let step = (TILE_ELEMENTS / (lists.width * width)).clamp(1, queries);
    let tiles = (0..queries)
        .step_by(step)
        .map(|first| {
            let count = step.min(queries - first);
            let rows = &lists.rows[first * lists.width..(first + count) * lists.width];
            let flat = rows.iter().enumerate().map(|(entry, &row)| {
                let sequence = (first + entry / lists.width) / seq;
                (sequence * keys_per_sequence) as i64 + row.max(0)
            });
            let flat = Tensor::from_data(TensorData::new(flat.collect(), [rows.len()]), &query.device());
            let absent = rows.iter().map(|&row| row == NONE).collect::<Vec<_>>();
            let absent = Tensor::from_data(TensorData::new(absent, [count, 1, lists.width]), &query.device());
            let gathered = keys.clone().select(0, flat).reshape([count, lists.width, width]);
            softmax.attend(query.clone().narrow(0, first, count), gathered, absent)
        })
        .collect();
    numerics.bf16(Tensor::cat(tiles, 0)).reshape([batch, seq, heads, width])
}

struct Softmax<B: Backend> {
    /// `[1, H, 1]`
    sink: Tensor<B, 3>,
    numerics: Numerics,
    round_probs: bool,
}

impl<B: Backend> Softmax<B> {
    /// `[n, H, d]` queries, `[n, L, d]` keys, `[n, 1, L]` absent entries.
    fn attend(
        &self,
        query: Tensor<B, 3>,
        keys: Tensor<B, 3>,
        absent: Tensor<B, 3, burn::tensor::Bool>,
    ) -> Tensor<B, 3> {
        let [_, heads, width] = query.dims();
        let scale = (width as f64).powf(-0.5);
        let absent = absent.repeat_dim(1, heads);
        let scores = query.matmul(keys.clone().swap_dims(1, 2)).mul_scalar(scale).mask_fill(absent.clone(), MASKED);
        if self.numerics.rounds() { self.by_blocks(scores, keys, absent) } else { self.at_once(scores, keys, absent) }
    }

    fn at_once(
        &self,
        scores: Tensor<B, 3>,
        keys: Tensor<B, 3>,
        absent: Tensor<B, 3, burn::tensor::Bool>,
    ) -> Tensor<B, 3> {
        // The shift cancels, so no gradient needs to flow through it.
        let max = scores.clone().detach().max_dim(2).max_pair(self.sink.clone().detach());
        let probs = (scores - max.clone()).exp().mask_fill(absent, 0.0);
        let denominator = probs.clone().sum_dim(2) + (self.sink.clone() - max).exp();
        probs.matmul(keys) / denominator
    }

    /// As the released kernel: blocks of 64 in list order, each probability rounded to bf16 against the maximum so far
    /// and rescaled as that grows, the denominator summing unrounded ones, the sink last and against the final maximum.
    fn by_blocks(
        &self,
        scores: Tensor<B, 3>,
        keys: Tensor<B, 3>,
        absent: Tensor<B, 3, burn::tensor::Bool>,
    ) -> Tensor<B, 3> {
        let [queries, heads, length] = scores.dims();
        let width = keys.dims()[2];
        let options = (&scores.device(), scores.dtype());
        let mut max = Tensor::full([queries, heads, 1], MASKED, options);
        let mut denominator = Tensor::zeros([queries, heads, 1], options);
        let mut output = Tensor::zeros([queries, heads, width], options);
        for first in (0..length).step_by(BLOCK) {
            let count = BLOCK.min(length - first);
            let block = scores.clone().narrow(2, first, count);
            let new_max = max.clone().max_pair(block.clone().detach().max_dim(2));
            let rescale = (max - new_max.clone()).exp();
            let probs = (block - new_max.clone()).exp().mask_fill(absent.clone().narrow(2, first, count), 0.0);
            denominator = denominator * rescale.clone() + probs.clone().sum_dim(2);
            let probs = if self.round_probs { self.numerics.bf16(probs) } else { probs };
            output = output * rescale + probs.matmul(keys.clone().narrow(1, first, count));
            max = new_max;
        }
        // Without any key the maximum is still the mask's, and the sink's term overflows to infinity: 0 / inf = 0.
        output / (denominator + (self.sink.clone() - max).exp())
    }
}
