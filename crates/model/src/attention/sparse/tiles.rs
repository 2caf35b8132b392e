//! Some queries at a time, each with the keys of its list.

use std::ops::Range;

use burn::tensor::{Bool, Int, Tensor, TensorData, backend::Backend};

use super::KeyLists;
use crate::selections::NONE;

/// Elements of the keys gathered at a time, `[n, L, d]`.
pub(super) const TILE_ELEMENTS: usize = 1 << 24;

/// Queries and keys of a call with all sequences in one axis.
pub(super) struct Tiles<'a, B: Backend> {
    /// `[B*S, H, d]`
    query: Tensor<B, 3>,
    /// `[B*N, d]`
    keys: Tensor<B, 2>,
    lists: &'a KeyLists,
    /// S, the queries of a sequence.
    seq: usize,
    /// N, the keys of a sequence.
    keys_per_sequence: usize,
    /// Queries of a tile.
    step: usize,
}

/// Some queries and what they attend, L entries each.
pub(super) struct Tile<B: Backend> {
    /// Which of the `B*S` queries these n are.
    pub(super) queries: Range<usize>,
    /// `[n, H, d]`
    pub(super) query: Tensor<B, 3>,
    /// Rows of all keys, `[n*L]`; of an absent entry, any.
    pub(super) rows: Tensor<B, 1, Int>,
    /// Those rows, `[n, L, d]`.
    pub(super) keys: Tensor<B, 3>,
    /// Entries of -1, `[n, 1, L]`.
    pub(super) absent: Tensor<B, 3, Bool>,
}

impl<'a, B: Backend> Tiles<'a, B> {
    /// Queries `[B, S, H, d]` and keys `[B, N, d]`, in tiles of about `tile_elements` gathered numbers.
    pub(super) fn new(query: Tensor<B, 4>, keys: Tensor<B, 3>, lists: &'a KeyLists, tile_elements: usize) -> Self {
        let [batch, seq, heads, width] = query.dims();
        let keys_per_sequence = keys.dims()[1];
        Self {
            query: query.reshape([batch * seq, heads, width]),
            keys: keys.reshape([batch * keys_per_sequence, width]),
            lists,
            seq,
            keys_per_sequence,
            step: (tile_elements / (lists.width * width)).max(1),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Tile<B>> {
        let queries = self.query.dims()[0];
        (0..queries).step_by(self.step).map(move |first| self.tile(first..(first + self.step).min(queries)))
    }

    fn tile(&self, queries: Range<usize>) -> Tile<B> {
        let (device, length) = (self.query.device(), self.lists.width);
        let entries = &self.lists.rows[queries.start * length..queries.end * length];
        let rows = entries.iter().enumerate().map(|(entry, &row)| {
            let sequence = (queries.start + entry / length) / self.seq;
            (sequence * self.keys_per_sequence) as i64 + row.max(0)
        });
        let rows = Tensor::from_data(TensorData::new(rows.collect(), [entries.len()]), &device);
        let absent = entries.iter().map(|&row| row == NONE).collect::<Vec<_>>();
        Tile {
            query: self.query.clone().narrow(0, queries.start, queries.len()),
            keys: self.keys.clone().select(0, rows.clone()).reshape([queries.len(), length, self.keys.dims()[1]]),
            absent: Tensor::from_data(TensorData::new(absent, [queries.len(), 1, length]), &device),
            rows,
            queries,
        }
    }
}
