use burn::tensor::{DType, Int, Tensor, TensorData, backend::Backend};

use super::LossError;
use crate::data::Batch;

/// Which tokens of a batch count in a loss, and which sequence each belongs to. Every document is a sequence of its own,
/// also where several share a row; padding belongs to none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sequences {
    /// The sequence of each token, row by row; none for padding.
    of_tokens: Vec<Option<usize>>,
    /// Tokens of each sequence.
    lengths: Vec<usize>,
}

impl Sequences {
    /// Rows that are one sequence each, without padding.
    pub fn of_rows(rows: usize, length: usize) -> Self {
        Self {
            of_tokens: (0..rows).flat_map(|row| std::iter::repeat_n(Some(row), length)).collect(),
            lengths: vec![length; rows],
        }
    }

    /// The documents of a batch.
    pub fn of_batch(batch: &Batch) -> Self {
        let mut lengths = Vec::new();
        let mut of_tokens = Vec::new();
        for ((tokens, starts), in_row) in batch.tokens.iter().zip(&batch.documents).zip(&batch.lengths) {
            let mut of_row = vec![None; tokens.len()];
            for (&start, &length) in starts.iter().zip(in_row) {
                of_row[start..start + length].fill(Some(lengths.len()));
                lengths.push(length);
            }
            of_tokens.extend(of_row);
        }
        Self { of_tokens, lengths }
    }

    /// All tokens, padding included.
    pub fn positions(&self) -> usize {
        self.of_tokens.len()
    }

    /// Tokens that count.
    pub fn tokens(&self) -> usize {
        self.lengths.iter().sum()
    }

    /// Tokens of each sequence.
    pub fn lengths(&self) -> &[usize] {
        &self.lengths
    }

    /// The sequence of each token, row by row; none for padding.
    pub fn of_tokens(&self) -> &[Option<usize>] {
        &self.of_tokens
    }

    /// Refuses a call of another number of tokens.
    pub(crate) fn check(&self, positions: usize) -> Result<(), LossError> {
        match positions == self.positions() {
            true => Ok(()),
            false => Err(LossError::TokenCount { found: positions, expected: self.positions() }),
        }
    }

    /// What makes a sum over tokens a mean over those that count, `[N, 1]`.
    pub(super) fn mean_weights<B: Backend>(&self, device: &B::Device, dtype: DType) -> Tensor<B, 2> {
        let share = (self.tokens().max(1) as f64).recip();
        let weights: Vec<f64> = self.of_tokens.iter().map(|token| token.map_or(0.0, |_| share)).collect();
        Tensor::from_data(TensorData::new(weights, [self.positions(), 1]), (device, dtype))
    }

    /// The sequence of each token, `[N]`, where all padding is one more.
    pub(super) fn indices<B: Backend>(&self, device: &B::Device) -> Tensor<B, 1, Int> {
        let padding = self.lengths.len();
        let indices: Vec<i64> = self.of_tokens.iter().map(|token| token.unwrap_or(padding) as i64).collect();
        Tensor::from_data(TensorData::new(indices, [self.positions()]), device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_sequences_and_padding_is_none() {
        let batch = Batch {
            tokens: vec![vec![5; 6], vec![5; 6]],
            documents: vec![vec![0, 4], vec![0]],
            lengths: vec![vec![3, 1], vec![6]],
            targets: vec![vec![None; 6]; 2],
            lines: vec![1, 2, 3],
        };
        let sequences = Sequences::of_batch(&batch);
        let first = [Some(0), Some(0), Some(0), None, Some(1), None];
        assert_eq!(sequences.of_tokens(), [first, [Some(2); 6]].concat());
        assert_eq!((sequences.lengths(), sequences.tokens(), sequences.positions()), (&[3, 1, 6][..], 10, 12));
    }

    #[test]
    fn rows_without_padding_are_a_batch_of_whole_rows() {
        let batch = Batch {
            tokens: vec![vec![5; 4]; 2],
            documents: vec![vec![0]; 2],
            lengths: vec![vec![4]; 2],
            targets: vec![vec![None; 4]; 2],
            lines: vec![1, 2],
        };
        assert_eq!(Sequences::of_rows(2, 4), Sequences::of_batch(&batch));
    }
}
