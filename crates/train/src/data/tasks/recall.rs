//! Values that were seen long before.

use rand::{Rng as _, seq::index};
use rand_chacha::ChaCha8Rng;

use super::{Chance, Split, Task, Written};
use crate::data::{
    DataError, Example,
    random::{Purpose, generator},
};

pub(super) const NAME: &str = "recall";

/// Letters of keys, and as many others of values.
const LETTERS: u8 = 26;

/// Sizes of the task [`Recall`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecallOptions {
    /// Pairs of an example.
    pub pairs: usize,
    /// Pairs that are asked for again, each once.
    pub queries: usize,
    /// Letters of a key.
    pub key: usize,
    /// Letters of a value.
    pub value: usize,
    /// Tokens between the pairs and the first key asked for. From that key on, no position sees any of the pairs in a
    /// window of up to one token more.
    pub gap: usize,
}

impl Default for RecallOptions {
    fn default() -> Self {
        Self { pairs: 8, queries: 4, key: 2, value: 2, gap: 32 }
    }
}

/// Pairs of a key and a value are shown; long after, some keys are shown again, and their values are asked for.
///
/// `hkNPexBK...........?exBKhkNP`: two pairs of keys of two lower-case letters and values of two capitals, then dots and
/// a question mark, then keys again, each with the value to predict. All letters are drawn anew for each example, so
/// that nothing but the example tells a value; keys of an example differ from each other. An eighth of all keys is held
/// out: no key of a held-out example is a key of a training example.
///
/// Chance: values are drawn evenly, so that whoever has not seen the pairs is right about each letter once in 26 times,
/// and about a value of n letters once in 26^n times.
///
/// Whoever remembers the values, but not which is whose, does better, and so does not show recall yet: choosing among
/// the values not asked for so far it is right about 1/8, 1/7, 1/6 and 1/5 of four answers out of eight, 0.159 on average.
/// Given a value's first letter it can often tell the others, so that the share of right letters says little; judge by
/// whole answers.
#[derive(Debug, Clone)]
pub struct Recall {
    options: RecallOptions,
    /// The keys of each side, by number: their letters are the digits in base 26.
    training: Vec<u32>,
    held_out: Vec<u32>,
}

impl Recall {
    /// The task in these sizes.
    ///
    /// # Errors
    /// A size is 0 or too large: keys have 3 letters at most, and there are no more pairs than held-out keys.
    pub fn new(options: RecallOptions) -> Result<Self, DataError> {
        let RecallOptions { pairs, queries, key, value, gap } = options;
        let check = |holds, option, expected: String| DataError::check(holds, "task `recall`", option, expected);
        check((1..=3).contains(&key), ("key", key), "1 to 3".to_owned())?;
        check((1..=64).contains(&value), ("value", value), "1 to 64".to_owned())?;
        check((1..=65_536).contains(&gap), ("gap", gap), "1 to 65536".to_owned())?;
        let task = Self::of(options);
        let most = task.held_out.len();
        check((1..=most).contains(&pairs), ("pairs", pairs), format!("1 to {most}, the held-out keys"))?;
        check((1..=pairs).contains(&queries), ("queries", queries), format!("1 to {pairs}, the pairs"))?;
        Ok(task)
    }

    fn of(options: RecallOptions) -> Self {
        let length = options.key as u64;
        let keys = 0..u32::from(LETTERS).pow(options.key as u32);
        let side = |&key: &u32| Split::of(Purpose::Recall, [length, key.into()]) == Split::Training;
        let (training, held_out) = keys.partition(side);
        Self { options, training, held_out }
    }

    fn keys(&self, split: Split) -> &[u32] {
        match split {
            Split::Training => &self.training,
            Split::HeldOut => &self.held_out,
        }
    }

    fn spelled(&self, key: u32) -> Vec<u8> {
        let digits = std::iter::successors(Some(key), |&rest| Some(rest / u32::from(LETTERS)));
        // A digit is below 26.
        digits.take(self.options.key).map(|rest| b'a' + (rest % u32::from(LETTERS)) as u8).collect()
    }

