//! Models with weights made from names, for tests.

use std::path::Path;

use burn::tensor::DType;
use dsv41::{LoadOptions, ModelBackend, ModelError, Transformer, WeightSource};
use dsv41_config::Config;

/// Weights that depend on nothing but their names: matrices of about unit gain, norms near one.
pub(crate) struct NamedWeights;

impl WeightSource for NamedWeights {
    fn weight(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        let mut state = name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        let near_one = name.ends_with("norm.weight")
            || name.ends_with("_scale")
            || name.ends_with("q_weight")
            || name.ends_with("k_weight");
        let (scale, offset) = match shape {
            _ if near_one => (0.05, 1.0),
            [_] => (0.1, 0.0),
            _ if name.contains("embed") => (0.5, 0.0),
            [.., columns] => ((*columns as f32).powf(-0.5), 0.0),
            [] => unreachable!("every weight has an axis"),
        };
        let next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * scale + offset
        };
        Ok(std::iter::repeat_with(next).take(shape.iter().product()).collect())
    }
}

/// A configuration of the repository.
pub(crate) fn config(name: &str) -> Config {
    Config::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs").join(name))
        .expect("a valid configuration")
}

/// The model of a configuration.
pub(crate) fn model<B: ModelBackend>(config: &Config, dtype: DType) -> Transformer<B> {
    Transformer::load(
        config,
        &NamedWeights,
        None,
        &B::Device::default(),
        LoadOptions { dtype, ..LoadOptions::default() },
    )
    .expect("weights for every name")
}

/// Token ids that repeat nothing obvious.
pub(crate) fn tokens(batch: usize, seq: usize, vocab: usize) -> Vec<Vec<u32>> {
    (0..batch).map(|row| (0..seq).map(|i| ((i * i * 7 + i * 3 + row * 11 + 1) % vocab) as u32).collect()).collect()
}
