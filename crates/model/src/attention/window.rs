//! The sliding window: which positions a query sees, and where they lie among the keys of a call.

use crate::selections::NONE;

/// The most positions that a query of a call sees of the last `window`.
pub fn window_width(start: usize, seq: usize, window: usize) -> usize {
    window.min(start + seq)
}

/// The positions that each of `seq` queries from position `start` on sees of the last `window` and of its own document,
/// oldest first, -1 at the end: `[seq, width]` with [`window_width`]. `document_start` is the first position of the document
/// that a query of the call, counted from 0, is in.
pub fn window_positions(start: usize, seq: usize, window: usize, document_start: impl Fn(usize) -> usize) -> Vec<i64> {
    let width = window_width(start, seq, window);
    let mut positions = Vec::with_capacity(seq * width);
    for query in start..start + seq {
        let oldest = (query + 1).saturating_sub(window).max(document_start(query - start));
        let seen = query + 1 - oldest;
        positions.extend((oldest..=query).map(|position| position as i64));
        positions.extend(std::iter::repeat_n(NONE, width - seen));
    }
    positions
}

/// How many keys from before `start` the first query of a call sees.
pub fn previous_keys(start: usize, window: usize) -> usize {
    start.min(window - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_queries_see_what_there_is() {
        let positions = |seq| window_positions(0, seq, 3, |_| 0);
        assert_eq!(positions(1), [0]);
        assert_eq!(positions(2), [0, -1, 0, 1]);
        assert_eq!(positions(3), [0, -1, -1, 0, 1, -1, 0, 1, 2]);
        assert_eq!(positions(4)[9..], [1, 2, 3]);
    }

    #[test]
    fn a_document_begins_anew() {
        let positions = window_positions(0, 4, 3, |query| if query < 2 { 0 } else { 2 });
        assert_eq!(positions, [0, -1, -1, 0, 1, -1, 2, -1, -1, 2, 3, -1]);
    }

    #[test]
    fn later_calls_reach_back() {
        assert_eq!(window_positions(5, 2, 3, |_| 0), [3, 4, 5, 4, 5, 6]);
        assert_eq!(previous_keys(5, 3), 2);
        assert_eq!(previous_keys(1, 3), 1);
        assert_eq!(previous_keys(9, 1), 0);
    }
}