    fn value(&self, random: &mut ChaCha8Rng) -> Vec<u8> {
        (0..self.options.value).map(|_| b'A' + random.random_range(0..LETTERS)).collect()
    }
}

impl Default for Recall {
    fn default() -> Self {
        Self::of(RecallOptions::default())
    }
}

impl Task for Recall {
    fn name(&self) -> &'static str {
        NAME
    }

    fn description(&self) -> String {
        let RecallOptions { pairs, queries, key, value, gap } = self.options;
        format!(
            "{pairs} pairs of a key of {key} letters and a value of {value}; {gap} tokens after them {queries} of the \
             keys again, whose values are to be recalled"
        )
    }

    fn vocabulary(&self) -> usize {
        usize::from(b'z') + 1
    }

    fn longest(&self) -> usize {
        let RecallOptions { pairs, queries, key, value, gap } = self.options;
        (pairs + queries) * (key + value) + gap
    }

    fn chance(&self) -> Chance {
        let letter = 1.0 / f64::from(LETTERS);
        // A value has 64 letters at most.
        Chance { tokens: letter, answers: letter.powi(self.options.value as i32) }
    }

    fn example(&self, split: Split, seed: u64, index: u64) -> Example {
        let RecallOptions { pairs, queries, gap, .. } = self.options;
        let mut random = generator(Purpose::Recall, [split as u64, seed, index]);
        let keys = self.keys(split);
        let drawn = index::sample(&mut random, keys.len(), pairs);
        let pairs: Vec<_> = drawn.iter().map(|key| (self.spelled(keys[key]), self.value(&mut random))).collect();

        let mut written = Written::default();
        for (key, value) in &pairs {
            written.given(key);
            written.given(value);
        }
        written.given(&vec![b'.'; gap - 1]);
        written.given(b"?");
        for query in index::sample(&mut random, pairs.len(), queries) {
            let (key, value) = &pairs[query];
            written.given(key);
            written.asked(value);
        }
        written.example(index)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::super::score::tests::{knowing, scored};
    use super::*;

    fn text(example: &Example) -> String {
        example.ids.iter().map(|&id| char::from(u8::try_from(id).unwrap())).collect()
    }

    /// The pairs of an example of the usual size, and what comes after the gap.
    fn parts(example: &Example) -> (BTreeMap<String, String>, Vec<(String, String)>) {
        let text = text(example);
        let (pairs, queries) = text.split_once(&format!("{}?", ".".repeat(31))).unwrap();
        let pairs_of = |text: &str| {
            let pairs = text.as_bytes().chunks(4).map(|pair| std::str::from_utf8(pair).unwrap().split_at(2));
            pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect::<Vec<_>>()
        };
        (pairs_of(pairs).into_iter().collect(), pairs_of(queries))
    }

    #[test]
    fn every_query_repeats_a_pair_of_its_own() {
        let task = Recall::default();
        for index in 0..50 {
            let example = task.example(Split::Training, 1, index);
            assert_eq!(example.ids.len(), task.longest());
            let (pairs, queries) = parts(&example);
            assert_eq!((pairs.len(), queries.len()), (8, 4));
            assert!(queries.iter().all(|(key, value)| pairs[key] == *value));
            assert_eq!(queries.iter().collect::<BTreeSet<_>>().len(), 4);
        }
    }

    #[test]
    fn the_values_asked_for_are_what_is_learnt() {
        let example = Recall::default().example(Split::HeldOut, 1, 0);
        let queries = [false, false, true, true].repeat(4);
        assert_eq!(example.learn, [vec![false; 8 * 4 + 32], queries].concat());
    }

    #[test]
    fn no_position_from_the_first_key_on_has_a_pair_in_its_window() {
        let task = Recall::default();
        let text = text(&task.example(Split::Training, 0, 0));
        let first_key = text.find('?').unwrap() + 1;
        let window = 32;
        assert!(text[first_key + 1 - window..first_key].chars().all(|other| ".?".contains(other)));
    }

    #[test]
    fn no_key_is_on_both_sides() {
        let task = Recall::default();
        let keys = |split| -> BTreeSet<String> {
            (0..400).flat_map(|index| parts(&task.example(split, index % 7, index)).0.into_keys()).collect()
        };
        let (training, held_out) = (keys(Split::Training), keys(Split::HeldOut));
        assert!(training.len() > 500 && held_out.len() > 60, "{} {}", training.len(), held_out.len());
        assert!(training.is_disjoint(&held_out));
    }

    #[test]
    fn a_guess_scores_as_chance_says() {
        let task = Recall::default();
        let examples: Vec<_> = (0..5_000).map(|index| task.example(Split::Training, 2, index)).collect();
        let mut random = generator(Purpose::Shuffle, [0; 3]);
        let guess =
            |example: &Example| example.ids.iter().map(|_| u32::from(b'A' + random.random_range(0..LETTERS))).collect();
        let score = scored(&examples, guess);
        let Chance { tokens, answers } = task.chance();
        assert_eq!((score.tokens, score.answers), (40_000, 20_000));
        // Five standard deviations.
        assert!((score.token_accuracy() - tokens).abs() < 0.005, "{score:?}");
        assert!((score.answer_accuracy() - answers).abs() < 0.0015, "{score:?}");
        assert_eq!(scored(&examples, knowing).answer_accuracy(), 1.0);
    }

    #[test]
    fn values_without_their_keys_give_little() {
        let task = Recall::default();
        let examples: Vec<_> = (0..5_000).map(|index| task.example(Split::Training, 2, index)).collect();
        let mut random = generator(Purpose::Shuffle, [0; 3]);
        let guess = |example: &Example| {
            let (mut pairs, queries) = parts(example);
            let mut predicted = vec![0; example.ids.len()];
            for (query, (key, _)) in queries.iter().enumerate() {
                let values: Vec<_> = pairs.values().collect();
                let value = values[random.random_range(0..values.len())];
                let start = predicted.len() - 4 * (queries.len() - query) + 1;
                predicted.splice(start..start + 2, value.bytes().map(u32::from));
                pairs.remove(key);
            }
            predicted
        };
        let accuracy = scored(&examples, guess).answer_accuracy();
        let expected = [8.0, 7.0, 6.0, 5.0_f64].map(f64::recip).iter().sum::<f64>() / 4.0;
        // Five standard deviations, and what values that are equal add.
        assert!((accuracy - expected).abs() < 0.015, "{accuracy}, expected {expected}");
    }

    #[test]
    fn sizes_that_cannot_be_are_named() {
        let usual = RecallOptions::default();
        let made = |options| Recall::new(options).map(|_| ()).map_err(|error| error.to_string());
        made(usual).unwrap();
        made(RecallOptions { key: 3, pairs: 1_000, queries: 1_000, ..usual }).unwrap();
        let held_out = Recall::default().held_out.len();
        for (options, said) in [
            (RecallOptions { key: 0, ..usual }, "`key` is 0, expected 1 to 3".to_owned()),
            (RecallOptions { key: 4, ..usual }, "`key` is 4, expected 1 to 3".to_owned()),
            (RecallOptions { value: 0, ..usual }, "`value` is 0, expected 1 to 64".to_owned()),
            (RecallOptions { gap: 0, ..usual }, "`gap` is 0, expected 1 to 65536".to_owned()),
            (
                RecallOptions { pairs: 500, ..usual },
                format!("`pairs` is 500, expected 1 to {held_out}, the held-out keys"),
            ),
            (RecallOptions { pairs: 0, ..usual }, format!("`pairs` is 0, expected 1 to {held_out}, the held-out keys")),
            (RecallOptions { queries: 9, ..usual }, "`queries` is 9, expected 1 to 8, the pairs".to_owned()),
        ] {
            assert_eq!(made(options), Err(format!("task `recall`: {said}")));
        }
    }
}
