use std::fmt;
use std::io;
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use dsv41::RowSource;
use dsv41_quant::{GgmlType, dequantise};
use lru::LruCache;

use super::background::Background;

/// What the cache itself takes for a row besides the row's bytes.
const ROW_OVERHEAD: usize = 96;

/// Reads the packed bytes of one row.
type ReadRow = dyn Fn(u64, &mut [u8]) -> io::Result<()> + Send + Sync;

/// A table in a file, read by row: rows that were read lately are kept, as they are packed.
pub(crate) struct CachedRows {
    shared: Arc<Shared>,
    background: Arc<Background>,
}

struct Shared {
    ty: GgmlType,
    shape: [usize; 2],
    row_bytes: usize,
    read: Box<ReadRow>,
    cache: Mutex<LruCache<i64, Box<[u8]>>>,
    counts: Arc<RowCounts>,
}

/// How often rows were wanted, and were there.
#[derive(Debug, Default)]
pub struct RowCounts {
    wanted: AtomicU64,
    hits: AtomicU64,
}

impl RowCounts {
    /// Rows wanted so far.
    pub fn wanted(&self) -> u64 {
        self.wanted.load(Ordering::Relaxed)
    }

    /// Rows of these that were in the cache, read before or fetched early.
    pub fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }
}

/// A table's place in a file.
pub(crate) struct TableFile {
    pub(crate) ty: GgmlType,
    /// `[rows, width]`
    pub(crate) shape: [usize; 2],
    pub(crate) row_bytes: usize,
    pub(crate) read: Box<ReadRow>,
}

impl CachedRows {
    /// Keeps about `bytes` of rows, and at least one.
    pub(crate) fn new(table: TableFile, bytes: u64, counts: Arc<RowCounts>, background: Arc<Background>) -> Self {
        let TableFile { ty, shape, row_bytes, read } = table;
        let rows = usize::try_from(bytes / cost_of_row(row_bytes)).unwrap_or(usize::MAX).min(shape[0]);
        let rows = std::num::NonZeroUsize::new(rows).unwrap_or(std::num::NonZeroUsize::MIN);
        // Memory is taken as rows come, not for all of them at once.
        let mut cache = LruCache::unbounded();
        cache.resize(rows);
        let shared = Shared { ty, shape, row_bytes, read, cache: Mutex::new(cache), counts };
        Self { shared: Arc::new(shared), background }
    }
}

/// Memory that one cached row takes.
pub(crate) fn cost_of_row(row_bytes: usize) -> u64 {
    (row_bytes + ROW_OVERHEAD) as u64
}

impl Shared {
    fn cache(&self) -> MutexGuard<'_, LruCache<i64, Box<[u8]>>> {
        // A panic elsewhere leaves whole rows behind: each goes in by one call.
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fetch(&self, row: i64) -> io::Result<Box<[u8]>> {
        let number = u64::try_from(row).map_err(|_| io::Error::other(format!("there is no row {row}")))?;
        let mut bytes = vec![0; self.row_bytes].into_boxed_slice();
        (self.read)(number, &mut bytes)?;
        Ok(bytes)
    }
}

impl RowSource for CachedRows {
    fn shape(&self) -> [usize; 2] {
        self.shared.shape
    }

    fn read(&self, rows: &[i64], values: &mut [f32]) -> io::Result<()> {
        let Shared { ty, shape: [_, width], counts, .. } = &*self.shared;
        let mut hits = 0;
        for (&row, values) in rows.iter().zip(values.chunks_exact_mut(*width)) {
            let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
            let cached = self.shared.cache().get(&row).map(|bytes| dequantise(*ty, bytes, values));
            match cached {
                Some(done) => {
                    done.map_err(invalid)?;
                    hits += 1;
                }
                None => {
                    let bytes = self.shared.fetch(row)?;
                    dequantise(*ty, &bytes, values).map_err(invalid)?;
                    self.shared.cache().put(row, bytes);
                }
            }
        }
        counts.wanted.fetch_add(rows.len() as u64, Ordering::Relaxed);
        counts.hits.fetch_add(hits, Ordering::Relaxed);
        Ok(())
    }

    fn prefetch(&self, rows: &[i64]) {
        let shared = Arc::clone(&self.shared);
        let rows = rows.to_vec();
        self.background.run(move || {
            for row in rows {
                if !shared.cache().contains(&row)
                    // Whoever needs the row meets the error again, and tells it.
                    && let Ok(bytes) = shared.fetch(row)
                {
                    shared.cache().put(row, bytes);
                }
            }
        });
    }
}

impl fmt::Debug for CachedRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { ty, shape: [rows, width], .. } = &*self.shared;
        write!(f, "CachedRows({ty} {rows}x{width})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of one f32 block each, whose value is the row's number; the last of four cannot be read.
    fn table(kept: u64) -> (CachedRows, Arc<RowCounts>) {
        let counts = Arc::new(RowCounts::default());
        let read = |row: u64, bytes: &mut [u8]| {
            if row == 3 {
                return Err(io::Error::other("the disk is gone"));
            }
            bytes.copy_from_slice(&(row as f32).to_le_bytes());
            Ok(())
        };
        let file = TableFile { ty: GgmlType::F32, shape: [4, 1], row_bytes: 4, read: Box::new(read) };
        let background = Arc::new(Background::start().unwrap());
        (CachedRows::new(file, kept * cost_of_row(4), Arc::clone(&counts), background), counts)
    }

    fn read(table: &CachedRows, rows: &[i64]) -> io::Result<Vec<f32>> {
        let mut values = vec![f32::NAN; rows.len()];
        table.read(rows, &mut values).map(|()| values)
    }

    #[test]
    fn rows_read_lately_are_hits() {
        let (table, counts) = table(2);
        assert_eq!(read(&table, &[0, 1, 0, 2]).unwrap(), [0.0, 1.0, 0.0, 2.0]);
        assert_eq!((counts.wanted(), counts.hits()), (4, 1));
        // Row 1 made room for row 2.
        assert_eq!(read(&table, &[0, 2, 1]).unwrap(), [0.0, 2.0, 1.0]);
        assert_eq!((counts.wanted(), counts.hits()), (7, 3));
    }

    #[test]
    fn prefetched_rows_are_hits() {
        let (table, counts) = table(4);
        table.prefetch(&[1, 2, 3]);
        // The queue is worked off in order: when this has run, so has what came before.
        let (done, wait) = std::sync::mpsc::channel();
        table.background.run(move || done.send(()).unwrap());
        wait.recv().unwrap();
        assert_eq!(read(&table, &[2, 1]).unwrap(), [2.0, 1.0]);
        assert_eq!((counts.wanted(), counts.hits()), (2, 2));
    }

    #[test]
    fn rows_that_cannot_be_read_are_errors() {
        let (table, _) = table(4);
        assert_eq!(read(&table, &[3]).unwrap_err().to_string(), "the disk is gone");
        assert_eq!(read(&table, &[-1]).unwrap_err().to_string(), "there is no row -1");
    }
}
