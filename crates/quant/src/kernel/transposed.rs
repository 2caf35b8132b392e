//! Products with the transposed matrix, from tiles of unpacked weights.

use std::marker::PhantomData;
use std::ops::Range;

use super::batch::unpack_block;
use super::lanes::{Aligned, LANES, Lanes};
use super::panel::{PANEL, PANEL_ROWS, multiply_add};
use super::rows::{Blocks, for_each_task, pieces, task_length};
use super::simd::{Simd, Work};
use super::unpack::{BLOCK, Format};
use crate::PackedMatrix;

/// Vectors that a weight is unpacked for. Their results fit the cache of a core.
const VECTORS: usize = 16 * PANEL_ROWS;

/// Rows of a tile, which fits the cache too.
const DEPTH: usize = 64;

/// Panels of a block: its quarters.
const QUARTERS: usize = BLOCK / PANEL;

/// `out[n, columns] = x[n, rows] W`
pub(super) fn multiply<F: Format>(simd: Simd, weight: &PackedMatrix, x: &[f32], out: &mut [f32]) {
    for (x, out) in x.chunks(VECTORS * weight.rows()).zip(out.chunks_mut(VECTORS * weight.columns())) {
        let x: Vec<_> = x.chunks_exact(weight.rows()).collect();
        let blocks = weight.columns().div_ceil(BLOCK);
        let width = task_length(blocks, BLOCK * weight.rows() * x.len(), 1);
        let mut tasks: Vec<_> = pieces(out, weight.columns(), width * BLOCK).into_iter().enumerate().collect();
        for_each_task(&mut tasks, |(index, out)| {
            let blocks = *index * width..blocks.min((*index + 1) * width);
            simd.run(Columns { weight, x: &x, blocks, out, format: PhantomData::<F> });
        });
    }
}

/// All vectors times some columns of the matrix.
struct Columns<'a, 'b, F> {
    weight: &'a PackedMatrix,
    x: &'a [&'a [f32]],
    blocks: Range<usize>,
    /// For each vector, these columns of its product.
    out: &'a mut [&'b mut [f32]],
    format: PhantomData<F>,
}

impl<F: Format> Work for Columns<'_, '_, F> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        if self.x.len() == 1 {
            self.run_in_groups::<L, 1>(lanes);
        } else {
            self.run_in_groups::<L, PANEL_ROWS>(lanes);
        }
    }
}

impl<F: Format> Columns<'_, '_, F> {
    /// The product, for `N` vectors at once.
    #[inline(always)]
    fn run_in_groups<L: Lanes, const N: usize>(self, lanes: L) {
        let groups = self.x.len().div_ceil(N);
        let mut sums = vec![Aligned([[[0.0; PANEL]; N]; QUARTERS]); self.blocks.len() * groups];
        let mut tile = vec![Aligned([[0.0; PANEL]; DEPTH]); QUARTERS];
        let rows = self.weight.rows();
        for first in (0..rows).step_by(DEPTH) {
            let depth = DEPTH.min(rows - first);
            for (block, sums) in self.blocks.clone().zip(sums.chunks_exact_mut(groups)) {
                for row in 0..depth {
                    let mut weights = [[0.0; LANES]; BLOCK / LANES];
                    let bytes = Blocks::<F::Bytes>::of_row(self.weight.row(first + row));
                    unpack_block::<L, F>(lanes, bytes.at(block), &mut weights);
                    for (panel, weights) in tile.iter_mut().zip(weights.as_flattened().as_chunks().0) {
                        panel.0[row] = *weights;
                    }
                }
                for (panel, tile) in tile.iter().enumerate() {
                    for (x, sums) in self.x.chunks(N).zip(sums.iter_mut()) {
                        // Where there is no such vector, the last one is multiplied again.
                        let mut values = [&x[x.len() - 1][first..first + depth]; N];
                        for (values, x) in values.iter_mut().zip(x) {
                            *values = &x[first..first + depth];
                        }
                        multiply_add(lanes, values, &tile.0[..depth], PANEL, sums.0[panel].each_mut());
                    }
                }
            }
        }
        for (block, sums) in sums.chunks_exact(groups).enumerate() {
            for (vector, out) in self.out.iter_mut().enumerate() {
                let out = &mut out[block * BLOCK..];
                let places = sums[vector / N].0.iter().flat_map(|panel| &panel[vector % N]);
                for (&sum, &column) in places.zip(&F::COLUMNS) {
                    // What lies behind the row's end has no place.
                    if let Some(out) = out.get_mut(usize::from(column)) {
                        *out = sum;
                    }
                }
            }
        }
    }
}
