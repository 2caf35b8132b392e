//! The model of a checkpoint, ready to be written in another form.

use std::collections::HashMap;
use std::fs;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use dsv41::RowSource;
use dsv41_config::{Config, TensorSpec};
use dsv41_gguf::{Metadata, ModelError, TensorStore};
use dsv41_quant::GgmlType;
use dsv41_text::Vocabulary;
use dsv41_train::{
    run::{Checkpoints, RunFiles},
    tables::{EngramTables, TableStorage},
};
use safetensors::{Dtype, SafeTensors};

use super::plan::{ModelPlan, RunPlan, Tuning};
use super::source::TrainingModel;
use crate::model_source::{bytes_vocabulary, folded_token_map, open_gguf, vocabulary_metadata};

/// The trainer's file of weights.
const WEIGHTS: &str = "weights.safetensors";

/// The weights of a checkpoint of which every one was trained, held in memory.
#[derive(Debug)]
pub struct TrainedModel {
    config: Config,
    token_map: Option<Vec<u32>>,
    /// What a file of it says besides: its vocabulary.
    metadata: Metadata,
    file: PathBuf,
    bytes: Vec<u8>,
    /// Where each tensor's values are.
    places: HashMap<String, Range<usize>>,
    /// Tensors that were trained by rows.
    tables: HashMap<String, Arc<dyn RowSource>>,
    tensors: Vec<TensorSpec>,
}

/// Whether a folder is a run or one of its checkpoints.
pub fn is_run_or_checkpoint(folder: &Path) -> bool {
    RunFiles::new(folder).checkpoints_folder().is_dir() || folder.join(WEIGHTS).is_file()
}

impl TrainedModel {
    /// Opens a checkpoint, or the best one of a run.
    ///
    /// # Errors
    /// When there is none, it trained adapters alone, or its files are not those of the run's model.
    pub fn open(folder: &Path) -> Result<Self> {
        let checkpoints = RunFiles::new(folder).checkpoints_folder();
        let (run, checkpoint) = if checkpoints.is_dir() {
            let (found, _) = Checkpoints::open(&checkpoints, NonZeroUsize::MIN)?;
            let best = found.best().with_context(|| format!("{}: no checkpoint is whole", checkpoints.display()))?;
            (folder, best.path().to_owned())
        } else {
            let run = folder.parent().and_then(Path::parent);
            (run.with_context(|| format!("{}: is in no run", folder.display()))?, folder.to_owned())
        };
        let plan: RunPlan = RunFiles::new(run).config()?;
        let tables = trained_tables(&plan, &checkpoint)?;
        let (config, token_map, metadata) = match plan.model {
            ModelPlan::Scratch { config, tokenizer } => {
                let token_map = (!config.engram_layer_ids.is_empty()).then(|| folded_token_map(&config));
                let vocabulary = match tokenizer {
                    Some(file) => Some(Vocabulary::from_tokenizer_json(&file)?),
                    None if config.vocab_size == 256 => Some(bytes_vocabulary()),
                    None => None,
                };
                (*config, token_map, vocabulary.as_ref().map(vocabulary_metadata).unwrap_or_default())
            }
            ModelPlan::File { path, tuning: Tuning::Full, .. } => {
                let (file, _) = open_gguf(&path, None)?;
                (file.config().clone(), file.token_map().map(<[u32]>::to_vec), file.metadata().clone())
            }
            ModelPlan::File { path, tuning: Tuning::Adapters(_), .. } => bail!(
                "{}: the run trained adapters of {}: merge them with `export --model {} --adapter {}`",
                run.display(),
                path.display(),
                path.display(),
                checkpoint.join("adapter").display()
            ),
        };
        Self::read(config, token_map, metadata, tables, checkpoint.join(WEIGHTS))
    }

    fn read(
        config: Config,
        token_map: Option<Vec<u32>>,
        metadata: Metadata,
        tables: HashMap<String, Arc<dyn RowSource>>,
        file: PathBuf,
    ) -> Result<Self> {
        let bytes = fs::read(&file).with_context(|| format!("{}: cannot be read", file.display()))?;
        let (header, described) = SafeTensors::read_metadata(&bytes).with_context(|| file.display().to_string())?;
        // The values come after the header's length and the header.
        let start = header + size_of::<u64>();
        let tensors = config.tensors();
        let stored = described.tensors();
        let mut places = HashMap::new();
        for tensor in tensors.iter().filter(|tensor| !tables.contains_key(&tensor.name)) {
            let name = &tensor.name;
            let found = stored.get(name).with_context(|| format!("{}: tensor `{name}` is missing", file.display()))?;
            ensure!(
                found.shape == tensor.shape && found.dtype == Dtype::F32,
                "{}: tensor `{name}` is {:?} of {:?}, expected {:?} of F32",
                file.display(),
                found.shape,
                found.dtype,
                tensor.shape
            );
            let (first, end) = found.data_offsets;
            places.insert(name.clone(), start + first..start + end);
        }
        Ok(Self { config, token_map, metadata, file, bytes, places, tables, tensors })
    }

    /// What a file of it says besides.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

/// The engram tables of a checkpoint that were trained by rows: as they were before the run, with the checkpoint's rows.
fn trained_tables(plan: &RunPlan, checkpoint: &Path) -> Result<HashMap<String, Arc<dyn RowSource>>> {
    if plan.trainer.engram_tables == TableStorage::Tensor {
        return Ok(HashMap::new());
    }
    let model = TrainingModel::open(&plan.model, plan.seed)?;
    let mut tables = EngramTables::in_memory(model.config(), model.weights(), &plan.trainer.optimiser.engram)?;
    tables.restore(checkpoint)?;
    Ok(tables.sources().collect())
}

impl TensorStore for TrainedModel {
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
        vec![&self.file]
    }

    fn rows(&self, name: &str, rows: Range<usize>, out: &mut [f32]) -> Result<(), ModelError> {
        let unknown = || ModelError::UnknownTensor { name: name.to_owned() };
        if let Some(table) = self.tables.get(name) {
            let rows: Vec<i64> = rows.map(|row| row as i64).collect();
            return table.read(&rows, out).map_err(|source| ModelError::Unreadable { tensor: name.to_owned(), source });
        }
        let place = self.places.get(name).cloned().ok_or_else(unknown)?;
        let columns = if rows.is_empty() { 0 } else { out.len() / rows.len() };
        let (values, _) = self.bytes[place].as_chunks::<4>();
        let values = values.get(rows.start * columns..rows.end * columns).ok_or_else(unknown)?;
        for (out, value) in out.iter_mut().zip(values) {
            *out = f32::from_le_bytes(*value);
        }
        Ok(())
    }

    fn packed_rows(&self, _: &str, _: Range<usize>, _: GgmlType) -> Result<Option<Bytes>, ModelError> {
        Ok(None)
    }
}
