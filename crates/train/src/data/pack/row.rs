//! One row of a batch that is being filled.

use super::{BatchLayout, Manner};
use crate::data::Example;

/// Documents one after the other, each with padding before it where its start needs it.
#[derive(Debug, Default)]
pub(super) struct Row {
    pub(super) tokens: Vec<u32>,
    pub(super) targets: Vec<Option<u32>>,
    pub(super) documents: Vec<usize>,
    pub(super) lengths: Vec<usize>,
    pub(super) lines: Vec<usize>,
}

impl Row {
    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Where a document of so many tokens would start, if there is room for it.
    pub(super) fn room(&self, layout: &BatchLayout, length: usize) -> Option<usize> {
        if layout.manner == Manner::Unpacked && !self.tokens.is_empty() {
            return None;
        }
        let start = self.len().checked_next_multiple_of(layout.alignment)?;
        let end = start.checked_add(length)?;
        (end <= layout.length).then_some(start)
    }

    /// Adds a document at a start that [`room`](Self::room) gave.
    pub(super) fn put(&mut self, example: &Example, start: usize, padding: u32) {
        self.pad(start, padding);
        self.documents.push(start);
        self.lengths.push(example.ids.len());
        self.lines.push(example.line);
        self.tokens.extend(&example.ids);
        self.targets.extend(example.targets());
    }

    /// Fills up to a length.
    pub(super) fn pad(&mut self, length: usize, padding: u32) {
        self.tokens.resize(length, padding);
        self.targets.resize(length, None);
    }
}
