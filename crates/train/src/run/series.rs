//! A quantity over the steps of a run, however long, in some hundred points.

/// The most points that are kept.
const CAPACITY: usize = 512;

/// A quantity over the steps of a run. Each point stands for the same number of entries: one at first, and twice as many
/// whenever there would be more than 512 points. The last point may stand for fewer.
#[derive(Debug, Clone)]
pub struct Series {
    points: Vec<Point>,
    /// Entries a point.
    span: usize,
    /// Values left out.
    not_finite: usize,
}

/// Some successive entries of a series.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    first: u64,
    last: u64,
    entries: usize,
    sum: f64,
    values: usize,
    lowest: f64,
    highest: f64,
}

impl Point {
    /// The middle of its steps.
    pub fn step(&self) -> f64 {
        f64::midpoint(self.first as f64, self.last as f64)
    }

    /// The mean of its finite values; `None` where there are none.
    pub fn mean(&self) -> Option<f64> {
        (self.values > 0).then(|| self.sum / self.values as f64)
    }

    /// The lowest and the highest of its finite values; `None` where there are none.
    pub fn range(&self) -> Option<(f64, f64)> {
        (self.values > 0).then_some((self.lowest, self.highest))
    }

    /// Both as one.
    fn join(&self, later: &Self) -> Self {
        Self {
            first: self.first,
            last: later.last,
            entries: self.entries + later.entries,
            sum: self.sum + later.sum,
            values: self.values + later.values,
            lowest: self.lowest.min(later.lowest),
            highest: self.highest.max(later.highest),
        }
    }
}

impl Default for Series {
    fn default() -> Self {
        Self { points: Vec::new(), span: 1, not_finite: 0 }
    }
}

impl Series {
    /// Adds the value of a step. Values that are beyond single precision count as infinite.
    pub fn push(&mut self, step: u64, value: f64) {
        self.push_all(step, [value]);
    }

    /// Adds the values of a step, such as one a layer, as one entry.
    pub fn push_all(&mut self, step: u64, values: impl IntoIterator<Item = f64>) {
        let (lowest, highest) = (f64::INFINITY, f64::NEG_INFINITY);
        let mut entry = Point { first: step, last: step, entries: 1, sum: 0.0, values: 0, lowest, highest };
        for value in values {
            if value.abs() <= f32::MAX.into() {
                entry.sum += value;
                entry.values += 1;
                entry.lowest = entry.lowest.min(value);
                entry.highest = entry.highest.max(value);
            } else {
                self.not_finite += 1;
            }
        }
        if let Some(last) = self.points.last_mut().filter(|last| last.entries < self.span) {
            *last = last.join(&entry);
            return;
        }
        if self.points.len() == CAPACITY {
            self.points = self.points.as_chunks::<2>().0.iter().map(|[earlier, later]| earlier.join(later)).collect();
            self.span *= 2;
        }
        self.points.push(entry);
    }

    /// Its points, by step.
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// Its points between the gaps that values left which are not finite.
    pub fn pieces(&self) -> impl Iterator<Item = &[Point]> {
        self.points.split(|point| point.mean().is_none()).filter(|piece| !piece.is_empty())
    }

    /// Entries that a point stands for.
    pub fn span(&self) -> usize {
        self.span
    }

    /// Values that were left out because they are NaN or infinite.
    pub fn not_finite(&self) -> usize {
        self.not_finite
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn points_stand_for_all_entries_in_order(length in 0..5000_usize) {
            let mut series = Series::default();
            for step in 1..=length as u64 {
                series.push(step, step as f64);
            }
            let points = series.points();
            prop_assert!(points.len() <= CAPACITY && (length <= CAPACITY || points.len() > CAPACITY / 2));
            let mut next = 1;
            for (index, point) in points.iter().enumerate() {
                prop_assert_eq!(point.first, next);
                prop_assert!(point.entries == series.span() || index + 1 == points.len());
                prop_assert_eq!(point.last + 1 - point.first, point.entries as u64);
                // The value is the step.
                prop_assert_eq!(point.mean(), Some(point.step()));
                prop_assert_eq!(point.range(), Some((point.first as f64, point.last as f64)));
                next = point.last + 1;
            }
            prop_assert_eq!(next, length as u64 + 1);
        }
    }

    #[test]
    fn values_that_are_not_finite_leave_a_gap_and_are_counted() {
        let mut series = Series::default();
        series.push(1, 2.0);
        series.push(2, f64::NAN);
        series.push_all(3, [f64::INFINITY, 4.0, 8.0, -1e39]);
        let means: Vec<_> = series.points().iter().map(Point::mean).collect();
        assert_eq!(means, [Some(2.0), None, Some(6.0)]);
        assert_eq!(series.points()[2].range(), Some((4.0, 8.0)));
        assert_eq!(series.pieces().map(<[Point]>::len).collect::<Vec<_>>(), [1, 1]);
        assert_eq!(series.not_finite(), 3);
    }
}
