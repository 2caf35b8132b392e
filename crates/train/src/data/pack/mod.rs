//! Putting examples into the rows of a batch.

mod batch;
mod row;

use dsv41_config::Config;
use serde::{Deserialize, Serialize};

use super::{DataError, Example};
pub use batch::{Batch, BatchCounts};
use row::Row;

/// Tokens of the shortest example with something to learn.
const SHORTEST: usize = 2;

/// How examples lie in batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchLayout {
    /// Rows of a batch.
    pub rows: usize,
    /// Tokens that a row holds at most.
    pub length: usize,
    /// What the places where documents start are multiples of; see [`alignment`].
    pub alignment: usize,
    /// Whether rows are shared.
    pub manner: Manner,
    /// The token between and after documents.
    pub padding: u32,
}

/// Whether examples share rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Manner {
    /// They do: each goes into the first row with room for it. Rows have the full length always, so that all batches
    /// have one shape.
    Packed {
        /// Examples that can wait for a later batch because this one has no room for them, while shorter ones that come
        /// after them fill it.
        look_ahead: usize,
    },
    /// Each has a row to itself. Rows are as long as the longest example of the batch, rounded up to the alignment, and
    /// never longer than the layout says.
    Unpacked,
}

/// The alignment of documents that a model needs: the least common multiple of its layers' compression ratios. A
/// document that starts at a multiple of it shares no compressed position with the one before.
///
/// It is the largest number there is where the multiple exceeds it; documents then share no rows.
pub fn alignment(config: &Config) -> usize {
    let topology = config.topology();
    let ratios = topology.layers().iter().map(|layer| layer.ratio).filter(|&ratio| ratio > 0);
    ratios.fold(1, |multiple, ratio| (multiple / greatest_common_divisor(multiple, ratio)).saturating_mul(ratio))
}

fn greatest_common_divisor(mut one: usize, mut other: usize) -> usize {
    while other > 0 {
        (one, other) = (other, one % other);
    }
    one
}

impl BatchLayout {
    /// Checks that batches can be laid out so.
    ///
    /// # Errors
    /// A number is 0, or rows are too short for a token and the next.
    pub fn check(&self) -> Result<(), DataError> {
        let check = |holds, option, expected| DataError::check(holds, "batches", option, expected);
        check(self.rows > 0, ("rows", self.rows), "at least 1")?;
        check(self.length >= SHORTEST, ("length", self.length), "at least 2, a token and the one to predict")?;
        check(self.alignment > 0, ("alignment", self.alignment), "at least 1")?;
        check(self.look_ahead() > 0, ("look-ahead", self.look_ahead()), "at least 1")
    }

    /// Examples that can wait for a later batch.
    pub(super) fn look_ahead(&self) -> usize {
        match self.manner {
            Manner::Packed { look_ahead } => look_ahead,
            Manner::Unpacked => 1,
        }
    }
}

/// A batch that is being filled.
#[derive(Debug)]
pub struct Packer {
    layout: BatchLayout,
    rows: Vec<Row>,
}

impl Packer {
    /// A batch without examples.
    pub fn new(layout: BatchLayout) -> Self {
        Self { layout, rows: Vec::new() }
    }

    /// Puts an example into the first row with room for it. False if there is none.
    pub fn offer(&mut self, example: &Example) -> bool {
        let length = example.ids.len();
        let room = self.rows.iter_mut().find_map(|row| Some((row.room(&self.layout, length)?, row)));
        if let Some((start, row)) = room {
            row.put(example, start, self.layout.padding);
            return true;
        }
        let mut row = Row::default();
        let start = row.room(&self.layout, length).filter(|_| self.rows.len() < self.layout.rows);
        if let Some(start) = start {
            row.put(example, start, self.layout.padding);
            self.rows.push(row);
        }
        start.is_some()
    }

    /// Whether no row has room for any example that has something to learn.
    pub fn is_full(&self) -> bool {
        let full = |row: &Row| row.room(&self.layout, SHORTEST).is_none();
        self.rows.len() >= self.layout.rows && self.rows.iter().all(full)
    }

