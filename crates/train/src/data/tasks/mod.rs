//! Tasks that the program makes itself: endless examples whose answers are known, to see whether a model learns at all.
//!
//! Tokens are bytes: any model with a vocabulary of 256 or more has them. What is learnt of an example is what counts
//! for its [`Score`].

mod arithmetic;
mod recall;
mod score;
mod split;

use std::fmt;

pub use arithmetic::Arithmetic;
pub use recall::{Recall, RecallOptions};
pub use score::{Chance, Score};
pub use split::Split;

use super::{DataError, Example, Examples};

/// A way to make examples.
pub trait Task: fmt::Debug + Send + Sync {
    /// Its name.
    fn name(&self) -> &'static str;

    /// What an example looks like and what is asked, for people to read.
    fn description(&self) -> String;

    /// Tokens that a vocabulary needs at least; ids are smaller.
    fn vocabulary(&self) -> usize;

    /// Tokens of the longest example.
    fn longest(&self) -> usize;

    /// The score of an answer that is guessed.
    fn chance(&self) -> Chance;

    /// The example with this number, from 0. What the two sides of the split have apart, no seed and no number brings
    /// together.
    fn example(&self, split: Split, seed: u64, index: u64) -> Example;
}

/// The names of all tasks.
pub const NAMES: [&str; 2] = [recall::NAME, arithmetic::NAME];

/// The task of this name, in its usual size: examples of at most 128 tokens.
///
/// # Errors
/// There is none.
pub fn by_name(name: &str) -> Result<Box<dyn Task>, DataError> {
    match name {
        recall::NAME => Ok(Box::new(Recall::default())),
        arithmetic::NAME => Ok(Box::new(Arithmetic::default())),
        _ => {
            let supported = NAMES.map(|name| format!("`{name}`")).join(", ");
            Err(DataError::UnknownTask { found: name.to_owned(), supported })
        }
    }
}

/// The examples that a task makes of a seed.
#[derive(Debug)]
pub struct TaskExamples {
    task: Box<dyn Task>,
    split: Split,
    seed: u64,
    count: usize,
}

impl TaskExamples {
    /// The first `count` examples on a side of the split, for a model with a vocabulary of so many tokens.
    ///
    /// # Errors
    /// The task needs more tokens.
    pub fn new(
        task: Box<dyn Task>,
        split: Split,
        seed: u64,
        count: usize,
        vocabulary: usize,
    ) -> Result<Self, DataError> {
        let needed = task.vocabulary();
        if needed > vocabulary {
            return Err(DataError::SmallVocabulary { task: task.name(), needed, found: vocabulary });
        }
        Ok(Self { task, split, seed, count })
    }

    /// What makes them.
    pub fn task(&self) -> &dyn Task {
        &*self.task
    }
}

impl Examples for TaskExamples {
    fn count(&self) -> usize {
        self.count
    }

    fn example(&mut self, index: usize) -> Result<Example, DataError> {
        Ok(self.task.example(self.split, self.seed, index as u64))
    }
}

/// A text of which parts are to be learnt.
#[derive(Debug, Default)]
struct Written {
    ids: Vec<u32>,
    learn: Vec<bool>,
}

impl Written {
    /// Adds what is given.
    fn given(&mut self, text: &[u8]) {
        self.add(text, false);
    }

    /// Adds what is asked for.
    fn asked(&mut self, text: &[u8]) {
        self.add(text, true);
    }

    fn add(&mut self, text: &[u8], learn: bool) {
        self.ids.extend(text.iter().map(|&byte| u32::from(byte)));
        self.learn.resize(self.ids.len(), learn);
    }

    fn example(self, index: u64) -> Example {
        Example { ids: self.ids, learn: self.learn, line: usize::try_from(index).unwrap_or(usize::MAX) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_found_by_name_and_others_refused_with_the_names() {
        for name in NAMES {
            assert_eq!(by_name(name).unwrap().name(), name);
        }
        let error = by_name("chess").unwrap_err();
        assert_eq!(error.to_string(), "task `chess`, supported: `recall`, `arithmetic`");
    }

    #[test]
    fn examples_have_what_their_task_says() {
        for name in NAMES {
            let task = by_name(name).unwrap();
            assert!(task.longest() <= 128 && task.vocabulary() <= 256);
            for (split, index) in [(Split::Training, 0), (Split::HeldOut, 0), (Split::Training, 99)] {
                let example = task.example(split, 3, index);
                assert_eq!(example, task.example(split, 3, index), "the same example each time");
                assert_eq!(example.line, index as usize);
                assert_eq!(example.ids.len(), example.learn.len());
                assert!(example.ids.len() <= task.longest());
                assert!(example.ids.iter().all(|&id| (id as usize) < task.vocabulary()));
                assert!(example.targets().flatten().next().is_some());
            }
        }
    }

    #[test]
    fn examples_differ_by_number_seed_and_side() {
        for name in NAMES {
            let task = by_name(name).unwrap();
            let first = task.example(Split::Training, 3, 0).ids;
            for (split, seed, index) in [(Split::HeldOut, 3, 0), (Split::Training, 4, 0), (Split::Training, 3, 1)] {
                assert_ne!(task.example(split, seed, index).ids, first, "{name}");
            }
        }
    }

    #[test]
    fn a_vocabulary_that_is_too_small_is_refused() {
        let examples = |vocabulary| TaskExamples::new(Box::new(Recall::default()), Split::Training, 0, 5, vocabulary);
        let error = examples(122).unwrap_err();
        assert_eq!(error.to_string(), "task `recall` needs a vocabulary of 123 tokens, the model's has 122");
        let mut examples = examples(123).unwrap();
        assert_eq!(examples.count(), 5);
        assert_eq!(examples.example(4).unwrap(), Recall::default().example(Split::Training, 0, 4));
    }
}
