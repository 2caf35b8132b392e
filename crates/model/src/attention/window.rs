//! The sliding window: which positions a query sees, and where they lie among the keys of a call.

use crate::selections::NONE;

/// The positions that each of `seq` queries from position `start` on sees of the last `window`, oldest first, -1 at the
/// end: `[seq, width]` with `width = min(window, start + seq)`.
pub fn window_positions(start: usize, seq: usize, window: usize) -> (Vec<i64>, usize) {
    let width = window.min(start + seq);
    let mut positions = Vec::with_capacity(seq * width);
    for query in start..start + seq {
        let oldest = (query + 1).saturating_sub(window);
        let seen = query + 1 - oldest;
        positions.extend((oldest..=query).map(|position| position as i64));
        positions.extend(std::iter::repeat_n(NONE, width - seen));
    }
    (positions, width)
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
        assert_eq!(window_positions(0, 1, 3), (vec![0], 1));
        assert_eq!(window_positions(0, 2, 3), (vec![0, -1, 0, 1], 2));
        assert_eq!(window_positions(0, 3, 3), (vec![0, -1, -1, 0, 1, -1, 0, 1, 2], 3));
        assert_eq!(window_positions(0, 4, 3).0[9..], [1, 2, 3]);
    }

    #[test]
    fn later_calls_reach_back() {
        assert_eq!(window_positions(5, 2, 3), (vec![3, 4, 5, 4, 5, 6], 3));
        assert_eq!(previous_keys(5, 3), 2);
        assert_eq!(previous_keys(1, 3), 1);
        assert_eq!(previous_keys(9, 1), 0);
    }
}
