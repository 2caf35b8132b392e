//! The metrics of a run: one line of JSON a step, in the order of the steps.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::{Notice, RunError, StepMetrics, durable};

/// The metrics of a run, to be added to.
#[derive(Debug)]
pub struct MetricsLog {
    path: PathBuf,
    file: File,
    /// Whole lines, and their bytes.
    lines: usize,
    bytes: u64,
    /// The step of the last line, or 0.
    last: u64,
    /// Whether a write failed after those bytes.
    torn: bool,
}

impl MetricsLog {
    /// Opens the metrics of a run that goes on from `step`, 0 for a new run. Lines of later steps are removed, and so is a
    /// torn last line; notices say so.
    ///
    /// # Errors
    /// When the file cannot be read or written, and when any other line is not the metrics of a step after that of the
    /// line before.
    pub fn open(path: &Path, step: u64) -> Result<(Self, Vec<Notice>), RunError> {
        let open = || {
            let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
            file.map_err(RunError::io(path, "opened"))
        };
        let mut file = open()?;
        let length = file.metadata().map_err(RunError::io(path, "read"))?.len();
        let mut reader = MetricsReader::open(path)?;
        let (mut lines, mut bytes, mut last, mut removed) = (0, 0, 0, 0);
        while let Some(metrics) = reader.next().transpose()? {
            if metrics.step <= step {
                (lines, bytes, last) = (reader.lines, reader.bytes, metrics.step);
            } else {
                removed += 1;
            }
        }
        let mut notices: Vec<Notice> = reader.torn().into_iter().collect();
        if removed > 0 {
            notices.push(Notice::LinesRemoved { file: path.to_path_buf(), lines: removed, step });
        }
        if bytes < length {
            let mut kept = File::open(path).map_err(RunError::io(path, "opened"))?.take(bytes);
            durable::replace(path, |new| io::copy(&mut kept, new).map(drop))?;
            file = open()?;
        }
        file.seek(SeekFrom::End(0)).map_err(RunError::io(path, "read"))?;
        Ok((Self { path: path.to_path_buf(), file, lines, bytes, last, torn: false }, notices))
    }

    /// Adds the metrics of a step. They are the system's afterwards: a kill of the process cannot lose them.
    ///
    /// # Errors
    /// When the step is not after that of the last line, or the file cannot be written; what was written of the line is
    /// then cut off before the next one.
    pub fn append(&mut self, metrics: &StepMetrics) -> Result<(), RunError> {
        let file = || self.path.clone();
        let StepMetrics { step, .. } = *metrics;
        if step <= self.last {
            let (line, previous) = (self.lines + 1, self.last);
            return Err(RunError::LineOrder { file: file(), line, found: step, previous });
        }
        let mut line = serde_json::to_vec(metrics).map_err(|source| RunError::Encode { file: file(), step, source })?;
        line.push(b'\n');
        if self.torn {
            let cut = self.file.set_len(self.bytes).and_then(|()| self.file.seek(SeekFrom::End(0)));
            cut.map_err(RunError::io(&self.path, "cut"))?;
        }
        self.torn = true;
        self.file.write_all(&line).map_err(RunError::io(&self.path, "written"))?;
        self.torn = false;
        self.lines += 1;
        self.bytes += line.len() as u64;
        self.last = step;
        Ok(())
    }

    /// Waits until all lines are on disk, which a checkpoint should: a failure of the machine loses neither then.
    ///
    /// # Errors
    /// When the system cannot write them.
    pub fn sync(&self) -> Result<(), RunError> {
        self.file.sync_data().map_err(RunError::io(&self.path, "written"))
    }
}

/// Reads the metrics of a run, which may be under way, line by line.
#[derive(Debug)]
pub struct MetricsReader {
    path: PathBuf,
    file: BufReader<File>,
    line: Vec<u8>,
    /// Whole lines read, and their bytes.
    lines: usize,
    bytes: u64,
    /// The step of the last of them, or 0.
    last: u64,
    /// Bytes of a line without an end.
    torn: usize,
}

impl MetricsReader {
    /// Opens a file of metrics.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(path: &Path) -> Result<Self, RunError> {
        let file = BufReader::new(File::open(path).map_err(RunError::io(path, "opened"))?);
        Ok(Self { path: path.to_path_buf(), file, line: Vec::new(), lines: 0, bytes: 0, last: 0, torn: 0 })
    }

    /// The torn last line, once it has been read: that one is no error, and no metrics.
    pub fn torn(&self) -> Option<Notice> {
        let Self { lines, torn, .. } = *self;
        (torn > 0).then(|| Notice::TornLine { file: self.path.clone(), line: lines + 1, bytes: torn })
    }

    /// The next whole line; `None` at the end.
    fn read(&mut self) -> Result<Option<StepMetrics>, RunError> {
        self.line.clear();
        self.file.read_until(b'\n', &mut self.line).map_err(RunError::io(&self.path, "read"))?;
        if self.line.last() != Some(&b'\n') {
            self.torn = self.line.len();
            return Ok(None);
        }
        let number = self.lines + 1;
        let metrics: StepMetrics = serde_json::from_slice(&self.line).map_err(|source| RunError::Line {
            file: self.path.clone(),
            line: number,
            source,
        })?;
        if metrics.step <= self.last {
            let (file, previous) = (self.path.clone(), self.last);
            return Err(RunError::LineOrder { file, line: number, found: metrics.step, previous });
        }
        self.lines = number;
        self.bytes += self.line.len() as u64;
        self.last = metrics.step;
        Ok(Some(metrics))
    }
}

