//! A file as memory: mapped, and read at places without the map.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use memmap2::Mmap;

/// What will be done with a part of a mapped file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// It will be read soon: start reading it from disk.
    WillNeed,
    /// It will not be read soon: its memory may be used for other things. Reading it all the same reads from disk.
    DontNeed,
}

/// The bytes of a file on disk, or of one in memory.
pub(crate) struct MappedFile {
    /// All of the file; slices share the map and keep it alive.
    bytes: Bytes,
    /// None for one in memory.
    #[cfg(unix)]
    disk: Option<Disk>,
}

/// What a file on disk can do besides.
#[cfg(unix)]
struct Disk {
    file: File,
    map: Arc<Mmap>,
}

/// A share of a map that [`Bytes`] can own.
struct Share(Arc<Mmap>);

impl AsRef<[u8]> for Share {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl MappedFile {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        if file.metadata()?.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        // SAFETY: the map is read-only, and no byte of it is relied on to stay as it was checked: whoever changes the
        // file meanwhile gets other numbers, and whoever cuts it ends the process by a signal, as with every reader
        // that maps model files.
        let map = Arc::new(unsafe { Mmap::map(&file)? });
        Ok(Self {
            bytes: Bytes::from_owner(Share(Arc::clone(&map))),
            #[cfg(unix)]
            disk: Some(Disk { file, map }),
        })
    }

    pub(crate) fn in_memory(bytes: Bytes) -> Self {
        Self {
            bytes,
            #[cfg(unix)]
            disk: None,
        }
    }

    pub(crate) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Fills `out` with the file's bytes from `offset` on, by a read of the file that leaves the map alone: for few
    /// bytes from many places, which would fill memory with pages around them.
    pub(crate) fn read_at(&self, offset: usize, out: &mut [u8]) -> io::Result<()> {
        #[cfg(unix)]
        if let Some(disk) = &self.disk {
            use std::os::unix::fs::FileExt;
            return disk.file.read_exact_at(out, offset as u64);
        }
        let range = offset..offset.saturating_add(out.len());
        out.copy_from_slice(self.bytes.get(range).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    /// Tells the system what will be done with a part of the file. Nothing happens where there is nobody to tell.
    #[cfg(unix)]
    pub(crate) fn advise(&self, range: Range<usize>, advice: Advice) -> io::Result<()> {
        let Some(disk) = &self.disk else { return Ok(()) };
        match advice {
            Advice::WillNeed => disk.map.advise_range(memmap2::Advice::WillNeed, range.start, range.len()),
            Advice::DontNeed => {
                let advice = memmap2::UncheckedAdvice::DontNeed;
                // SAFETY: the pages of a shared, read-only map of a file come back from that file as they were.
                unsafe { disk.map.unchecked_advise_range(advice, range.start, range.len()) }
            }
        }
    }

    /// Tells the system what will be done with a part of the file: on Unix alone.
    #[cfg(not(unix))]
    pub(crate) fn advise(&self, _: Range<usize>, _: Advice) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn temporary(bytes: &[u8]) -> (tempfile::TempDir, MappedFile) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, bytes).unwrap();
        let file = MappedFile::open(&path).unwrap();
        (folder, file)
    }

    #[test]
    fn reads_at_places_and_the_map_agree() {
        let bytes: Vec<u8> = (0..=u8::MAX).cycle().take(10_000).collect();
        let (_folder, mapped) = temporary(&bytes);
        for file in [mapped, MappedFile::in_memory(bytes.clone().into())] {
            let mut out = [0; 300];
            file.read_at(7_000, &mut out).unwrap();
            assert_eq!(out, bytes[7_000..7_300]);
            assert_eq!(file.bytes()[..], bytes);
            assert!(file.read_at(9_900, &mut out).is_err());
            assert!(file.read_at(usize::MAX, &mut out).is_err());
        }
    }

    #[test]
    fn advice_changes_no_byte() {
        let bytes: Vec<u8> = (0..=u8::MAX).cycle().take(20_000).collect();
        let (_folder, file) = temporary(&bytes);
        for advice in [Advice::WillNeed, Advice::DontNeed] {
            file.advise(5_000..15_001, advice).unwrap();
            assert_eq!(file.bytes()[..], bytes);
        }
    }

    #[test]
    fn slices_outlive_the_file() {
        let (folder, file) = temporary(b"0123456789");
        let slice = file.bytes().slice(3..6);
        drop((folder, file));
        assert_eq!(&slice[..], b"345");
    }

    #[test]
    fn an_empty_file_has_no_bytes() {
        assert!(temporary(b"").1.bytes().is_empty());
    }
}