    /// The batch, with as many rows as hold examples.
    pub fn finish(self) -> Batch {
        let BatchLayout { length, alignment, manner, padding, .. } = self.layout;
        let longest = self.rows.iter().map(Row::len).max().unwrap_or(0);
        let length = match manner {
            Manner::Packed { .. } => length,
            Manner::Unpacked => longest.checked_next_multiple_of(alignment).map_or(length, |long| long.min(length)),
        };
        Batch::of(self.rows, length, padding)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::data::testing::{listed, numbered_example};

    const PAD: u32 = 9;

    fn layout(rows: usize, length: usize, alignment: usize, manner: Manner) -> BatchLayout {
        BatchLayout { rows, length, alignment, manner, padding: PAD }
    }

    const PACKED: Manner = Manner::Packed { look_ahead: 4 };

    fn example(line: usize, length: usize) -> Example {
        numbered_example(line, vec![true; length])
    }

    #[test]
    fn documents_share_rows_and_start_at_multiples() {
        let mut packer = Packer::new(layout(2, 8, 2, PACKED));
        let fits = [(1, 3), (2, 7), (3, 3), (4, 2), (5, 4)].map(|(line, length)| packer.offer(&example(line, length)));
        assert_eq!(fits, [true, true, true, false, false]);
        assert!(packer.is_full());
        let batch = packer.finish();
        assert_eq!(
            batch.tokens,
            [
                [1_000, 1_001, 1_002, PAD, 3_000, 3_001, 3_002, PAD],
                [2_000, 2_001, 2_002, 2_003, 2_004, 2_005, 2_006, PAD],
            ]
        );
        assert_eq!(batch.documents, [vec![0, 4], vec![0]]);
        assert_eq!(batch.lengths, [vec![3, 3], vec![7]]);
        assert_eq!(batch.lines, [1, 3, 2]);
        let first = [Some(1_001), Some(1_002), None, None, Some(3_001), Some(3_002), None, None];
        assert_eq!(batch.targets[0], first);
        assert_eq!(batch.counts(), BatchCounts { tokens: 13, targets: 10, padding: 3 });
    }

    #[test]
    fn unpacked_rows_are_as_long_as_the_longest_rounded_up() {
        for (lengths, alignment, length) in [([3, 5], 4, 8), ([3, 5], 1, 5), ([3, 9], 4, 10), ([3, 5], usize::MAX, 10)]
        {
            let mut packer = Packer::new(layout(3, 10, alignment, Manner::Unpacked));
            assert!((1..).zip(lengths).all(|(line, length)| packer.offer(&example(line, length))));
            assert!(!packer.is_full());
            let batch = packer.finish();
            assert_eq!(batch.tokens.len(), 2);
            assert!(batch.tokens.iter().all(|row| row.len() == length), "{batch:?}");
            assert_eq!(batch.documents, [[0], [0]]);
        }
    }

    #[test]
    fn packed_rows_have_the_full_length_and_empty_ones_are_left_out() {
        let mut packer = Packer::new(layout(3, 10, 1, PACKED));
        assert!(packer.offer(&example(1, 3)));
        let batch = packer.finish();
        assert_eq!(batch.tokens, [[1_000, 1_001, 1_002, PAD, PAD, PAD, PAD, PAD, PAD, PAD]]);
    }

    #[test]
    fn an_example_longer_than_a_row_has_no_room() {
        for manner in [PACKED, Manner::Unpacked] {
            assert!(!Packer::new(layout(1, 3, 1, manner)).offer(&example(1, 4)));
            assert!(Packer::new(layout(1, 4, 1, manner)).offer(&example(1, 4)));
        }
    }

    #[test]
    fn the_alignment_is_the_least_common_multiple_of_the_ratios() {
        let config = |ratios: &[usize]| Config {
            n_layers: ratios.len(),
            compress_ratios: ratios.to_vec(),
            ..Config::from_json("nano.json", include_str!("../../../../../configs/nano.json")).unwrap()
        };
        for (ratios, expected) in [
            (&[0, 0][..], 1),
            (&[0, 2, 2, 1], 2),
            (&[4, 6, 0], 12),
            (&[128, 4], 128),
            (&[usize::MAX, usize::MAX - 1], usize::MAX),
        ] {
            assert_eq!(alignment(&config(ratios)), expected, "{ratios:?}");
        }
    }

    #[test]
    fn numbers_that_make_no_batches_are_named() {
        let good = layout(1, 2, 1, PACKED);
        good.check().unwrap();
        for (layout, said) in [
            (BatchLayout { rows: 0, ..good }, "batches: `rows` is 0, expected at least 1"),
            (
                BatchLayout { length: 1, ..good },
                "batches: `length` is 1, expected at least 2, a token and the one to predict",
            ),
            (BatchLayout { alignment: 0, ..good }, "batches: `alignment` is 0, expected at least 1"),
            (
                BatchLayout { manner: Manner::Packed { look_ahead: 0 }, ..good },
                "batches: `look-ahead` is 0, expected at least 1",
            ),
        ] {
            assert_eq!(layout.check().unwrap_err().to_string(), said);
        }
    }

    proptest! {
        #[test]
        fn what_is_taken_is_in_the_batch_and_nothing_else(
            examples in listed(12, 12),
            rows in 1_usize..4,
            length in 2_usize..20,
            alignment in 1_usize..6,
            manner in prop_oneof![Just(PACKED), Just(Manner::Unpacked)],
        ) {
            let mut packer = Packer::new(layout(rows, length, alignment, manner));
            let mut taken: Vec<Example> = examples.0.into_iter().filter(|example| packer.offer(example)).collect();
            let batch = packer.finish();
            let mut found = batch.examples();
            taken.sort_by_key(|example| example.line);
            found.sort_by_key(|example| example.line);
            prop_assert_eq!(taken.len(), found.len());
            for (taken, found) in taken.iter().zip(&found) {
                prop_assert_eq!(&taken.ids, &found.ids);
                // What is never predicted cannot be told from a batch.
                prop_assert_eq!(&taken.learn[1..], &found.learn[1..]);
                prop_assert_eq!(taken.line, found.line);
            }

            let BatchCounts { tokens, targets, padding } = batch.counts();
            prop_assert_eq!(tokens, taken.iter().map(|example| example.ids.len()).sum::<usize>());
            prop_assert_eq!(targets, taken.iter().map(|example| example.targets().flatten().count()).sum::<usize>());
            prop_assert_eq!(tokens + padding, batch.tokens.iter().map(Vec::len).sum::<usize>());
            for (row, tokens) in batch.tokens.iter().enumerate() {
                prop_assert!(tokens.len() == batch.tokens[0].len() && tokens.len() <= length);
                prop_assert_eq!(batch.targets[row].len(), tokens.len());
                prop_assert_eq!(batch.documents[row][0], 0);
                prop_assert!(batch.documents[row].is_sorted_by(|one, other| one < other));
                prop_assert!(batch.documents[row].iter().all(|start| start.is_multiple_of(alignment)));
            }
        }
    }
}
