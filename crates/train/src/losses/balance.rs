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

#[cfg(test)]
mod tests {
    use burn::backend::{Autodiff, Flex};

    use super::*;
    use crate::{
        data::Batch,
        losses::testing::{assert_close, assert_gradient, numbers, tensor, values},
    };

    type B = Autodiff<Flex>;

    /// A row of a document of two tokens, one of padding, and a document of one token.
    fn packed() -> Sequences {
        Sequences::of_batch(&Batch {
            tokens: vec![vec![0; 4]],
            documents: vec![vec![0, 3]],
            lengths: vec![vec![2, 1]],
            targets: vec![vec![None; 4]],
            lines: vec![1, 2],
        })
    }

    /// The first document sends both tokens to expert 1: `f = (0, 2)`, `P = (3/8, 5/8)`, so that its loss is 5/4. The
    /// second one's is `2 * 3/4`.
    #[test]
    fn two_documents_are_as_computed_by_hand() {
        let scores = tensor::<B, 2>(&[1.0, 3.0, 1.0, 1.0, 9.0, 7.0, 3.0, 1.0], [4, 2]).require_grad();
        let loss = balance_loss(scores.clone(), &[1, 1, 1, 0], &packed()).expect("shapes that fit");
        assert_close(&values(&loss), &[(5.0 / 4.0 + 3.0 / 2.0) / 2.0], 1e-15);

        // `f_i / (T Q)` times the slopes of `s_i / (s_0 + s_1)`.
        let gradient = scores.grad(&loss.backward()).expect("tracked");
        let expected = [-3.0 / 32.0, 1.0 / 32.0, -1.0 / 8.0, 1.0 / 8.0, 0.0, 0.0, 1.0 / 16.0, -3.0 / 16.0];
        assert_close(&values(&gradient), &expected, 1e-15);
    }

    #[test]
    fn an_even_load_gives_one_whatever_the_scores() {
        let scores: Vec<f64> = numbers(9, 7).iter().map(|&number| f64::from(number) + 1.5).collect();
        let choices = [0, 1, 1, 2, 2, 0];
        let loss = balance_loss(tensor::<Flex, 2>(&scores, [3, 3]), &choices, &Sequences::of_rows(1, 3));
        assert_close(&values(&loss.expect("shapes that fit")), &[1.0], 1e-15);
    }

    #[test]
    fn the_largest_is_that_of_one_choice_with_all_of_the_score() {
        let scores = tensor::<Flex, 2>(&[0.0, 2.0, 0.0, 0.0, 5.0, 0.0], [2, 3]);
        let loss = balance_loss(scores, &[1, 1], &Sequences::of_rows(1, 2)).expect("shapes that fit");
        assert_close(&values(&loss), &[3.0], 1e-15);
    }

    #[test]
    fn the_gradient_is_that_of_finite_differences() {
        let scores: Vec<f64> = numbers(12, 3).iter().map(|&number| f64::from(number) + 1.5).collect();
        let choices = [0, 2, 2, 1, 0, 1, 2, 0];
        assert_gradient(&scores, [4, 3], |scores| {
            balance_loss(scores, &choices, &packed()).expect("shapes that fit").mul_scalar(0.3)
        });
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let refuse = |tokens, choices: &[i64]| {
            balance_loss(Tensor::<Flex, 2>::ones([tokens, 3], &Default::default()), choices, &packed())
                .expect_err("refused")
        };
        assert_eq!(refuse(5, &[0; 5]), LossError::TokenCount { found: 5, expected: 4 });
        assert_eq!(refuse(4, &[0; 6]), LossError::ChoiceCount { found: 6, tokens: 4 });
        assert_eq!(refuse(4, &[]), LossError::ChoiceCount { found: 0, tokens: 4 });
    }
}
