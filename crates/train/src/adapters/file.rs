//! An adapter's folder: its configuration and its tensors.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use dsv41_config::Config;
use indexmap::IndexMap;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

use super::{
    AdapterError, AdapterSettings, Base, Factors,
    config_file::{self, CONFIG},
    targets::{self, Target},
};

/// The file of tensors in an adapter's folder.
pub(super) const TENSORS: &str = "adapter_model.safetensors";

/// A saved adapter, in memory on the host.
#[derive(Debug, Clone)]
pub struct AdapterFile {
    folder: PathBuf,
    settings: AdapterSettings,
    base: Base,
    /// Values by tensor name.
    tensors: IndexMap<String, Stored>,
}

/// A tensor as the file has it.
#[derive(Debug, Clone)]
struct Stored {
    shape: Vec<usize>,
    values: Vec<f32>,
}

impl AdapterFile {
    /// Reads an adapter's folder. Whether it fits a model is what [`Self::factors`] checks.
    ///
    /// # Errors
    /// When a file cannot be read or is not what it should be; the error names the file.
    pub fn open(folder: &Path) -> Result<Self, AdapterError> {
        let (settings, base) = config_file::read(&folder.join(CONFIG))?;
        let file = folder.join(TENSORS);
        let bytes = fs::read(&file).map_err(AdapterError::io(&file, "read"))?;
        let parsed = SafeTensors::deserialize(&bytes);
        let parsed = parsed.map_err(|source| AdapterError::Safetensors { file: file.clone(), source })?;
        let mut tensors = IndexMap::new();
        for (tensor, view) in parsed.iter() {
            let values = values(&view).ok_or_else(|| AdapterError::Dtype {
                file: file.clone(),
                tensor: tensor.to_owned(),
                found: format!("{:?}", view.dtype()),
            })?;
            tensors.insert(tensor.to_owned(), Stored { shape: view.shape().to_vec(), values });
        }
        Ok(Self { folder: folder.to_owned(), settings, base, tensors })
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What the adapter was made with.
    pub fn settings(&self) -> &AdapterSettings {
        &self.settings
    }

    /// The model that it was made for.
    pub fn base(&self) -> &Base {
        &self.base
    }

    /// What the adapter adds to each linear layer of a model, before its scale, by the layer's name.
    ///
    /// # Errors
    /// When `base` is another model than the adapter's, and when the file does not have exactly the two tensors of every
    /// linear layer that its targets match, in the shapes that belong to them.
    pub fn factors(&self, config: &Config, base: &Base) -> Result<IndexMap<String, Factors<'_>>, AdapterError> {
        self.check_base(base)?;
        let targets = targets::chosen(config, &self.settings.targets)?;
        let factors = targets.iter().map(|target| Ok((target.linear.clone(), self.factors_of(target)?)));
        let factors: IndexMap<String, Factors<'_>> = factors.collect::<Result<_, AdapterError>>()?;
        let known: HashSet<String> = factors.keys().flat_map(|linear| tensor_names(linear)).collect();
        if let Some(tensor) = self.tensors.keys().find(|tensor| !known.contains(*tensor)) {
            let (file, tensor) = (self.folder.join(TENSORS), tensor.clone());
            return Err(AdapterError::ForeignTensor { file, tensor, expected: factors.len() });
        }
        Ok(factors)
    }

    fn check_base(&self, base: &Base) -> Result<(), AdapterError> {
        if self.base.fingerprint == base.fingerprint {
            return Ok(());
        }
        Err(AdapterError::OtherBase {
            file: self.folder.join(CONFIG),
            made_for: self.base.name.clone(),
            found: self.base.fingerprint.clone(),
            expected: base.fingerprint.clone(),
            model: base.name.clone(),
        })
    }

    fn factors_of(&self, target: &Target) -> Result<Factors<'_>, AdapterError> {
        let (rank, [outputs, inputs]) = (self.settings.rank, target.shape);
        let [a, b] = tensor_names(&target.linear);
        Ok(Factors {
            a: self.values(a, [rank, inputs])?,
            b: self.values(b, [outputs, rank])?,
            rank,
            shape: target.shape,
        })
    }

    fn values(&self, tensor: String, expected: [usize; 2]) -> Result<Cow<'_, [f32]>, AdapterError> {
        let file = || self.folder.join(TENSORS);
        match self.tensors.get(&tensor) {
            None => Err(AdapterError::MissingTensor { file: file(), tensor, expected }),
            Some(Stored { shape, .. }) if *shape != expected => {
                Err(AdapterError::Shape { file: file(), tensor, found: shape.clone(), expected })
            }
            Some(Stored { values, .. }) => Ok(values.into()),
        }
    }
}

/// PEFT's names of a linear layer's two matrices, `[rank, in]` and `[out, rank]`.
pub(super) fn tensor_names(linear: &str) -> [String; 2] {
    ["lora_A", "lora_B"].map(|factor| format!("base_model.model.{linear}.{factor}.weight"))
}

fn values(view: &TensorView<'_>) -> Option<Vec<f32>> {
    let (values, _) = view.data().as_chunks();
    (view.dtype() == Dtype::F32).then(|| values.iter().copied().map(f32::from_le_bytes).collect())
}
