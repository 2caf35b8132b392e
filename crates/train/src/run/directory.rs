//! The folder of a run, and the right to write there.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process;

use serde::{Serialize, de::DeserializeOwned};

use super::{Checkpoints, MetricsLog, MetricsReader, Notice, RunError, durable};

const CONFIG: &str = "config.json";
const LOCK: &str = ".lock";

/// Where a run keeps what. For reading only, which needs no lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunFiles {
    folder: PathBuf,
}

impl RunFiles {
    /// The files of the run in a folder.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The run's settings.
    pub fn config_file(&self) -> PathBuf {
        self.folder.join(CONFIG)
    }

    /// One line a step.
    pub fn metrics_file(&self) -> PathBuf {
        self.folder.join("metrics.jsonl")
    }

    /// One folder a checkpoint.
    pub fn checkpoints_folder(&self) -> PathBuf {
        self.folder.join("checkpoints")
    }

    /// The plots.
    pub fn report_file(&self) -> PathBuf {
        self.folder.join("report.html")
    }

    /// Reads the run's settings.
    ///
    /// # Errors
    /// When there is no run, the file cannot be read, or it holds something else.
    pub fn config<C: DeserializeOwned>(&self) -> Result<C, RunError> {
        self.check_exists()?;
        let file = self.config_file();
        let json = fs::read(&file).map_err(RunError::io(&file, "read"))?;
        serde_json::from_slice(&json).map_err(|source| RunError::Json { file, source })
    }

    /// Reads the metrics from the first step on.
    ///
    /// # Errors
    /// When there are none, or the file cannot be opened.
    pub fn metrics(&self) -> Result<MetricsReader, RunError> {
        MetricsReader::open(&self.metrics_file())
    }

    fn check_exists(&self) -> Result<(), RunError> {
        let exists = self.config_file().try_exists().map_err(RunError::io(&self.folder, "read"))?;
        if exists { Ok(()) } else { Err(RunError::NoRun { folder: self.folder.clone() }) }
    }

    /// A folder is free for a new run when it is empty but for what a run leaves that was killed before it began.
    fn check_free(&self) -> Result<(), RunError> {
        let folder = || self.folder.clone();
        for entry in fs::read_dir(&self.folder).map_err(RunError::io(&self.folder, "read"))? {
            let entry = entry.map_err(RunError::io(&self.folder, "read"))?;
            let found = entry.file_name().to_string_lossy().into_owned();
            if self.config_file().exists() {
                return Err(RunError::Exists { folder: folder() });
            }
            if found != LOCK && !durable::is_partial(&found) {
                return Err(RunError::NotEmpty { folder: folder(), found });
            }
        }
        Ok(())
    }
}

/// The folder of a run that this process writes. No other process can while this exists.
#[derive(Debug)]
pub struct RunDirectory {
    files: RunFiles,
    /// Closing the file gives the lock back.
    _lock: File,
}

impl RunDirectory {
    /// Begins a run: makes its folder and writes its settings.
    ///
    /// # Errors
    /// When the folder holds a run or anything else, another process begins a run there, or the system refuses.
    pub fn create<C: Serialize>(folder: &Path, config: &C) -> Result<Self, RunError> {
        let files = RunFiles::new(folder);
        fs::create_dir_all(folder).map_err(RunError::io(folder, "created"))?;
        // Twice, because nothing is to be left in a folder that is not free, and another process may have been faster.
        files.check_free()?;
        let lock = lock(folder)?;
        files.check_free()?;
        let file = files.config_file();
        let json = serde_json::to_vec_pretty(config).map_err(|source| RunError::Json { file: file.clone(), source })?;
        durable::replace(&file, |out| out.write_all(&json).and_then(|()| out.write_all(b"\n")))?;
        Ok(Self { files, _lock: lock })
    }

    /// Goes on with a run, and removes what a killed process left unfinished.
    ///
    /// # Errors
    /// When there is no run, another process writes it, or the system refuses.
    pub fn resume(folder: &Path) -> Result<(Self, Vec<Notice>), RunError> {
        let files = RunFiles::new(folder);
        files.check_exists()?;
        let lock = lock(folder)?;
        let notices = durable::remove_leftovers(folder)?;
        Ok((Self { files, _lock: lock }, notices))
    }

    /// Where everything is, and how to read it.
    pub fn files(&self) -> &RunFiles {
        &self.files
    }

    /// Opens the metrics of a run that goes on from `step`, 0 for a new one, as [`MetricsLog::open`] does.
    ///
    /// # Errors
    /// As there.
    pub fn metrics(&self, step: u64) -> Result<(MetricsLog, Vec<Notice>), RunError> {
        MetricsLog::open(&self.files.metrics_file(), step)
    }

