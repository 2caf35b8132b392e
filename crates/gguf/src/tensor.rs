//! What a file says about a tensor.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dsv41_quant::{GgmlType, QuantError};

use crate::error::{GgufError, TensorFault};

/// A tensor has at most this many axes.
pub(crate) const MAX_DIMENSIONS: u32 = 4;

/// The type of a tensor's elements. Files are listed whatever they hold; only known types can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TensorType {
    /// A type that this project reads.
    Known(GgmlType),
    /// The number of any other.
    Unknown(u32),
}

impl TensorType {
    /// The type that a file's number means.
    pub fn from_id(id: u32) -> Self {
        GgmlType::from_id(id).map_or(Self::Unknown(id), Self::Known)
    }
}

/// As reports show it: `q2_k`, or `type 16`.
impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(ty) => ty.fmt(f),
            Self::Unknown(id) => f.pad(&format!("type {id}")),
        }
    }
}

/// A tensor of a file: its name, shape, type and place.
#[derive(Debug, Clone)]
pub struct TensorInfo {
    /// The name.
    pub name: String,
    /// The shape, slowest axis first as in the reference: the reverse of the file's order. One to four axes, none of
    /// them empty.
    pub shape: Vec<usize>,
    /// The type.
    pub ty: TensorType,
    /// The file, as errors name it.
    pub(crate) file: Arc<Path>,
    /// The place of the file in its set.
    pub(crate) shard: usize,
    /// Where the data begin in the file.
    pub(crate) offset: usize,
}

