use std::error::Error;
use std::fmt;
use std::time::Instant;

use bytes::Bytes;
use dsv41_golden::filler;
use dsv41_quant::kernel::Activations;
use dsv41_quant::{GgmlType, PackedMatrix};
use rayon::prelude::*;

use super::contestant::{Contestant, Copy, Name, Ours};

/// Bytes of the matrices that take turns when one vector is multiplied: more than the caches of any core.
const MORE_THAN_CACHES: usize = 256 << 20;

/// A matrix, and how many vectors it is multiplied with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Case {
    pub(crate) ty: GgmlType,
    /// `[outputs, inputs]`
    pub(crate) shape: [usize; 2],
    pub(crate) vectors: usize,
}

/// What came of a case.
pub(crate) struct Measured {
    pub(crate) case: Case,
    pub(crate) packed_bytes: usize,
    pub(crate) contestants: Vec<Times>,
}

/// What one contestant took.
pub(crate) struct Times {
    pub(crate) name: Name,
    /// Of every round.
    pub(crate) seconds: Vec<f64>,
    /// Root mean square of the product's error against f64, relative to the product's own.
    pub(crate) error: Option<f64>,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ty, shape: [outputs, inputs], vectors } = self;
        write!(f, "{ty} {outputs}x{inputs}, {vectors}")
    }
}

impl Case {
    /// Lets all contestants take turns.
    pub(crate) fn measure(self) -> Result<Measured, Box<dyn Error>> {
        let [outputs, inputs] = self.shape;
        let matrix = PackedMatrix::quantise(self.ty, &numbers("weight", outputs * inputs), self.shape, None)?;
        let packed_bytes = matrix.bytes().len();
        let matrices = copies_of(&matrix, self.copies(packed_bytes))?;
        let x = numbers("x", self.vectors * inputs);

        let mut contestants = self.contestants(&matrices, &x)?;
        let mut times: Vec<Vec<f64>> = vec![Vec::new(); contestants.len()];
        for turn in 0..=self.rounds() {
            for (contestant, seconds) in contestants.iter_mut().zip(&mut times) {
                let start = Instant::now();
                contestant.run(turn)?;
                // The first round fills caches and wakes threads.
                if turn > 0 {
                    seconds.push(start.elapsed().as_secs_f64());
                }
            }
        }

        let exact = exact_product(&matrix.dequantise(), &x, inputs);
        let mut measured = Vec::new();
        for (contestant, seconds) in contestants.iter().zip(times) {
            let error = contestant.product()?.map(|product| relative_error(&product, &exact));
            measured.push(Times { name: contestant.name(), seconds, error });
        }
        Ok(Measured { case: self, packed_bytes, contestants: measured })
    }

    fn contestants<'a>(
        self,
        matrices: &'a [PackedMatrix],
        x: &'a [f32],
    ) -> Result<Vec<Box<dyn Contestant + 'a>>, Box<dyn Error>> {
        let mut contestants: Vec<Box<dyn Contestant + 'a>> = Vec::new();
        for activations in [Activations::F32, Activations::Int8] {
            let out = vec![0.0; self.vectors * self.shape[0]];
            contestants.push(Box::new(Ours { matrices, x, activations, out }));
        }
        #[cfg(feature = "candle")]
        {
            use super::candle::Candle;

            let dense_copies = self.copies(size_of::<f32>() * self.shape[0] * self.shape[1]);
            contestants.push(Box::new(Candle::packed(matrices, x)?));
            contestants.push(Box::new(Candle::dense(&matrices[0], dense_copies, x)?));
        }
        contestants.push(Box::new(Copy::new(matrices)));
        Ok(contestants)
    }

    /// One vector takes as long as its matrix comes from memory, which a cached one would not; with many, it hardly
    /// matters.
    fn copies(self, bytes: usize) -> usize {
        if self.vectors == 1 { MORE_THAN_CACHES.div_ceil(bytes) } else { 1 }
    }

    fn rounds(self) -> usize {
        if self.vectors == 1 { 301 } else { 11 }
    }
}

/// Matrices that are equal, and lie in memory of their own.
fn copies_of(matrix: &PackedMatrix, copies: usize) -> Result<Vec<PackedMatrix>, Box<dyn Error>> {
    let shape = [matrix.rows(), matrix.columns()];
    let copy = |_| PackedMatrix::new(matrix.ty(), shape, Bytes::copy_from_slice(matrix.bytes()));
    Ok((0..copies).map(copy).collect::<Result<_, _>>()?)
}

/// Numbers from -1 to 1, made from a name.
fn numbers(name: &str, count: usize) -> Vec<f32> {
    (0..count as u64).map(|index| (filler::raw("", name, index) >> 40) as f32 / (1 << 23) as f32 - 1.0).collect()
}

/// `x W^T` in f64.
fn exact_product(weight: &[f32], x: &[f32], inputs: usize) -> Vec<f64> {
    let row = |x: &[f32], row: &[f32]| x.iter().zip(row).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
    x.par_chunks(inputs).flat_map_iter(|x| weight.chunks(inputs).map(move |w| row(x, w))).collect()
}

fn relative_error(found: &[f32], exact: &[f64]) -> f64 {
    let error: f64 = found.iter().zip(exact).map(|(found, exact)| (f64::from(*found) - exact).powi(2)).sum();
    let size: f64 = exact.iter().map(|exact| exact.powi(2)).sum();
    (error / size).sqrt()
}
