//! Rotary position embedding over adjacent pairs of channels.

mod op;

use burn::tensor::{DType, Tensor, TensorData, backend::Backend};
use dsv41_config::Config;
use dsv41_ops::{CustomOps, custom, into_primitive};

use self::op::Rotate;

/// The frequencies of one kind of layer. The release has two: plain for layers that see their window alone, and another
/// base with YaRN for compressed layers.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeFrequencies {
    frequencies: Vec<f32>,
}

impl RopeFrequencies {
    /// `theta^(-2i/r)` for each of the r/2 pairs, as window layers use it.
    pub fn plain(config: &Config) -> Self {
        Self { frequencies: base_frequencies(config.rope_theta, config.rope_head_dim) }
    }

    /// The frequencies of compressed layers: the low ones divided by `rope_factor`, the high ones kept, a ramp between
    /// (YaRN, without its attention factor).
    pub fn compressed(config: &Config) -> Self {
        let theta = config.compress_rope_theta;
        let width = config.rope_head_dim;
        let mut frequencies = base_frequencies(theta, width);
        if config.original_seq_len > 0 {
            let dimension = |rotations: f64| {
                let wavelengths = config.original_seq_len as f64 / (rotations * 2.0 * std::f64::consts::PI);
                width as f64 * libm::log(wavelengths) / (2.0 * libm::log(theta))
            };
            let low = dimension(config.beta_fast).floor().max(0.0);
            let high = dimension(config.beta_slow).ceil().min(width as f64 - 1.0);
            let span = (high - low).max(1e-3) as f32;
            let factor = config.rope_factor as f32;
            for (pair, frequency) in frequencies.iter_mut().enumerate() {
                let ramp = ((pair as f32 - low as f32) / span).clamp(0.0, 1.0);
                *frequency = *frequency / factor * ramp + *frequency * (1.0 - ramp);
            }
        }
        Self { frequencies }
    }

    /// Cosines and sines for `positions`. Angles are f32 whatever `dtype` is.
    pub fn rotation<B: Backend>(
        &self,
        positions: impl Iterator<Item = usize>,
        device: &B::Device,
        dtype: DType,
    ) -> Rotation<B> {
        let (mut cos, mut sin) = (Vec::new(), Vec::new());
        let mut rows = 0;
        for position in positions {
            rows += 1;
            for frequency in &self.frequencies {
                let angle = position as f32 * frequency;
                cos.push(libm::cosf(angle));
                sin.push(libm::sinf(angle));
            }
        }
        let table =
            |values| Tensor::from_data(TensorData::new(values, [rows, self.frequencies.len()]), (device, dtype));
        Rotation { cos: table(cos), sin: table(sin) }
    }
}

fn base_frequencies(theta: f64, width: usize) -> Vec<f32> {
    (0..width / 2).map(|pair| 1.0 / libm::powf(theta as f32, 2.0 * pair as f32 / width as f32)).collect()
}

/// The angles of a run of positions, ready to turn vectors by.
#[derive(Debug, Clone)]
pub struct Rotation<B: Backend> {
    cos: Tensor<B, 2>,
    sin: Tensor<B, 2>,
}

impl<B: CustomOps> Rotation<B> {
    /// Turns the last channels of each head: `[B, S, H, d]` to the same, one row of angles for each of S.
    pub fn apply(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        self.rotate(x, Rotate { back: false })
    }

    /// Turns back: [`Self::apply`] by the conjugate.
    pub fn apply_inverse(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        self.rotate(x, Rotate { back: true })
    }

    fn rotate(&self, x: Tensor<B, 4>, rotate: Rotate) -> Tensor<B, 4> {
        custom(rotate, [into_primitive(x), into_primitive(self.cos.clone()), into_primitive(self.sin.clone())])
    }
}
