//! Lines that cannot be used.

use std::fmt;

/// Rejections whose reasons are kept.
const KEPT: usize = 10;

/// Why a line is no example.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// It is not JSON.
    #[error("not JSON: {problem} at column {column}")]
    NotJson {
        /// What the parser says.
        problem: String,
        /// Where in the line, in bytes from 1.
        column: usize,
    },
    /// It has none of the forms, or more than one.
    #[error("expected an object with one of `text`, `ids` and `messages`, found {found}")]
    UnknownForm {
        /// What it has.
        found: String,
    },
    /// The value of a key is not what it has to be.
    #[error("`{key}`: {problem}")]
    Field {
        /// The key.
        key: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// It has more or fewer marks than tokens.
    #[error("`learn` has {found} entries, `ids` has {expected}")]
    LearnLength {
        /// Marks.
        found: usize,
        /// Tokens.
        expected: usize,
    },
    /// It is text, and nothing makes tokens of it.
    #[error("`{key}` needs a tokenizer, and there is none")]
    NoTokenizer {
        /// The key with the text.
        key: &'static str,
    },
    /// A token that the model does not have.
    #[error("token {index} is {id}, the vocabulary has {vocabulary} tokens")]
    IdOutOfRange {
        /// Its place, from 0.
        index: usize,
        /// The token.
        id: u32,
        /// Tokens that there are.
        vocabulary: usize,
    },
    /// It holds nothing.
    #[error("no tokens")]
    NoTokens,
    /// No token of it can be learnt.
    #[error("nothing to learn: no token but the first is one to be predicted")]
    NothingToLearn,
    /// It has more tokens than a sequence.
    #[error("{length} tokens, a sequence holds {limit}")]
    TooLong {
        /// Its tokens.
        length: usize,
        /// Tokens of a sequence.
        limit: usize,
    },
}

impl Reason {
    /// The value of a key is not what it has to be.
    pub(super) fn field<E: fmt::Display>(key: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self::Field { key, problem: error.to_string() }
    }
}

/// A line that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub reason: Reason,
}

/// The lines of a file that cannot be used: how many there are, and the reasons of the first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rejections {
    count: usize,
    first: Vec<Rejection>,
}

impl Rejections {
    pub(super) fn add(&mut self, line: usize, reason: Reason) {
        self.count += 1;
        if self.first.len() < KEPT {
            self.first.push(Rejection { line, reason });
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The first ones, ten at most.
    pub fn first(&self) -> &[Rejection] {
        &self.first
    }
}

/// How many, then the first ones, a line each.
impl fmt::Display for Rejections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} line{}", self.count, if self.count == 1 { "" } else { "s" })?;
        for Rejection { line, reason } in &self.first {
            write!(f, "\n  line {line}: {reason}")?;
        }
        match self.count - self.first.len() {
            0 => Ok(()),
            more => write!(f, "\n  and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_counted_and_the_first_are_told() {
        let mut rejections = Rejections::default();
        assert_eq!(rejections.to_string(), "0 lines");
        for line in 1..=KEPT + 2 {
            rejections.add(line, Reason::NoTokens);
        }
        assert_eq!((rejections.count(), rejections.first().len()), (KEPT + 2, KEPT));
        let said = rejections.to_string();
        assert!(said.starts_with("12 lines\n  line 1: no tokens\n"), "{said}");
        assert!(said.ends_with("\n  line 10: no tokens\n  and 2 more"), "{said}");
    }
}
