//! The product that all products with many vectors are made of.

use super::lanes::{LANES, Lanes};

/// Lanes of a panel.
pub(super) const PANEL: usize = 64;

/// Rows of `a` that share the loading of `b`.
pub(super) const PANEL_ROWS: usize = 6;

/// `c[r, lane] += sum over k of a[r, k] * b[k, lane]` for the first `used` lanes of a panel, and perhaps more.
#[inline(always)]
pub(super) fn multiply_add<L: Lanes, const R: usize>(
    lanes: L,
    a: [&[f32]; R],
    b: &[[f32; PANEL]],
    used: usize,
    c: [&mut [f32; PANEL]; R],
) {
    if L::WIDE_PANELS && used > 2 * LANES {
        vectors::<L, R, 4>(lanes, a, b, 0, c);
    } else {
        let mut c = c;
        for first in 0..used.div_ceil(LANES) {
            vectors::<L, R, 1>(lanes, a, b, first, c.each_mut().map(|c| &mut **c));
        }
    }
}

/// [`multiply_add`] for `N` vectors of the panel's four.
#[inline(always)]
fn vectors<L: Lanes, const R: usize, const N: usize>(
    lanes: L,
    a: [&[f32]; R],
    b: &[[f32; PANEL]],
    first: usize,
    c: [&mut [f32; PANEL]; R],
) {
    let mut sums = [[lanes.splat(0.0); N]; R];
    for (row, c) in c.iter().enumerate() {
        for (n, sum) in sums[row].iter_mut().enumerate() {
            *sum = lanes.load(&c.as_chunks().0[first + n]);
        }
    }
    let a = a.map(|a| &a[..b.len()]);
    for (k, b) in b.iter().enumerate() {
        let mut values = [lanes.splat(0.0); N];
        for (n, value) in values.iter_mut().enumerate() {
            *value = lanes.load(&b.as_chunks().0[first + n]);
        }
        for row in 0..R {
            let factor = lanes.splat(a[row][k]);
            for n in 0..N {
                sums[row][n] = lanes.mul_add(factor, values[n], sums[row][n]);
            }
        }
    }
    for (row, c) in c.into_iter().enumerate() {
        for (n, &sum) in sums[row].iter().enumerate() {
            c.as_chunks_mut().0[first + n] = lanes.store(sum);
        }
    }
}
