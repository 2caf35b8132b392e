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

#[cfg(test)]
mod tests {
    use burn::backend::Flex;

    use super::*;
    use crate::losses::testing::{assert_close, tensor, values};

    #[test]
    fn the_entropy_is_as_computed_by_hand() {
        let of = |scores: &[f64], tokens: usize| {
            let scores = tensor::<Flex, 2>(scores, [tokens, scores.len() / tokens]);
            values(&router_entropy(scores, &Sequences::of_rows(1, tokens)).expect("shapes that fit"))
        };
        assert_close(&of(&[0.2; 4], 1), &[4f64.ln()], 1e-15);
        assert_close(&of(&[0.0, 7.0], 1), &[0.0], 1e-15);
        let quarter = 0.25 * 4f64.ln() + 0.75 * (4.0 / 3f64).ln();
        assert_close(&of(&[1.0, 3.0, 2.0, 2.0], 2), &[(quarter + 2f64.ln()) / 2.0], 1e-15);
    }
}
