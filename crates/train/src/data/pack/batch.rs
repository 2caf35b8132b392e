//! What one step trains on.

use super::row::Row;

/// Rows of one length, each with one document or several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// The tokens: B rows of S.
    pub tokens: Vec<Vec<u32>>,
    /// For each row where its documents start, in ascending order; the first starts at 0. Padding counts to the document
    /// before it.
    pub documents: Vec<Vec<usize>>,
    /// For each row the tokens of its documents, padding left out.
    pub lengths: Vec<Vec<usize>>,
    /// For each position the token to predict there: the next one of the same document, where that is to be learnt. B
    /// rows of S.
    pub targets: Vec<Vec<Option<u32>>>,
    /// The lines or numbers of the examples, in the order of the documents, row by row.
    pub lines: Vec<usize>,
}

/// How much is in a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BatchCounts {
    /// Tokens of documents.
    pub tokens: usize,
    /// Tokens to predict.
    pub targets: usize,
    /// Positions that hold padding.
    pub padding: usize,
}

impl Batch {
    pub(super) fn of(rows: Vec<Row>, length: usize, padding: u32) -> Self {
        let mut batch = Self { tokens: vec![], documents: vec![], lengths: vec![], targets: vec![], lines: vec![] };
        for mut row in rows {
            row.pad(length, padding);
            batch.tokens.push(row.tokens);
            batch.documents.push(row.documents);
            batch.lengths.push(row.lengths);
            batch.targets.push(row.targets);
            batch.lines.extend(row.lines);
        }
        batch
    }

    /// How much is in it.
    pub fn counts(&self) -> BatchCounts {
        let tokens = self.lengths.iter().flatten().sum();
        BatchCounts {
            tokens,
            targets: self.targets.iter().flatten().flatten().count(),
            padding: self.tokens.iter().map(Vec::len).sum::<usize>() - tokens,
        }
    }
}

#[cfg(test)]
impl Batch {
    /// The examples that can be told from it: each document's own tokens, and those of them that are predicted. Asserts
    /// that a target is the next token of its document and that padding has none.
    pub(in crate::data) fn examples(&self) -> Vec<crate::data::Example> {
        let mut lines = self.lines.iter();
        let mut examples = Vec::new();
        for (row, starts) in self.documents.iter().enumerate() {
            let mut predicted = vec![false; self.tokens[row].len() + 1];
            for (position, target) in self.targets[row].iter().enumerate() {
                if let Some(target) = target {
                    assert_eq!(self.tokens[row].get(position + 1), Some(target));
                    predicted[position + 1] = true;
                }
            }
            for (&start, &length) in starts.iter().zip(&self.lengths[row]) {
                let ids = self.tokens[row][start..start + length].to_vec();
                let learn: Vec<bool> = predicted[start..start + length].to_vec();
                predicted[start..start + length].fill(false);
                assert!(!learn[0], "the first token of a document is predicted from another");
                examples.push(crate::data::Example { ids, learn, line: *lines.next().unwrap() });
            }
            assert!(!predicted.contains(&true), "padding is predicted");
        }
        assert_eq!(lines.next(), None);
        examples
    }
}
