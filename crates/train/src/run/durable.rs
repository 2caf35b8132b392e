//! Files that are whole on disk before they have their name.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::{Notice, RunError};

/// Names of what is being written, or being removed, begin with this.
const PARTIAL: &str = ".partial-";

/// The name beside its own under which something is written.
pub(crate) fn partial(path: &Path) -> PathBuf {
    hidden(path, PARTIAL)
}

/// Writes a file under its partial name, waits until it is on disk, and puts it in place of the one before.
pub(super) fn replace(path: &Path, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> Result<(), RunError> {
    let partial = partial(path);
    let written = write_synced(&partial, write).map_err(RunError::io(path, "written"));
    let renamed = written.and_then(|()| rename(&partial, path));
    if renamed.is_err() {
        // What went wrong already is what the caller needs to know; a leftover is removed on resuming.
        let _ = fs::remove_file(&partial);
    }
    renamed
}

/// Writes a new file and waits until it is on disk.
pub(crate) fn write_synced(path: &Path, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    write(&mut file)?;
    file.flush()?;
    file.get_ref().sync_all()
}

/// Gives something its name and waits until that is on disk.
pub(super) fn rename(from: &Path, to: &Path) -> Result<(), RunError> {
    fs::rename(from, to).and_then(|()| sync_folder(folder(to))).map_err(RunError::io(to, "renamed"))
}

/// Waits until the names in a folder are on disk, where folders can be opened.
pub(crate) fn sync_folder(path: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(path)?.sync_all() } else { Ok(()) }
}

/// Removes a folder so that it is there whole or not at all.
pub(super) fn remove_folder(path: &Path) -> Result<(), RunError> {
    let doomed = hidden(path, &format!("{PARTIAL}removed-"));
    let removed = remove_folder_if_any(&doomed)
        .and_then(|()| fs::rename(path, &doomed))
        .and_then(|()| sync_folder(folder(path)))
        .and_then(|()| fs::remove_dir_all(&doomed));
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(RunError::io(path, "removed")(error)),
        _ => Ok(()),
    }
}

/// Removes a folder that may not be there.
pub(crate) fn remove_folder_if_any(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Removes what a killed process left in a folder. Only for the one process that may write there.
pub(super) fn remove_leftovers(folder: &Path) -> Result<Vec<Notice>, RunError> {
    let mut notices = Vec::new();
    for entry in fs::read_dir(folder).map_err(RunError::io(folder, "read"))? {
        let entry = entry.map_err(RunError::io(folder, "read"))?;
        if !is_partial(&entry.file_name().to_string_lossy()) {
            continue;
        }
        let path = entry.path();
        let kind = entry.file_type().map_err(RunError::io(&path, "read"))?;
        let removed = if kind.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.map_err(RunError::io(&path, "removed"))?;
        notices.push(Notice::LeftoverRemoved { path });
    }
    Ok(notices)
}

/// Whether something of this name was never finished.
pub(super) fn is_partial(name: &str) -> bool {
    name.starts_with(PARTIAL)
}

/// The name beside its own that has a prefix more.
pub(crate) fn hidden(path: &Path, prefix: &str) -> PathBuf {
    path.with_file_name(format!("{prefix}{}", path.file_name().unwrap_or_default().to_string_lossy()))
}

/// The folder of a path.
pub(crate) fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_that_fails_leaves_the_file_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        replace(&path, |file| file.write_all(b"old")).unwrap();
        let error = replace(&path, |file| {
            file.write_all(b"half of the new")?;
            Err(io::ErrorKind::StorageFull.into())
        })
        .unwrap_err();
        assert_eq!(error.to_string(), format!("{}: cannot be written: no storage space", path.display()));
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_removed_folder_leaves_nothing_and_one_that_is_not_there_is_no_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("step-1");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("a"), b"a").unwrap();
        remove_folder(&path).unwrap();
        remove_folder(&path).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn only_unfinished_files_and_folders_are_leftovers() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(partial(&at("step-1"))).unwrap();
        fs::write(partial(&at("report.html")), b"<").unwrap();
        fs::write(at("report.html"), b"<html>").unwrap();
        fs::write(at(".lock"), b"").unwrap();
        assert_eq!(remove_leftovers(folder.path()).unwrap().len(), 2);
        assert!(at("report.html").exists() && at(".lock").exists());
        assert!(remove_leftovers(folder.path()).unwrap().is_empty());
    }
}
