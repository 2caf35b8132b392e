//! Blocks of sub-blocks: integer scales and minima under two f16 units.

use std::ops::RangeInclusive;

use half::f16;

use super::samples::{Line, Samples};
use super::{Grid, free, unit};
use crate::format::super_block::{LEN, SuperBlock};

/// Where the search starts: the largest scale and minimum of a sub-block take up this part of their integers. Under
/// another unit the integers fall elsewhere, and with few of them that matters.
const STARTS: [f32; 2] = [1.0, 0.9];

/// Most times that the units are fitted anew.
const ROUNDS: usize = 3;

/// Offsets that lower values, as minima below zero ask for.
const LOWERING: RangeInclusive<f32> = 0.0..=f32::INFINITY;
/// Offsets that raise values.
const RAISING: RangeInclusive<f32> = f32::NEG_INFINITY..=0.0;
/// The offsets of formats without minima.
const NONE: RangeInclusive<f32> = 0.0..=0.0;

/// The block that comes nearest to some values.
pub(crate) fn nearest<const SUBS: usize>(grid: &Grid, values: &[f32; LEN], weights: &[f32; LEN]) -> SuperBlock<SUBS> {
    // All offsets of a block have the sign of its unit. Raising is for the blocks without a value at or below zero.
    let offsets = match grid.minima.high {
        0 => NONE,
        _ if values.iter().all(|&value| value > 0.0) => RAISING,
        _ => LOWERING,
    };
    let samples = std::array::from_fn(|sub| {
        let range = sub * SuperBlock::<SUBS>::SUB_LEN..(sub + 1) * SuperBlock::<SUBS>::SUB_LEN;
        Samples::new(&values[range.clone()], &weights[range])
    });
    let search = Search { grid, samples };
    let free = samples.map(|samples| free::line(&samples, grid.codes, &offsets));

    let starts = STARTS.map(|part| search.descend(Units::reaching(grid, &free, part), free));
    let [first, others @ ..] = starts;
    let best = others.into_iter().fold(first, |best, other| if other.error < best.error { other } else { best });
    search.block(&best)
}

/// The f16 units of a block.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Units {
    scale: f16,
    minimum: f16,
}

/// Integers for the sub-blocks under some units.
struct Choice<const SUBS: usize> {
    units: Units,
    scales: [i8; SUBS],
    minima: [i8; SUBS],
    error: f32,
}

struct Search<'a, const SUBS: usize> {
    grid: &'a Grid,
    samples: [Samples<'a>; SUBS],
}

impl Units {
    /// The units under which the extreme step and offset of `lines` take up a part of their integers.
    fn reaching(grid: &Grid, lines: &[Line], part: f32) -> Self {
        let extreme = |of: fn(&Line) -> f32| {
            lines
                .iter()
                .map(of)
                .fold(0.0, |extreme: f32, value| if value.abs() > extreme.abs() { value } else { extreme })
        };
        let minimum = match grid.minima.high {
            0 => f16::ZERO,
            _ => unit::reaching(extreme(|line| line.offset) / (grid.minima.far() * part)),
        };
        Self { scale: unit::reaching(extreme(|line| line.step) / (grid.scales.far() * part)), minimum }
    }
}

impl<const SUBS: usize> Choice<SUBS> {
    fn line(&self, sub: usize) -> Line {
        Line {
            step: self.units.scale.to_f32() * f32::from(self.scales[sub]),
            offset: self.units.minimum.to_f32() * f32::from(self.minima[sub]),
        }
    }
}

impl<const SUBS: usize> Search<'_, SUBS> {
    /// Chooses integers under the units, then units for the integers, and so on while that lowers the error.
    fn descend(&self, units: Units, lines: [Line; SUBS]) -> Choice<SUBS> {
        let mut best = self.choose(units, lines);
        for _ in 0..ROUNDS {
            let units = self.refit(&best);
            if units == best.units {
                break;
            }
            let next = self.choose(units, std::array::from_fn(|sub| best.line(sub)));
            if next.error >= best.error {
                break;
            }
            best = next;
        }
        best
    }

    /// The best integers next to those that `lines` have under the units.
    fn choose(&self, units: Units, lines: [Line; SUBS]) -> Choice<SUBS> {
        let Grid { codes, scales, minima } = *self.grid;
        let mut choice = Choice { units, scales: [0; SUBS], minima: [0; SUBS], error: 0.0 };
        let (scale_unit, minimum_unit) = (units.scale.to_f32(), units.minimum.to_f32());
        for (sub, (samples, line)) in self.samples.iter().zip(lines).enumerate() {
            let mut least = f32::INFINITY;
            for scale in scales.around(scales.nearest(line.step / scale_unit)) {
                for minimum in minima.around(minima.nearest(line.offset / minimum_unit)) {
                    let line = Line { step: scale_unit * f32::from(scale), offset: minimum_unit * f32::from(minimum) };
                    let error = samples.error(line, codes);
                    if error < least {
                        (choice.scales[sub], choice.minima[sub], least) = (scale, minimum, error);
                    }
                }
            }
            choice.error += least;
        }
        choice
    }

    /// The units with the smallest error for the choice's integers and the codes nearest under it.
    fn refit(&self, choice: &Choice<SUBS>) -> Units {
        // With a = scale * code and b = minimum, weighted sums of a a, a b, b b, a x and b x.
        let (mut aa, mut ab, mut bb, mut ax, mut bx) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for (sub, samples) in self.samples.iter().enumerate() {
            let moments = samples.moments(choice.line(sub), self.grid.codes);
            let (scale, minimum) = (f32::from(choice.scales[sub]), f32::from(choice.minima[sub]));
            aa += scale * scale * moments.qq;
            ab += scale * minimum * moments.q;
            bb += minimum * minimum * moments.one;
            ax += scale * moments.qx;
            bx += minimum * moments.x;
        }
        let determinant = aa * bb - ab * ab;
        let (scale, minimum) = if determinant > 0.0 {
            ((ax * bb - ab * bx) / determinant, (ax * ab - aa * bx) / determinant)
        } else if aa > 0.0 {
            (ax / aa, choice.units.minimum.to_f32())
        } else {
            (choice.units.scale.to_f32(), if bb > 0.0 { -bx / bb } else { 0.0 })
        };
        Units { scale: unit::nearest(scale), minimum: unit::nearest(minimum) }
    }

    /// The choice with its nearest codes.
    fn block(&self, choice: &Choice<SUBS>) -> SuperBlock<SUBS> {
        let mut codes = [0; LEN];
        for (sub, codes) in codes.chunks_exact_mut(SuperBlock::<SUBS>::SUB_LEN).enumerate() {
            self.samples[sub].codes(choice.line(sub), self.grid.codes, codes);
        }
        let Choice { units: Units { scale, minimum }, scales, minima, .. } = *choice;
        SuperBlock { scale, minimum, scales, minima, codes }
    }
}
