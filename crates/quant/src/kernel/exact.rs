//! Rows times vectors with all bits of the activations.

use std::marker::PhantomData;

use super::lanes::{Aligned, LANES, Lanes};
use super::rows::{Blocks, parts};
use super::unpack::{BLOCK, Format};
use super::vector::RowProduct;

/// Weights are unpacked to floats, exactly, and multiplied in registers.
pub(super) struct Exact<F>(PhantomData<F>);

impl<F: Format> RowProduct for Exact<F> {
    /// The values in the order of the format's weights.
    type Block = Aligned<[[f32; LANES]; BLOCK / LANES]>;

    #[inline(always)]
    fn arrange<L: Lanes>(_: L, x: &[f32]) -> Vec<Self::Block> {
        let mut blocks = vec![Aligned([[0.0; LANES]; BLOCK / LANES]); x.len().div_ceil(BLOCK)];
        for (block, x) in blocks.iter_mut().zip(x.chunks(BLOCK)) {
            for (value, &column) in block.0.as_flattened_mut().iter_mut().zip(&F::COLUMNS) {
                // What lies behind the row's end is zero.
                *value = x.get(usize::from(column)).copied().unwrap_or(0.0);
            }
        }
        blocks
    }

    #[inline(always)]
    fn dot<L: Lanes, const R: usize, const N: usize>(
        lanes: L,
        rows: [&[u8]; R],
        x: [&[Self::Block]; N],
    ) -> [[f32; N]; R] {
        // Enough chains of additions that none waits for the one before.
        let chains = if R * N < 4 { 4 } else { 1 };
        let rows = rows.map(Blocks::<F::Bytes>::of_row);
        let mut sums = [[[lanes.splat(0.0); 4]; N]; R];
        for (rows, x) in parts(&rows, x) {
            for index in 0..rows[0].len() {
                let mut unpacked = [F::unpack(lanes, &rows[0][index]); R];
                for row in 1..R {
                    unpacked[row] = F::unpack(lanes, &rows[row][index]);
                }
                for quarter in 0..4 {
                    let mut weights = [[lanes.splat(0.0); 4]; R];
                    for row in 0..R {
                        weights[row] = F::weights(lanes, &rows[row][index], &unpacked[row], quarter);
                    }
                    for step in 0..4 {
                        for vector in 0..N {
                            let values = lanes.load(&x[vector][index].0[4 * quarter + step]);
                            for row in 0..R {
                                let sum = &mut sums[row][vector][step % chains];
                                *sum = lanes.mul_add(weights[row][step], values, *sum);
                            }
                        }
                    }
                }
            }
        }
        let mut products = [[0.0; N]; R];
        for row in 0..R {
            for vector in 0..N {
                let [a, b, c, d] = sums[row][vector];
                products[row][vector] = lanes.sum(lanes.add(lanes.add(a, b), lanes.add(c, d)));
            }
        }
        products
    }
}
