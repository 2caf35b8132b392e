//! A model as a source of values: whatever holds every tensor and gives its rows.

use std::ops::Range;
use std::path::Path;

use bytes::Bytes;
use dsv41_config::{Config, TensorSpec};
use dsv41_quant::GgmlType;

use super::error::ModelError;

/// Holds a model's tensors, some of them larger than memory, and gives the values of their rows. Tensors are known by
/// the reference's names; their shapes are [`TensorStore::tensors`]'. A row runs along the last axis, and the rows of a
/// tensor are numbered over all its other axes: a vector is one row.
pub trait TensorStore {
    /// The model.
    fn config(&self) -> &Config;

    /// The compressed id of every token, where the model has engram layers and the store knows it.
    fn token_map(&self) -> Option<&[u32]>;

    /// Every tensor of the model that the store holds, in the reference's order.
    fn tensors(&self) -> &[TensorSpec];

    /// The files that the values come from, none of which may be written over.
    fn files(&self) -> Vec<&Path>;

    /// Writes the values of some rows of a tensor to `out`, which holds exactly as many.
    ///
    /// # Errors
    /// When there is no such tensor or no such row, `out` is longer or shorter, or the files cannot be read.
    fn rows(&self, name: &str, rows: Range<usize>, out: &mut [f32]) -> Result<(), ModelError>;

    /// The bytes of some rows of a tensor, where the store holds them in this very type: copying them is exact, and
    /// converting them again might not be.
    ///
    /// # Errors
    /// When there is no such tensor or no such row.
    fn packed_rows(&self, name: &str, rows: Range<usize>, ty: GgmlType) -> Result<Option<Bytes>, ModelError>;
}
