//! What the tests of this module read and make.

use std::ops::Range;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use dsv41_config::{Config, Storage, TensorSpec};
use dsv41_quant::GgmlType;

use super::{Description, Layout, ModelError, TensorStore, TypePlan, describe, metadata_of};
use crate::Metadata;

/// A file of the repository.
pub(crate) fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// A configuration of `configs/`, loaded and validated.
pub(crate) fn released(name: &str) -> Config {
    Config::load(&repository(&format!("configs/{name}.json"))).unwrap()
}

/// A file of the folder that the environment variable `DSV41_SHARED` names; without it the test says that it is skipped.
pub(crate) fn shared(path: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("DSV41_SHARED");
    if folder.is_none() {
        eprintln!("skipped: DSV41_SHARED names no folder with {path}");
    }
    Some(Path::new(&folder?).join(path))
}

/// What a GGUF file says of a configuration: the text model, computed in full precision.
pub(crate) fn as_text(config: Config) -> Config {
    Config {
        dtype: Storage::Bf16,
        expert_dtype: None,
        n_mtp_layers: 0,
        dspark_block_size: 0,
        vision_n_layers: 0,
        image_token_id: None,
        ..config
    }
}

/// A token map that fits the configuration.
pub(crate) fn token_map(config: &Config) -> Vec<u32> {
    (0..config.vocab_size).map(|token| (token % config.engram_compressed_vocab_size) as u32).collect()
}

/// A file without its data.
#[derive(Clone)]
pub(crate) struct Header {
    pub(crate) metadata: Metadata,
    pub(crate) shapes: Vec<(String, Vec<usize>)>,
}

impl Header {
    /// What a file of this configuration holds.
    pub(crate) fn of(config: &Config) -> Self {
        let metadata = metadata_of(config, Some(&token_map(config))).unwrap();
        let layout = Layout::new(&config.tensors(), &TypePlan::PUBLISHED).unwrap();
        Self { metadata, shapes: layout.tensors.into_iter().map(|tensor| (tensor.name, tensor.shape)).collect() }
    }

    pub(crate) fn describe(&self) -> Result<Description, ModelError> {
        self.describe_with(None)
    }

    pub(crate) fn describe_with(&self, token_map: Option<Vec<u32>>) -> Result<Description, ModelError> {
        describe(&self.metadata, self.shapes.iter().map(|(name, shape)| (name.as_str(), shape.as_slice())), token_map)
    }

    /// The same file without the keys whose names contain `part`.
    pub(crate) fn without(&self, part: &str) -> Self {
        let mut metadata = Metadata::new();
        for (key, value) in self.metadata.iter().filter(|(key, _)| !key.contains(part)) {
            metadata.insert(key, value.clone());
        }
        Self { metadata, shapes: self.shapes.clone() }
    }

    /// The shape of a tensor.
    pub(crate) fn shape(&mut self, tensor: &str) -> &mut Vec<usize> {
        &mut self.shapes.iter_mut().find(|(name, _)| name == tensor).unwrap().1
    }
}

/// A model whose values come from their names and places: from -1 to 1, all different.
pub(crate) struct Synthetic {
    pub(crate) token_map: Option<Vec<u32>>,
    /// Tensor, row and column of a value that is not a number.
    pub(crate) poison: Option<(&'static str, usize, usize)>,
    config: Config,
    tensors: Vec<TensorSpec>,
}

impl Synthetic {
    pub(crate) fn new(config: Config) -> Self {
        Self { token_map: Some(token_map(&config)), poison: None, tensors: config.tensors(), config }
    }
}

impl TensorStore for Synthetic {
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
        let salt = name.bytes().fold(7_u64, |salt, byte| salt.wrapping_mul(31).wrapping_add(byte.into()));
        let columns = out.len() / rows.len();
        for (place, out) in out.iter_mut().enumerate() {
            let place = (rows.start * columns + place) as u64;
            let mixed = (place ^ salt.rotate_left(20)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            *out = (mixed >> 40) as f32 / (1 << 23) as f32 - 1.0;
        }
        match self.poison {
            Some((tensor, row, column)) if tensor == name && rows.contains(&row) => {
                out[(row - rows.start) * columns + column] = f32::NAN;
            }
            _ => {}
        }
        Ok(())
    }

    fn packed_rows(&self, _: &str, _: Range<usize>, _: GgmlType) -> Result<Option<Bytes>, ModelError> {
        Ok(None)
    }
}
