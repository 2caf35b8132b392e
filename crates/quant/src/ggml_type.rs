use std::fmt;
use std::str::FromStr;

use crate::QuantError;

/// Element types of GGUF files that this project reads, under ggml's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum GgmlType {
    /// 32-bit float.
    F32,
    /// 16-bit float, IEEE 754 binary16.
    F16,
    /// bfloat16.
    Bf16,
    /// 4 bits, one f16 scale for each 32.
    Q4_0,
    /// 8 bits, one f16 scale for each 32.
    Q8_0,
    /// 2 bits, a 4-bit scale and minimum for each 16 under an f16 scale and minimum for each 256.
    Q2K,
    /// 3 bits, a 6-bit scale for each 16 under an f16 scale for each 256.
    Q3K,
    /// 4 bits, a 6-bit scale and minimum for each 32 under an f16 scale and minimum for each 256.
    Q4K,
    /// 5 bits, scaled as [`GgmlType::Q4K`].
    Q5K,
    /// 6 bits, an 8-bit scale for each 16 under an f16 scale for each 256.
    Q6K,
    /// e2m1 with one e8m0 scale for each 32 (the OCP microscaling format).
    Mxfp4,
}

/// The name of no known type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown type `{0}`: expected one of {names}", names = GgmlType::ALL.map(GgmlType::name).join(", "))]
pub struct UnknownType(pub String);

impl GgmlType {
    /// Every type.
    pub const ALL: [Self; 11] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::Q4_0,
        Self::Q8_0,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Mxfp4,
    ];

    /// The type that a file's number means.
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|ty| ty.id() == id)
    }

    /// The number that stands for the type in files.
    pub fn id(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q4_0 => 2,
            Self::Q8_0 => 8,
            Self::Q2K => 10,
            Self::Q3K => 11,
            Self::Q4K => 12,
            Self::Q5K => 13,
            Self::Q6K => 14,
            Self::Bf16 => 30,
            Self::Mxfp4 => 39,
        }
    }

    /// The name on command lines and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q4_0 => "q4_0",
            Self::Q8_0 => "q8_0",
            Self::Q2K => "q2_k",
            Self::Q3K => "q3_k",
            Self::Q4K => "q4_k",
            Self::Q5K => "q5_k",
            Self::Q6K => "q6_k",
            Self::Mxfp4 => "mxfp4",
        }
    }

    /// Values of one block.
    pub const fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Q4_0 | Self::Q8_0 | Self::Mxfp4 => 32,
            Self::Q2K | Self::Q3K | Self::Q4K | Self::Q5K | Self::Q6K => 256,
        }
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Q4_0 => 18,
            Self::Q8_0 => 34,
            Self::Q2K => 84,
            Self::Q3K => 110,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
            Self::Mxfp4 => 17,
        }
    }

    /// Bytes of a row of `columns` values.
    ///
    /// # Errors
    /// [`QuantError::RowLength`] when the row does not divide into blocks, [`QuantError::TooLarge`] when its size
    /// overflows.
    pub fn row_bytes(self, columns: usize) -> Result<usize, QuantError> {
        if !columns.is_multiple_of(self.block_len()) {
            return Err(QuantError::RowLength { ty: self, block: self.block_len(), columns });
        }
        (columns / self.block_len()).checked_mul(self.block_bytes()).ok_or(QuantError::TooLarge {
            ty: self,
            rows: 1,
            columns,
        })
    }
}

impl fmt::Display for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for GgmlType {
    type Err = UnknownType;

    fn from_str(name: &str) -> Result<Self, UnknownType> {
        Self::ALL
            .into_iter()
            .find(|ty| ty.name().eq_ignore_ascii_case(name))
            .ok_or_else(|| UnknownType(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_read_as_they_are_written() {
        for ty in GgmlType::ALL {
            assert_eq!(GgmlType::from_id(ty.id()), Some(ty));
            assert_eq!(ty.to_string().parse(), Ok(ty));
        }
        assert_eq!("Q2_K".parse(), Ok(GgmlType::Q2K));
        assert_eq!(GgmlType::from_id(9), None);
        assert_eq!("q7_k".parse::<GgmlType>(), Err(UnknownType("q7_k".to_owned())));
    }

    #[test]
    fn rows_divide_into_blocks() {
        assert_eq!(GgmlType::Q2K.row_bytes(5120), Ok(1680));
        assert_eq!(GgmlType::Q8_0.row_bytes(0), Ok(0));
        let error = GgmlType::Q3K.row_bytes(128).unwrap_err();
        assert_eq!(error.to_string(), "q3_k holds blocks of 256, and a row has 128 values");
        assert!(matches!(GgmlType::F32.row_bytes(usize::MAX), Err(QuantError::TooLarge { .. })));
    }
}
