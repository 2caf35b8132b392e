//! The nearest codes under a line, and the best line through codes.

use super::Span;

/// Sums are kept in as many parts, which vectorise, and added at the end.
const LANES: usize = 8;

/// Where codes lie: at `step * code - offset`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Line {
    pub(super) step: f32,
    pub(super) offset: f32,
}

/// Values with their weights, a multiple of [`LANES`] in number.
#[derive(Clone, Copy)]
pub(super) struct Samples<'a> {
    values: &'a [[f32; LANES]],
    weights: &'a [[f32; LANES]],
}

/// Weighted sums over values `x` and their codes `q`: all that the best line through the codes depends on.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Moments {
    /// Sum of the weights.
    pub(super) one: f32,
    /// Sum of x.
    pub(super) x: f32,
    /// Sum of q.
    pub(super) q: f32,
    /// Sum of q x.
    pub(super) qx: f32,
    /// Sum of q q.
    pub(super) qq: f32,
}

impl<'a> Samples<'a> {
    pub(super) fn new(values: &'a [f32], weights: &'a [f32]) -> Self {
        Self { values: values.as_chunks().0, weights: weights.as_chunks().0 }
    }

    pub(super) fn values(&self) -> &'a [f32] {
        self.values.as_flattened()
    }

    /// The error of the nearest codes.
    pub(super) fn error(&self, line: Line, codes: Span) -> f32 {
        let coder = Coder::new(line, codes);
        let [error] = self.sums(|value, weight| {
            let off = value - coder.value(coder.code(value));
            [weight * off * off]
        });
        error
    }

    /// The sums for the nearest codes.
    pub(super) fn moments(&self, line: Line, codes: Span) -> Moments {
        let coder = Coder::new(line, codes);
        let [one, x, q, qx, qq] = self.sums(|value, weight| {
            let code = coder.code(value);
            let weighted = weight * code;
            [weight, weight * value, weighted, weighted * value, weighted * code]
        });
        Moments { one, x, q, qx, qq }
    }

    /// Writes the nearest codes to `out`.
    pub(super) fn codes(&self, line: Line, codes: Span, out: &mut [i8]) {
        let coder = Coder::new(line, codes);
        for (out, &value) in out.iter_mut().zip(self.values()) {
            *out = coder.code(value) as i8;
        }
    }

    fn sums<const N: usize>(&self, term: impl Fn(f32, f32) -> [f32; N]) -> [f32; N] {
        let mut lanes = [[0.0; LANES]; N];
        for (values, weights) in self.values.iter().zip(self.weights) {
            for lane in 0..LANES {
                let terms = term(values[lane], weights[lane]);
                for (sum, term) in lanes.iter_mut().zip(terms) {
                    sum[lane] += term;
                }
            }
        }
        lanes.map(|lanes| lanes.iter().sum())
    }
}

/// Finds the nearest codes under one line.
struct Coder {
    line: Line,
    /// One by the step, or zero where that overflows: then any code is as good.
    inverse: f32,
    low: f32,
    high: f32,
}

impl Coder {
    fn new(line: Line, codes: Span) -> Self {
        let inverse = if line.step.abs() < f32::MIN_POSITIVE { 0.0 } else { 1.0 / line.step };
        Self { line, inverse, low: f32::from(codes.low), high: f32::from(codes.high) }
    }

    fn code(&self, value: f32) -> f32 {
        // Adding and taking away 1.5 * 2^23 rounds to the nearest integer, and vectorises on every machine.
        const ROUNDER: f32 = 12_582_912.0;
        let exact = (value + self.line.offset) * self.inverse;
        exact.clamp(self.low, self.high) + ROUNDER - ROUNDER
    }

    fn value(&self, code: f32) -> f32 {
        self.line.step * code - self.line.offset
    }
}
