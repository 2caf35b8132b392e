//! Blocks under one f16 scale.

use half::f16;

use super::samples::{Line, Samples};
use super::{Span, free, unit};

/// The scale and the codes that come nearest to some values.
pub(crate) fn nearest<const LEN: usize>(codes: Span, values: &[f32; LEN], weights: &[f32; LEN]) -> (f16, [i8; LEN]) {
    let samples = Samples::new(values, weights);
    let line = |scale: f16| Line { step: scale.to_f32(), offset: 0.0 };
    let error = |scale: f16| samples.error(line(scale), codes);
    let mut scale = unit::nearest(free::line(&samples, codes, &(0.0..=0.0)).step);
    for other in [unit::smaller(scale), unit::larger(scale)] {
        if error(other) < error(scale) {
            scale = other;
        }
    }
    let mut chosen = [0; LEN];
    samples.codes(line(scale), codes, &mut chosen);
    (scale, chosen)
}
