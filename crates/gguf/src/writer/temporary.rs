//! A file under a temporary name beside its own, until all of its set are whole.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use tempfile::{NamedTempFile, TempPath};

/// Chunks shorter than this are gathered.
const BUFFER_BYTES: usize = 1 << 18;

/// A file that is being written. Dropping it removes it.
pub(super) struct Temporary(BufWriter<NamedTempFile>);

impl Temporary {
    /// A new file in the folder of `path`.
    pub(super) fn beside(path: &Path) -> io::Result<Self> {
        let mut builder = tempfile::Builder::new();
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            // As any new file, less the umask; temporary files are private by default.
            builder.permissions(std::fs::Permissions::from_mode(0o666));
        }
        let file = builder.prefix(".").suffix(".gguf.part").tempfile_in(folder(path))?;
        Ok(Self(BufWriter::with_capacity(BUFFER_BYTES, file)))
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }

    /// Waits until every byte is on disk. Dropping the path removes the file.
    pub(super) fn close(self) -> io::Result<TempPath> {
        let file = self.0.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.as_file().sync_all()?;
        Ok(file.into_temp_path())
    }
}

/// Waits until the names of the files in the folder of `path` are on disk, where folders can be opened.
pub(super) fn sync_names(path: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(folder(path))?.sync_all() } else { Ok(()) }
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
