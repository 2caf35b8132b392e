//! Rows as they were before they were first changed.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io::{self, BufReader, Read, Seek, SeekFrom, Write},
    path::Path,
};

use crate::optimiser::OptimiserError;

/// Begins every file.
const MAGIC: [u8; 8] = *b"dsv41row";
/// Magic, rows, width, records.
const HEADER: u64 = 32;
/// Where the number of records is.
const RECORDS: u64 = 24;

/// The values that touched rows of a table had at the beginning.
///
/// A file: a header of magic, rows, width and number of records (u64 each, little endian), then the records, each a
/// row's number (u64) and its values (f32). Records are on disk before the header counts them, and counted before their
/// rows are changed; what follows the last counted record was being written when the process ended, and is written
/// over.
#[derive(Debug)]
pub struct Originals {
    file: File,
    shape: [usize; 2],
    /// Place of each touched row's record.
    records: BTreeMap<usize, u64>,
}

impl Originals {
    /// Opens the originals of a table of this shape, `[rows, width]`; makes the file if it is not there.
    ///
    /// # Errors
    /// When the file cannot be opened or made, is something else, or belongs to a table of another shape.
    pub fn open_or_create(path: &Path, shape: [usize; 2]) -> Result<Self, OptimiserError> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let file = file.map_err(OptimiserError::io(path, "opened"))?;
        let length = file.metadata().map_err(OptimiserError::io(path, "opened"))?.len();
        let mut originals = Self { file, shape, records: BTreeMap::new() };
        // A file that ends within its header was being made when the process ended.
        match length < HEADER {
            true => originals.begin().map_err(OptimiserError::io(path, "made"))?,
            false => originals.read_records(path, length)?,
        }
        Ok(originals)
    }

    /// Originals that are gone with the process, for tables that are, too.
    ///
    /// # Errors
    /// When no temporary file can be made.
    pub fn temporary(shape: [usize; 2]) -> io::Result<Self> {
        let mut originals = Self { file: tempfile::tempfile()?, shape, records: BTreeMap::new() };
        originals.begin()?;
        Ok(originals)
    }

    /// `[rows, width]` of the table.
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// Rows that were ever touched, ascending.
    pub fn rows(&self) -> impl Iterator<Item = usize> {
        self.records.keys().copied()
    }

    /// Whether a row was ever touched.
    pub(super) fn contains(&self, row: usize) -> bool {
        self.records.contains_key(&row)
    }

    /// Keeps the values of rows that are about to be changed for the first time; returns once they are on disk.
    pub(super) fn keep<'a>(&mut self, rows: impl IntoIterator<Item = (usize, &'a [f32])>) -> io::Result<()> {
        let mut bytes = Vec::new();
        let mut kept = Vec::new();
        for (row, values) in rows {
            kept.push(row);
            bytes.extend((row as u64).to_le_bytes());
            bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        }
        if kept.is_empty() {
            return Ok(());
        }
        let first = self.records.len() as u64;
        self.file.seek(SeekFrom::Start(self.offset(first)))?;
        self.file.write_all(&bytes)?;
        self.file.sync_data()?;
        self.file.seek(SeekFrom::Start(RECORDS))?;
        self.file.write_all(&(first + kept.len() as u64).to_le_bytes())?;
        self.file.sync_data()?;
        self.records.extend(kept.into_iter().zip(first..));
        Ok(())
    }

    /// Reads the values a touched row had at the beginning; does nothing for other rows.
    pub(super) fn read(&mut self, row: usize, values: &mut [f32]) -> io::Result<()> {
        let Some(&record) = self.records.get(&row) else { return Ok(()) };
        self.file.seek(SeekFrom::Start(self.offset(record) + 8))?;
        let mut bytes = vec![0; values.len() * 4];
        self.file.read_exact(&mut bytes)?;
        for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
            *value = f32::from_le_bytes(*bytes);
        }
        Ok(())
    }

    fn offset(&self, record: u64) -> u64 {
        HEADER + record * self.record_length()
    }

    fn record_length(&self) -> u64 {
        8 + 4 * self.shape[1] as u64
    }

    fn begin(&mut self) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(&MAGIC)?;
        for field in [self.shape[0], self.shape[1], 0] {
            self.file.write_all(&(field as u64).to_le_bytes())?;
        }
        self.file.sync_all()
    }

    fn read_records(&mut self, path: &Path, length: u64) -> Result<(), OptimiserError> {
        let failed = |error| OptimiserError::io(path, "read")(error);
        let mut reader = BufReader::new(&self.file);
        let mut magic = [0; 8];
        reader.read_exact(&mut magic).map_err(failed)?;
        if magic != MAGIC {
            return Err(OptimiserError::file(path, "no originals of table rows"));
        }
        let mut field = || read_u64(&mut reader);
        let [rows, width, count] = [field(), field(), field()];
        let found = [rows.map_err(failed)?, width.map_err(failed)?];
        let count = count.map_err(failed)?;
        let [rows, width] = self.shape.map(|extent| extent as u64);
        if found != [rows, width] {
            let fault = format!("of a table of {found:?} rows and columns, expected {:?}", self.shape);
            return Err(OptimiserError::file(path, fault));
        }
        if count > (length - HEADER) / self.record_length() {
            return Err(OptimiserError::file(path, format!("{length} bytes, too few for {count} rows")));
        }
        let mut records = BTreeMap::new();
        for record in 0..count {
            let row = read_u64(&mut reader).map_err(failed)?;
            if row >= rows {
                return Err(OptimiserError::file(path, format!("row {row} of a table of {rows} rows")));
            }
            records.insert(row as usize, record);
            reader.seek_relative(4 * width as i64).map_err(failed)?;
        }
        if records.len() as u64 != count {
            return Err(OptimiserError::file(path, "rows are there twice"));
        }
        self.records = records;
        Ok(())
    }
}

