//! Why a file is not the model it should be, or cannot be made one.

use std::ops::Range;
use std::path::{Path, PathBuf};

use dsv41_config::ConfigError;
use dsv41_quant::QuantError;
use dsv41_quant::release::ReleaseError;

use crate::{GgufError, SafetensorsError};

/// Why a file is not the model it should be, or cannot be made one.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The container is at fault, or one of its values has another type.
    #[error(transparent)]
    Gguf(Box<GgufError>),
    /// The release's container is at fault.
    #[error(transparent)]
    Safetensors(#[from] SafetensorsError),
    /// The file says all of a configuration that cannot be.
    #[error("the model it describes cannot be: {0}")]
    Config(#[from] ConfigError),
    /// The configuration beside a release cannot be used.
    #[error(transparent)]
    Configuration(ConfigError),
    /// A file of another architecture.
    #[error("architecture `{found}` ({model}), expected `deepseek41` (DeepSeek-V4.1)")]
    Architecture {
        /// What `general.architecture` says.
        found: String,
        /// What that means.
        model: &'static str,
    },
    /// A V4.1 file as another converter writes it, or what only looks like one.
    #[error("{evidence} belongs to {dialect}; expected the names and keys of llama.cpp's deepseek41 files")]
    Dialect {
        /// Whose spelling it is.
        dialect: &'static str,
        /// The key or the tensor that gives it away.
        evidence: String,
    },
    /// A key that has to be there.
    #[error("key `{key}` is missing")]
    MissingKey {
        /// The key.
        key: String,
    },
    /// A key that cannot be, or contradicts the rest of the file.
    #[error("key `{key}` is {found}, expected {expected}")]
    Key {
        /// The key.
        key: String,
        /// Its value.
        found: String,
        /// What it should be.
        expected: String,
    },
    /// A tensor that has to be there.
    #[error("tensor `{tensor}` is missing")]
    MissingTensor {
        /// The name in the file.
        tensor: String,
    },
    /// A tensor of another shape.
    #[error("tensor `{tensor}` has shape {found:?}, expected {expected}")]
    Shape {
        /// The name in the file.
        tensor: String,
        /// Its shape, slowest axis first.
        found: Vec<usize>,
        /// What it should be.
        expected: String,
    },
    /// A table that is kept elsewhere cannot be read.
    #[error("tensor `{tensor}`: {source}")]
    Unreadable {
        /// Its name.
        tensor: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// A tensor in a layer that is not what would use it.
    #[error("tensor `{tensor}` has no use in its layer: tensors that would go with it are not in the file")]
    Stray {
        /// The name in the file.
        tensor: String,
    },
    /// A name that no tensor of the model has.
    #[error("tensor `{name}`: no tensor of this model has this name")]
    UnknownTensor {
        /// The reference's name asked for.
        name: String,
    },
    /// Experts that cannot be stacked in one tensor.
    #[error("tensor `{name}` cannot be number {place} of its layer's stack: experts must be in order and of one shape")]
    Stack {
        /// The reference's name of the expert's matrix.
        name: String,
        /// The place that is next in the stack.
        place: usize,
    },
    /// A tensor cannot be converted between its type and values.
    #[error("tensor `{tensor}`: {source}")]
    Quant {
        /// The name in the file.
        tensor: String,
        /// What is wrong.
        source: QuantError,
    },
    /// A tensor of another type.
    #[error("tensor `{tensor}` has type {found}, expected {expected}")]
    Dtype {
        /// The name in the file.
        tensor: String,
        /// Its type.
        found: String,
        /// What it should be.
        expected: &'static str,
    },
    /// A file of importances of another model.
    #[error(
        "none of its {found} tensors belongs to this model, expected names such as `blk.0.attn_q_a.weight.in_sum2`"
    )]
    NoEntry {
        /// How many tensors there are.
        found: usize,
    },
    /// A value that weighs nothing.
    #[error("tensor `{tensor}`: value {place} is {value:e}, expected a finite number from 0")]
    Weight {
        /// The name in the file.
        tensor: String,
        /// The place of the value in the tensor.
        place: usize,
        /// The value.
        value: f32,
    },
    /// A tensor of the release does not hold what its shape says.
    #[error("tensor `{tensor}`: {source}")]
    Release {
        /// The reference's name.
        tensor: String,
        /// What is wrong.
        source: ReleaseError,
    },
    /// Rows that a tensor does not have.
    #[error("tensor `{tensor}`: rows {}..{} were asked for, and there are {rows}", .asked.start, .asked.end)]
    Rows {
        /// The reference's name.
        tensor: String,
        /// The rows asked for.
        asked: Range<usize>,
        /// How many there are.
        rows: usize,
    },
    /// A token map that is not the model's, or none where the model has engram layers.
    #[error("{found} for the engram's tokens, expected {expected}")]
    TokenMap {
        /// What there is.
        found: String,
        /// What there should be.
        expected: String,
    },
    /// A value that files of this kind have no key for.
    #[error("configuration key `{key}` is {found}, and GGUF can only say {expected}")]
    Inexpressible {
        /// The configuration's key, or the file's.
        key: &'static str,
        /// Its value.
        found: String,
        /// What could be written.
        expected: &'static str,
    },
    /// A file that is to be written where the store reads from.
    #[error("{}: is read, and cannot be written over", file.display())]
    OverSource {
        /// The file.
        file: PathBuf,
    },
    /// A tensor that is in the file, once read back, with another shape or type or with other bytes.
    #[error("tensor `{tensor}` is not in the file as it was written")]
    ReadBack {
        /// The name in the file.
        tensor: String,
    },
    /// Any of the above, in a file.
    #[error("{}: {error}", file.display())]
    In {
        /// The file.
        file: PathBuf,
        /// What is wrong in it.
        error: Box<ModelError>,
    },
}

impl From<GgufError> for ModelError {
    fn from(error: GgufError) -> Self {
        Self::Gguf(Box::new(error))
    }
}

impl ModelError {
    /// The same error, saying which file it is in; errors of the container say so themselves, and none says so twice.
    #[must_use]
    pub fn within(self, file: &Path) -> Self {
        match self {
            Self::Gguf(_) | Self::In { .. } | Self::Safetensors(_) | Self::Configuration(_) => self,
            error => Self::In { file: file.to_owned(), error: Box::new(error) },
        }
    }
}
