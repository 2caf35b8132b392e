use crate::GgmlType;

/// Why bytes or values cannot be converted.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum QuantError {
    /// A row does not divide into the format's blocks.
    #[error("{ty} holds blocks of {block}, and a row has {columns} values")]
    RowLength {
        /// The format.
        ty: GgmlType,
        /// Values of one of its blocks.
        block: usize,
        /// Values of the row.
        columns: usize,
    },
    /// There are more or fewer bytes than the shape takes.
    #[error("{rows}x{columns} values of {ty} take {expected} bytes, and there are {found}")]
    ByteCount {
        /// The format.
        ty: GgmlType,
        /// Rows of the matrix.
        rows: usize,
        /// Columns of the matrix.
        columns: usize,
        /// Bytes found.
        found: usize,
        /// Bytes that the shape takes.
        expected: usize,
    },
    /// The shape's size does not fit the address space.
    #[error("{rows}x{columns} values of {ty} do not fit this machine's memory")]
    TooLarge {
        /// The format.
        ty: GgmlType,
        /// Rows of the matrix.
        rows: usize,
        /// Columns of the matrix.
        columns: usize,
    },
    /// There are more or fewer values than the shape takes.
    #[error("{rows} rows of {columns} values were expected, and there are {found} values")]
    ValueCount {
        /// Rows of the matrix; where only their length was given, as many as there begin.
        rows: usize,
        /// Columns of the matrix.
        columns: usize,
        /// Values found.
        found: usize,
    },
    /// A value is not finite, or too large for the format.
    #[error("the value in row {row}, column {column} is {value:e}, and {ty} holds magnitudes up to {limit:e}")]
    Value {
        /// The format.
        ty: GgmlType,
        /// The value's row.
        row: usize,
        /// The value's column.
        column: usize,
        /// The value.
        value: f32,
        /// The largest magnitude that the format holds.
        limit: f32,
    },
    /// There is not one importance for each column.
    #[error("{found} importances were given for {columns} columns")]
    ImportanceCount {
        /// Columns of the matrix.
        columns: usize,
        /// Importances found.
        found: usize,
    },
    /// An importance is no weight.
    #[error("the importance of column {column} is {value:e}, and it must be finite and not negative")]
    Importance {
        /// The column.
        column: usize,
        /// Its importance.
        value: f32,
    },
}
