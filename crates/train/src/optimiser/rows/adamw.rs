//! AdamW of touched rows.

use std::{
    ffi::OsString,
    io,
    path::{Path, PathBuf},
};

use super::{MappedRows, MemoryRows, Originals, RowGradients, RowStore};
use crate::optimiser::{AdamWSettings, OptimiserError};

/// AdamW of a table, row by row.
///
/// A row has its moments and its number of steps, and only a step that touches it changes it: moments of the others do
/// not fade, and nothing decays them. Where every step touches every row, this is AdamW. Sums are f64 within a step;
/// values and moments are stored in f32.
#[derive(Debug)]
pub struct RowAdamW<T, M> {
    settings: AdamWSettings,
    weight_decay: f32,
    pub(super) table: T,
    /// Of each row the first moments, the second moments, and the number of steps: `[rows, 2 * width + 1]`. As f32 the
    /// number stays at 2^24, where bias corrections have long been 1.
    pub(super) moments: M,
    pub(super) originals: Originals,
}

impl RowAdamW<MemoryRows, MemoryRows> {
    /// An optimiser of a table in memory.
    ///
    /// # Errors
    /// When no temporary file can be made for [`Originals`].
    pub fn in_memory(settings: AdamWSettings, weight_decay: f32, table: MemoryRows) -> io::Result<Self> {
        let shape = table.shape();
        let (moments, originals) = (MemoryRows::zeros(moments_shape(shape)), Originals::temporary(shape)?);
        Ok(Self { settings, weight_decay, table, moments, originals })
    }
}

impl RowAdamW<MappedRows, MappedRows> {
    /// An optimiser of a table in a file, `[rows, width]`. Its moments and [`Originals`] are in files beside it, named
    /// after it with `.moments` and `.originals`, which are made if they are not there.
    ///
    /// If there were such files, the table is as the last process left it: [restore](Self::restore) a checkpoint.
    ///
    /// # Errors
    /// When a file cannot be opened or made, or is of another shape.
    pub fn mapped(
        settings: AdamWSettings,
        weight_decay: f32,
        path: &Path,
        shape: [usize; 2],
    ) -> Result<Self, OptimiserError> {
        let table = MappedRows::open(path, shape)?;
        let moments = MappedRows::open_or_create(&beside(path, ".moments"), moments_shape(shape))?;
        let originals = Originals::open_or_create(&beside(path, ".originals"), shape)?;
        Ok(Self { settings, weight_decay, table, moments, originals })
    }
}

impl<T: RowStore, M: RowStore> RowAdamW<T, M> {
    /// An optimiser of a table `[rows, width]`, with moments `[rows, 2 * width + 1]` that are zeros for rows never
    /// touched.
    ///
    /// # Errors
    /// When the shapes do not fit.
    pub fn new(
        settings: AdamWSettings,
        weight_decay: f32,
        table: T,
        moments: M,
        originals: Originals,
    ) -> Result<Self, OptimiserError> {
        let shape = table.shape();
        check_shape("moments", moments.shape(), moments_shape(shape))?;
        check_shape("originals", originals.shape(), shape)?;
        Ok(Self { settings, weight_decay, table, moments, originals })
    }

    /// The same with the table and the moments in other hands.
    pub(crate) fn map_stores<U, N>(self, table: impl FnOnce(T) -> U, moments: impl FnOnce(M) -> N) -> RowAdamW<U, N> {
        let Self { settings, weight_decay, table: own, moments: of_rows, originals } = self;
        RowAdamW { settings, weight_decay, table: table(own), moments: moments(of_rows), originals }
    }

    /// The table.
    pub fn table(&self) -> &T {
        &self.table
    }

    /// Rows that were ever touched, ascending.
    pub fn touched(&self) -> impl Iterator<Item = usize> {
        self.originals.rows()
    }

    /// Updates each row that has a gradient once, at a learning rate.
    ///
    /// # Errors
    /// When the gradients are of a table of another shape, where nothing is changed, or when the storage fails, where
    /// some rows may have been.
    pub fn step(&mut self, gradients: &RowGradients, rate: f64) -> Result<(), OptimiserError> {
        check_shape("gradients", gradients.shape(), self.table.shape())?;
        self.take_step(gradients, rate).map_err(OptimiserError::Rows)
    }

