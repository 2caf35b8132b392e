use std::ops::Range;

use super::ReleaseFormat;

/// Why bytes of the release are not the matrix they should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReleaseError {
    /// A row of fp4 pairs ends within a byte.
    #[error("{format} holds two values a byte, and a row has {columns}")]
    OddColumns {
        /// The format.
        format: ReleaseFormat,
        /// Values of a row.
        columns: usize,
    },
    /// There are more or fewer codes than the shape takes.
    #[error("{rows}x{columns} values of {format} take {expected} bytes, and there are {found}")]
    Codes {
        /// The format.
        format: ReleaseFormat,
        /// Rows of the matrix.
        rows: usize,
        /// Columns of the matrix.
        columns: usize,
        /// Bytes found.
        found: usize,
        /// Bytes that the shape takes.
        expected: usize,
    },
    /// There are more or fewer scales than the shape takes.
    #[error("{rows}x{columns} values of {format} take {expected} scales, and there are {found}")]
    Scales {
        /// The format.
        format: ReleaseFormat,
        /// Rows of the matrix.
        rows: usize,
        /// Columns of the matrix.
        columns: usize,
        /// Scales found.
        found: usize,
        /// Scales that the shape takes.
        expected: usize,
    },
    /// The shape's size does not fit the address space.
    #[error("{rows}x{columns} values of {format} do not fit this machine's memory")]
    TooLarge {
        /// The format.
        format: ReleaseFormat,
        /// Rows of the matrix.
        rows: usize,
        /// Columns of the matrix.
        columns: usize,
    },
    /// The matrix has no such rows.
    #[error("rows {}..{} were asked for, and there are {rows}", .asked.start, .asked.end)]
    Rows {
        /// The rows asked for.
        asked: Range<usize>,
        /// Rows of the matrix.
        rows: usize,
    },
    /// The destination is longer or shorter than the rows.
    #[error("{rows} rows of {columns} values do not fit a destination of {found}")]
    Destination {
        /// Number of rows asked for.
        rows: usize,
        /// Columns of the matrix.
        columns: usize,
        /// Values that the destination holds.
        found: usize,
    },
}
