//! Sums and differences, written out.

use rand::Rng as _;

use super::{Chance, Split, Task, Written};
use crate::data::{
    DataError, Example,
    random::{Purpose, generator},
};

pub(super) const NAME: &str = "arithmetic";

/// Sums and differences of numbers with a fixed number of digits, whose answers are asked for digit by digit.
///
/// `321+954=285` says that 123 + 459 is 582: numbers have their lowest digit first, which is the order in which a sum's
/// digits follow from each other, and zeros at the end make them all equally long. What is carried out of the highest
/// digit is lost, as on an odometer, so that answers are modulo a power of ten: 1 - 2 is 99 in two digits.
///
/// An eighth of all problems is held out, and with a sum the one whose numbers are exchanged.
///
/// Chance: both numbers are drawn evenly, and so are answers, whose digits say nothing about each other. Whoever does
/// not look at the numbers is right about each digit once in 10 times, and about all n once in 10^n times.
#[derive(Debug, Clone, Copy)]
pub struct Arithmetic {
    digits: usize,
    /// One more than the largest number.
    limit: u64,
}

/// A sum or a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Problem {
    sum: bool,
    one: u64,
    other: u64,
}

impl Arithmetic {
    /// Digits of a number, unless said otherwise.
    const DIGITS: usize = 3;

    /// Digits of a number at most: sums of two have to stay below 2^64.
    const MOST_DIGITS: usize = 18;

    /// The task with numbers of so many digits.
    ///
    /// # Errors
    /// There are none, or more than 18.
    pub fn new(digits: usize) -> Result<Self, DataError> {
        let holds = (1..=Self::MOST_DIGITS).contains(&digits);
        DataError::check(holds, "task `arithmetic`", ("digits", digits), "1 to 18")?;
        Ok(Self::of(digits))
    }

    fn of(digits: usize) -> Self {
        Self { digits, limit: 10_u64.pow(digits as u32) }
    }

    fn problem(&self, split: Split, seed: u64, index: u64) -> Problem {
        let mut random = generator(Purpose::Arithmetic, [split as u64, seed, index]);
        loop {
            let mut number = || random.random_range(0..self.limit);
            let (one, other) = (number(), number());
            let problem = Problem { sum: random.random(), one, other };
            if self.split(problem) == split {
                return problem;
            }
        }
    }

    fn split(&self, Problem { sum, one, other }: Problem) -> Split {
        // Exchanged, a sum is the same, and a difference is not.
        let thing = if sum { [one.min(other), one.max(other)] } else { [self.limit + one, other] };
        Split::of(Purpose::Arithmetic, thing)
    }

    fn answer(&self, Problem { sum, one, other }: Problem) -> u64 {
        (if sum { one + other } else { self.limit + one - other }) % self.limit
    }

    /// The digits of a number, the lowest first.
    fn spelled(&self, number: u64) -> Vec<u8> {
        let rests = std::iter::successors(Some(number), |&rest| Some(rest / 10));
        // A digit is below 10.
        rests.take(self.digits).map(|rest| b'0' + (rest % 10) as u8).collect()
    }
}

impl Default for Arithmetic {
    fn default() -> Self {
        Self::of(Self::DIGITS)
    }
}

