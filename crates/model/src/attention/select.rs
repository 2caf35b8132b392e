//! What an index source does with its scores: visibility, candidate blocks, the best positions. All on the host, one query
//! at a time.

use std::ops::Range;

use crate::{documents::Documents, selections::NONE, topk::top_k};

/// Which compressed positions the queries of a call see.
#[derive(Debug, Clone)]
pub struct Visibility {
    start: usize,
    seq: usize,
    ratio: usize,
    /// The first compressed position of each query's document, where there are several.
    first: Option<Vec<usize>>,
}

impl Visibility {
    /// Of sequences of `seq` queries that start at position `start`, over a stream with a position for `ratio` tokens.
    /// Documents start where a compressed position does.
    pub(crate) fn new(start: usize, seq: usize, ratio: usize, documents: &Documents) -> Self {
        let first = documents.starts().map(|starts| starts.iter().map(|start| start / ratio).collect());
        Self { start, seq, ratio, first }
    }

    /// What a query (of `B*S`) sees: of its own document, what it has passed. A compressed position is visible once the
    /// query has passed its last token, `t < (position + 1) / ratio`.
    pub fn of_query(&self, query: usize) -> Range<usize> {
        let first = self.first.as_ref().map_or(0, |first| first[query]);
        let visible = (self.start + query % self.seq + 1) / self.ratio;
        first..visible
    }

    /// The positions that exist at the end of the call.
    pub fn positions(&self) -> usize {
        (self.start + self.seq) / self.ratio
    }
}

/// How the candidate source chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CandidateRule {
    /// Compressed positions of a block.
    pub block_size: usize,
    /// Blocks kept for a query.
    pub blocks: usize,
}

impl CandidateRule {
    /// The candidates of a query for later index sources, by the scores of what is `visible`: whole blocks, the best by
    /// their best position, the block of the newest visible position always among them; equal blocks go to the lowest,
    /// blocks with nothing visible never. Blocks are counted from the start of the query's document and end at the last of
    /// `positions`.
    pub fn choose(self, visible: Range<usize>, scores: &[f64], positions: usize) -> Vec<Range<usize>> {
        let newest = visible.len().checked_sub(1).map(|last| last / self.block_size);
        let blocks: Vec<f64> = scores
            .chunks(self.block_size)
            .enumerate()
            .map(|(block, scores)| match newest {
                Some(newest) if newest == block => f64::INFINITY,
                _ => scores.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            })
            .collect();
        let mut chosen = top_k(&blocks, self.blocks);
        chosen.retain(|&block| blocks[block] > f64::NEG_INFINITY);
        chosen.sort_unstable();
        let of_block = |block: usize| {
            let start = visible.start + block * self.block_size;
            start..(start + self.block_size).min(positions)
        };
        chosen.into_iter().map(of_block).collect()
    }
}

/// The parts of ascending `runs` within `visible`.
pub fn within(runs: &[Range<usize>], visible: &Range<usize>) -> Vec<Range<usize>> {
    let clipped = runs.iter().map(|run| run.start.max(visible.start)..run.end.min(visible.end));
    clipped.filter(|run| !run.is_empty()).collect()
}

/// What one query may attend, with its scores.
#[derive(Debug)]
pub struct Scored<'a> {
    /// What the query sees.
    pub visible: Range<usize>,
    /// What of it was scored, ascending.
    pub runs: &'a [Range<usize>],
    /// The score of each position of the runs.
    pub scores: &'a [f64],
}

