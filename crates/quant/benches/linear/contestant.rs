use std::error::Error;
use std::hint::black_box;

use dsv41_quant::PackedMatrix;
use dsv41_quant::kernel::{Activations, multiply};
use rayon::prelude::*;

/// Who takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Name {
    /// Our product with activations in f32.
    F32,
    /// Our product with activations of 8 bits.
    Int8,
    /// Candle's product, with activations of 8 bits.
    Candle,
    /// The product with the matrix in f32.
    Dense,
    /// A copy of the packed bytes on all cores.
    Copy,
}

/// One way to make a product, or what to compare it with.
pub(crate) trait Contestant {
    fn name(&self) -> Name;

    /// Uses the copy of the matrix whose turn it is.
    fn run(&mut self, turn: usize) -> Result<(), Box<dyn Error>>;

    /// The product that was made last, where one is made.
    fn product(&self) -> Result<Option<Vec<f32>>, Box<dyn Error>>;
}

/// Our product.
pub(crate) struct Ours<'a> {
    pub(crate) matrices: &'a [PackedMatrix],
    pub(crate) x: &'a [f32],
    pub(crate) activations: Activations,
    pub(crate) out: Vec<f32>,
}

impl Contestant for Ours<'_> {
    fn name(&self) -> Name {
        match self.activations {
            Activations::F32 => Name::F32,
            Activations::Int8 => Name::Int8,
        }
    }

    fn run(&mut self, turn: usize) -> Result<(), Box<dyn Error>> {
        let matrix = &self.matrices[turn % self.matrices.len()];
        multiply(matrix, self.x, &mut self.out, self.activations);
        Ok(())
    }

    fn product(&self) -> Result<Option<Vec<f32>>, Box<dyn Error>> {
        Ok(Some(self.out.clone()))
    }
}

/// What memory allows.
pub(crate) struct Copy<'a> {
    matrices: &'a [PackedMatrix],
    copies: Vec<Vec<u8>>,
}

impl<'a> Copy<'a> {
    pub(crate) fn new(matrices: &'a [PackedMatrix]) -> Self {
        Self { matrices, copies: matrices.iter().map(|matrix| matrix.bytes().to_vec()).collect() }
    }
}

impl Contestant for Copy<'_> {
    fn name(&self) -> Name {
        Name::Copy
    }

    fn run(&mut self, turn: usize) -> Result<(), Box<dyn Error>> {
        let index = turn % self.matrices.len();
        let (from, to) = (self.matrices[index].bytes(), &mut self.copies[index]);
        let share = from.len().div_ceil(rayon::current_num_threads());
        from.par_chunks(share).zip(to.par_chunks_mut(share)).for_each(|(from, to)| to.copy_from_slice(from));
        black_box(to);
        Ok(())
    }

    fn product(&self) -> Result<Option<Vec<f32>>, Box<dyn Error>> {
        Ok(None)
    }
}
