//! What the user is told about a run that was broken off.

use std::fmt;
use std::path::PathBuf;

use super::CheckpointFault;

/// Something that was found in a run and dealt with.
#[derive(Debug)]
pub enum Notice {
    /// The last line of the metrics has no end: its writer was killed. It does not count.
    TornLine {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What there is of it.
        bytes: usize,
    },
    /// Metrics of steps after the one that the run goes on from were removed.
    LinesRemoved {
        /// The file.
        file: PathBuf,
        /// How many steps.
        lines: usize,
        /// The step that the run goes on from.
        step: u64,
    },
    /// An unfinished file or checkpoint was removed.
    LeftoverRemoved {
        /// Where it was.
        path: PathBuf,
    },
    /// A checkpoint is not whole, and passed over.
    BrokenCheckpoint {
        /// Its folder.
        path: PathBuf,
        /// What is wrong with it.
        fault: CheckpointFault,
    },
    /// A checkpoint of a step after the one that the run goes on from was removed.
    CheckpointRemoved {
        /// Its folder.
        path: PathBuf,
    },
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TornLine { file, line, bytes } => {
                write!(f, "{}: line {line} is torn after {bytes} bytes and does not count", file.display())
            }
            Self::LinesRemoved { file, lines, step } => {
                write!(f, "{}: the run goes on from step {step}: {lines} later lines removed", file.display())
            }
            Self::LeftoverRemoved { path } => write!(f, "{}: unfinished, removed", path.display()),
            Self::BrokenCheckpoint { path, fault } => write!(f, "{}: passed over: {fault}", path.display()),
            Self::CheckpointRemoved { path } => {
                write!(f, "{}: of a step after the one that the run goes on from, removed", path.display())
            }
        }
    }
}
