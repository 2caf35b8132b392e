//! Why a run cannot be read or written.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};

/// Why a run, or a part of it, cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The system refuses.
    #[error("{file}: cannot be {action}: {source}")]
    Io {
        /// The file or folder.
        file: PathBuf,
        /// What was to be done: read, written, renamed.
        action: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// A new run was to go into a folder that holds something else.
    #[error("{folder}: holds `{found}` and is not a run, expected an empty folder or none")]
    NotEmpty {
        /// The folder.
        folder: PathBuf,
        /// Something in it.
        found: String,
    },
    /// A new run was to go where there is one.
    #[error("{folder}: holds a run already: resume it, or choose another folder")]
    Exists {
        /// The folder.
        folder: PathBuf,
    },
    /// There is no run to resume.
    #[error("{folder}: holds no run: there is no config.json")]
    NoRun {
        /// The folder.
        folder: PathBuf,
    },
    /// Another process writes this run.
    #[error("{folder}: is being written by {holder}")]
    Locked {
        /// The folder.
        folder: PathBuf,
        /// That process, as far as its lock file tells.
        holder: String,
    },
    /// A file is not the JSON that it should be.
    #[error("{file}: {source}")]
    Json {
        /// The file.
        file: PathBuf,
        /// What the parser says, with line and column.
        source: serde_json::Error,
    },
    /// A line of the metrics is not the metrics of a step.
    #[error("{file}: line {line}: not the metrics of a step: {source}")]
    Line {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What the parser says.
        source: serde_json::Error,
    },
    /// Steps of the metrics do not go up.
    #[error("{file}: line {line}: step {found}, expected one after {previous}")]
    LineOrder {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: usize,
        /// Its step.
        found: u64,
        /// The step of the line before it, or 0.
        previous: u64,
    },
    /// Metrics or a checkpoint have no JSON.
    #[error("{file}: step {step} cannot be written as JSON: {source}")]
    Encode {
        /// The file.
        file: PathBuf,
        /// The step.
        step: u64,
        /// What the serialiser says.
        source: serde_json::Error,
    },
    /// Checkpoints are saved in the order of their steps.
    #[error("{folder}: a checkpoint of step {found}, expected one after step {newest}, which is saved already")]
    CheckpointOrder {
        /// The folder of the checkpoints.
        folder: PathBuf,
        /// The step that was to be saved.
        found: u64,
        /// The step of the newest checkpoint.
        newest: u64,
    },
    /// The trainer could not write its part of a checkpoint.
    #[error("{folder}: the checkpoint cannot be written: {source}")]
    Save {
        /// The folder that the checkpoint was to have.
        folder: PathBuf,
        /// What the trainer says.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The plot of a report cannot be drawn.
    #[error("the plot `{title}` of the report cannot be drawn: {source}")]
    Plot {
        /// Which plot.
        title: &'static str,
        /// What the plotting library says.
        source: Box<dyn Error + Send + Sync>,
    },
}

impl RunError {
    /// The system refuses to have something done to a file.
    pub(super) fn io(file: &Path, action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { file: file.to_path_buf(), action, source }
    }
}
