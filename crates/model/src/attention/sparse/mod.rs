//! Attention of each query to its own list of keys, with a sink.

mod host;
mod op;
mod softmax;
mod tiles;
mod weights;

use burn::tensor::Tensor;
use dsv41_ops::{CustomOps, constant, custom, into_primitive};

use crate::Numerics;
use op::SparseAttention;
use tiles::TILE_ELEMENTS;
use weights::SummedWeights;

/// Which keys each query attends.
#[derive(Debug, Clone)]
pub struct KeyLists {
    /// Rows of the key tensor, `[B, S, width]`, -1 for none.
    pub rows: Vec<i64>,
    /// Entries for a query.
    pub width: usize,
}

/// `softmax(q . k * d^-0.5) v` over each query's list, where keys are values too and the head's sink (a logit, not
/// scaled) joins the denominator alone. A query without keys gives zeros.
///
/// `query` is `[B, S, H, d]`, `keys` `[B, N, d]`, `sink` `[H]`; the result is `[B, S, H, d]`, rounded to bf16.
///
/// With the weights `w_i = exp(s_i) / (sum_j exp(s_j) + exp(sink))`, where `s_i = q . k_i * d^-0.5`, those that multiply
/// keys, `v_i` (`w_i`, but for their rounding), the result `o = sum_i v_i k_i` and its gradient `g`, the gradients are
/// those of the softmax, straight through every rounding:
///
/// - of a score, `s'_i = w_i (g . k_i - g . o)`;
/// - of the query, `d^-0.5 sum_i s'_i k_i`;
/// - of a key, the sum over the queries and heads that list it of `v_i g + d^-0.5 s'_i q`;
/// - of the sink, the sum over queries of `-w_sink (g . o)`.
///
/// Both passes gather the keys of some queries at a time, and nothing but the inputs is kept between them.
/// [`Numerics::Reference`] passes no gradient.
pub fn sparse_attention<B: CustomOps>(
    query: Tensor<B, 4>,
    keys: Tensor<B, 3>,
    lists: &KeyLists,
    sink: Tensor<B, 1>,
    numerics: Numerics,
    round_probs: bool,
) -> Tensor<B, 4> {
    let attention = SparseAttention { lists: lists.clone(), numerics, round_probs, tile_elements: TILE_ELEMENTS };
    numerics.bf16(custom(attention, [into_primitive(query), into_primitive(keys), into_primitive(sink)]))
}

/// The weight that each query gives each entry of its list, summed over heads: `[B*S, width]`, without rounding and
/// without gradient. With what the sinks take, a query's weights sum to H; entries of -1 have none.
///
/// The tensors are those of [`sparse_attention`].
pub fn attention_weights<B: CustomOps>(
    query: Tensor<B, 4>,
    keys: Tensor<B, 3>,
    lists: &KeyLists,
    sink: Tensor<B, 1>,
) -> Tensor<B, 2> {
    let weights = SummedWeights { lists: lists.clone(), tile_elements: TILE_ELEMENTS };
    let inputs = [into_primitive(constant(query)), into_primitive(constant(keys)), into_primitive(constant(sink))];
    custom(weights, inputs)
}

#[cfg(test)]
mod tests;
