//! One example, and where examples come from.

use super::DataError;

/// A sequence of tokens to learn from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Example {
    /// Its tokens.
    pub ids: Vec<u32>,
    /// For each token whether it is to be learnt, that is predicted from those before it. A prompt's are not. Nothing
    /// comes before the first token, so that it is never predicted, whatever stands here.
    pub learn: Vec<bool>,
    /// Its line in the file, from 1; of a task its number, from 0.
    pub line: usize,
}

impl Example {
    /// For each position the token to predict there: the next one, where that is to be learnt.
    pub fn targets(&self) -> impl Iterator<Item = Option<u32>> {
        let next = self.ids.iter().zip(&self.learn).skip(1).map(|(&id, &learn)| learn.then_some(id));
        // Nothing follows the last token.
        next.chain([None]).take(self.ids.len())
    }
}

/// Examples by number. The same number gives the same example each time.
pub trait Examples {
    /// Number of examples.
    fn count(&self) -> usize;

    /// The example with this number, from 0 and below [`count`](Self::count).
    ///
    /// # Errors
    /// When it cannot be read.
    fn example(&mut self, index: usize) -> Result<Example, DataError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_the_next_token_where_that_is_learnt() {
        let example = Example { ids: vec![5, 6, 7, 8], learn: vec![true, false, true, true], line: 1 };
        assert_eq!(example.targets().collect::<Vec<_>>(), [None, Some(7), Some(8), None]);
    }

    #[test]
    fn an_example_without_tokens_has_no_targets() {
        let example = Example { ids: vec![], learn: vec![], line: 1 };
        assert_eq!(example.targets().count(), 0);
    }
}
