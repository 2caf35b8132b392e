//! How good answers are.

use crate::data::Batch;

/// How many answers were right, token by token and whole. An answer is a run of tokens to predict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Score {
    /// Tokens of answers.
    pub tokens: u64,
    /// Those predicted right, each given the right ones before it.
    pub right_tokens: u64,
    /// Answers.
    pub answers: u64,
    /// Those with every token right.
    pub right_answers: u64,
}

/// What a guess scores on average, as shares from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Chance {
    /// Of tokens, each given the right ones before it.
    pub tokens: f64,
    /// Of whole answers.
    pub answers: f64,
}

impl Score {
    /// Adds a batch, given for each position the token predicted there: as many rows, and as many positions, as the
    /// batch has.
    ///
    /// # Panics
    /// When there are more or fewer.
    pub fn add(&mut self, batch: &Batch, predicted: &[Vec<u32>]) {
        assert_eq!(predicted.len(), batch.targets.len(), "rows predicted");
        for (targets, predicted) in batch.targets.iter().zip(predicted) {
            assert_eq!(predicted.len(), targets.len(), "positions predicted");
            let positions: Vec<_> = targets.iter().zip(predicted).collect();
            let answers = positions.chunk_by(|(one, _), (other, _)| one.is_some() && other.is_some());
            for answer in answers.filter(|answer| answer[0].0.is_some()) {
                let right = answer.iter().filter(|&&(target, predicted)| *target == Some(*predicted)).count();
                self.tokens += answer.len() as u64;
                self.right_tokens += right as u64;
                self.answers += 1;
                self.right_answers += u64::from(right == answer.len());
            }
        }
    }

    /// The share of tokens that are right; 0 if there are none.
    pub fn token_accuracy(&self) -> f64 {
        share(self.right_tokens, self.tokens)
    }

    /// The share of answers that are right; 0 if there are none.
    pub fn answer_accuracy(&self) -> f64 {
        share(self.right_answers, self.answers)
    }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::data::{BatchLayout, Example, Manner, Packer};

    /// The score of predictions, a row of which follows from each example.
    pub(in crate::data::tasks) fn scored(examples: &[Example], predict: impl FnMut(&Example) -> Vec<u32>) -> Score {
        let longest = examples.iter().map(|example| example.ids.len()).max().unwrap();
        let layout =
            BatchLayout { rows: examples.len(), length: longest, alignment: 1, manner: Manner::Unpacked, padding: 0 };
        let mut packer = Packer::new(layout);
        assert!(examples.iter().all(|example| packer.offer(example)));
        let predicted: Vec<Vec<u32>> = examples.iter().map(predict).collect();
        let mut score = Score::default();
        score.add(&packer.finish(), &predicted);
        score
    }

    /// What a model that knows all answers predicts.
    pub(in crate::data::tasks) fn knowing(example: &Example) -> Vec<u32> {
        example.targets().map(Option::unwrap_or_default).collect()
    }

    #[test]
    fn answers_are_runs_of_targets() {
        let learn = [false, true, true, false, true, false, true];
        let example = Example { ids: (10..17).collect(), learn: learn.to_vec(), line: 0 };
        let predicted = |ids: [u32; 7]| scored(std::slice::from_ref(&example), |_| ids.to_vec());
        let all = Score { tokens: 4, right_tokens: 4, answers: 3, right_answers: 3 };
        assert_eq!(predicted([11, 12, 0, 14, 0, 16, 0]), all);
        let some = predicted([11, 0, 0, 14, 0, 0, 0]);
        assert_eq!(some, Score { right_tokens: 2, right_answers: 1, ..all });
        assert_eq!((some.token_accuracy(), some.answer_accuracy()), (0.5, 1.0 / 3.0));
    }

    #[test]
    fn nothing_scores_nothing() {
        assert_eq!((Score::default().token_accuracy(), Score::default().answer_accuracy()), (0.0, 0.0));
    }

    #[test]
    #[should_panic(expected = "positions predicted")]
    fn predictions_of_another_length_are_refused() {
        let example = Example { ids: vec![1, 2], learn: vec![true, true], line: 0 };
        scored(&[example], |_| vec![2]);
    }
}
