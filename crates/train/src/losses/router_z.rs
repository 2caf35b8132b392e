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

#[cfg(test)]
mod tests {
    use burn::backend::{Autodiff, Flex};

    use super::*;
    use crate::{
        data::Batch,
        losses::testing::{assert_close, assert_gradient, numbers, tensor, values},
    };

    type B = Autodiff<Flex>;

    /// Two tokens and one of padding.
    fn padded() -> Sequences {
        Sequences::of_batch(&Batch {
            tokens: vec![vec![0; 3]],
            documents: vec![vec![0]],
            lengths: vec![vec![2]],
            targets: vec![vec![None; 3]],
            lines: vec![1],
        })
    }

    /// Logits 0 and ln 3 have `L = ln 4` and probabilities 1/4 and 3/4; 0 and 0 have `L = ln 2`.
    #[test]
    fn two_tokens_are_as_computed_by_hand() {
        let ln = f64::ln;
        let logits = tensor::<B, 2>(&[0.0, ln(3.0), 0.0, 0.0, 8.0, 9.0], [3, 2]).require_grad();
        let loss = router_z_loss(logits.clone(), &padded()).expect("shapes that fit");
        assert_close(&values(&loss), &[(ln(4.0) * ln(4.0) + ln(2.0) * ln(2.0)) / 2.0], 1e-15);
        let gradient = logits.grad(&loss.backward()).expect("tracked");
        let expected = [ln(4.0) / 4.0, ln(4.0) * 3.0 / 4.0, ln(2.0) / 2.0, ln(2.0) / 2.0, 0.0, 0.0];
        assert_close(&values(&gradient), &expected, 1e-15);
    }

    #[test]
    fn the_gradient_is_that_of_finite_differences() {
        let logits: Vec<f64> = numbers(12, 3).iter().map(|&number| 3.0 * f64::from(number)).collect();
        assert_gradient(&logits, [3, 4], |logits| router_z_loss(logits, &padded()).expect("shapes that fit"));
    }

    #[test]
    fn logits_that_have_drifted_far_do_not_overflow() {
        let logits = Tensor::<Flex, 2>::from_data([[500.0, 500.0], [-500.0, -500.0]], &Default::default());
        let loss = router_z_loss(logits, &Sequences::of_rows(1, 2)).expect("shapes that fit");
        let of = |logit: f64| (logit + 2f64.ln()).powi(2) / 2.0;
        assert!((values(&loss)[0] / (of(500.0) + of(-500.0)) - 1.0).abs() < 1e-6);
    }

    #[test]
    fn another_number_of_tokens_is_refused() {
        let logits = Tensor::<Flex, 2>::ones([2, 2], &Default::default());
        let refused = router_z_loss(logits, &padded()).expect_err("refused");
        assert_eq!(refused, LossError::TokenCount { found: 2, expected: 3 });
    }
}
