//! Where the lines of a file are.

use std::fs::File;
use std::io::{self, BufWriter, Read as _, Seek as _, SeekFrom, Write as _};

/// Where a line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// Bytes before it.
    pub(super) offset: u64,
    /// Its bytes, the one that ends it included.
    pub(super) length: u64,
    /// Its number, from 1.
    pub(super) line: u64,
}

/// Bytes of a place in the index.
const PLACE: u64 = 24;

/// The places of lines, in a temporary file that has no name and goes when it is closed.
#[derive(Debug)]
pub(super) struct LineIndex {
    file: BufWriter<File>,
}

impl LineIndex {
    pub(super) fn create() -> io::Result<Self> {
        Ok(Self { file: BufWriter::new(tempfile::tempfile()?) })
    }

    /// Adds a place.
    pub(super) fn push(&mut self, place: Place) -> io::Result<()> {
        let Place { offset, length, line } = place;
        [offset, length, line].iter().try_for_each(|number| self.file.write_all(&number.to_le_bytes()))
    }

    /// Ends adding.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        self.file.flush()
    }

    /// The place with this number, from 0.
    pub(super) fn get(&mut self, index: usize) -> io::Result<Place> {
        let start = (index as u64).checked_mul(PLACE).ok_or(io::ErrorKind::UnexpectedEof)?;
        let mut file = self.file.get_ref();
        file.seek(SeekFrom::Start(start))?;
        let mut number = || {
            let mut bytes = [0; 8];
            file.read_exact(&mut bytes).map(|()| u64::from_le_bytes(bytes))
        };
        Ok(Place { offset: number()?, length: number()?, line: number()? })
    }
}
