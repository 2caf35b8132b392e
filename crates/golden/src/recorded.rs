use indexmap::IndexMap;

/// Named results of one call, in the order they were made.
pub type Captures = IndexMap<String, Recorded>;

/// The numbers of one result.
#[derive(Debug, Clone, PartialEq)]
pub enum Values {
    /// Floating-point results, as f64 so that both precisions fit.
    Float(Vec<f64>),
    /// Token ids, hash ids, selections.
    Int(Vec<i64>),
}

impl Values {
    /// The elements in order, as f64.
    pub fn to_f64(&self) -> impl Iterator<Item = f64> {
        let (floats, integers) = match self {
            Self::Float(values) => (values.as_slice(), [].as_slice()),
            Self::Int(values) => ([].as_slice(), values.as_slice()),
        };
        floats.iter().copied().chain(integers.iter().map(|&value| value as f64))
    }
}

/// One whole result of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Recorded {
    /// Axes, outermost first.
    pub shape: Vec<usize>,
    /// Row-major elements.
    pub values: Values,
}

impl Recorded {
    /// A floating-point result.
    pub fn float(shape: impl Into<Vec<usize>>, values: impl IntoIterator<Item = impl Into<f64>>) -> Self {
        Self { shape: shape.into(), values: Values::Float(values.into_iter().map(Into::into).collect()) }
    }

    /// An integer result.
    pub fn int(shape: impl Into<Vec<usize>>, values: impl IntoIterator<Item = impl Into<i64>>) -> Self {
        Self { shape: shape.into(), values: Values::Int(values.into_iter().map(Into::into).collect()) }
    }

    /// Elements.
    pub fn len(&self) -> usize {
        match &self.values {
            Values::Float(values) => values.len(),
            Values::Int(values) => values.len(),
        }
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Element `index` as f64.
    ///
    /// # Panics
    /// When `index` is out of range.
    pub fn get(&self, index: usize) -> f64 {
        match &self.values {
            Values::Float(values) => values[index],
            Values::Int(values) => values[index] as f64,
        }
    }

    /// The checksum of golden files: the f64 sum of `value * (index + 1)`.
    pub fn checksum(&self) -> f64 {
        checksum(self.values.to_f64()).sum
    }
}

/// The checksum of a tensor, and how large its summands are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Checksum {
    /// The f64 sum of `value * (index + 1)`.
    pub(crate) sum: f64,
    /// The same sum over the values' magnitudes.
    pub(crate) magnitude: f64,
}

impl Checksum {
    /// Whether `other` can be the sum of the same values in another order of summation.
    pub(crate) fn agrees_with(&self, other: f64) -> bool {
        (self.sum - other).abs() <= 1e-12 * self.magnitude
    }
}

/// Sums `values` in order.
pub(crate) fn checksum(values: impl IntoIterator<Item = f64>) -> Checksum {
    let mut checksum = Checksum { sum: 0.0, magnitude: 0.0 };
    for (index, value) in values.into_iter().enumerate() {
        let term = value * (index + 1) as f64;
        checksum.sum += term;
        checksum.magnitude += term.abs();
    }
    checksum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_weigh_by_position() {
        assert_eq!(Recorded::int([3], [5_i64, 0, -2]).checksum(), -1.0);
        let terms = checksum([0.5, -1.0]);
        assert_eq!((terms.sum, terms.magnitude), (-1.5, 2.5));
        assert!(terms.agrees_with(-1.5 + 2e-12));
        assert!(!terms.agrees_with(-1.5 + 4e-12));
        assert!(!terms.agrees_with(f64::NAN));
    }
}
