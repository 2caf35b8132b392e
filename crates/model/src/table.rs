//! Tables that are looked up by row: the embedding and the engrams'.

use std::{fmt, io, sync::Arc};

use burn::{
    module::{Module, Param},
    tensor::{DType, Tensor, TensorData, backend::Backend},
};
use dsv41_quant::PackedMatrix;

use crate::{ModelError, weights::Loader};

/// A table somewhere else than in tensors, read row by row: packed in memory, or in a file larger than memory.
pub trait RowSource: fmt::Debug + Send + Sync {
    /// `[rows, width]`
    fn shape(&self) -> [usize; 2];

    /// Reads rows one after the other into `values`, which holds `rows.len() * width`.
    ///
    /// # Errors
    /// When the file cannot be read.
    fn read(&self, rows: &[i64], values: &mut [f32]) -> io::Result<()>;

    /// Says that these rows are about to be read, so that a slow source can begin.
    fn prefetch(&self, _rows: &[i64]) {}
}

impl RowSource for PackedMatrix {
    fn shape(&self) -> [usize; 2] {
        [self.rows(), self.columns()]
    }

    fn read(&self, rows: &[i64], values: &mut [f32]) -> io::Result<()> {
        for (&row, values) in rows.iter().zip(values.chunks_exact_mut(self.columns())) {
            self.dequantise_row(row as usize, values);
        }
        Ok(())
    }
}

/// Rows by number.
#[derive(Module, Debug)]
pub enum Table<B: Backend> {
    /// `[rows, width]`
    Float(Param<Tensor<B, 2>>),
    /// Read when they are looked up; takes no gradient.
    Rows(Rows),
}

/// The rows of a [`RowSource`].
#[derive(Module, Clone, Debug)]
pub struct Rows {
    source: Arc<dyn RowSource>,
}

impl<B: Backend> Table<B> {
    /// Loads `NAME.weight`, `[rows, width]`.
    pub(crate) fn load(from: &Loader<'_, B>, name: &str, shape: [usize; 2]) -> Result<Self, ModelError> {
        let name = format!("{name}.weight");
        Ok(match from.rows(&name, shape)? {
            Some(source) => Self::Rows(Rows { source }),
            None => Self::Float(from.param(&name, shape)?),
        })
    }

    /// Values of one row.
    pub fn width(&self) -> usize {
        match self {
            Self::Float(weight) => weight.dims()[1],
            Self::Rows(rows) => rows.source.shape()[1],
        }
    }

    /// Says that these rows are about to be looked up.
    pub fn prefetch(&self, rows: &[i64]) {
        if let Self::Rows(Rows { source }) = self {
            source.prefetch(rows);
        }
    }

    /// The rows, `[rows.len(), width]`, in `dtype`.
    ///
    /// # Errors
    /// [`ModelError::Rows`] when the source cannot read them.
    pub fn look_up(&self, rows: &[i64], device: &B::Device, dtype: DType) -> Result<Tensor<B, 2>, ModelError> {
        match self {
            Self::Float(weight) => {
                let rows = Tensor::from_data(TensorData::new(rows.to_vec(), [rows.len()]), device);
                Ok(weight.val().select(0, rows))
            }
            Self::Rows(Rows { source }) => {
                let width = self.width();
                let mut values = vec![0.0; rows.len() * width];
                source.read(rows, &mut values)?;
                Ok(Tensor::from_data(TensorData::new(values, [rows.len(), width]), (device, dtype)))
            }
        }
    }
}
