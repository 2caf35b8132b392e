//! Why there are no batches.

use std::io;
use std::path::{Path, PathBuf};

use super::jsonl::{Reason, Rejections};

/// Why examples cannot be read or made, or put into batches.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The file cannot be read.
    #[error("{}: cannot be read: {source}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The places of a file's lines, which are kept in a temporary file, cannot be written or read.
    #[error("{}: the places of its lines cannot be kept in a temporary file: {source}", file.display())]
    Index {
        /// The file whose lines they are.
        file: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A file without lines, or with blank ones alone.
    #[error("{}: nothing but {blank} blank lines, expected an example a line", file.display())]
    NoLines {
        /// The file.
        file: PathBuf,
        /// Its blank lines.
        blank: usize,
    },
    /// A file none of whose lines is an example.
    #[error("{}: no line can be used: {rejections}", file.display())]
    NothingUsable {
        /// The file.
        file: PathBuf,
        /// What is wrong with its lines.
        rejections: Rejections,
    },
    /// A line with more tokens than a sequence has.
    #[error("{}: line {line} has {length} tokens, a sequence holds {limit}", file.display())]
    LongLine {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: usize,
        /// Its tokens.
        length: usize,
        /// Tokens of a sequence.
        limit: usize,
    },
    /// A line that was an example and is none any more.
    #[error("{}: line {line} has changed since the file was opened: {reason}", file.display())]
    Changed {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it now.
        reason: Reason,
    },
    /// A number that cannot be worked with.
    #[error("{of}: `{option}` is {found}, expected {expected}")]
    Option {
        /// What it is an option of.
        of: &'static str,
        /// The option.
        option: &'static str,
        /// What it is.
        found: usize,
        /// What it can be.
        expected: String,
    },
    /// A source without examples.
    #[error("there are no examples to make batches of")]
    NoExamples,
    /// An example with more tokens than a sequence has.
    #[error("example {line} has {length} tokens, a sequence holds {limit}")]
    LongExample {
        /// The example's line or number.
        line: usize,
        /// Its tokens.
        length: usize,
        /// Tokens of a sequence.
        limit: usize,
    },
    /// A state of a stream over other examples.
    #[error("the saved state is of a stream over {found} examples, expected {expected}")]
    OtherExamples {
        /// Examples that the state tells of.
        found: usize,
        /// Examples that there are.
        expected: usize,
    },
    /// A state that no stream can be in.
    #[error(
        "the saved state has {next} as its next position and {waiting:?} waiting: expected ascending positions below the \
         next, and one that is left of {examples}"
    )]
    InvalidState {
        /// The position of the next example.
        next: usize,
        /// The positions that wait.
        waiting: Vec<usize>,
        /// Examples of an epoch.
        examples: usize,
    },
    /// No task has this name.
    #[error("task `{found}`, supported: {supported}")]
    UnknownTask {
        /// The name.
        found: String,
        /// The names of all tasks.
        supported: String,
    },
    /// A task writes tokens that the model does not have.
    #[error("task `{task}` needs a vocabulary of {needed} tokens, the model's has {found}")]
    SmallVocabulary {
        /// The task.
        task: &'static str,
        /// Tokens that it needs.
        needed: usize,
        /// Tokens that there are.
        found: usize,
    },
}

impl DataError {
    /// The system does not let a file be read.
    pub(super) fn read(file: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Read { file: file.to_owned(), source }
    }

    /// The system does not let the places of a file's lines be kept.
    pub(super) fn index(file: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Index { file: file.to_owned(), source }
    }

    /// Refuses an option unless it holds.
    pub(super) fn check(
        holds: bool,
        of: &'static str,
        (option, found): (&'static str, usize),
        expected: impl Into<String>,
    ) -> Result<(), Self> {
        if holds { Ok(()) } else { Err(Self::Option { of, option, found, expected: expected.into() }) }
    }
}
