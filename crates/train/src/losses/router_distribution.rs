use burn::tensor::{Tensor, backend::Backend};
use dsv41_ops::constant;

use super::{LossError, Sequences};

/// Guard of a sum of scores, the router's own.
const SUM_GUARD: f64 = 1e-20;

/// Below this, a share counts as this in its logarithm; times the share itself, that is nothing.
const SMALLEST_SHARE: f64 = 1e-30;

/// Scores of experts over their sum, `[N, E]`: what a router's distribution over experts is, whatever makes the scores.
pub(super) fn distribution<B: Backend>(scores: Tensor<B, 2>) -> Tensor<B, 2> {
    let sum = scores.clone().sum_dim(1).add_scalar(SUM_GUARD);
    scores / sum
}

/// The entropy of a router's distribution over experts in nats, mean over the tokens that count; without gradient. `ln E`
/// where a router has no preference.
///
/// `scores` is `[N, E]`.
///
/// # Errors
/// When there are more or fewer tokens than `sequences` has.
pub fn router_entropy<B: Backend>(scores: Tensor<B, 2>, sequences: &Sequences) -> Result<Tensor<B, 1>, LossError> {
    let scores = constant(scores);
    sequences.check(scores.dims()[0])?;
    let weights = sequences.mean_weights(&scores.device(), scores.dtype());
    let shares = distribution(scores);
    let nats = shares.clone() * shares.clamp_min(SMALLEST_SHARE).log();
    Ok((nats.sum_dim(1) * weights).sum().neg())
}
