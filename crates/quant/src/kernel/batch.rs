//! Products with many vectors, from tiles of unpacked weights.

use std::marker::PhantomData;

use super::lanes::{Aligned, LANES, Lanes};
use super::panel::{PANEL, PANEL_ROWS, multiply_add};
use super::rows::{Blocks, for_each_task, pieces, row_pieces, task_length};
use super::simd::{Simd, Work};
use super::unpack::{BLOCK, Format};
use crate::PackedMatrix;

/// Panels of vectors that a weight is unpacked for. Together with their results they fit the cache of a core.
const PANELS: usize = 4;

/// Rows of a task at most, for the same reason.
const ROWS: usize = 16 * PANEL_ROWS;

/// Blocks of a row that are unpacked one after the other: their values of all vectors stay in the cache.
const DEPTH: usize = 4;

/// A block's values of up to 64 vectors: for each place, the vectors' values beside each other.
type PanelBlock = Aligned<[[f32; PANEL]; BLOCK]>;

/// `out[n, rows] = x[n, columns] W^T`
pub(super) fn multiply<F: Format>(simd: Simd, weight: &PackedMatrix, x: &[f32], out: &mut [f32]) {
    let vectors = PANELS * PANEL;
    for (x, out) in x.chunks(vectors * weight.columns()).zip(out.chunks_mut(vectors * weight.rows())) {
        let n = x.len() / weight.columns();
        let panels = pack::<F>(x, weight.columns());
        let rows = task_length(weight.rows(), weight.columns() * n, PANEL_ROWS).min(ROWS);
        let mut tasks: Vec<_> = row_pieces(weight, rows).zip(pieces(out, weight.rows(), rows)).collect();
        for_each_task(&mut tasks, |(bytes, out)| {
            let format = PhantomData::<F>;
            simd.run(Rows { bytes, row_bytes: weight.row_bytes(), panels: &panels, out, format });
        });
    }
}

/// The panels of each block.
fn pack<F: Format>(x: &[f32], columns: usize) -> Vec<PanelBlock> {
    let panels = (x.len() / columns).div_ceil(PANEL);
    let mut packed = vec![Aligned([[0.0; PANEL]; BLOCK]); columns.div_ceil(BLOCK) * panels];
    let mut tasks: Vec<_> = packed.iter_mut().enumerate().collect();
    for_each_task(&mut tasks, |(index, values)| {
        let (block, panel) = (*index / panels, *index % panels);
        for (lane, x) in x.chunks_exact(columns).skip(panel * PANEL).take(PANEL).enumerate() {
            let x = &x[block * BLOCK..columns.min((block + 1) * BLOCK)];
            for (values, &column) in values.0.iter_mut().zip(&F::COLUMNS) {
                // What lies behind the rows' end is zero.
                values[lane] = x.get(usize::from(column)).copied().unwrap_or(0.0);
            }
        }
    });
    packed
}

/// Some rows times the vectors of all panels.
struct Rows<'a, 'b, F> {
    bytes: &'a [u8],
    row_bytes: usize,
    panels: &'a [PanelBlock],
    /// For each vector, these rows of its product.
    out: &'a mut [&'b mut [f32]],
    format: PhantomData<F>,
}

impl<F: Format> Work for Rows<'_, '_, F> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let panels = self.out.len().div_ceil(PANEL);
        let groups = self.bytes.len().div_ceil(self.row_bytes * PANEL_ROWS);
        let mut sums = vec![Aligned([[0.0; PANEL]; PANEL_ROWS]); groups * panels];
        let mut weights = Aligned([[[0.0; LANES]; BLOCK / LANES]; PANEL_ROWS]);
        for (depth, blocks) in self.panels.chunks(DEPTH * panels).enumerate() {
            for (rows, sums) in self.bytes.chunks(self.row_bytes * PANEL_ROWS).zip(sums.chunks_exact_mut(panels)) {
                for (index, block) in blocks.chunks_exact(panels).enumerate() {
                    // Rows behind the last keep the weights of others, and nobody reads their sums.
                    for (row, weights) in rows.chunks_exact(self.row_bytes).zip(&mut weights.0) {
                        let row = Blocks::<F::Bytes>::of_row(row);
                        unpack_block::<L, F>(lanes, row.at(depth * DEPTH + index), weights);
                    }
                    for (panel, (values, sums)) in block.iter().zip(sums.iter_mut()).enumerate() {
                        let used = self.out.len() - panel * PANEL;
                        let weights = weights.0.each_ref().map(|weights| weights.as_flattened());
                        multiply_add(lanes, weights, &values.0, used, sums.0.each_mut());
                    }
                }
            }
        }
        for (index, sums) in sums.iter().flat_map(|sums| &sums.0).enumerate() {
            let (group, panel, row) = (index / PANEL_ROWS / panels, index / PANEL_ROWS % panels, index % PANEL_ROWS);
            for (out, &sum) in self.out.iter_mut().skip(panel * PANEL).zip(sums) {
                if let Some(out) = out.get_mut(group * PANEL_ROWS + row) {
                    *out = sum;
                }
            }
        }
    }
}

/// The weights of a block, in the order of their places.
#[inline(always)]
pub(super) fn unpack_block<L: Lanes, F: Format>(
    lanes: L,
    bytes: &F::Bytes,
    weights: &mut [[f32; LANES]; BLOCK / LANES],
) {
    let unpacked = F::unpack(lanes, bytes);
    for (quarter, weights) in weights.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        for (weights, values) in weights.iter_mut().zip(F::weights(lanes, bytes, &unpacked, quarter)) {
            *weights = lanes.store(values);
        }
    }
}