fn read_u64(reader: &mut impl Read) -> io::Result<u64> {
    let mut bytes = [0; 8];
    reader.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn original(originals: &mut Originals, row: usize) -> [f32; 2] {
        let mut values = [9.0; 2];
        originals.read(row, &mut values).unwrap();
        values
    }

    #[test]
    fn rows_that_were_kept_are_there_when_the_file_is_opened_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("originals");
        let mut originals = Originals::open_or_create(&path, [9, 2]).unwrap();
        originals.keep([(7, [1.0, 2.0].as_slice()), (3, &[3.0, 4.0])]).unwrap();
        originals.keep([(5, [5.0, 6.0].as_slice())]).unwrap();
        drop(originals);
        let mut originals = Originals::open_or_create(&path, [9, 2]).unwrap();
        assert_eq!(originals.rows().collect::<Vec<_>>(), [3, 5, 7]);
        assert_eq!(
            [3, 5, 7, 8].map(|row| original(&mut originals, row)),
            [[3.0, 4.0], [5.0, 6.0], [1.0, 2.0], [9.0, 9.0]]
        );
    }

    #[test]
    fn a_record_that_was_not_finished_is_written_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("originals");
        let mut originals = Originals::open_or_create(&path, [9, 2]).unwrap();
        originals.keep([(7, [1.0, 2.0].as_slice())]).unwrap();
        let mut bytes = fs::read(&path).unwrap();
        bytes.extend([0xff; 13]);
        fs::write(&path, bytes).unwrap();
        let mut originals = Originals::open_or_create(&path, [9, 2]).unwrap();
        assert_eq!(originals.rows().collect::<Vec<_>>(), [7]);
        originals.keep([(8, [3.0, 4.0].as_slice())]).unwrap();
        let mut originals = Originals::open_or_create(&path, [9, 2]).unwrap();
        assert_eq!(original(&mut originals, 8), [3.0, 4.0]);
    }

    #[test]
    fn files_of_something_else_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("originals");
        Originals::open_or_create(&path, [9, 2]).unwrap().keep([(7, [1.0, 2.0].as_slice())]).unwrap();
        let whole = fs::read(&path).unwrap();
        let changed = |at: usize, byte: u8| {
            let mut bytes = whole.clone();
            bytes[at] = byte;
            bytes
        };
        for (bytes, fault) in [
            (changed(0, b'x'), "no originals of table rows"),
            (changed(16, 3), "of a table of [9, 3] rows and columns, expected [9, 2]"),
            (changed(24, 2), "48 bytes, too few for 2 rows"),
            (changed(31, 0xff), "48 bytes, too few for 18374686479671623681 rows"),
            (changed(32, 9), "row 9 of a table of 9 rows"),
        ] {
            fs::write(&path, bytes).unwrap();
            let error = Originals::open_or_create(&path, [9, 2]).unwrap_err().to_string();
            assert_eq!(error, format!("{}: {fault}", path.display()));
        }
    }
}
