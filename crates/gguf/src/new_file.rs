//! Files under temporary names beside their own, until they are whole.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use tempfile::TempPath;

/// Chunks shorter than this are gathered.
const BUFFER_BYTES: usize = 1 << 18;

/// A file that is being written, and appears under its name when it is whole. Dropping it removes it.
#[derive(Debug)]
pub struct NewFile {
    file: BufWriter<File>,
    temporary: TempPath,
    target: PathBuf,
}

/// A file that is whole on disk and has no name yet. Dropping it removes it.
#[derive(Debug)]
pub struct WholeFile {
    temporary: TempPath,
    target: PathBuf,
}

impl NewFile {
    /// Begins a file that will have this name, in place of a file that has it.
    ///
    /// # Errors
    /// When what has the name is no file (a folder, a device), and when the folder cannot be written to.
    pub fn create(path: &Path) -> io::Result<Self> {
        let target = target(path)?;
        fs::metadata(folder(&target))?;
        let mut builder = tempfile::Builder::new();
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            // As any new file, less the umask; temporary files are private by default.
            builder.permissions(fs::Permissions::from_mode(0o666));
        }
        let file = builder.prefix(".").suffix(".part").tempfile_in(folder(&target));
        // The error itself tells a temporary name that nobody asked for.
        let (file, temporary) = file.map_err(|error| error.kind())?.into_parts();
        Ok(Self { file: BufWriter::with_capacity(BUFFER_BYTES, file), temporary, target })
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// The system's.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    /// Waits until every byte is on disk.
    ///
    /// # Errors
    /// The system's.
    pub fn close(self) -> io::Result<WholeFile> {
        self.file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        Ok(WholeFile { temporary: self.temporary, target: self.target })
    }
}

impl WholeFile {
    /// Gives the file its name, and waits until that is on disk too, where folders can be opened.
    ///
    /// # Errors
    /// The system's.
    pub fn publish(self) -> io::Result<()> {
        self.temporary.persist(&self.target).map_err(|error| error.error)?;
        if cfg!(unix) { File::open(folder(&self.target))?.sync_all() } else { Ok(()) }
    }
}

/// The place that a path names, behind links. A device or a folder there would be replaced, or be in the way at the end.
fn target(path: &Path) -> io::Result<PathBuf> {
    match fs::canonicalize(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(path.to_owned()),
        Err(error) => Err(error),
        Ok(target) if target.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        Ok(target) if !target.is_file() => Err(io::Error::other("it is a device, expected a file or a new name")),
        Ok(target) => Ok(target),
    }
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(folder: &Path) -> usize {
        fs::read_dir(folder).unwrap().count()
    }

    #[test]
    fn files_appear_when_they_are_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new");
        fs::write(&path, "before").unwrap();
        let mut file = NewFile::create(&path).unwrap();
        file.write(b"af").unwrap();
        file.write(b"ter").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"before");
        file.close().unwrap().publish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"after");
        assert_eq!(entries(folder.path()), 1);
    }

    #[test]
    fn what_is_not_published_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new");
        let mut file = NewFile::create(&path).unwrap();
        file.write(b"half").unwrap();
        drop(file);
        drop(NewFile::create(&path).unwrap().close().unwrap());
        assert_eq!(entries(folder.path()), 0);
    }

    #[test]
    fn folders_and_missing_folders_are_refused_in_the_systems_words() {
        let folder = tempfile::tempdir().unwrap();
        let error = NewFile::create(folder.path()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::IsADirectory);
        let error = NewFile::create(&folder.path().join("none/new")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(!error.to_string().contains("none"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn links_are_followed_and_devices_stay() {
        let folder = tempfile::tempdir().unwrap();
        let [file, link, device] = ["file", "link", "device"].map(|name| folder.path().join(name));
        fs::write(&file, "before").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let mut new = NewFile::create(&link).unwrap();
        new.write(b"after").unwrap();
        new.close().unwrap().publish().unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"after");
        assert!(link.is_symlink());
        std::os::unix::fs::symlink("/dev/null", &device).unwrap();
        let error = NewFile::create(&device).unwrap_err();
        assert_eq!(error.to_string(), "it is a device, expected a file or a new name");
    }
}
