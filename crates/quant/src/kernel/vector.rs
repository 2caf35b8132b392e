//! Products with few vectors, row by row.

use std::marker::PhantomData;

use super::lanes::Lanes;
use super::rows::{for_each_task, pieces, row_pieces, task_length};
use super::simd::{Simd, Work};
use crate::PackedMatrix;

/// The product of rows of a format and vectors in a form of its own.
pub(super) trait RowProduct {
    /// 256 values of a vector.
    type Block: Send + Sync;

    /// A vector in that form.
    fn arrange<L: Lanes>(lanes: L, x: &[f32]) -> Vec<Self::Block>;

    /// Each row times each vector.
    fn dot<L: Lanes, const R: usize, const N: usize>(
        lanes: L,
        rows: [&[u8]; R],
        x: [&[Self::Block]; N],
    ) -> [[f32; N]; R];
}

/// Vectors that share the unpacking of a row.
const SHARING: usize = 4;

/// Rows that share the loading of those vectors.
const ROWS: usize = 2;

/// `out[n, rows] = x[n, columns] W^T`
pub(super) fn multiply<P: RowProduct>(simd: Simd, weight: &PackedMatrix, x: &[f32], out: &mut [f32]) {
    if x.is_empty() {
        return;
    }
    let mut x: Vec<_> = x.chunks_exact(weight.columns()).map(|x| (x, Vec::new())).collect();
    let n = x.len();
    for_each_task(&mut x, |(x, arranged)| *arranged = simd.run(Arrange::<P> { x, product: PhantomData }));
    let x: Vec<_> = x.iter().map(|(_, arranged)| arranged.as_slice()).collect();

    let rows = task_length(weight.rows(), weight.columns() * n, ROWS);
    let mut tasks: Vec<_> = row_pieces(weight, rows).zip(pieces(out, weight.rows(), rows)).collect();
    for_each_task(&mut tasks, |(bytes, out)| {
        for (x, out) in x.chunks(SHARING).zip(out.chunks_mut(SHARING)) {
            simd.run(Rows::<P> { bytes, row_bytes: weight.row_bytes(), x, out });
        }
    });
}

struct Arrange<'a, P> {
    x: &'a [f32],
    product: PhantomData<P>,
}

impl<P: RowProduct> Work for Arrange<'_, P> {
    type Output = Vec<P::Block>;

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) -> Vec<P::Block> {
        P::arrange(lanes, self.x)
    }
}

/// Some rows times up to [`SHARING`] vectors.
struct Rows<'a, 'b, P: RowProduct> {
    bytes: &'a [u8],
    row_bytes: usize,
    x: &'a [&'a [P::Block]],
    /// For each vector, these rows of its product.
    out: &'a mut [&'b mut [f32]],
}

impl<P: RowProduct> Work for Rows<'_, '_, P> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        if let ([x], [out]) = (self.x, &mut *self.out) {
            for (row, out) in self.bytes.chunks_exact(self.row_bytes).zip(out.iter_mut()) {
                [[*out]] = P::dot(lanes, [row], [x]);
            }
            return;
        }
        // Where there is no such vector or row, the last one is computed again.
        let mut x = [self.x[self.x.len() - 1]; SHARING];
        x[..self.x.len()].copy_from_slice(self.x);
        for (index, rows) in self.bytes.chunks(ROWS * self.row_bytes).enumerate() {
            let (first, last) = (&rows[..self.row_bytes], &rows[rows.len() - self.row_bytes..]);
            let products: [_; ROWS] = P::dot(lanes, [first, last], x);
            for (vector, out) in self.out.iter_mut().enumerate() {
                for (out, products) in out.iter_mut().skip(ROWS * index).zip(&products) {
                    *out = products[vector];
                }
            }
        }
    }
}