    /// Opens the checkpoints as [`Checkpoints::open`] does, and removes what a killed process left unfinished.
    ///
    /// # Errors
    /// When the folder cannot be read, or something unfinished cannot be removed.
    pub fn checkpoints(&self, keep: NonZeroUsize) -> Result<(Checkpoints, Vec<Notice>), RunError> {
        let folder = self.files.checkpoints_folder();
        fs::create_dir_all(&folder).map_err(RunError::io(&folder, "created"))?;
        let mut notices = durable::remove_leftovers(&folder)?;
        let (checkpoints, broken) = Checkpoints::open(&folder, keep)?;
        notices.extend(broken);
        Ok((checkpoints, notices))
    }

    /// Puts a report in place of the last one.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_report(&self, html: &str) -> Result<(), RunError> {
        durable::replace(&self.files.report_file(), |out| out.write_all(html.as_bytes()))
    }
}

/// Takes the right to write a run, and says in the lock file who has it. The file stays: removing it would let two
/// processes lock two files of one name.
fn lock(folder: &Path) -> Result<File, RunError> {
    let path = folder.join(LOCK);
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(RunError::io(&path, "opened"))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::Error(error)) => return Err(RunError::io(&path, "locked")(error)),
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            // Some systems let nobody else read a locked file.
            let known = file.read_to_string(&mut holder).is_ok() && !holder.is_empty();
            let holder = if known { holder } else { "another process".into() };
            return Err(RunError::Locked { folder: folder.to_path_buf(), holder });
        }
    }
    file.set_len(0).and_then(|()| write!(file, "process {}", process::id())).map_err(RunError::io(&path, "written"))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_new_run_has_its_settings_and_can_be_resumed_once_it_is_closed() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("runs/first");
        let config = json!({ "rank": 8, "nested": { "rate": 0.1 } });
        let run = RunDirectory::create(&folder, &config).unwrap();
        assert_eq!(run.files().config::<Value>().unwrap(), config);
        drop(run);
        let (run, notices) = RunDirectory::resume(&folder).unwrap();
        assert!(notices.is_empty());
        assert_eq!(run.files().config::<Value>().unwrap(), config);
    }

    #[test]
    fn a_run_is_not_begun_twice_nor_in_a_folder_of_something_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        fs::write(path.join("thesis.tex"), b"").unwrap();
        let error = RunDirectory::create(path, &()).unwrap_err().to_string();
        assert!(error.ends_with("holds `thesis.tex` and is not a run, expected an empty folder or none"), "{error}");
        assert_eq!(fs::read_dir(path).unwrap().count(), 1, "nothing is left in it");

        fs::remove_file(path.join("thesis.tex")).unwrap();
        drop(RunDirectory::create(path, &()).unwrap());
        let error = RunDirectory::create(path, &()).unwrap_err();
        assert!(matches!(error, RunError::Exists { .. }), "{error}");
    }

    #[test]
    fn a_run_that_was_killed_before_it_began_is_no_obstacle() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(LOCK), b"process 1").unwrap();
        fs::write(durable::partial(&folder.path().join(CONFIG)), b"{").unwrap();
        let error = RunDirectory::resume(folder.path()).unwrap_err().to_string();
        assert!(error.ends_with("holds no run: there is no config.json"), "{error}");
        RunDirectory::create(folder.path(), &()).unwrap();
    }

    #[test]
    fn only_one_process_writes_a_run() {
        let folder = tempfile::tempdir().unwrap();
        let _run = RunDirectory::create(folder.path(), &()).unwrap();
        let error = RunDirectory::resume(folder.path()).unwrap_err().to_string();
        assert!(error.ends_with(&format!("is being written by process {}", process::id())), "{error}");
    }

    #[test]
    fn resuming_removes_what_was_left_unfinished() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunDirectory::create(folder.path(), &()).unwrap();
        let keep = NonZeroUsize::MIN;
        run.checkpoints(keep).unwrap();
        let report = durable::partial(&run.files().report_file());
        let checkpoint = durable::partial(&run.files().checkpoints_folder().join("step-000001"));
        drop(run);
        fs::write(&report, b"<").unwrap();
        fs::create_dir(&checkpoint).unwrap();
        fs::write(checkpoint.join("weights"), b"1").unwrap();

        let (run, notices) = RunDirectory::resume(folder.path()).unwrap();
        assert!(matches!(&notices[..], [Notice::LeftoverRemoved { path }] if *path == report), "{notices:?}");
        let (_, notices) = run.checkpoints(keep).unwrap();
        assert!(matches!(&notices[..], [Notice::LeftoverRemoved { path }] if *path == checkpoint), "{notices:?}");
        assert!(!report.exists() && !checkpoint.exists());
    }

    #[test]
    fn settings_that_are_something_else_are_told_with_their_place() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunDirectory::create(folder.path(), &"text").unwrap();
        let error = run.files().config::<Vec<u32>>().unwrap_err().to_string();
        assert!(error.contains("config.json: invalid type") && error.contains("line 1"), "{error}");
    }
}
