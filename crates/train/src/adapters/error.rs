//! Why adapters cannot be made, saved or loaded.

use std::io;
use std::path::{Path, PathBuf};

/// Why adapters cannot be made, saved or loaded.
#[derive(Debug, thiserror::Error)]
pub enum AdapterError {
    /// A setting out of its range.
    #[error("adapter setting {key} is {found}, expected {expected}")]
    Setting {
        /// Its name.
        key: &'static str,
        /// Its value.
        found: String,
        /// What it should be.
        expected: &'static str,
    },
    /// A pattern that chooses no linear layer of the model.
    #[error("target `{pattern}` matches no linear layer that can be adapted; there are {there_is}")]
    NoTarget {
        /// The pattern.
        pattern: String,
        /// The kinds of linear layers that it could match.
        there_is: String,
    },
    /// A model whose adapters are not what the settings say.
    #[error("linear layer `{linear}` has {found}, expected {expected}")]
    Adapter {
        /// The linear layer.
        linear: String,
        /// Its last adapter.
        found: String,
        /// What the settings ask for.
        expected: String,
    },
    /// The system refuses.
    #[error("{file}: cannot be {action}: {source}")]
    Io {
        /// The file or folder.
        file: PathBuf,
        /// What was to be done.
        action: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// An adapter was to replace something that is none.
    #[error("{folder}: is there and is no adapter, expected an adapter, an empty folder or none")]
    NoAdapter {
        /// The folder.
        folder: PathBuf,
    },
    /// A file that is not the JSON that it should be.
    #[error("{file}: {source}")]
    Json {
        /// The file.
        file: PathBuf,
        /// What the parser says, with line and column.
        source: serde_json::Error,
    },
    /// A value of the adapter's configuration that cannot be used.
    #[error("{file}: key `{key}` is {found}, expected {expected}")]
    Key {
        /// The file.
        file: PathBuf,
        /// The key.
        key: String,
        /// Its value.
        found: String,
        /// What it should be.
        expected: String,
    },
    /// An adapter of another model.
    #[error("{file}: the adapter was made for `{made_for}` (base {found}), expected base {expected} of `{model}`")]
    OtherBase {
        /// The adapter's configuration.
        file: PathBuf,
        /// What the adapter's base was called.
        made_for: String,
        /// The fingerprint of the adapter's base.
        found: String,
        /// The fingerprint of the model.
        expected: String,
        /// What the model is called.
        model: String,
    },
    /// A file that is not made as safetensors files are.
    #[error("{file}: not a valid safetensors file: {source}")]
    Safetensors {
        /// The file.
        file: PathBuf,
        /// What the parser says.
        source: safetensors::SafeTensorError,
    },
    /// A tensor that has to be there.
    #[error("{file}: tensor `{tensor}` is missing, expected one of shape {expected:?}")]
    MissingTensor {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// The shape that it should have.
        expected: [usize; 2],
    },
    /// A tensor that is no part of the adapter.
    #[error(
        "{file}: tensor `{tensor}` belongs to none of the {expected} linear layers that the adapter's targets match"
    )]
    ForeignTensor {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Linear layers that the adapter has.
        expected: usize,
    },
    /// A tensor of another shape.
    #[error("{file}: tensor `{tensor}` has shape {found:?}, expected {expected:?}")]
    Shape {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its shape.
        found: Vec<usize>,
        /// What it should be.
        expected: [usize; 2],
    },
    /// A tensor of another type.
    #[error("{file}: tensor `{tensor}` has type {found}, expected F32")]
    Dtype {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its type.
        found: String,
    },
    /// An adapter's strength that is no number.
    #[error("an adapter's strength is {found}, expected a finite number")]
    Strength {
        /// The strength asked for.
        found: f64,
    },
}

impl AdapterError {
    pub(super) fn io(file: &Path, action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { file: file.to_owned(), action, source }
    }
}
