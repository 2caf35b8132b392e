//! What an index source does with its scores: visibility, candidate blocks, top-k. All on the host.

use burn::tensor::TensorData;

use crate::{documents::Documents, selections::NONE, topk::top_k};

/// How the candidate source chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CandidateRule {
    /// Compressed positions of a block.
    pub block_size: usize,
    /// Blocks kept for a query.
    pub blocks: usize,
}

/// The scores of a call's queries over the compressed positions, `[B, S, T]`, minus infinity where nothing may be seen.
#[derive(Debug, Clone)]
pub struct Scores {
    values: Vec<f64>,
    start: usize,
    seq: usize,
    ratio: usize,
    positions: usize,
    /// The first compressed position of each query's document, where there are several.
    first: Option<Vec<usize>>,
}

impl Scores {
    /// Takes raw scores of queries that start at position `start` and hides what each has not passed: a compressed
    /// position is visible once the query has passed its last token, `t < (position + 1) / ratio`.
    pub fn new(mut values: Vec<f64>, start: usize, seq: usize, ratio: usize) -> Self {
        let positions = (start + seq) / ratio;
        for (query, row) in values.chunks_exact_mut(positions).enumerate() {
            let visible = (start + query % seq + 1) / ratio;
            row[visible.min(positions)..].fill(f64::NEG_INFINITY);
        }
        Self { values, start, seq, ratio, positions, first: None }
    }

    /// Hides what lies before each query's document. Documents start where a compressed position does.
    pub(crate) fn within(mut self, documents: &Documents) -> Self {
        if let Some(starts) = documents.starts() {
            let first: Vec<usize> = starts.iter().map(|start| start / self.ratio).collect();
            for (row, &first) in self.values.chunks_exact_mut(self.positions).zip(&first) {
                row[..first].fill(f64::NEG_INFINITY);
            }
            self.first = Some(first);
        }
        self
    }

    fn first(&self, query: usize) -> usize {
        self.first.as_ref().map_or(0, |first| first[query])
    }

    fn visible(&self, query: usize) -> usize {
        (self.start + query % self.seq + 1) / self.ratio
    }

    /// The mask `[B, S, T]` for later index sources: whole blocks, the best by their best position, the block of the
    /// newest visible position always among them; equal blocks go to the lowest, blocks with nothing visible never.
    /// Blocks are counted from the start of the query's document.
    pub fn candidates(&self, rule: CandidateRule) -> Vec<bool> {
        let mut mask = vec![false; self.values.len()];
        let rows = self.values.chunks_exact(self.positions).zip(mask.chunks_exact_mut(self.positions));
        for (query, (row, mask)) in rows.enumerate() {
            let first = self.first(query);
            let (row, mask) = (&row[first..], &mut mask[first..]);
            let newest = (self.visible(query).saturating_sub(first)).checked_sub(1).map(|last| last / rule.block_size);
            let blocks: Vec<f64> = row
                .chunks(rule.block_size)
                .enumerate()
                .map(|(block, scores)| match newest {
                    Some(newest) if newest == block => f64::INFINITY,
                    _ => scores.iter().copied().fold(f64::NEG_INFINITY, f64::max),
                })
                .collect();
            for block in top_k(&blocks, rule.blocks) {
                if blocks[block] > f64::NEG_INFINITY {
                    let start = block * rule.block_size;
                    let end = (start + rule.block_size).min(row.len());
                    mask[start..end].fill(true);
                }
            }
        }
        mask
    }

    /// Hides every position outside `mask`.
    pub fn restrict(&mut self, mask: &[bool]) {
        for (score, &candidate) in self.values.iter_mut().zip(mask) {
            if !candidate {
                *score = f64::NEG_INFINITY;
            }
        }
    }

    /// The `k` best positions of each query, ascending, -1 last: `[B, S, min(k, T)]`. Hidden positions are never among
    /// them, unless `keep_masked` asks for those that the query has passed.
    pub fn top_k(&self, k: usize, keep_masked: bool) -> Vec<i64> {
        let width = k.min(self.positions);
        let mut selected = Vec::with_capacity(self.values.len() / self.positions * width);
        for (query, row) in self.values.chunks_exact(self.positions).enumerate() {
            let visible = self.visible(query);
            let mut picks: Vec<usize> = top_k(row, width)
                .into_iter()
                .filter(|&t| match keep_masked {
                    true => (self.first(query)..visible).contains(&t),
                    false => row[t] > f64::NEG_INFINITY,
                })
                .collect();
            picks.sort_unstable();
            let missing = width - picks.len();
            selected.extend(picks.into_iter().map(|t| t as i64));
            selected.extend(std::iter::repeat_n(NONE, missing));
        }
        selected
    }

    /// `[B, S, T]`.
    pub fn to_data(&self) -> TensorData {
        let batch = self.values.len() / (self.seq * self.positions);
        TensorData::new(self.values.clone(), [batch, self.seq, self.positions])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: CandidateRule = CandidateRule { block_size: 2, blocks: 2 };

    /// One query at position 7 of a ratio-1 stream sees all eight positions.
    fn last_query(scores: [f64; 8]) -> Scores {
        Scores { values: scores.to_vec(), start: 7, seq: 1, ratio: 1, positions: 8, first: None }
    }

    #[test]
    fn future_positions_are_hidden() {
        let scores = Scores::new(vec![1.0; 2 * 3 * 2], 1, 3, 2);
        let hidden: Vec<bool> = scores.values.iter().map(|s| s.is_infinite()).collect();
        assert_eq!(hidden[..6], [false, true, false, true, false, false]);
        assert_eq!(hidden[..6], hidden[6..], "sequences of a batch see alike");
    }

    #[test]
    fn newest_block_is_pinned_and_counted() {
        let mask = last_query([5.0, 0.0, 4.0, 0.0, 6.0, 0.0, -9.0, -9.0]).candidates(RULE);
        assert_eq!(mask, [false, false, false, false, true, true, true, true]);
    }

    #[test]
    fn equal_blocks_go_to_the_lowest() {
        let mask = last_query([1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0]).candidates(RULE);
        assert_eq!(mask, [true, true, false, false, false, false, true, true]);
    }

    #[test]
    fn blocks_with_nothing_visible_are_no_candidates() {
        let mut scores = last_query([1.0; 8]);
        scores.start = 2;
        scores.values[3..].fill(f64::NEG_INFINITY);
        let mask = scores.candidates(CandidateRule { block_size: 2, blocks: 4 });
        assert_eq!(mask, [true, true, true, true, false, false, false, false], "whole blocks, nothing beyond");
    }

    #[test]
    fn selection_is_ascending_and_padded() {
        let mut scores = last_query([0.0, 3.0, 1.0, 2.0, 0.0, 0.0, 0.0, 9.0]);
        assert_eq!(scores.top_k(3, false), [1, 3, 7]);
        scores.restrict(&[false, true, false, false, false, false, false, true]);
        assert_eq!(scores.top_k(3, false), [1, 7, -1]);
        assert_eq!(scores.top_k(3, true), [0, 1, 7], "the released code picks a masked position");
    }
}
