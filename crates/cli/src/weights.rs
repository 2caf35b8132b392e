//! Weights made from names: what a model runs on where there is no checkpoint.

use dsv41::{ModelError, WeightSource};
use dsv41_config::{Config, StoredDtype, TensorSpec};
use dsv41_golden::{Dtype, GoldenError, StoredTensor, WeightMeta, WeightSet};
use indexmap::IndexMap;

/// A golden file's weights, as the model asks for them.
#[derive(Debug, Clone)]
pub struct GoldenWeights(pub WeightSet);

impl GoldenWeights {
    /// All weights of `config`, made under `salt` from their names as golden files do.
    ///
    /// # Errors
    /// As [`recipes`].
    pub fn from_names(salt: &str, config: &Config) -> Result<Self, GoldenError> {
        WeightSet::generate(salt, &recipes(salt, config)?).map(Self)
    }
}

impl WeightSource for GoldenWeights {
    fn weight(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        let refused = |reason| ModelError::Weight { name: name.to_owned(), reason };
        let weight = self.0.get(name).map_err(|_| refused("the golden file has no recipe for it".to_owned()))?;
        if weight.shape != shape {
            let found = &weight.shape;
            return Err(refused(format!("shape is {found:?}, expected {shape:?} by the configuration")));
        }
        Ok(weight.values.clone())
    }
}

/// The recipes of every stored tensor of `config`, in the order of the reference's state dictionary, with their
/// checksums under `salt`: the `weights_meta` of a golden file.
///
/// # Errors
/// [`GoldenError::Weight`] for a tensor of more than [`dsv41_golden::filler::MAX_ELEMENTS`].
pub fn recipes(salt: &str, config: &Config) -> Result<IndexMap<String, WeightMeta>, GoldenError> {
    let stored = config.tensors().into_iter().flat_map(stored_tensors);
    dsv41_golden::recipes(salt, stored)
}

fn stored_tensors(tensor: TensorSpec) -> impl Iterator<Item = StoredTensor> {
    tensor.stored().into_iter().map(|stored| StoredTensor {
        name: stored.name,
        shape: stored.shape,
        dtype: match stored.dtype {
            StoredDtype::F32 => Dtype::Float32,
            StoredDtype::Bf16 => Dtype::Bfloat16,
            StoredDtype::F8E4m3 => Dtype::Float8E4m3fn,
            StoredDtype::F8E8m0 => Dtype::Float8E8m0fnu,
            StoredDtype::F4E2m1x2 => Dtype::Float4E2m1fnX2,
        },
    })
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use dsv41_golden::Golden;

    use super::*;

    fn repository(path: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
    }

    fn golden(name: &str) -> (Golden, Config) {
        let golden = Golden::read(&repository(&format!("goldens/{name}.json"))).unwrap();
        let fixture = serde_json::Value::Object(golden.fixture.config.clone());
        (golden, Config::from_value(name, &fixture).unwrap())
    }

    /// bf16 and f32 matrices, then fp8 and fp4 ones with their scales.
    #[test]
    fn recipes_are_those_of_the_goldens() {
        for name in ["tiny", "fp8"] {
            let (golden, config) = golden(name);
            let made = recipes(&golden.fixture.salt, &config).unwrap();
            assert_eq!(made.len(), golden.weights.len(), "{name}");
            for ((made_name, made), (golden_name, meta)) in made.iter().zip(&golden.weights) {
                assert_eq!(made_name, golden_name, "{name}");
                assert!((made.ck - meta.ck).abs() <= 1e-9 * meta.ck.abs(), "{name}: {made_name}");
                let unchecked = |meta: &WeightMeta| WeightMeta { ck: 0.0, ..meta.clone() };
                assert_eq!(unchecked(made), unchecked(meta), "{name}: {made_name}");
            }
        }
    }

    #[test]
    fn every_weight_of_the_configuration_is_there_in_its_logical_shape() {
        let (golden, config) = golden("fp8");
        let weights = GoldenWeights::from_names(&golden.fixture.salt, &config).unwrap();
        for tensor in config.tensors() {
            let values = weights.weight(&tensor.name, &tensor.shape).unwrap();
            assert_eq!(Some(values.len() as u64), tensor.elements());
        }
    }

    #[test]
    fn what_the_model_asks_for_in_vain_is_named() {
        let config = Config::load(&repository("configs/tiny.json")).unwrap();
        let weights = GoldenWeights::from_names("", &config).unwrap();
        let missing = weights.weight("layers.9.attn.attn_sink", &[4]).unwrap_err();
        assert_eq!(missing.to_string(), "weight `layers.9.attn.attn_sink`: the golden file has no recipe for it");
        let misshapen = weights.weight("norm.weight", &[8, 8]).unwrap_err();
        assert_eq!(misshapen.to_string(), "weight `norm.weight`: shape is [64], expected [8, 8] by the configuration");
    }

    #[test]
    fn a_model_too_large_to_make_is_refused_before_any_memory_is_asked_for() {
        let config = Config::load(&repository("configs/v4.1-flash.json")).unwrap();
        let error = recipes("", &config).unwrap_err();
        assert!(error.to_string().starts_with("weight `embed.weight`: "), "{error}");
    }
}
