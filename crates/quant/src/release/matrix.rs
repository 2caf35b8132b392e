use std::fmt;
use std::ops::Range;

use super::ReleaseError;
use super::codes::{E2M1_PAIR, E4M3, e8m0};

/// Neighbours in a row that share a scale.
const GROUP: usize = 32;

/// How the release holds a matrix. Scales are e8m0 in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReleaseFormat {
    /// Linear layers: e4m3 `[rows, columns]`, one scale for each tile of 32x32, `[rows / 32, columns / 32]` rounded up.
    Fp8Tiles,
    /// Routed experts: two e2m1 a byte, `[rows, columns / 2]`, the even element in the low nibble; one scale for each 32
    /// of a row, `[rows, columns / 32]` rounded up.
    Fp4,
    /// Engram tables: e4m3 `[rows, columns]`, one scale for each 32 of a row, `[rows, columns / 32]` rounded up.
    Fp8Rows,
}

impl ReleaseFormat {
    /// Rows that share a scale.
    fn tile_rows(self) -> usize {
        match self {
            Self::Fp8Tiles => GROUP,
            Self::Fp4 | Self::Fp8Rows => 1,
        }
    }

    /// Values of one byte.
    fn values_per_byte(self) -> usize {
        match self {
            Self::Fp8Tiles | Self::Fp8Rows => 1,
            Self::Fp4 => 2,
        }
    }
}

impl fmt::Display for ReleaseFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Fp8Tiles => "fp8 in tiles",
            Self::Fp4 => "fp4",
            Self::Fp8Rows => "fp8 in rows",
        })
    }
}

/// A matrix `[rows, columns]` of the release over its codes and scales, which may be a mapped file's.
#[derive(Clone, Copy)]
pub struct ReleaseMatrix<'a> {
    format: ReleaseFormat,
    rows: usize,
    columns: usize,
    codes: &'a [u8],
    scales: &'a [u8],
}

impl<'a> ReleaseMatrix<'a> {
    /// The matrix that `codes` and `scales` hold, both row by row.
    ///
    /// # Errors
    /// When there are more or fewer codes or scales than the shape takes, or fp4 rows of an odd length.
    pub fn new(
        format: ReleaseFormat,
        [rows, columns]: [usize; 2],
        codes: &'a [u8],
        scales: &'a [u8],
    ) -> Result<Self, ReleaseError> {
        if !columns.is_multiple_of(format.values_per_byte()) {
            return Err(ReleaseError::OddColumns { format, columns });
        }
        let expected = rows.checked_mul(columns).ok_or(ReleaseError::TooLarge { format, rows, columns })?
            / format.values_per_byte();
        if codes.len() != expected {
            return Err(ReleaseError::Codes { format, rows, columns, found: codes.len(), expected });
        }
        let expected = rows.div_ceil(format.tile_rows()) * columns.div_ceil(GROUP);
        if scales.len() != expected {
            return Err(ReleaseError::Scales { format, rows, columns, found: scales.len(), expected });
        }
        Ok(Self { format, rows, columns, codes, scales })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Writes the values of some rows to `out`.
    ///
    /// They are exact: a product with a power of two keeps every bit, except that it may overflow to infinity. NaN codes
    /// and NaN scales make NaN.
    ///
    /// # Errors
    /// When there are no such rows or `out` does not hold exactly them.
    pub fn dequantise_rows(&self, rows: Range<usize>, out: &mut [f32]) -> Result<(), ReleaseError> {
        if rows.start > rows.end || rows.end > self.rows {
            return Err(ReleaseError::Rows { asked: rows, rows: self.rows });
        }
        if out.len() != rows.len() * self.columns {
            return Err(ReleaseError::Destination { rows: rows.len(), columns: self.columns, found: out.len() });
        }
        // A matrix without columns has no chunks to cut.
        for (row, out) in rows.zip(out.chunks_exact_mut(self.columns.max(1))) {
            self.dequantise_row(row, out);
        }
        Ok(())
    }

    fn dequantise_row(&self, row: usize, out: &mut [f32]) {
        let row_scales = self.columns.div_ceil(GROUP);
        let scales = &self.scales[row / self.format.tile_rows() * row_scales..][..row_scales];
        let row_bytes = self.columns / self.format.values_per_byte();
        let codes = &self.codes[row * row_bytes..][..row_bytes];
        let groups = out.chunks_mut(GROUP).zip(codes.chunks(GROUP / self.format.values_per_byte()));
        for ((out, codes), &scale) in groups.zip(scales) {
            let scale = e8m0(scale);
            match self.format {
                ReleaseFormat::Fp8Tiles | ReleaseFormat::Fp8Rows => {
                    for (out, &code) in out.iter_mut().zip(codes) {
                        *out = E4M3[usize::from(code)] * scale;
                    }
                }
                ReleaseFormat::Fp4 => {
                    for (out, &code) in out.as_chunks_mut().0.iter_mut().zip(codes) {
                        *out = E2M1_PAIR[usize::from(code)].map(|value| value * scale);
                    }
                }
            }
        }
    }
}

/// The format and the shape, without the bytes.
impl fmt::Debug for ReleaseMatrix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReleaseMatrix({} {}x{})", self.format, self.rows, self.columns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: u8 = 127;
    const HALF: u8 = 126;
    const FOUR: u8 = 129;

