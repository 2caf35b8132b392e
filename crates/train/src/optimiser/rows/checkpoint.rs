//! Storing the touched rows of a table.

use std::{borrow::Cow, io, path::Path};

use safetensors::{Dtype, SafeTensors, View};
use serde::{Deserialize, Serialize};

use super::{RowAdamW, RowStore};
use crate::optimiser::{OptimiserError, file};

const ROWS: &str = "rows";
const VALUES: &str = "values";
const MOMENTS: &str = "moments";

/// What a checkpoint belongs to.
#[derive(Serialize, Deserialize)]
struct Header {
    /// `[rows, width]` of the table.
    table: [usize; 2],
}

impl<T: RowStore, M: RowStore> RowAdamW<T, M> {
    /// Stores the values and moments of all rows that were ever touched: safetensors `rows` (i64, `[n]`, ascending),
    /// `values` (`[n, width]`) and `moments` (`[n, 2 * width + 1]`: first, second, number of steps).
    ///
    /// The file is whole or not there. The table itself need not be [flushed](Self::flush).
    ///
    /// # Errors
    /// When rows cannot be read or the file cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), OptimiserError> {
        let rows: Vec<_> = self.touched().collect();
        let numbers = rows.iter().flat_map(|&row| (row as i64).to_le_bytes()).collect();
        let tensors = [
            (ROWS.to_owned(), Stored { dtype: Dtype::I64, shape: vec![rows.len()], bytes: numbers }),
            (VALUES.to_owned(), stored(&self.table, &rows).map_err(OptimiserError::Rows)?),
            (MOMENTS.to_owned(), stored(&self.moments, &rows).map_err(OptimiserError::Rows)?),
        ];
        let header = serde_json::to_string(&Header { table: self.table.shape() });
        file::replace(path, tensors, header.map_err(|error| OptimiserError::file(path, error))?)
    }

    /// Makes table and moments what they were when a checkpoint was stored, bit for bit, whatever was done since.
    ///
    /// # Errors
    /// When the file cannot be read, or is no checkpoint of a table of this shape, where nothing is changed; or when
    /// the storage fails, where it is to be done again.
    pub fn restore(&mut self, path: &Path) -> Result<(), OptimiserError> {
        let bytes = file::map(path)?;
        let (tensors, header) = file::parse(path, &bytes)?;
        let header: Header = serde_json::from_str(&header).map_err(|error| OptimiserError::file(path, error))?;
        let [table_rows, width] = self.table.shape();
        if header.table != [table_rows, width] {
            let fault =
                format!("of a table of {:?} rows and columns, expected {:?}", header.table, [table_rows, width]);
            return Err(OptimiserError::file(path, fault));
        }
        let rows = row_numbers(path, &tensors, table_rows)?;
        let values = row_values(path, &tensors, VALUES, [rows.len(), width])?;
        let moments = row_values(path, &tensors, MOMENTS, [rows.len(), 2 * width + 1])?;

        self.rewind()?;
        self.keep_originals(rows.iter().copied()).map_err(OptimiserError::Rows)?;
        write_rows(&mut self.moments, &rows, moments).map_err(OptimiserError::Rows)?;
        write_rows(&mut self.table, &rows, values).map_err(OptimiserError::Rows)
    }
}

/// A tensor of a checkpoint.
struct Stored {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl View for Stored {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.bytes)
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

fn stored(store: &impl RowStore, rows: &[usize]) -> io::Result<Stored> {
    let [_, width] = store.shape();
    let mut values = vec![0.0; width];
    let mut bytes = Vec::with_capacity(rows.len() * width * 4);
    for &row in rows {
        store.read(row, &mut values)?;
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }
    Ok(Stored { dtype: Dtype::F32, shape: vec![rows.len(), width], bytes })
}

fn write_rows(store: &mut impl RowStore, rows: &[usize], bytes: &[u8]) -> io::Result<()> {
    let [_, width] = store.shape();
    let mut values = vec![0.0; width];
    for (&row, bytes) in rows.iter().zip(bytes.chunks_exact(width * 4)) {
        for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
            *value = f32::from_le_bytes(*bytes);
        }
        store.write(row, &values)?;
    }
    Ok(())
}

