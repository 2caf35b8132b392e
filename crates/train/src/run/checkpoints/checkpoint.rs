//! One checkpoint: sealed with a manifest, and checked against it.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::manifest::{self, FileRecord, MANIFEST, Manifest, Score};
use crate::run::{RunError, durable};

/// A checkpoint on disk.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    path: PathBuf,
    manifest: Manifest,
}

/// What is wrong with a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointFault {
    /// The system refuses to read it.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// It has no manifest, which is written last.
    #[error("it has no manifest.json")]
    NoManifest,
    /// Its manifest is not one.
    #[error("manifest.json: {0}")]
    Manifest(#[from] serde_json::Error),
    /// Its manifest is that of another checkpoint.
    #[error("manifest.json is of step {found}, expected {expected}")]
    Step {
        /// The manifest's step.
        found: u64,
        /// The step by the folder's name.
        expected: u64,
    },
    /// A file is gone.
    #[error("{file} is missing, expected {expected} bytes")]
    Missing {
        /// The file.
        file: String,
        /// Its size by the manifest.
        expected: u64,
    },
    /// A file does not belong there.
    #[error("{file} is not in manifest.json")]
    Unknown {
        /// The file.
        file: String,
    },
    /// A file has another size.
    #[error("{file} has {found} bytes, expected {expected}")]
    Size {
        /// The file.
        file: String,
        /// Its size.
        found: u64,
        /// Its size by the manifest.
        expected: u64,
    },
    /// A file has another content.
    #[error("{file} has SHA-256 {found}, expected {expected}")]
    Sum {
        /// The file.
        file: String,
        /// Its sum.
        found: String,
        /// Its sum by the manifest.
        expected: String,
    },
}

impl Checkpoint {
    /// Writes the manifest of the files in `partial`, which is to become `path`, and waits until all of it is on disk.
    pub(super) fn seal(partial: &Path, path: &Path, step: u64, score: Score) -> Result<Self, RunError> {
        let files = FileRecord::of_synced(partial).map_err(RunError::io(path, "written"))?;
        let manifest = Manifest { step, score, files };
        let file = || path.join(MANIFEST);
        let json =
            serde_json::to_vec_pretty(&manifest).map_err(|source| RunError::Encode { file: file(), step, source })?;
        durable::write_synced(&partial.join(MANIFEST), |out| out.write_all(&json))
            .and_then(|()| manifest::sync_folders(partial))
            .map_err(RunError::io(path, "written"))?;
        Ok(Self { path: path.to_path_buf(), manifest })
    }

    /// Reads the manifest of the checkpoint of a step.
    pub(super) fn open(path: &Path, step: u64) -> Result<Self, CheckpointFault> {
        let json = fs::read(path.join(MANIFEST)).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => CheckpointFault::NoManifest,
            _ => CheckpointFault::Io(error),
        })?;
        let manifest: Manifest = serde_json::from_slice(&json)?;
        if manifest.step != step {
            return Err(CheckpointFault::Step { found: manifest.step, expected: step });
        }
        Ok(Self { path: path.to_path_buf(), manifest })
    }

    /// Its folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its step.
    pub fn step(&self) -> u64 {
        self.manifest.step
    }

    /// How good it is.
    pub fn score(&self) -> &Score {
        &self.manifest.score
    }

    /// Reads all of its files and compares them with the manifest.
    ///
    /// # Errors
    /// When one is missing, too many, or another than was saved.
    pub fn verify(&self) -> Result<(), CheckpointFault> {
        let found = FileRecord::of(&self.path)?;
        for expected in &self.manifest.files {
            let file = || expected.name.clone();
            match found.iter().find(|found| found.name == expected.name) {
                None => return Err(CheckpointFault::Missing { file: file(), expected: expected.bytes }),
                Some(found) if found.bytes != expected.bytes => {
                    return Err(CheckpointFault::Size { file: file(), found: found.bytes, expected: expected.bytes });
                }
                Some(found) if found.sha256 != expected.sha256 => {
                    let (found, expected) = (found.sha256.clone(), expected.sha256.clone());
                    return Err(CheckpointFault::Sum { file: file(), found, expected });
                }
                Some(_) => {}
            }
        }
        let known = |name: &str| self.manifest.files.iter().any(|file| file.name == name);
        match found.into_iter().find(|file| !known(&file.name)) {
            Some(FileRecord { name: file, .. }) => Err(CheckpointFault::Unknown { file }),
            None => Ok(()),
        }
    }
}
