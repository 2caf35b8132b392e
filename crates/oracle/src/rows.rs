//! A matrix of activations: one row for each token.

use crate::Real;

/// Row-major numbers, `width` to a row.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Rows<F> {
    width: usize,
    values: Vec<F>,
}

impl<F: Real> Rows<F> {
    pub(crate) fn new(width: usize, values: Vec<F>) -> Self {
        debug_assert!(width > 0 && values.len().is_multiple_of(width));
        Self { width, values }
    }

    pub(crate) fn empty(width: usize) -> Self {
        Self::new(width, Vec::new())
    }

    pub(crate) fn width(&self) -> usize {
        self.width
    }

    pub(crate) fn len(&self) -> usize {
        self.values.len() / self.width
    }

    pub(crate) fn values(&self) -> &[F] {
        &self.values
    }

    pub(crate) fn row(&self, index: usize) -> &[F] {
        &self.values[index * self.width..(index + 1) * self.width]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &[F]> {
        self.values.chunks_exact(self.width)
    }

    pub(crate) fn push(&mut self, row: &[F]) {
        debug_assert_eq!(row.len(), self.width);
        self.values.extend_from_slice(row);
    }

    pub(crate) fn truncate(&mut self, len: usize) {
        self.values.truncate(len * self.width);
    }

    /// The rows that `f` makes of these, one of each; `f` is given each row's number too.
    pub(crate) fn map(&self, mut f: impl FnMut(usize, &[F]) -> Vec<F>) -> Self {
        let values: Vec<F> = self.iter().enumerate().flat_map(|(n, row)| f(n, row)).collect();
        Self::new(values.len() / self.len(), values)
    }

    /// The first `len` rows, zeros where there are fewer.
    pub(crate) fn resized(&self, len: usize) -> Self {
        let mut values = self.values.clone();
        values.resize(len * self.width, F::ZERO);
        Self::new(self.width, values)
    }
}

#[cfg(test)]
mod tests {
    use super::Rows;

    #[test]
    fn resizing_cuts_or_pads_with_zeros() {
        let rows = Rows::new(2, vec![1.0f32, 2.0, 3.0, 4.0]);
        assert_eq!(rows.resized(1).values(), [1.0, 2.0]);
        assert_eq!(rows.resized(3).values(), [1.0, 2.0, 3.0, 4.0, 0.0, 0.0]);
    }
}