impl Scored<'_> {
    /// The positions, ascending, with their scores.
    pub fn positions(&self) -> impl Iterator<Item = (usize, f64)> {
        self.runs.iter().cloned().flatten().zip(self.scores.iter().copied())
    }

    /// The `width` best positions, ascending, -1 last. `keep_masked` fills up with what the query sees and was not scored,
    /// as far as it is among the lowest positions that were not.
    pub fn best(&self, width: usize, keep_masked: bool) -> Vec<i64> {
        let mut picks = top_k(self.scores, width);
        picks.retain(|&index| self.scores[index] > f64::NEG_INFINITY);
        picks.sort_unstable();
        self.to_positions(&mut picks);
        if keep_masked {
            let others = (0..self.visible.end).filter(|position| picks.binary_search(position).is_err());
            let masked = others.take(width - picks.len()).filter(|position| self.visible.contains(position));
            let masked: Vec<usize> = masked.collect();
            picks.extend(masked);
            picks.sort_unstable();
        }
        let mut selected: Vec<i64> = picks.into_iter().map(|position| position as i64).collect();
        selected.resize(width, NONE);
        selected
    }

    /// From places among the scores, ascending, to positions.
    fn to_positions(&self, places: &mut [usize]) {
        let mut runs = self.runs.iter();
        // The run at hand, and the places before its end.
        let (mut run, mut end) = (&(0..0), 0);
        for place in places {
            while *place >= end {
                run = runs.next().expect("a score for each position of the runs");
                end += run.len();
            }
            *place = run.end - (end - *place);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use super::*;

    const RULE: CandidateRule = CandidateRule { block_size: 2, blocks: 2 };

    fn visibility(start: usize, seq: usize, ratio: usize) -> Visibility {
        Visibility { start, seq, ratio, first: None }
    }

    #[test]
    fn what_a_query_has_not_passed_is_hidden() {
        let visibility = visibility(1, 3, 2);
        let seen: Vec<_> = (0..6).map(|query| visibility.of_query(query)).collect();
        assert_eq!(seen[..3], [0..1, 0..1, 0..2]);
        assert_eq!(seen[..3], seen[3..], "sequences of a batch see alike");
        assert_eq!(visibility.positions(), 2);
    }

    #[test]
    fn newest_block_is_pinned_and_counted() {
        let scores = [5.0, 0.0, 4.0, 0.0, 6.0, 0.0, -9.0, -9.0];
        assert_eq!(RULE.choose(0..8, &scores, 8), [4..6, 6..8]);
    }

    #[test]
    fn equal_blocks_go_to_the_lowest() {
        assert_eq!(RULE.choose(0..8, &[1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0], 8), [0..2, 6..8]);
    }

    #[test]
    fn blocks_with_nothing_visible_are_no_candidates() {
        let rule = CandidateRule { block_size: 2, blocks: 4 };
        assert_eq!(rule.choose(0..3, &[1.0; 3], 8), [0..2, 2..4], "whole blocks, nothing beyond");
        assert_eq!(rule.choose(0..3, &[1.0; 3], 3), [0..2, 2..3], "nor beyond the last position");
        assert_eq!(rule.choose(0..0, &[], 8), []);
    }

    #[test]
    fn blocks_are_counted_from_the_start_of_a_document() {
        assert_eq!(RULE.choose(3..8, &[9.0, 0.0, 1.0, 1.0, 0.0], 9), [3..5, 7..9]);
    }

    #[test]
    fn only_what_is_visible_of_candidates_is_scored() {
        assert_eq!(within(&[0..2, 3..5, 6..9, 9..10], &(1..7)), [1..2, 3..5, 6..7]);
        assert_eq!(within(from_ref(&(0..2)), &(4..4)), []);
    }

    #[test]
    fn selection_is_ascending_and_padded() {
        let scores = [0.0, 3.0, 1.0, 2.0, 0.0, 0.0, 0.0, 9.0];
        let all = Scored { visible: 0..8, runs: from_ref(&(0..8)), scores: &scores };
        assert_eq!(all.best(3, false), [1, 3, 7]);
        let two = Scored { visible: 0..8, runs: &[1..2, 7..8], scores: &[3.0, 9.0] };
        assert_eq!(two.positions().collect::<Vec<_>>(), [(1, 3.0), (7, 9.0)]);
        assert_eq!(two.best(3, false), [1, 7, -1]);
        assert_eq!(two.best(3, true), [0, 1, 7], "the released code picks a masked position");
    }

    #[test]
    fn masked_positions_of_another_document_take_places_and_are_not_attended() {
        let scored = Scored { visible: 2..6, runs: from_ref(&(4..5)), scores: &[1.0] };
        assert_eq!(scored.best(4, true), [2, 4, -1, -1]);
        assert_eq!(scored.best(9, true), [2, 3, 4, 5, -1, -1, -1, -1, -1]);
    }

    #[test]
    fn scores_that_are_no_numbers_are_not_attended() {
        let scored = Scored { visible: 0..3, runs: from_ref(&(0..3)), scores: &[f64::NAN, 1.0, f64::NEG_INFINITY] };
        assert_eq!(scored.best(3, false), [1, -1, -1]);
    }
}
