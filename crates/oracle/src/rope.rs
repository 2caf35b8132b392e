//! Rotary positions: adjacent channels `(2i, 2i + 1)` are one complex number, turned by `position * freq_i`.

use std::f64::consts::TAU;

use dsv41_config::Config;

use crate::{Numerics, Real};

/// The frequencies of one kind of layer. Angles are f32 in every precision.
pub(crate) struct Rope {
    frequencies: Vec<f32>,
}

impl Rope {
    /// Window layers (`ratio` 0) turn plainly by `rope_theta`, compressed ones by `compress_rope_theta`, stretched by
    /// YaRN when `original_seq_len` is set.
    pub(crate) fn new(config: &Config, ratio: usize) -> Self {
        let width = config.rope_head_dim;
        let theta = if ratio > 0 { config.compress_rope_theta } else { config.rope_theta };
        let plain = (0..width / 2).map(|i| 1.0 / libm::powf(theta as f32, (2 * i) as f32 / width as f32));
        let frequencies = if ratio > 0 && config.original_seq_len > 0 {
            let ramp = YarnRamp::over(width, config.original_seq_len, theta, config.beta_fast, config.beta_slow);
            let factor = config.rope_factor as f32;
            plain.enumerate().map(|(i, freq)| freq / factor * ramp.at(i) + freq * (1.0 - ramp.at(i))).collect()
        } else {
            plain.collect()
        };
        Self { frequencies }
    }

    /// The turn of one position.
    pub(crate) fn rotation<F: Real>(&self, position: usize) -> Rotation<F> {
        let turns = self.frequencies.iter().map(|&freq| {
            let angle = position as f32 * freq;
            (F::from_f32(libm::cosf(angle)), F::from_f32(libm::sinf(angle)))
        });
        Rotation { turns: turns.collect() }
    }
}

/// YaRN's share of the stretched frequency: 0 for pairs that turn fast, 1 for slow ones, a ramp between.
struct YarnRamp {
    low: f64,
    high: f64,
}

impl YarnRamp {
    fn over(width: usize, context: usize, theta: f64, beta_fast: f64, beta_slow: f64) -> Self {
        let (width, context) = (width as f64, context as f64);
        // The pair that turns that many times over the context.
        let pair = |rotations: f64| width * libm::log(context / (rotations * TAU)) / (2.0 * libm::log(theta));
        Self { low: libm::floor(pair(beta_fast)).max(0.0), high: libm::ceil(pair(beta_slow)).min(width - 1.0) }
    }

    fn at(&self, pair: usize) -> f32 {
        let span = (self.high - self.low).max(1e-3);
        ((pair as f32 - self.low as f32) / span as f32).clamp(0.0, 1.0)
    }
}

/// The cosine and sine of each pair at one position.
pub(crate) struct Rotation<F> {
    turns: Vec<(F, F)>,
}

impl<F: Real> Rotation<F> {
    /// Turns the last channels of `vector`, rounding them to bf16.
    pub(crate) fn apply(&self, vector: &mut [F], numerics: Numerics) {
        let start = vector.len() - 2 * self.turns.len();
        for (pair, &(cos, sin)) in vector[start..].chunks_exact_mut(2).zip(&self.turns) {
            let (re, im) = (pair[0], pair[1]);
            pair[0] = numerics.bf16(re * cos - im * sin);
            pair[1] = numerics.bf16(re * sin + im * cos);
        }
    }

    /// The opposite turn.
    pub(crate) fn inverse(&self) -> Self {
        Self { turns: self.turns.iter().map(|&(cos, sin)| (cos, -sin)).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_channels_turn_in_adjacent_pairs() {
        let rotation = Rotation { turns: vec![(0.0f32, 1.0), (1.0, 0.0)] };
        let mut vector = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        rotation.apply(&mut vector, Numerics::Full);
        assert_eq!(vector, [1.0, 2.0, -4.0, 3.0, 5.0, 6.0], "a quarter turn of channels 2 and 3");
        rotation.inverse().apply(&mut vector, Numerics::Full);
        assert_eq!(vector, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    }

    #[test]
    fn yarn_stretches_the_slow_pairs() {
        // Eight channels, theta 100 and an original context of 64: the pair that turns four times over it is
        // 8 ln(64 / (4 tau)) / (2 ln 100) = 0.81, the one that turns half a time 8 ln(64 / (0.5 tau)) / (2 ln 100) = 2.6.
        let ramp = YarnRamp::over(8, 64, 100.0, 4.0, 0.5);
        assert_eq!((ramp.low, ramp.high), (0.0, 3.0));
        assert_eq!([0, 1, 2, 3].map(|pair| ramp.at(pair)), [0.0, 1.0 / 3.0, 2.0 / 3.0, 1.0]);
        // Bounds that fall together leave a step.
        let step = YarnRamp { low: 1.0, high: 1.0 };
        assert_eq!([0, 1, 2].map(|pair| step.at(pair)), [0.0, 0.0, 1.0]);
    }
}
