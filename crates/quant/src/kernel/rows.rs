//! Rows as blocks, and the division of work among threads.

use rayon::prelude::*;

use crate::PackedMatrix;

/// The bytes of a block: `[u8; N]`.
pub(super) trait ByteArray: Copy + Send + Sync {
    /// The whole arrays in `bytes`, and what is left.
    fn arrays_of(bytes: &[u8]) -> (&[Self], &[u8]);

    /// `bytes`, which are fewer, and zeros.
    fn padded(bytes: &[u8]) -> Self;
}

impl<const N: usize> ByteArray for [u8; N] {
    #[inline(always)]
    fn arrays_of(bytes: &[u8]) -> (&[Self], &[u8]) {
        bytes.as_chunks()
    }

    #[inline(always)]
    fn padded(bytes: &[u8]) -> Self {
        let mut padded = [0; N];
        padded[..bytes.len()].copy_from_slice(bytes);
        padded
    }
}

/// The blocks of 256 values of a row. The last may be cut short by the row's end: the bytes that are not there are zero,
/// and so are their weights.
pub(super) struct Blocks<'a, B> {
    whole: &'a [B],
    /// The one that is cut short.
    last: Option<B>,
}

impl<'a, B: ByteArray> Blocks<'a, B> {
    #[inline(always)]
    pub(super) fn of_row(row: &'a [u8]) -> Self {
        let (whole, rest) = B::arrays_of(row);
        Self { whole, last: if rest.is_empty() { None } else { Some(B::padded(rest)) } }
    }

    /// # Panics
    /// When there are fewer blocks.
    #[inline(always)]
    pub(super) fn at(&self, index: usize) -> &B {
        match self.whole.get(index) {
            Some(block) => block,
            None => self.last.as_ref().expect("a block of the row"),
        }
    }
}

/// Blocks of `R` rows and of the `N` vectors that they are multiplied with.
pub(super) type Part<'a, B, X, const R: usize, const N: usize> = ([&'a [B]; R], [&'a [X]; N]);

/// The blocks of some rows and some vectors that are multiplied: the whole ones of the rows, then the ones cut short.
#[inline(always)]
pub(super) fn parts<'a, B: ByteArray, X, const R: usize, const N: usize>(
    rows: &'a [Blocks<'_, B>; R],
    x: [&'a [X]; N],
) -> [Part<'a, B, X, R, N>; 2] {
    let whole = rows[0].whole.len();
    let first = (rows.each_ref().map(|row| row.whole), x.map(|x| &x[..whole]));
    let last = (rows.each_ref().map(|row| row.last.as_slice()), x.map(|x| &x[whole..]));
    [first, last]
}

/// Products of a weight and a value that are worth a thread's while: some ten microseconds' work.
const TASK: usize = 1 << 17;

/// Tasks for each thread, so that a late one is not waited for long.
const TASKS_A_THREAD: usize = 8;

/// How much a task takes of `length`, each unit of which takes `products` multiplications: a multiple of `multiple`.
pub(super) fn task_length(length: usize, products: usize, multiple: usize) -> usize {
    let worth = TASK.div_ceil(products.max(1));
    let fair = length.div_ceil(TASKS_A_THREAD * rayon::current_num_threads());
    worth.max(fair).next_multiple_of(multiple)
}

/// Runs all tasks: in parallel, unless there is but one.
pub(super) fn for_each_task<T: Send>(tasks: &mut [T], run: impl Fn(&mut T) + Send + Sync) {
    match tasks {
        [task] => run(task),
        tasks => tasks.par_iter_mut().for_each(run),
    }
}

/// `out[n, length]` cut into pieces of up to `width`: for each, its part of all `n` vectors.
pub(super) fn pieces(out: &mut [f32], length: usize, width: usize) -> Vec<Vec<&mut [f32]>> {
    let mut pieces: Vec<Vec<_>> = (0..length.div_ceil(width)).map(|_| Vec::new()).collect();
    for vector in out.chunks_mut(length) {
        for (piece, part) in pieces.iter_mut().zip(vector.chunks_mut(width)) {
            piece.push(part);
        }
    }
    pieces
}

/// The matrix's bytes in pieces of up to `rows` rows.
pub(super) fn row_pieces(weight: &PackedMatrix, rows: usize) -> impl Iterator<Item = &[u8]> {
    weight.bytes().chunks(rows * weight.row_bytes())
}
