//! The sequence-wise balance loss of a layer's router.

use burn::tensor::{Tensor, TensorData, backend::Backend};

use super::{LossError, Sequences, router_distribution::distribution};

/// How far a router's tokens are from going to all experts alike, sequence by sequence: the mean over sequences of
/// `sum_i f_i P_i`.
///
/// From [DeepSeek-V3](https://arxiv.org/abs/2412.19437), equations 17 to 20. In a sequence of T tokens, of which each
/// goes to K of E experts,
///
/// - `f_i = E / (K T) * (tokens that went to expert i)`, 1 where the load is even; a constant;
/// - `P_i = 1/T sum_t s'_ti` with `s'_t = s_t / sum_j s_tj`, the scores of a token over their sum.
///
/// It is 1 where loads or scores are even, and E/K at most. Gradients go to the scores through P alone: a step lowers
/// the scores of busy experts and raises those of the others. The report counts the K best scores; this counts the
/// experts in force, so that what the router's bias has evened out already is not held against the scores.
///
/// `scores` is `[N, E]`, `choices` `[N, K]`.
///
/// # Errors
/// When there are more or fewer tokens than `sequences` has, or choices are not K for each.
pub fn balance_loss<B: Backend>(
    scores: Tensor<B, 2>,
    choices: &[i64],
    sequences: &Sequences,
) -> Result<Tensor<B, 1>, LossError> {
    let [tokens, experts] = scores.dims();
    sequences.check(tokens)?;
    if choices.is_empty() || !choices.len().is_multiple_of(tokens) {
        return Err(LossError::ChoiceCount { found: choices.len(), tokens });
    }
    let (device, dtype) = (scores.device(), scores.dtype());

    let slopes = TensorData::new(slopes(choices, experts, sequences), [sequences.lengths().len() + 1, experts]);
    let slopes = Tensor::<B, 2>::from_data(slopes, (&device, dtype)).select(0, sequences.indices(&device));
    Ok((distribution(scores) * slopes).sum())
}

/// By how much the loss grows with a token's share of an expert, `f_i / (T Q)` for each of Q sequences, and 0 in the row
/// of padding: `[Q + 1, E]`.
fn slopes(choices: &[i64], experts: usize, sequences: &Sequences) -> Vec<f64> {
    let lengths = sequences.lengths();
    let activated = choices.len() / sequences.positions();
    let mut slopes = vec![0.0; (lengths.len() + 1) * experts];
    for (choices, sequence) in choices.chunks_exact(activated).zip(sequences.of_tokens()) {
        let Some(sequence) = *sequence else { continue };
        let length = lengths[sequence] as f64;
        let share = experts as f64 / (activated as f64 * length * length * lengths.len() as f64);
        for &expert in choices {
            slopes[sequence * experts + expert as usize] += share;
        }
    }
    slopes
}