    /// Returns once everything written would survive a loss of power.
    ///
    /// # Errors
    /// When the storage fails.
    pub fn flush(&mut self) -> Result<(), OptimiserError> {
        self.moments.flush().and_then(|()| self.table.flush()).map_err(OptimiserError::Rows)
    }

    /// Puts every touched row back as it was at the beginning.
    ///
    /// # Errors
    /// When the storage fails; then it is to be done again.
    pub fn rewind(&mut self) -> Result<(), OptimiserError> {
        self.put_back_originals().map_err(OptimiserError::Rows)
    }

    fn take_step(&mut self, gradients: &RowGradients, rate: f64) -> io::Result<()> {
        self.keep_originals(gradients.iter().map(|(row, _)| row))?;
        let [_, width] = self.table.shape();
        let mut values = vec![0.0; width];
        let mut moments = vec![0.0; 2 * width + 1];
        for (row, gradient) in gradients.iter() {
            self.table.read(row, &mut values)?;
            self.moments.read(row, &mut moments)?;
            self.update(&mut values, &mut moments, gradient, rate);
            self.moments.write(row, &moments)?;
            self.table.write(row, &values)?;
        }
        Ok(())
    }

    /// Keeps the values of those rows that are touched for the first time.
    pub(super) fn keep_originals(&mut self, rows: impl Iterator<Item = usize>) -> io::Result<()> {
        let [_, width] = self.table.shape();
        let new: Vec<_> = rows.filter(|&row| !self.originals.contains(row)).collect();
        let mut values = vec![0.0; new.len() * width];
        for (i, &row) in new.iter().enumerate() {
            self.table.read(row, &mut values[i * width..][..width])?;
        }
        self.originals.keep(new.iter().enumerate().map(|(i, &row)| (row, &values[i * width..][..width])))
    }

    fn put_back_originals(&mut self) -> io::Result<()> {
        let [_, width] = self.table.shape();
        let (mut values, moments) = (vec![0.0; width], vec![0.0; 2 * width + 1]);
        let touched: Vec<_> = self.originals.rows().collect();
        for row in touched {
            self.originals.read(row, &mut values)?;
            self.table.write(row, &values)?;
            self.moments.write(row, &moments)?;
        }
        Ok(())
    }

    fn update(&self, values: &mut [f32], moments: &mut [f32], gradient: &[f32], rate: f64) {
        let AdamWSettings { beta_1, beta_2, epsilon } = self.settings;
        let [beta_1, beta_2, epsilon] = [beta_1, beta_2, epsilon].map(f64::from);
        let kept = 1.0 - rate * f64::from(self.weight_decay);
        let Some((steps, moments)) = moments.split_last_mut() else { return };
        let (first, second) = moments.split_at_mut(values.len());
        *steps += 1.0;
        let [corrected_1, corrected_2] = [beta_1, beta_2].map(|beta| 1.0 - beta.powf(f64::from(*steps)));
        for (((value, first), second), &gradient) in values.iter_mut().zip(first).zip(second).zip(gradient) {
            let gradient = f64::from(gradient);
            let m = beta_1 * f64::from(*first) + (1.0 - beta_1) * gradient;
            let v = beta_2 * f64::from(*second) + (1.0 - beta_2) * gradient * gradient;
            let update = (m / corrected_1) / ((v / corrected_2).sqrt() + epsilon);
            *value = (kept * f64::from(*value) - rate * update) as f32;
            (*first, *second) = (m as f32, v as f32);
        }
    }
}

/// `[rows, width]` of the moments of a table.
fn moments_shape([rows, width]: [usize; 2]) -> [usize; 2] {
    [rows, 2 * width + 1]
}