    fn dequantise(matrix: ReleaseMatrix<'_>, rows: Range<usize>) -> Vec<f32> {
        let mut out = vec![f32::NAN; rows.len() * matrix.columns()];
        matrix.dequantise_rows(rows, &mut out).expect("rows that exist");
        out
    }

    #[test]
    fn fp8_tiles_share_scales_over_32_rows_and_end_in_partial_tiles() {
        // e4m3 0x38 is one; 34x40 leaves tiles of 2 rows and of 8 columns.
        let (rows, columns) = (34, 40);
        let codes = vec![0x38; rows * columns];
        let scales = [ONE, HALF, FOUR, 255];
        let matrix = ReleaseMatrix::new(ReleaseFormat::Fp8Tiles, [rows, columns], &codes, &scales).expect("sound");
        let values = dequantise(matrix, 31..33);
        let (above, below) = values.split_at(columns);
        assert!(above[..32].iter().all(|&value| value == 1.0) && above[32..].iter().all(|&value| value == 0.5));
        assert!(below[..32].iter().all(|&value| value == 4.0) && below[32..].iter().all(|value| value.is_nan()));
    }

    #[test]
    fn fp4_holds_the_even_element_low() {
        // Nibbles: 0x2 one, 0xf minus six, 0x1 a half.
        let mut codes = [0x22; 40];
        (codes[0], codes[16], codes[39]) = (0xf2, 0x1f, 0x12);
        let scales = [ONE, FOUR, HALF, ONE];
        let matrix = ReleaseMatrix::new(ReleaseFormat::Fp4, [2, 40], &codes, &scales).expect("sound");
        let values = dequantise(matrix, 0..2);
        assert_eq!(values[..3], [1.0, -6.0, 1.0]);
        assert_eq!(values[31..35], [1.0, -24.0, 2.0, 4.0]);
        assert_eq!(values[40..42], [0.5, 0.5]);
        assert_eq!(values[77..], [1.0, 1.0, 0.5]);
        assert_eq!(dequantise(matrix, 1..2), values[40..]);
    }

    #[test]
    fn engram_rows_have_scales_of_their_own() {
        let codes: Vec<u8> = (0..128).collect();
        let scales = [0, HALF, FOUR, ONE];
        let matrix = ReleaseMatrix::new(ReleaseFormat::Fp8Rows, [2, 64], &codes, &scales).expect("sound");
        let values = dequantise(matrix, 0..2);
        assert_eq!(values[0x30], 0.25);
        assert_eq!(values[0x48], 16.0);
        assert_eq!(values[0x61], 36.0);
        // The smallest scale is subnormal and so are its products, without loss: 9 / 512 * 2^-127.
        assert_eq!(values[9], f32::from_bits(9 << (149 - 127 - 9)));
    }

    #[test]
    fn sizes_that_contradict_the_shape_are_refused() {
        let refuse = |format, shape, codes: usize, scales: usize| {
            ReleaseMatrix::new(format, shape, &vec![0; codes], &vec![0; scales]).expect_err("unsound").to_string()
        };
        assert_eq!(
            refuse(ReleaseFormat::Fp8Tiles, [33, 33], 1089, 3),
            "33x33 values of fp8 in tiles take 4 scales, and there are 3"
        );
        assert_eq!(
            refuse(ReleaseFormat::Fp8Rows, [2, 32], 63, 2),
            "2x32 values of fp8 in rows take 64 bytes, and there are 63"
        );
        assert_eq!(refuse(ReleaseFormat::Fp4, [1, 33], 17, 2), "fp4 holds two values a byte, and a row has 33");
        assert_eq!(
            refuse(ReleaseFormat::Fp8Rows, [usize::MAX, 2], 0, 0),
            format!("{}x2 values of fp8 in rows do not fit this machine's memory", usize::MAX)
        );
    }

    #[test]
    fn rows_that_do_not_exist_or_fit_are_refused() {
        let matrix = ReleaseMatrix::new(ReleaseFormat::Fp8Rows, [2, 32], &[0; 64], &[0; 2]).expect("sound");
        let mut out = [0.0; 64];
        let error = matrix.dequantise_rows(1..3, &mut out).unwrap_err();
        assert_eq!(error.to_string(), "rows 1..3 were asked for, and there are 2");
        let error = matrix.dequantise_rows(1..2, &mut out).unwrap_err();
        assert_eq!(error.to_string(), "1 rows of 32 values do not fit a destination of 64");
        let empty = ReleaseMatrix::new(ReleaseFormat::Fp4, [3, 0], &[], &[]).expect("sound");
        assert_eq!(empty.dequantise_rows(0..3, &mut []), Ok(()));
    }
}
