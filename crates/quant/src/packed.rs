use std::ops::Range;

use bytes::Bytes;
use rayon::prelude::*;

use crate::dequantise::dequantise_blocks;
use crate::{GgmlType, QuantError, quantise};

/// A matrix as a file holds it: `[rows, columns]`, row by row, every row in whole blocks. Cloning and taking rows share
/// the bytes, which may be a mapped file's.
#[derive(Clone)]
pub struct PackedMatrix {
    ty: GgmlType,
    rows: usize,
    columns: usize,
    row_bytes: usize,
    bytes: Bytes,
}

impl PackedMatrix {
    /// The matrix of `[rows, columns]` values that `bytes` hold.
    ///
    /// # Errors
    /// When rows do not divide into blocks or there are more or fewer bytes than the shape takes.
    pub fn new(ty: GgmlType, [rows, columns]: [usize; 2], bytes: Bytes) -> Result<Self, QuantError> {
        let row_bytes = ty.row_bytes(columns)?;
        let expected = row_bytes.checked_mul(rows).ok_or(QuantError::TooLarge { ty, rows, columns })?;
        if bytes.len() != expected {
            return Err(QuantError::ByteCount { ty, rows, columns, found: bytes.len(), expected });
        }
        Ok(Self { ty, rows, columns, row_bytes, bytes })
    }

    /// The matrix of the blocks nearest to `values`, row by row, by [`quantise()`].
    ///
    /// # Errors
    /// As [`quantise()`], and when there are more or fewer values than the shape takes.
    pub fn quantise(
        ty: GgmlType,
        values: &[f32],
        [rows, columns]: [usize; 2],
        importance: Option<&[f32]>,
    ) -> Result<Self, QuantError> {
        let found = values.len();
        if rows.checked_mul(columns) != Some(found) {
            return Err(QuantError::ValueCount { rows, columns, found });
        }
        Self::new(ty, [rows, columns], quantise(ty, values, columns, importance)?.into())
    }

    /// The format.
    pub fn ty(&self) -> GgmlType {
        self.ty
    }

    /// Number of rows: the outputs of a linear layer.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns: the inputs of a linear layer.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// All bytes, row by row.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The bytes of one row.
    ///
    /// # Panics
    /// When there is no such row.
    pub fn row(&self, row: usize) -> &[u8] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        &self.bytes[row * self.row_bytes..(row + 1) * self.row_bytes]
    }

    /// Writes the values of one row to `out`.
    ///
    /// # Panics
    /// When there is no such row or `out` is not a row long.
    pub fn dequantise_row(&self, row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.columns, "values of a row");
        dequantise_blocks(self.ty, self.row(row), out);
    }

    /// All values, row by row.
    pub fn dequantise(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.rows * self.columns];
        // A matrix without columns has no chunks to cut.
        let rows = values.par_chunks_mut(self.columns.max(1)).enumerate();
        rows.for_each(|(row, out)| self.dequantise_row(row, out));
        values
    }

    /// Some rows as a matrix of their own.
    ///
    /// # Panics
    /// When there are no such rows.
    pub fn slice_rows(&self, rows: Range<usize>) -> Self {
        let bytes = self.bytes.slice(rows.start * self.row_bytes..rows.end * self.row_bytes);
        Self { rows: rows.len(), bytes, ty: self.ty, columns: self.columns, row_bytes: self.row_bytes }
    }
}

/// The type and the shape, without the bytes.
impl std::fmt::Debug for PackedMatrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PackedMatrix({} {}x{})", self.ty, self.rows, self.columns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix() -> (Vec<f32>, PackedMatrix) {
        let values: Vec<f32> = (0..3 * 64).map(|index| (index * 31 % 255) as f32 - 127.0).collect();
        let packed = PackedMatrix::quantise(GgmlType::Q8_0, &values, [3, 64], None).expect("finite values");
        (values, packed)
    }

    #[test]
    fn matrices_and_their_rows_dequantise_alike() {
        let (values, packed) = matrix();
        assert_eq!((packed.ty(), packed.rows(), packed.columns(), packed.row_bytes()), (GgmlType::Q8_0, 3, 64, 68));
        let back = packed.dequantise();
        assert!(values.iter().zip(&back).all(|(value, back)| (value - back).abs() <= 0.5));
        let mut row = [0.0; 64];
        packed.dequantise_row(2, &mut row);
        assert_eq!(row, back[128..]);
        assert_eq!(packed.slice_rows(1..3).dequantise(), back[64..]);
    }

    #[test]
    fn sizes_that_contradict_the_shape_are_refused() {
        let (values, packed) = matrix();
        let error = PackedMatrix::new(GgmlType::Q8_0, [4, 64], packed.bytes().clone()).unwrap_err();
        assert_eq!(error.to_string(), "4x64 values of q8_0 take 272 bytes, and there are 204");
        let error = PackedMatrix::quantise(GgmlType::Q8_0, &values, [4, 64], None).unwrap_err();
        assert_eq!(error.to_string(), "4 rows of 64 values were expected, and there are 192 values");
        let error = PackedMatrix::quantise(GgmlType::Q8_0, &[], [usize::MAX, 64], None).unwrap_err();
        assert!(matches!(error, QuantError::ValueCount { .. }));
    }

    #[test]
    fn matrices_without_values_are_matrices() {
        for shape in [[0, 64], [3, 0], [0, 0]] {
            let packed = PackedMatrix::quantise(GgmlType::Q8_0, &[], shape, None).expect("no values");
            assert_eq!([packed.rows(), packed.columns()], shape);
            assert!(packed.dequantise().is_empty());
        }
    }
}