impl TensorInfo {
    /// The file that holds it.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Where its data begin in the file, in bytes.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Length of the last axis.
    pub fn columns(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Number of rows along the last axis, over all other axes.
    pub fn rows(&self) -> usize {
        self.shape.iter().rev().skip(1).product()
    }

    /// The shape of a tensor with this many axes.
    pub(crate) fn of_rank<const N: usize>(&self) -> Result<&[usize; N], GgufError> {
        let other = || self.fault(TensorFault::Rank { shape: self.shape.clone(), expected: N });
        self.shape.as_slice().try_into().map_err(|_| other())
    }

    /// The type, if it can be used.
    ///
    /// # Errors
    /// [`TensorFault::UnknownType`].
    pub fn known_type(&self) -> Result<GgmlType, GgufError> {
        match self.ty {
            TensorType::Known(ty) => Ok(ty),
            TensorType::Unknown(id) => Err(self.fault(TensorFault::UnknownType { id })),
        }
    }

    /// Bytes of a row.
    ///
    /// # Errors
    /// [`TensorFault::UnknownType`].
    pub fn row_bytes(&self) -> Result<usize, GgufError> {
        self.known_type()?.row_bytes(self.columns()).map_err(|fault| self.quant(fault))
    }

    /// Bytes of the whole tensor, without padding.
    ///
    /// # Errors
    /// [`TensorFault::UnknownType`].
    pub fn byte_len(&self) -> Result<usize, GgufError> {
        // Reading the file has checked that this does not overflow.
        Ok(self.row_bytes()? * self.rows())
    }

    /// Where some of the rows are in the file.
    pub(crate) fn byte_range(&self, rows: Range<usize>) -> Result<Range<usize>, GgufError> {
        if rows.start > rows.end || rows.end > self.rows() {
            let last = rows.end.saturating_sub(1).max(rows.start);
            return Err(self.no("row", last as u64, self.rows()));
        }
        let row_bytes = self.row_bytes()?;
        Ok(self.offset + rows.start * row_bytes..self.offset + rows.end * row_bytes)
    }

    pub(crate) fn no(&self, what: &'static str, index: u64, count: usize) -> GgufError {
        self.fault(TensorFault::Index { what, index, count: count as u64 })
    }

    pub(crate) fn quant(&self, fault: QuantError) -> GgufError {
        self.fault(TensorFault::Quant(fault))
    }

    pub(crate) fn fault(&self, fault: TensorFault) -> GgufError {
        fault_in(&self.file, &self.name, fault)
    }
}

/// An error about a tensor of a file.
pub(crate) fn fault_in(file: &Path, tensor: &str, fault: TensorFault) -> GgufError {
    GgufError::Tensor { file: PathBuf::from(file), tensor: tensor.to_owned(), fault }
}

/// The shape, if this machine can count its elements and none of its axes is empty.
pub(crate) fn check_shape(shape: &[u64]) -> Result<Vec<usize>, TensorFault> {
    if !(1..=MAX_DIMENSIONS as usize).contains(&shape.len()) {
        return Err(TensorFault::Dimensions { found: shape.len() });
    }
    if shape.contains(&0) {
        return Err(TensorFault::Empty { shape: shape.to_vec() });
    }
    let too_large = || TensorFault::TooLarge { shape: shape.to_vec() };
    let axes: Option<Vec<usize>> = shape.iter().map(|&axis| usize::try_from(axis).ok()).collect();
    let axes = axes.ok_or_else(too_large)?;
    axes.iter().try_fold(1_usize, |product, &axis| product.checked_mul(axis)).ok_or_else(too_large)?;
    Ok(axes)
}

/// Bytes of a tensor whose shape [`check_shape`] has passed.
pub(crate) fn check_bytes(shape: &[usize], ty: GgmlType) -> Result<usize, TensorFault> {
    let too_large = || TensorFault::TooLarge { shape: shape.iter().map(|&axis| axis as u64).collect() };
    let columns = shape.last().copied().unwrap_or(1);
    let rows: usize = shape.iter().rev().skip(1).product();
    let row_bytes = ty.row_bytes(columns).map_err(TensorFault::Quant)?;
    row_bytes.checked_mul(rows).ok_or_else(too_large)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(shape: &[usize], ty: TensorType) -> TensorInfo {
        let file = Arc::from(Path::new("a.gguf"));
        TensorInfo { name: "t".to_owned(), shape: shape.to_vec(), ty, file, shard: 0, offset: 64 }
    }

    #[test]
    fn rows_run_along_the_last_axis() {
        let stack = info(&[3, 4, 256], TensorType::from_id(10));
        assert_eq!((stack.rows(), stack.columns()), (12, 256));
        assert_eq!((stack.row_bytes().unwrap(), stack.byte_len().unwrap()), (84, 1008));
        assert_eq!(stack.byte_range(4..8).unwrap(), 64 + 336..64 + 672);
        let vector = info(&[5], TensorType::from_id(0));
        assert_eq!((vector.rows(), vector.columns(), vector.byte_len().unwrap()), (1, 5, 20));
    }

    #[test]
    fn rows_that_are_not_there_are_named() {
        let error = info(&[2, 256], TensorType::from_id(10)).byte_range(1..4).unwrap_err();
        assert_eq!(error.to_string(), "a.gguf: tensor `t` has no row 3: there are 2");
    }

    #[test]
    fn an_unknown_type_has_a_number_and_no_size() {
        let unknown = info(&[2, 256], TensorType::from_id(16));
        assert_eq!(unknown.ty.to_string(), "type 16");
        assert_eq!(
            unknown.byte_len().unwrap_err().to_string(),
            "a.gguf: tensor `t` has type 16, expected one of 0 (f32), 1 (f16), 30 (bf16), 2 (q4_0), 8 (q8_0), \
             10 (q2_k), 11 (q3_k), 12 (q4_k), 13 (q5_k), 14 (q6_k), 39 (mxfp4)"
        );
    }

    #[test]
    fn shapes_that_no_tensor_has_are_refused() {
        assert_eq!(check_shape(&[2, 3]), Ok(vec![2, 3]));
        assert_eq!(check_shape(&[]), Err(TensorFault::Dimensions { found: 0 }));
        assert_eq!(check_shape(&[1; 5]), Err(TensorFault::Dimensions { found: 5 }));
        assert_eq!(check_shape(&[2, 0]), Err(TensorFault::Empty { shape: vec![2, 0] }));
        assert_eq!(check_shape(&[u64::MAX, 2]), Err(TensorFault::TooLarge { shape: vec![u64::MAX, 2] }));
        assert!(matches!(check_bytes(&[1 << 62], GgmlType::F32), Err(TensorFault::Quant(_))));
        assert_eq!(check_bytes(&[1 << 61, 4], GgmlType::F32), Err(TensorFault::TooLarge { shape: vec![1 << 61, 4] }));
        assert!(matches!(check_bytes(&[4, 100], GgmlType::Q2K), Err(TensorFault::Quant(_))));
    }
}
