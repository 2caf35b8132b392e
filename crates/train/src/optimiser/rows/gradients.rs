//! Gradients of the rows that were looked up.

use std::collections::BTreeMap;

use crate::optimiser::OptimiserError;

/// Gradients of rows of one table, added up row by row.
///
/// Look-ups are added in the order they are given in, so equal look-ups give equal sums, bit for bit. Several
/// micro-batches are added one after the other.
#[derive(Debug, Clone)]
pub struct RowGradients {
    shape: [usize; 2],
    sums: BTreeMap<usize, Vec<f32>>,
}

impl RowGradients {
    /// No gradients yet of a table of this shape, `[rows, width]`.
    pub fn new(shape: [usize; 2]) -> Self {
        Self { shape, sums: BTreeMap::new() }
    }

    /// Adds the gradients of look-ups: `gradients` holds one of the table's width for each of `rows`, among which rows
    /// may repeat.
    ///
    /// # Errors
    /// When the table has no such row, or there are more or fewer values; nothing is added then.
    pub fn add(&mut self, rows: &[i64], gradients: &[f32]) -> Result<(), OptimiserError> {
        let [table_rows, width] = self.shape;
        if rows.len() * width != gradients.len() {
            return Err(OptimiserError::RowValues { found: gradients.len(), rows: rows.len(), width });
        }
        let place = |&row: &i64| {
            let place = usize::try_from(row).ok().filter(|&place| place < table_rows);
            place.ok_or(OptimiserError::RowOutOfRange { row, rows: table_rows })
        };
        let places = rows.iter().map(place).collect::<Result<Vec<_>, _>>()?;
        for (i, place) in places.into_iter().enumerate() {
            let sum = self.sums.entry(place).or_insert_with(|| vec![0.0; width]);
            for (sum, gradient) in sum.iter_mut().zip(&gradients[i * width..][..width]) {
                *sum += gradient;
            }
        }
        Ok(())
    }

    /// The sum of squares, which counts in the norm of all gradients.
    pub fn sum_of_squares(&self) -> f64 {
        self.sums.values().flatten().map(|&gradient| f64::from(gradient).powi(2)).sum()
    }

    /// Multiplies all gradients by a factor.
    pub fn scale(&mut self, factor: f64) {
        for gradient in self.sums.values_mut().flatten() {
            *gradient = (f64::from(*gradient) * factor) as f32;
        }
    }

    /// `[rows, width]` of the table.
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// Rows that have a gradient, ascending, each with it.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &[f32])> {
        self.sums.iter().map(|(&row, sum)| (row, sum.as_slice()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gradients_of_repeated_rows_are_added_in_order() {
        let mut gradients = RowGradients::new([9, 2]);
        gradients.add(&[7, 0, 7], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
        gradients.add(&[7], &[-1.0, 0.5]).unwrap();
        let found: Vec<_> = gradients.iter().collect();
        assert_eq!(found, [(0, [3.0, 4.0].as_slice()), (7, [5.0, 8.5].as_slice())]);
        assert_eq!(gradients.sum_of_squares(), 9.0 + 16.0 + 25.0 + 72.25);
        gradients.scale(0.5);
        assert_eq!(gradients.sum_of_squares(), 122.25 / 4.0);
    }

    #[test]
    fn rows_that_the_table_does_not_have_are_errors_and_nothing_is_added() {
        let mut gradients = RowGradients::new([9, 1]);
        for row in [-1, 9, i64::MAX] {
            let error = gradients.add(&[0, row], &[1.0, 1.0]).unwrap_err();
            assert_eq!(error.to_string(), format!("row {row}: the table has 9 rows"));
        }
        let error = gradients.add(&[0, 1], &[1.0]).unwrap_err();
        assert_eq!(error.to_string(), "1 values for 2 rows of 1");
        assert_eq!(gradients.iter().count(), 0);
    }
}
