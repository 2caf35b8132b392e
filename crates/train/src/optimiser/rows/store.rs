//! Where rows are.

use std::{
    fs::{File, OpenOptions},
    io,
    path::Path,
};

use memmap2::MmapMut;

use crate::optimiser::OptimiserError;

/// Bytes of an f32.
const VALUE: usize = size_of::<f32>();

/// Rows of f32 by number.
pub trait RowStore {
    /// `[rows, width]`
    fn shape(&self) -> [usize; 2];

    /// Reads row `row`, which is below the number of rows, into `values`, which holds the width.
    ///
    /// # Errors
    /// When the storage fails.
    fn read(&self, row: usize, values: &mut [f32]) -> io::Result<()>;

    /// Replaces row `row`, which is below the number of rows.
    ///
    /// # Errors
    /// When the storage fails.
    fn write(&mut self, row: usize, values: &[f32]) -> io::Result<()>;

    /// Returns once everything written would survive a loss of power.
    ///
    /// # Errors
    /// When the storage fails.
    fn flush(&mut self) -> io::Result<()>;
}

impl<T: RowStore + ?Sized> RowStore for Box<T> {
    fn shape(&self) -> [usize; 2] {
        (**self).shape()
    }

    fn read(&self, row: usize, values: &mut [f32]) -> io::Result<()> {
        (**self).read(row, values)
    }

    fn write(&mut self, row: usize, values: &[f32]) -> io::Result<()> {
        (**self).write(row, values)
    }

    fn flush(&mut self) -> io::Result<()> {
        (**self).flush()
    }
}

/// Rows in memory.
#[derive(Debug, Clone)]
pub struct MemoryRows {
    shape: [usize; 2],
    values: Vec<f32>,
}

impl MemoryRows {
    /// Rows one after the other, as many as fill `shape`, `[rows, width]`.
    ///
    /// # Errors
    /// When there are more or fewer values.
    pub fn new(values: Vec<f32>, shape: [usize; 2]) -> Result<Self, OptimiserError> {
        let [rows, width] = shape;
        match rows.checked_mul(width) == Some(values.len()) {
            true => Ok(Self { shape, values }),
            false => Err(OptimiserError::RowValues { found: values.len(), rows, width }),
        }
    }

    /// Rows of zeros.
    pub fn zeros(shape: [usize; 2]) -> Self {
        Self { shape, values: vec![0.0; shape.iter().product()] }
    }

    /// All rows, one after the other.
    pub fn values(&self) -> &[f32] {
        &self.values
    }
}

impl RowStore for MemoryRows {
    fn shape(&self) -> [usize; 2] {
        self.shape
    }

    fn read(&self, row: usize, values: &mut [f32]) -> io::Result<()> {
        let width = self.shape[1];
        values.copy_from_slice(&self.values[row * width..][..width]);
        Ok(())
    }

    fn write(&mut self, row: usize, values: &[f32]) -> io::Result<()> {
        let width = self.shape[1];
        self.values[row * width..][..width].copy_from_slice(values);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Rows in a mapped file, which holds nothing else: little-endian f32, row after row.
///
/// What is written is in the file even if the process is killed, and after [`RowStore::flush`] even if the machine
/// stops. Nothing else may write to the file meanwhile.
#[derive(Debug)]
pub struct MappedRows {
    shape: [usize; 2],
    map: MmapMut,
}

impl MappedRows {
    /// Opens the rows of a file.
    ///
    /// # Errors
    /// When the file cannot be opened or has another length than `shape`, `[rows, width]`.
    pub fn open(path: &Path, shape: [usize; 2]) -> Result<Self, OptimiserError> {
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(OptimiserError::io(path, "opened"))?;
        Self::map(path, &file, shape)
    }

    /// Opens the rows of a file, which is made with zeros if it is not there: at full length, but where nothing was
    /// written it takes no space on file systems that have holes.
    ///
    /// # Errors
    /// When the file cannot be opened or made, or has another length than `shape`, `[rows, width]`.
    pub fn open_or_create(path: &Path, shape: [usize; 2]) -> Result<Self, OptimiserError> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let file = file.map_err(OptimiserError::io(path, "opened"))?;
        let length = file.metadata().map_err(OptimiserError::io(path, "opened"))?.len();
        if length == 0 {
            file.set_len(file_length(path, shape)?).map_err(OptimiserError::io(path, "made"))?;
        }
        Self::map(path, &file, shape)
    }

    fn map(path: &Path, file: &File, shape: [usize; 2]) -> Result<Self, OptimiserError> {
        let expected = file_length(path, shape)?;
        let found = file.metadata().map_err(OptimiserError::io(path, "opened"))?.len();
        if found != expected {
            let fault = format!("has {found} bytes, expected {expected} of {shape:?} rows and columns in f32");
            return Err(OptimiserError::file(path, fault));
        }
        // SAFETY: the file belongs to this store, as its documentation asks; nothing else changes or shortens it.
        let map = unsafe { MmapMut::map_mut(file) }.map_err(OptimiserError::io(path, "mapped"))?;
        Ok(Self { shape, map })
    }
}

fn file_length(path: &Path, [rows, width]: [usize; 2]) -> Result<u64, OptimiserError> {
    let length = rows.checked_mul(width).and_then(|values| values.checked_mul(VALUE));
    let length = length.ok_or_else(|| OptimiserError::file(path, format!("{rows} rows of {width} are too many")))?;
    Ok(length as u64)
}

impl RowStore for MappedRows {
    fn shape(&self) -> [usize; 2] {
        self.shape
    }

    fn read(&self, row: usize, values: &mut [f32]) -> io::Result<()> {
        let length = self.shape[1] * VALUE;
        let (bytes, _) = self.map[row * length..][..length].as_chunks();
        for (value, bytes) in values.iter_mut().zip(bytes) {
            *value = f32::from_le_bytes(*bytes);
        }
        Ok(())
    }

    fn write(&mut self, row: usize, values: &[f32]) -> io::Result<()> {
        let length = self.shape[1] * VALUE;
        let (bytes, _) = self.map[row * length..][..length].as_chunks_mut();
        for (bytes, value) in bytes.iter_mut().zip(values) {
            *bytes = value.to_le_bytes();
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.map.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_rows_are_zeros_when_made_and_keep_what_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows");
        let mut row = [9.0; 2];
        {
            let mut rows = MappedRows::open_or_create(&path, [3, 2]).unwrap();
            rows.read(2, &mut row).unwrap();
            assert_eq!(row, [0.0, 0.0]);
            rows.write(1, &[1.5, -2.5]).unwrap();
            rows.flush().unwrap();
        }
        let rows = MappedRows::open(&path, [3, 2]).unwrap();
        rows.read(1, &mut row).unwrap();
        assert_eq!(row, [1.5, -2.5]);
        assert_eq!(std::fs::read(&path).unwrap()[8..12], 1.5f32.to_le_bytes());
    }

    #[test]
    fn files_and_values_of_another_size_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows");
        assert!(matches!(MappedRows::open(&path, [3, 2]), Err(OptimiserError::Io { action: "opened", .. })));
        MappedRows::open_or_create(&path, [3, 2]).unwrap();
        for shape in [[2, 2], [usize::MAX, 2]] {
            assert!(matches!(MappedRows::open_or_create(&path, shape), Err(OptimiserError::File { .. })));
        }
        let error = MemoryRows::new(vec![0.0; 5], [3, 2]).unwrap_err();
        assert_eq!(error.to_string(), "5 values for 3 rows of 2");
    }
}
