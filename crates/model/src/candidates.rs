//! The compressed positions that queries are limited to.

use std::ops::Range;

/// Which compressed positions later index sources may score: for each query, runs of positions, ascending, apart from each
/// other and none empty. As large as what is chosen, whatever the number of positions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Candidates {
    runs: Vec<Vec<Range<usize>>>,
}

impl Candidates {
    /// Takes the runs of each query, `[B*S]`. Runs that touch become one.
    pub(crate) fn new(runs: impl IntoIterator<Item = Vec<Range<usize>>>) -> Self {
        Self { runs: runs.into_iter().map(joined).collect() }
    }

    /// Takes a mask `[B, S, T]` of `queries = B * S`, row-major.
    ///
    /// # Panics
    /// When the mask is not of so many rows.
    pub fn from_mask(mask: &[bool], queries: usize) -> Self {
        assert!(mask.len().is_multiple_of(queries), "{} places for {queries} queries", mask.len());
        let positions = mask.len() / queries;
        let runs_of = |query: usize| {
            let row = mask[query * positions..][..positions].iter().enumerate();
            row.filter(|(_, candidate)| **candidate).map(|(position, _)| position..position + 1).collect()
        };
        Self::new((0..queries).map(runs_of))
    }

    /// The mask `[B, S, T]` of `positions` for each query; what lies beyond is left out.
    pub fn to_mask(&self, positions: usize) -> Vec<bool> {
        let mut mask = vec![false; self.runs.len() * positions];
        for (query, runs) in self.runs.iter().enumerate() {
            let row = &mut mask[query * positions..][..positions];
            runs.iter().for_each(|run| row[run.start.min(positions)..run.end.min(positions)].fill(true));
        }
        mask
    }

    /// How many queries there are, `B * S`.
    pub fn queries(&self) -> usize {
        self.runs.len()
    }

    /// The runs of one query.
    pub fn of_query(&self, query: usize) -> &[Range<usize>] {
        &self.runs[query]
    }

    /// The most positions of a query.
    pub(crate) fn longest(&self) -> usize {
        self.runs.iter().map(|runs| runs.iter().map(Range::len).sum()).max().unwrap_or(0)
    }

    /// One beyond the last position that is a candidate of any query.
    pub(crate) fn end(&self) -> usize {
        self.runs.iter().filter_map(|runs| runs.last()).map(|run| run.end).max().unwrap_or(0)
    }
}

fn joined(runs: Vec<Range<usize>>) -> Vec<Range<usize>> {
    let mut joined: Vec<Range<usize>> = Vec::with_capacity(runs.len());
    for run in runs {
        match joined.last_mut() {
            Some(last) if last.end == run.start => last.end = run.end,
            _ => joined.push(run),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_kept_as_runs() {
        let mask = [true, true, false, true, false, false, false, false, false, true, true, true];
        let candidates = Candidates::from_mask(&mask, 3);
        assert_eq!(candidates.queries(), 3);
        assert_eq!(candidates.of_query(0), [0..2, 3..4]);
        assert!(candidates.of_query(1).is_empty());
        assert_eq!(candidates.of_query(2), std::slice::from_ref(&(1..4)));
        assert_eq!((candidates.longest(), candidates.end()), (3, 4));
        assert_eq!(candidates.to_mask(4), mask);
        assert_eq!(candidates.to_mask(2), [true, true, false, false, false, true]);
    }
}
