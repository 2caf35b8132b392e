use std::io;
use std::path::{Path, PathBuf};

use dsv41_gguf::NewFile;

use super::ConsoleError;

/// A file of raw little-endian f32 rows that appears under its name when it is whole.
pub(crate) struct LogitsFile {
    path: PathBuf,
    file: NewFile,
}

impl LogitsFile {
    /// Begins a file that will be called `path`.
    ///
    /// # Errors
    /// As [`NewFile::create`].
    pub(crate) fn create(path: &Path) -> Result<Self, ConsoleError> {
        let file = NewFile::create(path).map_err(unwritten(path))?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Appends one row.
    pub(crate) fn write(&mut self, row: &[f32]) -> Result<(), ConsoleError> {
        let written = row.iter().try_for_each(|value| self.file.write(&value.to_le_bytes()));
        written.map_err(unwritten(&self.path))
    }

    /// Gives the file its name.
    pub(crate) fn finish(self) -> Result<(), ConsoleError> {
        self.file.close().and_then(dsv41_gguf::WholeFile::publish).map_err(unwritten(&self.path))
    }
}

fn unwritten(path: &Path) -> impl FnOnce(io::Error) -> ConsoleError {
    |source| ConsoleError::Logits { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_appear_when_the_file_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("logits.f32");
        let mut file = LogitsFile::create(&path).unwrap();
        file.write(&[1.0, -2.5]).unwrap();
        assert!(!path.exists());
        file.write(&[0.0, 3.0]).unwrap();
        file.finish().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let values: Vec<f32> = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        assert_eq!(values, [1.0, -2.5, 0.0, 3.0]);
    }

    #[test]
    fn a_file_that_was_not_finished_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = LogitsFile::create(&folder.path().join("logits.f32")).unwrap();
        file.write(&[1.0]).unwrap();
        drop(file);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
