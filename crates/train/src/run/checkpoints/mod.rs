//! Checkpoints of a run: the newest few and the best one.
//!
//! A checkpoint is a folder `step-000123` with whatever the trainer writes, and a manifest of it. It is written under a
//! hidden name and gets its own once every byte is on disk, so a folder of that name is whole, or was damaged since, which
//! its manifest tells.

mod checkpoint;
mod manifest;
#[cfg(test)]
mod tests;

use std::error::Error;
use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

pub use checkpoint::{Checkpoint, CheckpointFault};
pub use manifest::Score;

use super::{Notice, RunError, durable};

/// The checkpoints of a run.
#[derive(Debug)]
pub struct Checkpoints {
    folder: PathBuf,
    keep: NonZeroUsize,
    /// By step.
    all: Vec<Checkpoint>,
}

impl Checkpoints {
    /// Looks what checkpoints a folder holds, and changes nothing. Those without a readable manifest are passed over, with
    /// a notice; sizes and sums are checked only by [`Self::latest`] and [`Checkpoint::verify`]. Saving keeps the newest
    /// `keep` and the best.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn open(folder: &Path, keep: NonZeroUsize) -> Result<(Self, Vec<Notice>), RunError> {
        let mut all = Vec::new();
        let mut notices = Vec::new();
        for entry in fs::read_dir(folder).map_err(RunError::io(folder, "read"))? {
            let entry = entry.map_err(RunError::io(folder, "read"))?;
            let Some(step) = step_of(&entry.file_name().to_string_lossy()) else { continue };
            let path = entry.path();
            match Checkpoint::open(&path, step) {
                Ok(checkpoint) => all.push(checkpoint),
                Err(fault) => notices.push(Notice::BrokenCheckpoint { path, fault }),
            }
        }
        all.sort_by_key(Checkpoint::step);
        Ok((Self { folder: folder.to_path_buf(), keep, all }, notices))
    }

    /// All checkpoints with a readable manifest, oldest first.
    pub fn all(&self) -> &[Checkpoint] {
        &self.all
    }

    /// The newest checkpoint whose files have the sizes and sums of its manifest, and notices of newer ones that do not.
    pub fn latest(&self) -> (Option<&Checkpoint>, Vec<Notice>) {
        let mut notices = Vec::new();
        let whole = self.all.iter().rev().find(|checkpoint| match checkpoint.verify() {
            Ok(()) => true,
            Err(fault) => {
                notices.push(Notice::BrokenCheckpoint { path: checkpoint.path().to_path_buf(), fault });
                false
            }
        });
        (whole, notices)
    }

    /// The checkpoint with the lowest loss, the newest of several: the lowest evaluation loss, or where no checkpoint has
    /// one, the lowest training loss.
    pub fn best(&self) -> Option<&Checkpoint> {
        self.all.iter().rev().min_by(|a, b| a.score().compare(b.score()))
    }

    /// Removes checkpoints of later steps, for a run that goes on from `step`.
    ///
    /// # Errors
    /// When one cannot be removed.
    pub fn rewind(&mut self, step: u64) -> Result<Vec<Notice>, RunError> {
        let mut notices = Vec::new();
        while let Some(checkpoint) = self.all.pop_if(|checkpoint| checkpoint.step() > step) {
            durable::remove_folder(checkpoint.path())?;
            notices.push(Notice::CheckpointRemoved { path: checkpoint.path().to_path_buf() });
        }
        Ok(notices)
    }

    /// Saves a checkpoint, then removes those that are neither among the newest nor the best. `write` gets an empty folder
    /// to fill. The checkpoint's folder is returned once it is on disk; there has to be room for it beside all others.
    ///
    /// # Errors
    /// When `step` is not after all others, `write` fails, or the system refuses, as when the disk is full. Earlier
    /// checkpoints are then as they were.
    pub fn save<E>(
        &mut self,
        step: u64,
        score: Score,
        write: impl FnOnce(&Path) -> Result<(), E>,
    ) -> Result<PathBuf, RunError>
    where
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        if let Some(newest) = self.all.last().map(Checkpoint::step).filter(|&newest| newest >= step) {
            return Err(RunError::CheckpointOrder { folder: self.folder.clone(), found: step, newest });
        }
        let path = self.folder.join(folder_name(step));
        let partial = durable::partial(&path);
        let saved = fill(&partial, &path, write)
            .and_then(|()| Checkpoint::seal(&partial, &path, step, score))
            // A broken one of the same step may be in the way.
            .and_then(|checkpoint| durable::remove_folder(&path).map(|()| checkpoint))
            .and_then(|checkpoint| durable::rename(&partial, &path).map(|()| checkpoint));
        let checkpoint = saved.inspect_err(|_| {
            // What went wrong already is what the caller needs to know; a leftover is removed on resuming.
            let _ = fs::remove_dir_all(&partial);
        })?;
        self.all.push(checkpoint);
        self.prune()?;
        Ok(path)
    }

    fn prune(&mut self) -> Result<(), RunError> {
        let newest = self.all.len().saturating_sub(self.keep.get());
        let best = self.best().map(Checkpoint::step);
        let old: Vec<u64> =
            self.all[..newest].iter().map(Checkpoint::step).filter(|&step| Some(step) != best).collect();
        for step in old {
            durable::remove_folder(&self.folder.join(folder_name(step)))?;
            self.all.retain(|checkpoint| checkpoint.step() != step);
        }
        Ok(())
    }
}

/// Has a new folder filled.
fn fill<E: Into<Box<dyn Error + Send + Sync>>>(
    partial: &Path,
    path: &Path,
    write: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<(), RunError> {
    durable::remove_folder_if_any(partial)
        .and_then(|()| fs::create_dir(partial))
        .map_err(RunError::io(path, "created"))?;
    write(partial).map_err(|source| RunError::Save { folder: path.to_path_buf(), source: source.into() })
}

/// Names sort as steps do up to a million steps.
fn folder_name(step: u64) -> String {
    format!("step-{step:06}")
}

fn step_of(name: &str) -> Option<u64> {
    let step = name.strip_prefix("step-")?.parse().ok()?;
    (folder_name(step) == name).then_some(step)
}
