//! Models and examples of a plan.

use std::path::Path;

use anyhow::{Result, ensure};
use dsv41::{ModelError, WeightSource};
use dsv41_config::Config;
use dsv41_text::Tokenizer;
use dsv41_train::{
    InitialWeights,
    adapters::{AdapterSettings, Base},
    data::{
        Batch, BatchStream, DataError, Example, Examples, JsonLines, LineOptions, TaskExamples,
        tasks::{self, Split},
    },
};

use super::plan::{DataPlan, ModelPlan, RunPlan, Tuning};
use crate::model_source::{ModelSource, SourceOptions, bytes_tokenizer, folded_token_map};

/// Tokens of a vocabulary that has one for each byte.
const BYTES: usize = 256;

/// A model before training.
pub(super) enum TrainingModel {
    /// From random weights.
    Scratch { config: Box<Config>, weights: InitialWeights, tokenizer: Option<Box<Tokenizer>> },
    /// From a file.
    File { source: Box<ModelSource>, tuning: Tuning },
}

/// Weights that are unpacked, whatever they are in their source.
pub(super) struct Unpacked<'a>(pub(super) &'a dyn WeightSource);

impl WeightSource for Unpacked<'_> {
    fn weight(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        self.0.weight(name, shape)
    }
}

impl TrainingModel {
    /// Opens what a plan names.
    pub(super) fn open(plan: &ModelPlan, seed: u64) -> Result<Self> {
        match plan {
            ModelPlan::Scratch { config, tokenizer } => {
                let tokenizer = match tokenizer {
                    Some(file) => Some(Box::new(Tokenizer::from_file(file)?)),
                    // Text is bytes where nothing else is said.
                    None if config.vocab_size >= BYTES => Some(Box::new(bytes_tokenizer()?)),
                    None => None,
                };
                Ok(Self::Scratch { weights: InitialWeights::new(config, seed), config: config.clone(), tokenizer })
            }
            ModelPlan::File { path, tokenizer, tuning } => {
                let options = SourceOptions { tokenizer: tokenizer.clone(), ..SourceOptions::default() };
                let source = Box::new(ModelSource::open(Some(path), &options)?);
                Ok(Self::File { source, tuning: tuning.clone() })
            }
        }
    }

    pub(super) fn config(&self) -> &Config {
        match self {
            Self::Scratch { config, .. } => config,
            Self::File { source, .. } => source.config(),
        }
    }

    pub(super) fn weights(&self) -> &dyn WeightSource {
        match self {
            Self::Scratch { weights, .. } => weights,
            Self::File { source, .. } => source.weights(),
        }
    }

    /// The adapters that are trained, and the model that they belong to.
    pub(super) fn adapters(&self) -> Result<Option<(AdapterSettings, Base)>> {
        match self {
            Self::File { source, tuning: Tuning::Adapters(settings) } => Ok(Some((settings.clone(), source.base()?))),
            _ => Ok(None),
        }
    }

    pub(super) fn tokenizer(&self) -> Option<&Tokenizer> {
        match self {
            Self::Scratch { tokenizer, .. } => tokenizer.as_deref(),
            Self::File { source, .. } => source.tokenizer(),
        }
    }

    pub(super) fn token_map(&self) -> Option<Vec<u32>> {
        match self {
            Self::Scratch { config, .. } if config.engram_layer_ids.is_empty() => None,
            Self::Scratch { config, .. } => Some(folded_token_map(config)),
            Self::File { source, .. } => source.token_map().map(<[u32]>::to_vec),
        }
    }

    pub(super) fn notes(&self) -> &[String] {
        match self {
            Self::Scratch { .. } => &[],
            Self::File { source, .. } => source.notes(),
        }
    }
}

/// Examples of a plan.
#[derive(Debug)]
pub(super) enum Source<'t> {
    Lines(Box<JsonLines<'t>>),
    Task(TaskExamples),
}

impl<'t> Source<'t> {
    /// What is trained on.
    pub(super) fn training(plan: &RunPlan, model: &'t TrainingModel) -> Result<Self> {
        match &plan.data {
            DataPlan::Lines { training, .. } => Self::lines(plan, model, training),
            DataPlan::Task { name, examples, .. } => Self::task(plan, model, name, Split::Training, *examples),
        }
    }

    /// What is evaluated on, where there is anything.
    pub(super) fn evaluation(plan: &RunPlan, model: &'t TrainingModel) -> Result<Option<Self>> {
        match &plan.data {
            DataPlan::Lines { evaluation: None, .. } | DataPlan::Task { held_out: 0, .. } => Ok(None),
            DataPlan::Lines { evaluation: Some(file), .. } => Self::lines(plan, model, file).map(Some),
            DataPlan::Task { name, held_out, .. } => Self::task(plan, model, name, Split::HeldOut, *held_out).map(Some),
        }
    }

    fn lines(plan: &RunPlan, model: &'t TrainingModel, file: &Path) -> Result<Self> {
        let DataPlan::Lines { long_lines, .. } = plan.data else {
            unreachable!("lines are read where the plan has lines");
        };
        let options = LineOptions {
            tokenizer: model.tokenizer(),
            vocabulary: model.config().vocab_size,
            limit: plan.layout.length,
            long_lines,
        };
        Ok(Self::Lines(Box::new(JsonLines::open(file, options)?)))
    }

    fn task(plan: &RunPlan, model: &TrainingModel, name: &str, split: Split, count: usize) -> Result<Self> {
        let task = tasks::by_name(name)?;
        let (longest, length) = (task.longest(), plan.layout.length);
        ensure!(longest <= length, "--length is {length}: examples of the task `{name}` have up to {longest} tokens");
        Ok(Self::Task(TaskExamples::new(task, split, plan.seed, count, model.config().vocab_size)?))
    }

    /// Whether whole answers are what counts, rather than single tokens.
    pub(super) fn has_answers(&self) -> bool {
        matches!(self, Self::Task(_))
    }

    /// One line on what there is, and what of it cannot be used.
    pub(super) fn describe(&self, what: &str) -> Vec<String> {
        match self {
            Self::Lines(lines) => {
                let mut told = vec![format!("{what}: {}", lines.contents())];
                if lines.rejections().count() > 0 {
                    told.push(format!("{what}: left out {}", lines.rejections()));
                }
                told
            }
            Self::Task(task) => vec![format!("{what}: {} examples of {}", task.count(), task.task().description())],
        }
    }
}

impl Examples for Source<'_> {
    fn count(&self) -> usize {
        match self {
            Self::Lines(lines) => lines.count(),
            Self::Task(task) => task.count(),
        }
    }

    fn example(&mut self, index: usize) -> Result<Example, DataError> {
        match self {
            Self::Lines(lines) => lines.example(index),
            Self::Task(task) => task.example(index),
        }
    }
}

/// One epoch's batches.
pub(super) fn epoch(plan: &RunPlan, source: Source<'_>) -> Result<Vec<Batch>> {
    let mut stream = BatchStream::new(source, plan.layout, plan.seed)?;
    let mut batches = Vec::new();
    while stream.epoch() == 0 {
        batches.extend(stream.next().transpose()?);
    }
    Ok(batches)
}