fn check_shape(part: &'static str, found: [usize; 2], expected: [usize; 2]) -> Result<(), OptimiserError> {
    match found == expected {
        true => Ok(()),
        false => Err(OptimiserError::TableShape { part, found, expected }),
    }
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use burn::{
        backend::Flex,
        tensor::{Tensor, TensorData},
    };

    use super::*;
    use crate::optimiser::{GroupSettings, update};

    const SHAPE: [usize; 2] = [5, 3];

    fn values(seed: usize) -> Vec<f32> {
        (0..15).map(|i| (0.3 + 1.7 * seed as f32 + (i * i) as f32).sin()).collect()
    }

    fn in_memory(weight_decay: f32) -> RowAdamW<MemoryRows, MemoryRows> {
        let table = MemoryRows::new(values(0), SHAPE).unwrap();
        RowAdamW::in_memory(AdamWSettings::default(), weight_decay, table).unwrap()
    }

    fn gradients(rows: &[i64], seed: usize) -> RowGradients {
        let mut gradients = RowGradients::new(SHAPE);
        gradients.add(rows, &values(seed)[..3 * rows.len()]).unwrap();
        gradients
    }

    #[test]
    fn steps_that_touch_every_row_are_those_of_dense_adamw() {
        let tensor = |values| Tensor::<Flex, 2>::from_data(TensorData::new(values, SHAPE), &Default::default());
        let settings = GroupSettings::adamw(0.05).with_weight_decay(0.1);
        let (mut dense, mut state) = (tensor(values(0)), None);
        let mut by_row = in_memory(0.1);
        for seed in 1..7 {
            (dense, state) = update::step(&settings, settings.rate, dense, tensor(values(seed)), state);
            by_row.step(&gradients(&[0, 1, 2, 3, 4], seed), settings.rate).unwrap();
        }
        for (dense, by_row) in dense.into_data().iter::<f32>().zip(by_row.table().values()) {
            assert!((dense - by_row).abs() < 1e-6, "{by_row}, dense {dense}");
        }
    }

    #[test]
    fn rows_that_are_not_touched_keep_their_bits() {
        let mut optimiser = in_memory(0.5);
        optimiser.step(&gradients(&[3, 1, 3], 1), 0.1).unwrap();
        optimiser.step(&gradients(&[3], 2), 0.1).unwrap();
        let (before, after) = (values(0), optimiser.table().values());
        for row in 0..5 {
            let same = before[3 * row..][..3] == after[3 * row..][..3];
            assert_eq!(same, ![1, 3].contains(&row), "row {row}");
        }
        assert_eq!(optimiser.touched().collect::<Vec<_>>(), [1, 3]);
        let steps: Vec<_> = optimiser.moments.values().chunks_exact(7).map(|moments| moments[6]).collect();
        assert_eq!(steps, [0.0, 1.0, 0.0, 2.0, 0.0], "a row that is looked up twice takes one step");
    }

    #[test]
    fn a_row_takes_its_first_step_whenever_it_is_first_touched() {
        let [mut early, mut late] = [in_memory(0.1), in_memory(0.1)];
        early.step(&gradients(&[2], 1), 0.1).unwrap();
        for seed in 2..9 {
            late.step(&gradients(&[4], seed), 0.1).unwrap();
        }
        late.step(&gradients(&[2], 1), 0.1).unwrap();
        assert_eq!(early.table().values()[6..9], late.table().values()[6..9]);
    }

    #[test]
    fn parts_of_different_shapes_do_not_fit() {
        let with = |moments: [usize; 2], originals| {
            let (moments, originals) = (MemoryRows::zeros(moments), Originals::temporary(originals).unwrap());
            RowAdamW::new(AdamWSettings::default(), 0.0, MemoryRows::zeros(SHAPE), moments, originals)
        };
        let error = with([5, 6], SHAPE).unwrap_err();
        assert_eq!(error.to_string(), "the moments of a table are of [5, 6] rows and columns, expected [5, 7]");
        assert!(matches!(with([5, 7], [4, 3]), Err(OptimiserError::TableShape { part: "originals", .. })));
        let mut optimiser = with([5, 7], SHAPE).unwrap();
        let error = optimiser.step(&RowGradients::new([6, 3]), 0.1).unwrap_err();
        assert!(matches!(error, OptimiserError::TableShape { part: "gradients", .. }));
    }
}
