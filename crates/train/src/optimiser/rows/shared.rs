//! Rows that the model reads and the optimiser writes.

use std::{
    io,
    sync::{Arc, PoisonError, RwLock},
};

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimiser::rows::MemoryRows;

    #[test]
    fn what_one_hand_writes_another_reads() {
        let mut writer = SharedRows::new(MemoryRows::zeros([3, 2]));
        let reader = writer.clone();
        writer.write(1, &[1.0, 2.0]).unwrap();
        let mut row = [0.0; 2];
        reader.read(1, &mut row).unwrap();
        assert_eq!((row, reader.shape()), ([1.0, 2.0], [3, 2]));
    }
}
