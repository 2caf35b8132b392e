use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use bytes::Bytes;
use dsv41_config::{Config, TensorSpec};
use dsv41_gguf::{ModelError, TensorStore};
use dsv41_quant::GgmlType;

/// A model whose weights are made from their names as they are asked for, and held nowhere.
#[derive(Debug, Clone)]
pub struct SyntheticModel {
    config: Config,
    token_map: Option<Vec<u32>>,
    seed: String,
    tensors: Vec<TensorSpec>,
    /// Places in the tensors.
    places: HashMap<String, usize>,
}

impl SyntheticModel {
    /// The model of this shape. The same `seed` makes the same weights on every machine.
    pub fn new(config: Config, token_map: Option<Vec<u32>>, seed: String) -> Self {
        let tensors = config.tensors();
        let places = tensors.iter().enumerate().map(|(place, tensor)| (tensor.name.clone(), place)).collect();
        Self { config, token_map, seed, tensors, places }
    }
}

impl TensorStore for SyntheticModel {
    fn config(&self) -> &Config {
        &self.config
    }

    fn token_map(&self) -> Option<&[u32]> {
        self.token_map.as_deref()
    }

    fn tensors(&self) -> &[TensorSpec] {
        &self.tensors
    }

    fn files(&self) -> Vec<&Path> {
        Vec::new()
    }

    fn rows(&self, name: &str, rows: Range<usize>, out: &mut [f32]) -> Result<(), ModelError> {
        let place = self.places.get(name);
        let tensor = place.map(|&place| &self.tensors[place]);
        let tensor = tensor.ok_or_else(|| ModelError::UnknownTensor { name: name.to_owned() })?;
        let columns = tensor.shape.last().copied().unwrap_or(1);
        let first = rows.start as u64 * columns as u64;
        dsv41_golden::weight_part(&self.seed, name, &tensor.shape, first, out);
        Ok(())
    }

    fn packed_rows(&self, _: &str, _: Range<usize>, _: GgmlType) -> Result<Option<Bytes>, ModelError> {
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_the_same_however_they_are_asked_for() {
        let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/tiny.json");
        let model = SyntheticModel::new(Config::load(&config).unwrap(), None, "seed".to_owned());
        let mut whole = vec![0.0; 64 * 64];
        model.rows("embed.weight", 0..64, &mut whole).unwrap();
        let mut part = vec![0.0; 3 * 64];
        model.rows("embed.weight", 7..10, &mut part).unwrap();
        assert_eq!(part, whole[7 * 64..10 * 64]);
        assert!(whole.iter().all(|value| value.abs() <= 0.5));

        let error = model.rows("embed", 0..1, &mut []).unwrap_err().to_string();
        assert!(error.contains("`embed`"), "{error}");
    }
}
