//! Rows that the model reads and the optimiser writes.

use std::{
    fmt, io,
    sync::{Arc, PoisonError, RwLock},
};

use dsv41::RowSource;

use super::RowStore;

/// A store in several hands: every clone has the same rows.
#[derive(Debug)]
pub struct SharedRows<T>(Arc<RwLock<T>>);

impl<T: RowStore> SharedRows<T> {
    /// Shares a store.
    pub fn new(store: T) -> Self {
        Self(Arc::new(RwLock::new(store)))
    }
}

impl<T> Clone for SharedRows<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// A row is read or written as a whole. A lock that a panic left behind is taken all the same: a store has no state
/// that a panic could leave half changed, and a half-written row is what [`super::RowAdamW::restore`] is for.
impl<T: RowStore> RowStore for SharedRows<T> {
    fn shape(&self) -> [usize; 2] {
        self.0.read().unwrap_or_else(PoisonError::into_inner).shape()
    }

    fn read(&self, row: usize, values: &mut [f32]) -> io::Result<()> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).read(row, values)
    }

    fn write(&mut self, row: usize, values: &[f32]) -> io::Result<()> {
        self.0.write().unwrap_or_else(PoisonError::into_inner).write(row, values)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.write().unwrap_or_else(PoisonError::into_inner).flush()
    }
}

/// What a model reads a table through that is trained.
impl<T: RowStore + fmt::Debug + Send + Sync> RowSource for SharedRows<T> {
    fn shape(&self) -> [usize; 2] {
        RowStore::shape(self)
    }

    fn read(&self, rows: &[i64], values: &mut [f32]) -> io::Result<()> {
        let store = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let [table_rows, width] = store.shape();
        for (&row, values) in rows.iter().zip(values.chunks_exact_mut(width)) {
            let place = usize::try_from(row).ok().filter(|&place| place < table_rows);
            let place = place.ok_or_else(|| io::Error::other(format!("row {row} of a table of {table_rows} rows")))?;
            store.read(place, values)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimiser::rows::MemoryRows;

    #[test]
    fn what_one_hand_writes_another_reads() {
        let mut writer = SharedRows::new(MemoryRows::zeros([3, 2]));
        let reader = writer.clone();
        writer.write(1, &[1.0, 2.0]).unwrap();
        let mut rows = [9.0; 4];
        RowSource::read(&reader, &[1, 0], &mut rows).unwrap();
        assert_eq!((rows, RowSource::shape(&reader)), ([1.0, 2.0, 0.0, 0.0], [3, 2]));
        let error = RowSource::read(&reader, &[3], &mut rows[..2]).unwrap_err();
        assert_eq!(error.to_string(), "row 3 of a table of 3 rows");
    }
}