/// The rows of a checkpoint, which ascend and are below `table_rows`.
fn row_numbers(path: &Path, tensors: &SafeTensors<'_>, table_rows: usize) -> Result<Vec<usize>, OptimiserError> {
    let tensor = tensors.tensor(ROWS).map_err(|error| OptimiserError::file(path, error))?;
    let (&[_], Dtype::I64) = (tensor.shape(), tensor.dtype()) else {
        let fault = format!("`{ROWS}` is {:?} of {:?}, expected a list of I64", tensor.shape(), tensor.dtype());
        return Err(OptimiserError::file(path, fault));
    };
    let mut rows: Vec<usize> = Vec::new();
    for bytes in tensor.data().as_chunks().0 {
        let row = i64::from_le_bytes(*bytes);
        let valid =
            usize::try_from(row).ok().filter(|&row| row < table_rows && rows.last().is_none_or(|&last| last < row));
        match valid {
            Some(row) => rows.push(row),
            None => {
                let fault = format!("`{ROWS}` has {row}, expected ascending numbers below {table_rows}");
                return Err(OptimiserError::file(path, fault));
            }
        }
    }
    Ok(rows)
}

/// The bytes of a tensor of f32.
fn row_values<'a>(
    path: &Path,
    tensors: &SafeTensors<'a>,
    name: &str,
    shape: [usize; 2],
) -> Result<&'a [u8], OptimiserError> {
    let tensor = tensors.tensor(name).map_err(|error| OptimiserError::file(path, error))?;
    match tensor.dtype() == Dtype::F32 && tensor.shape() == shape {
        true => Ok(tensor.data()),
        false => {
            let found = (tensor.shape(), tensor.dtype());
            Err(OptimiserError::file(
                path,
                format!("`{name}` is {:?} of {:?}, expected {shape:?} of F32", found.0, found.1),
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, ops::Range};

    use proptest::prelude::*;

    use super::*;
    use crate::optimiser::{
        AdamWSettings,
        rows::{MappedRows, MemoryRows, RowGradients},
    };

    const SHAPE: [usize; 2] = [6, 2];

    fn values() -> Vec<f32> {
        (0..12).map(|i| (i as f32).cos()).collect()
    }

    fn in_memory() -> RowAdamW<MemoryRows, MemoryRows> {
        RowAdamW::in_memory(AdamWSettings::default(), 0.1, MemoryRows::new(values(), SHAPE).unwrap()).unwrap()
    }

    fn mapped(path: &Path) -> RowAdamW<MappedRows, MappedRows> {
        RowAdamW::mapped(AdamWSettings::default(), 0.1, path, SHAPE).unwrap()
    }

    /// Takes steps that each touch two rows, of which step 3 is the first to touch the last one.
    fn advance<T: RowStore, M: RowStore>(optimiser: &mut RowAdamW<T, M>, steps: Range<usize>) {
        for step in steps {
            let rows = [step as i64 % 3, 2 + step as i64];
            touch(optimiser, &rows, step);
        }
    }

    fn touch<T: RowStore, M: RowStore>(optimiser: &mut RowAdamW<T, M>, rows: &[i64], step: usize) {
        let mut gradients = RowGradients::new(SHAPE);
        let values: Vec<_> = (0..2 * rows.len()).map(|i| (0.5 + (i + 7 * step) as f32).sin()).collect();
        gradients.add(rows, &values).unwrap();
        optimiser.step(&gradients, 0.1).unwrap();
    }

    /// All values and moments.
    fn everything<T: RowStore, M: RowStore>(optimiser: &RowAdamW<T, M>) -> [Vec<u8>; 2] {
        let rows: Vec<_> = (0..SHAPE[0]).collect();
        [stored(&optimiser.table, &rows).unwrap().bytes, stored(&optimiser.moments, &rows).unwrap().bytes]
    }

    #[test]
    fn every_way_back_to_a_checkpoint_continues_bit_for_bit() {
        let folder = tempfile::tempdir().unwrap();
        let [path, checkpoint] = ["table", "checkpoint"].map(|name| folder.path().join(name));
        fs::write(&path, values().iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>()).unwrap();
        let mut straight = in_memory();
        advance(&mut straight, 0..4);

        let mut first = mapped(&path);
        advance(&mut first, 0..2);
        first.save(&checkpoint).unwrap();
        let stored = everything(&first);
        advance(&mut first, 2..4);
        assert_eq!(everything(&first), everything(&straight), "files or memory make no difference");
        drop(first);

        // The process ended two steps after the checkpoint.
        let mut resumed = mapped(&path);
        resumed.restore(&checkpoint).unwrap();
        assert_eq!(everything(&resumed), stored);
        advance(&mut resumed, 2..4);
        assert_eq!(everything(&resumed), everything(&straight));

        // Another copy of the table.
        let mut elsewhere = in_memory();
        elsewhere.restore(&checkpoint).unwrap();
        advance(&mut elsewhere, 2..4);
        assert_eq!(everything(&elsewhere), everything(&straight));

        resumed.rewind().unwrap();
        resumed.flush().unwrap();
        assert_eq!(everything(&resumed), everything(&in_memory()));
    }

    #[test]
    fn a_checkpoint_of_something_else_is_an_error_and_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoint = folder.path().join("checkpoint");
        let mut optimiser = in_memory();
        advance(&mut optimiser, 0..2);
        optimiser.save(&checkpoint).unwrap();
        let before = everything(&optimiser);
        let mut refused = |fault: &str| {
            let error = optimiser.restore(&checkpoint).unwrap_err().to_string();
            assert!(error.ends_with(fault), "{error}, expected {fault}");
            assert_eq!(everything(&optimiser), before);
        };

        let other = RowAdamW::in_memory(AdamWSettings::default(), 0.1, MemoryRows::zeros([7, 2])).unwrap();
        other.save(&checkpoint).unwrap();
        refused("of a table of [7, 2] rows and columns, expected [6, 2]");

        let write = |rows: &[i64], moments: [usize; 2]| {
            let tensor = |shape: [usize; 2]| Stored {
                dtype: Dtype::F32,
                shape: shape.to_vec(),
                bytes: vec![0; shape.iter().product::<usize>() * 4],
            };
            let bytes = rows.iter().flat_map(|row| row.to_le_bytes()).collect();
            let numbers = Stored { dtype: Dtype::I64, shape: vec![rows.len()], bytes };
            let tensors = [(ROWS, numbers), (VALUES, tensor([rows.len(), 2])), (MOMENTS, tensor(moments))];
            let header = serde_json::to_string(&Header { table: SHAPE }).unwrap();
            file::replace(&checkpoint, tensors.map(|(name, tensor)| (name.to_owned(), tensor)), header).unwrap();
        };
        for (rows, found) in [([1, 1], 1), ([4, 3], 3), ([0, 6], 6), ([-1, 2], -1)] {
            write(&rows, [2, 5]);
            refused(&format!("`rows` has {found}, expected ascending numbers below 6"));
        }
        write(&[1, 2], [2, 4]);
        refused("`moments` is [2, 4] of F32, expected [2, 5] of F32");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn whatever_rows_were_touched_a_checkpoint_and_the_beginning_come_back(
            before in proptest::collection::vec(proptest::collection::vec(0i64..6, 0..5), 0..5),
            after in proptest::collection::vec(proptest::collection::vec(0i64..6, 0..5), 0..5),
        ) {
            let folder = tempfile::tempdir().unwrap();
            let checkpoint = folder.path().join("checkpoint");
            let mut optimiser = in_memory();
            for (step, rows) in before.iter().enumerate() {
                touch(&mut optimiser, rows, step);
            }
            optimiser.save(&checkpoint).unwrap();
            let stored = everything(&optimiser);
            for (step, rows) in after.iter().enumerate() {
                touch(&mut optimiser, rows, step);
            }
            optimiser.restore(&checkpoint).unwrap();
            prop_assert_eq!(everything(&optimiser), stored);
            optimiser.rewind().unwrap();
            prop_assert_eq!(everything(&optimiser), everything(&in_memory()));
        }
    }
}