impl Iterator for MetricsReader {
    type Item = Result<StepMetrics, RunError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read().transpose()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;
    use tempfile::TempDir;

    use super::*;
    #[cfg(unix)]
    use crate::run::testing::child_without_room;
    use crate::run::testing::folder_of_child;

    fn metrics(step: u64) -> StepMetrics {
        StepMetrics { step, tokens: 64 * step, loss: 3.0 / step as f64, ..StepMetrics::default() }
    }

    /// A log of these steps.
    fn written(steps: &[u64]) -> (TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let (mut log, notices) = MetricsLog::open(&path, 0).unwrap();
        assert!(notices.is_empty());
        for &step in steps {
            log.append(&metrics(step)).unwrap();
        }
        (folder, path)
    }

    fn steps(path: &Path) -> Vec<u64> {
        MetricsReader::open(path).unwrap().map(|line| line.unwrap().step).collect()
    }

    #[test]
    fn lines_are_read_back_as_they_were_written() {
        let (_folder, path) = written(&[1, 2, 5]);
        let read: Vec<StepMetrics> = MetricsReader::open(&path).unwrap().map(Result::unwrap).collect();
        assert_eq!(read, [metrics(1), metrics(2), metrics(5)]);
    }

    #[test]
    fn going_on_from_a_step_removes_the_later_ones() {
        let (_folder, path) = written(&[1, 2, 3, 4]);
        let (mut log, notices) = MetricsLog::open(&path, 2).unwrap();
        assert!(matches!(notices[..], [Notice::LinesRemoved { lines: 2, step: 2, .. }]), "{notices:?}");
        assert_eq!(steps(&path), [1, 2]);
        log.append(&metrics(3)).unwrap();
        assert_eq!(steps(&path), [1, 2, 3]);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing else is left");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_file_cut_anywhere_keeps_its_whole_lines(cut in any::<prop::sample::Index>()) {
            let (_folder, path) = written(&[1, 2, 3]);
            let whole = fs::read(&path).unwrap();
            let cut = cut.index(whole.len() + 1);
            fs::write(&path, &whole[..cut]).unwrap();
            let lines = whole[..cut].iter().filter(|&&byte| byte == b'\n').count();
            let torn = cut > 0 && whole[cut - 1] != b'\n';

            let (mut log, notices) = MetricsLog::open(&path, 9).unwrap();
            prop_assert_eq!(notices.len(), usize::from(torn));
            log.append(&metrics(9)).unwrap();
            let expected: Vec<u64> = (1..=lines as u64).chain([9]).collect();
            prop_assert_eq!(steps(&path), expected);
        }
    }

    #[test]
    fn a_torn_line_is_told_and_not_removed_by_reading() {
        let (_folder, path) = written(&[1, 2]);
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() - 3]).unwrap();
        let mut reader = MetricsReader::open(&path).unwrap();
        assert!(reader.torn().is_none());
        assert_eq!(reader.by_ref().count(), 1);
        let notice = reader.torn().unwrap().to_string();
        assert!(notice.contains("metrics.jsonl: line 2 is torn after "), "{notice}");
        assert_eq!(fs::read(&path).unwrap().len(), whole.len() - 3);
    }

    #[test]
    fn any_other_bad_line_is_named() {
        let (_folder, path) = written(&[1, 2]);
        let mut text = fs::read_to_string(&path).unwrap();
        text.insert_str(0, "{\"step\": 0}\n");
        fs::write(&path, &text).unwrap();
        let error = MetricsLog::open(&path, 2).unwrap_err().to_string();
        assert!(error.contains("metrics.jsonl: line 1: not the metrics of a step: missing field `tokens`"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), text, "the file stays as it was");
    }

    /// Not a test of its own but what the next one runs where no file can be large.
    #[test]
    #[ignore = "the child process of another test"]
    fn child_that_adds_what_is_too_large() {
        let Some(folder) = folder_of_child() else { return };
        let path = folder.join("metrics.jsonl");
        let (mut log, _) = MetricsLog::open(&path, 0).unwrap();
        log.append(&metrics(1)).unwrap();
        let auxiliary_losses = [("x".repeat(1 << 20), 0.0)].into();
        let error = log.append(&StepMetrics { auxiliary_losses, ..metrics(2) }).unwrap_err().to_string();
        assert!(error.contains("metrics.jsonl: cannot be written: File too large"), "{error}");
        let mut reader = MetricsReader::open(&path).unwrap();
        assert_eq!(reader.by_ref().map(|line| line.unwrap().step).collect::<Vec<_>>(), [1]);
        assert!(reader.torn().is_some(), "the limit is none");
        log.append(&metrics(2)).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn a_line_that_the_system_has_no_room_for_is_cut_off_before_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let test = "metrics_log::tests::child_that_adds_what_is_too_large";
        let output = child_without_room(test, folder.path()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(steps(&folder.path().join("metrics.jsonl")), [1, 2]);
    }

    #[test]
    fn steps_that_do_not_go_up_are_refused() {
        let (_folder, path) = written(&[1, 4]);
        let (mut log, _) = MetricsLog::open(&path, 4).unwrap();
        let error = log.append(&metrics(4)).unwrap_err().to_string();
        assert!(error.ends_with("metrics.jsonl: line 3: step 4, expected one after 4"), "{error}");

        let lines = fs::read_to_string(&path).unwrap();
        fs::write(&path, lines.repeat(2)).unwrap();
        let read: Result<Vec<_>, _> = MetricsReader::open(&path).unwrap().collect();
        let error = read.unwrap_err().to_string();
        assert!(error.ends_with("metrics.jsonl: line 3: step 1, expected one after 4"), "{error}");
    }
}
