//! The z-loss of a layer's router.

use burn::tensor::{Tensor, backend::Backend};
use dsv41_ops::constant;

use super::{LossError, Sequences};

/// How far a router's logits have drifted: the mean over tokens of `L_t^2`, where `L_t = ln sum_i exp(l_ti)`.
///
/// From [ST-MoE](https://arxiv.org/abs/2202.08906), equation 5. The gradient of a logit is
/// `2/N L_t exp(l_ti - L_t)`: all logits of a token fall, the largest most. Under a softmax that changes no score; scores
/// that are functions of one logit each, as a sigmoid, fall with it.
///
/// `logits` is `[N, E]`, as they enter the scores.
///
/// # Errors
/// When there are more or fewer tokens than `sequences` has.
pub fn router_z_loss<B: Backend>(logits: Tensor<B, 2>, sequences: &Sequences) -> Result<Tensor<B, 1>, LossError> {
    sequences.check(logits.dims()[0])?;
    let weights = sequences.mean_weights(&logits.device(), logits.dtype());
    // The shift cancels, so no gradient needs to flow through it.
    let max = constant(logits.clone()).max_dim(1);
    let log_sum_exp = (logits - max.clone()).exp().sum_dim(1).log() + max;
    Ok((log_sum_exp.clone() * log_sum_exp * weights).sum())
}
