//! The best line of some values, before it is rounded to what a format can store.

use std::ops::RangeInclusive;

use super::Span;
use super::samples::{Line, Moments, Samples};

/// By how many codes a start puts the extreme value beyond the last code, or short of it: the line that is best for all
/// values seldom ends at the extreme one.
const OVERSHOOTS: [f32; 4] = [-0.8, -0.4, 0.0, 0.4];

/// The line with the smallest error among those whose offset is in `offsets`, a range that starts or ends at zero.
pub(super) fn line(samples: &Samples, codes: Span, offsets: &RangeInclusive<f32>) -> Line {
    let lowest = samples.values().iter().copied().fold(f32::INFINITY, f32::min);
    let highest = samples.values().iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let offset = (-lowest).clamp(*offsets.start(), *offsets.end());
    let (lowest, highest) = (lowest + offset, highest + offset);
    let extreme = if -lowest > highest { lowest } else { highest };
    let mut best = Line { step: 0.0, offset };
    if extreme == 0.0 {
        return best;
    }
    let mut least = f32::INFINITY;
    for end in [codes.low, codes.high].into_iter().filter(|&end| end != 0).map(f32::from) {
        for overshoot in OVERSHOOTS {
            let start = Line { step: extreme / (end + overshoot * end.signum()), offset };
            let line = samples.moments(start, codes).line(offsets);
            let error = samples.error(line, codes);
            if error < least {
                (best, least) = (line, error);
            }
        }
    }
    best
}

impl Moments {
    /// The line with the smallest error for the codes that these are the sums of.
    fn line(&self, offsets: &RangeInclusive<f32>) -> Line {
        let determinant = self.qq * self.one - self.q * self.q;
        if determinant > 0.0 {
            let step = (self.qx * self.one - self.q * self.x) / determinant;
            let offset = (self.q * step - self.x) / self.one;
            if offset != 0.0 && offsets.contains(&offset) {
                return Line { step, offset };
            }
        }
        Line { step: if self.qq > 0.0 { self.qx / self.qq } else { 0.0 }, offset: 0.0 }
    }
}
