//! What a checkpoint holds: the last file that is written into it.

use std::cmp::Ordering;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::run::{durable, number};

/// The manifest's name in the checkpoint's folder.
pub(super) const MANIFEST: &str = "manifest.json";

/// A checkpoint's manifest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub(super) step: u64,
    pub(super) score: Score,
    /// By name.
    pub(super) files: Vec<FileRecord>,
}

/// How good a checkpoint is: the lower the better.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// The loss of its step.
    #[serde(with = "number")]
    pub training_loss: f64,
    /// The loss on held-out data, where it was evaluated.
    #[serde(with = "number", default, skip_serializing_if = "Option::is_none")]
    pub evaluation_loss: Option<f64>,
}

impl Score {
    /// Whether one is better (less) than another. One with an evaluation loss is better than one without, because losses
    /// of different data do not compare; a loss that is not finite is as none.
    pub(super) fn compare(&self, other: &Self) -> Ordering {
        self.rank().0.cmp(&other.rank().0).then(self.rank().1.total_cmp(&other.rank().1))
    }

    /// Whether the training loss has to do, and the loss.
    fn rank(&self) -> (bool, f64) {
        let finite = |loss: &f64| loss.is_finite();
        match self.evaluation_loss.filter(finite) {
            Some(loss) => (false, loss),
            None => (true, Some(self.training_loss).filter(finite).unwrap_or(f64::INFINITY)),
        }
    }
}

/// A file of a checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct FileRecord {
    /// From the checkpoint's folder, with `/` between folders.
    pub(super) name: String,
    pub(super) bytes: u64,
    /// In hexadecimal digits.
    pub(super) sha256: String,
}

impl FileRecord {
    /// Waits until all files and folders of a folder are on disk, and says what they are.
    pub(super) fn of_synced(folder: &Path) -> io::Result<Vec<Self>> {
        let mut records = Vec::new();
        for (name, path) in files(folder)? {
            // Some systems write out a file only for those who may write it.
            let file = OpenOptions::new().read(true).write(true).open(&path)?;
            records.push(Self::read(name, &file)?);
            file.sync_all()?;
        }
        Ok(records)
    }

    /// What the files of a folder are.
    pub(super) fn of(folder: &Path) -> io::Result<Vec<Self>> {
        files(folder)?.into_iter().map(|(name, path)| Self::read(name, &File::open(path)?)).collect()
    }

    fn read(name: String, file: &File) -> io::Result<Self> {
        let mut sum = Sha256::new();
        let bytes = io::copy(&mut io::BufReader::with_capacity(1 << 18, file), &mut sum)?;
        Ok(Self { name, bytes, sha256: format!("{:x}", sum.finalize()) })
    }
}

/// Waits until the names of the files in a folder and all below it are on disk.
pub(super) fn sync_folders(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync_folders(&entry.path())?;
        }
    }
    durable::sync_folder(folder)
}

/// All files below a folder but the manifest, sorted by name.
fn files(folder: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let mut files = Vec::new();
    collect(folder, "", &mut files)?;
    files.retain(|(name, _)| name != MANIFEST);
    files.sort();
    Ok(files)
}

fn collect(folder: &Path, prefix: &str, files: &mut Vec<(String, PathBuf)>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        let kind = entry.file_type()?;
        if kind.is_dir() {
            collect(&entry.path(), &format!("{name}/"), files)?;
        } else if kind.is_file() {
            files.push((name, entry.path()));
        } else {
            return Err(io::Error::other(format!("{name} is neither a file nor a folder")));
        }
    }
    Ok(())
}
