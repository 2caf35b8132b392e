use std::{
    io,
    path::{Path, PathBuf},
};

use burn::tensor::DType;

/// A name that no parameter of the model has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no parameter of the model is named `{0}`")]
pub struct UnknownParameter(pub String);

/// Why optimisers cannot be made, step, or have their state stored.
#[derive(Debug, thiserror::Error)]
pub enum OptimiserError {
    /// A parameter that has no group.
    #[error(transparent)]
    UnknownParameter(#[from] UnknownParameter),
    /// A setting out of its range.
    #[error("setting {key} is {found}, expected {expected}")]
    Setting {
        /// Its place in the settings.
        key: String,
        /// Its value.
        found: String,
        /// What it should be.
        expected: String,
    },
    /// Two listed parameters have one name or one id.
    #[error("parameter `{name}` is listed twice, or with the id of another")]
    DuplicateParameter {
        /// The second one's name.
        name: String,
    },
    /// A parameter that Muon cannot update.
    #[error("parameter `{name}` has axes {dims:?}, expected a matrix or a stack of matrices for Muon")]
    NoMatrix {
        /// Its name.
        name: String,
        /// Its axes.
        dims: Vec<usize>,
    },
    /// The module trains a parameter that was not listed.
    #[error("the module trains a parameter of axes {dims:?} (id {id}) that is not in the optimiser's list")]
    UnlistedParameter {
        /// Burn's id of it.
        id: String,
        /// Its axes.
        dims: Vec<usize>,
    },
    /// A listed parameter that the module does not have.
    #[error("parameter `{name}` is in the optimiser's list, but not in the module")]
    MissingParameter {
        /// Its name.
        name: String,
    },
    /// Gradients that belong to no parameter of the module.
    #[error("{count} gradients belong to no parameter of the module")]
    ForeignGradients {
        /// How many.
        count: usize,
    },
    /// A gradient for a parameter that takes none.
    #[error("parameter `{name}` has a gradient, but is not trained by gradients")]
    FrozenParameter {
        /// Its name.
        name: String,
    },
    /// A parameter has other axes than it was listed with.
    #[error("parameter `{name}` has axes {found:?}, expected {expected:?}")]
    Shape {
        /// Its name.
        name: String,
        /// Axes found.
        found: Vec<usize>,
        /// Axes expected.
        expected: Vec<usize>,
    },
    /// A parameter has another type than its state.
    #[error("parameter `{name}` has values of {found:?}, its optimiser state has {expected:?}")]
    ValueType {
        /// Its name.
        name: String,
        /// Type of the parameter.
        found: DType,
        /// Type of its state.
        expected: DType,
    },
    /// Gradients are infinite or not numbers.
    #[error("the norm of all gradients is {norm}")]
    NonFiniteNorm {
        /// What came of adding their squares.
        norm: f64,
    },
    /// Tensors cannot be read from their device.
    #[error("tensors cannot be read from their device: {0}")]
    Device(String),
    /// A file cannot be read or written.
    #[error("{}: cannot be {action}: {source}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// What was tried: "read", "written", ...
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A file is not what it should be.
    #[error("{}: {fault}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// What was found and what was expected.
        fault: String,
    },
    /// A state of other settings.
    #[error("{}: the state was made with {key} {found}, the optimiser has {expected}", file.display())]
    OtherSettings {
        /// The file.
        file: PathBuf,
        /// Which settings.
        key: String,
        /// The file's.
        found: String,
        /// The optimiser's.
        expected: String,
    },
    /// A state of other parameters.
    #[error("{}: the state of parameter `{name}` has axes {found}, the optimiser has {expected}", file.display())]
    OtherParameters {
        /// The file.
        file: PathBuf,
        /// A parameter that differs.
        name: String,
        /// Its axes in the file.
        found: String,
        /// Its axes in the optimiser's list.
        expected: String,
    },
    /// A row that the table does not have.
    #[error("row {row}: the table has {rows} rows")]
    RowOutOfRange {
        /// The row.
        row: i64,
        /// Rows of the table.
        rows: usize,
    },
    /// More or fewer values than rows hold.
    #[error("{found} values for {rows} rows of {width}")]
    RowValues {
        /// Values given.
        found: usize,
        /// Rows given.
        rows: usize,
        /// Values of a row.
        width: usize,
    },
    /// Rows of a table, or what is kept of them, cannot be read or written.
    #[error("rows of a table cannot be read or written: {0}")]
    Rows(#[source] io::Error),
    /// Parts of a table's optimiser that do not fit each other.
    #[error("the {part} of a table are of {found:?} rows and columns, expected {expected:?}")]
    TableShape {
        /// Which part.
        part: &'static str,
        /// Its rows and columns.
        found: [usize; 2],
        /// Rows and columns that fit.
        expected: [usize; 2],
    },
}

impl OptimiserError {
    pub(crate) fn io(file: &Path, action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { file: file.to_path_buf(), action, source }
    }

    pub(crate) fn file(file: &Path, fault: impl ToString) -> Self {
        Self::File { file: file.to_path_buf(), fault: fault.to_string() }
    }
}