impl Task for Arithmetic {
    fn name(&self) -> &'static str {
        NAME
    }

    fn description(&self) -> String {
        let digits = self.digits;
        format!(
            "sums and differences of numbers with {digits} digits, modulo 10^{digits}, all written with the lowest \
             digit first; the answer's digits are to be told"
        )
    }

    fn vocabulary(&self) -> usize {
        usize::from(b'=') + 1
    }

    fn longest(&self) -> usize {
        3 * self.digits + "+=".len()
    }

    fn chance(&self) -> Chance {
        Chance { tokens: 0.1, answers: 1.0 / self.limit as f64 }
    }

    fn example(&self, split: Split, seed: u64, index: u64) -> Example {
        let problem = self.problem(split, seed, index);
        let mut written = Written::default();
        written.given(&self.spelled(problem.one));
        written.given(if problem.sum { b"+" } else { b"-" });
        written.given(&self.spelled(problem.other));
        written.given(b"=");
        written.asked(&self.spelled(self.answer(problem)));
        written.example(index)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::super::score::tests::{knowing, scored};
    use super::*;

    fn text(example: &Example) -> String {
        example.ids.iter().map(|&id| char::from(u8::try_from(id).unwrap())).collect()
    }

    fn read(reversed: &str) -> i64 {
        reversed.chars().rev().collect::<String>().parse().unwrap()
    }

    proptest! {
        #[test]
        fn answers_are_right_modulo_a_power_of_ten(digits in 1_usize..=18, seed: u64, index: u64, held_out: bool) {
            let task = Arithmetic::new(digits).unwrap();
            let split = if held_out { Split::HeldOut } else { Split::Training };
            let example = task.example(split, seed, index);
            let text = text(&example);
            prop_assert_eq!(text.len(), task.longest());
            let (question, answer) = text.split_once('=').unwrap();
            let expected = match question.split_once('+') {
                Some((one, other)) => read(one) + read(other),
                None => question.split_once('-').map(|(one, other)| read(one) - read(other)).unwrap(),
            };
            prop_assert_eq!(read(answer), expected.rem_euclid(10_i64.pow(digits as u32)));
            prop_assert_eq!(answer.len(), digits);
            prop_assert_eq!(example.learn, [vec![false; 2 * digits + 2], vec![true; digits]].concat());
        }
    }

    #[test]
    fn numbers_have_their_lowest_digit_first() {
        let task = Arithmetic::default();
        assert_eq!(task.spelled(120), b"021");
        let sum = Problem { sum: true, one: 123, other: 959 };
        assert_eq!((task.answer(sum), task.answer(Problem { sum: false, ..sum })), (82, 164));
    }

    #[test]
    fn no_problem_is_on_both_sides_whatever_the_seed() {
        for digits in 1..=2 {
            let task = Arithmetic::new(digits).unwrap();
            let problems = |split| -> BTreeSet<(bool, u64, u64)> {
                let drawn = (0..3_000).map(|index| task.problem(split, index % 5, index));
                // A sum counts in both orders.
                drawn
                    .flat_map(|Problem { sum, one, other }| {
                        [(sum, one, other), if sum { (sum, other, one) } else { (sum, one, other) }]
                    })
                    .collect()
            };
            let (training, held_out) = (problems(Split::Training), problems(Split::HeldOut));
            assert!(training.len() > held_out.len() && !held_out.is_empty());
            assert!(training.is_disjoint(&held_out));
        }
    }

    #[test]
    fn a_guess_scores_as_chance_says() {
        let task = Arithmetic::default();
        let examples: Vec<_> = (0..10_000).map(|index| task.example(Split::Training, 2, index)).collect();
        // The same digit always: which one does not matter, because answers are drawn evenly.
        for digit in [b'0', b'1', b'9'] {
            let score = scored(&examples, |example| vec![digit.into(); example.ids.len()]);
            assert_eq!((score.tokens, score.answers), (30_000, 10_000));
            // Five standard deviations.
            assert!((score.token_accuracy() - task.chance().tokens).abs() < 0.009, "{score:?}");
            assert!((score.answer_accuracy() - task.chance().answers).abs() < 0.0016, "{score:?}");
        }
        assert_eq!(scored(&examples, knowing).answer_accuracy(), 1.0);
    }

    #[test]
    fn digits_out_of_range_are_refused() {
        for digits in [0, 19] {
            let error = Arithmetic::new(digits).unwrap_err();
            let said = format!("task `arithmetic`: `digits` is {digits}, expected 1 to 18");
            assert_eq!(error.to_string(), said);
        }
    }
}
