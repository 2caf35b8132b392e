//! A table that stays as it is, and the rows of it that were changed.

use std::{collections::HashMap, io, sync::Arc};

use dsv41::RowSource;

use super::RowStore;

/// Rows in memory where they were written, and elsewhere where they were not: a packed table in a file of which few rows
/// are touched takes memory for those alone.
#[derive(Debug)]
pub struct TouchedRows {
    shape: [usize; 2],
    /// Where other rows are read; they are zeros without one.
    base: Option<Arc<dyn RowSource>>,
    written: HashMap<usize, Box<[f32]>>,
}

impl TouchedRows {
    /// The rows of `base`.
    pub fn of(base: Arc<dyn RowSource>) -> Self {
        Self { shape: base.shape(), base: Some(base), written: HashMap::new() }
    }

    /// Rows of zeros.
    pub fn zeros(shape: [usize; 2]) -> Self {
        Self { shape, base: None, written: HashMap::new() }
    }
}

impl RowStore for TouchedRows {
    fn shape(&self) -> [usize; 2] {
        self.shape
    }

    fn read(&self, row: usize, values: &mut [f32]) -> io::Result<()> {
        match (self.written.get(&row), &self.base) {
            (Some(written), _) => values.copy_from_slice(written),
            (None, Some(base)) => base.read(&[row as i64], values)?,
            (None, None) => values.fill(0.0),
        }
        Ok(())
    }

    fn write(&mut self, row: usize, values: &[f32]) -> io::Result<()> {
        self.written.insert(row, values.into());
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimiser::rows::{MemoryRows, SharedRows};

    #[test]
    fn rows_that_were_not_written_are_those_of_the_base() {
        let base = MemoryRows::new(vec![1.0, 2.0, 3.0, 4.0], [2, 2]).unwrap();
        let mut rows = TouchedRows::of(Arc::new(SharedRows::new(base)));
        rows.write(1, &[5.0, 6.0]).unwrap();
        let read = |rows: &TouchedRows, row| {
            let mut values = [f32::NAN; 2];
            rows.read(row, &mut values).unwrap();
            values
        };
        assert_eq!([read(&rows, 0), read(&rows, 1)], [[1.0, 2.0], [5.0, 6.0]]);
        assert_eq!(read(&TouchedRows::zeros([3, 2]), 2), [0.0, 0.0]);
    }
}
