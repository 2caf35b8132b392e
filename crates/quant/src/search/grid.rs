/// Integers that a field can hold, ends included.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    pub(super) low: i8,
    pub(super) high: i8,
}

impl Span {
    /// Zero alone.
    pub(crate) const ZERO: Self = Self::new(0, 0);

    /// From `low`, at most zero, to `high`, at least zero.
    pub(crate) const fn new(low: i8, high: i8) -> Self {
        Self { low, high }
    }

    /// The end farther from zero.
    pub(super) fn far(self) -> f32 {
        f32::from(if self.low.unsigned_abs() > self.high.unsigned_abs() { self.low } else { self.high })
    }

    /// The integer nearest to `value`; zero for NaN.
    pub(super) fn nearest(self, value: f32) -> i8 {
        (value.round_ties_even() as i8).clamp(self.low, self.high)
    }

    /// The integers next to `center` and itself.
    pub(super) fn around(self, center: i8) -> impl Iterator<Item = i8> {
        center.saturating_sub(1).max(self.low)..=center.saturating_add(1).min(self.high)
    }
}

/// The integers of a format with sub-blocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grid {
    /// Codes of values.
    pub(crate) codes: Span,
    /// Scales of sub-blocks.
    pub(crate) scales: Span,
    /// Minima of sub-blocks; [`Span::ZERO`] in formats without.
    pub(crate) minima: Span,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_stay_within_their_span() {
        let span = Span::new(-128, 127);
        assert_eq!(span.around(-128).collect::<Vec<_>>(), [-128, -127]);
        assert_eq!(span.around(127).collect::<Vec<_>>(), [126, 127]);
        assert_eq!(Span::ZERO.around(0).collect::<Vec<_>>(), [0]);
        assert_eq!([1e9, -1e9, 2.5, f32::NAN].map(|value| Span::new(-4, 3).nearest(value)), [3, -4, 2, 0]);
        assert_eq!((Span::new(-4, 3).far(), Span::new(0, 15).far()), (-4.0, 15.0));
    }
}
