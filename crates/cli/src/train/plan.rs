//! All that a run follows from, as its folder keeps it.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use dsv41_config::Config;
use dsv41_train::{
    adapters::AdapterSettings,
    data::{BatchLayout, LongLines},
    trainer::TrainerSettings,
};
use serde::{Deserialize, Serialize};

/// All that a run follows from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunPlan {
    /// What is trained.
    pub model: ModelPlan,
    /// On what.
    pub data: DataPlan,
    /// How examples lie in batches.
    pub layout: BatchLayout,
    /// Batches whose gradients make one step.
    pub accumulation: NonZeroUsize,
    /// Steps of the whole run.
    pub steps: u64,
    /// The order of examples, weights at the beginning, and all else that is drawn follows from it.
    pub seed: u64,
    /// How a step is made.
    pub trainer: TrainerSettings,
    /// Where to compute, as `--device` names it.
    pub device: String,
    /// What is told and kept, and how often.
    pub cadence: Cadence,
}

/// What is trained.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ModelPlan {
    /// A model of this shape, from random weights.
    Scratch {
        /// The shape.
        config: Box<Config>,
        /// What makes tokens of text.
        tokenizer: Option<PathBuf>,
    },
    /// The model of a GGUF file.
    File {
        /// The file, or any member of its shard set.
        path: PathBuf,
        /// What makes tokens of text, instead of the file's own vocabulary.
        tokenizer: Option<PathBuf>,
        /// What of it is trained.
        tuning: Tuning,
    },
}

/// What of a model is trained.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Tuning {
    /// Adapters, beside weights that stay packed and as they are.
    Adapters(AdapterSettings),
    /// Every weight, unpacked.
    Full,
}

/// What is trained on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum DataPlan {
    /// Lines of files.
    Lines {
        /// To train on.
        training: PathBuf,
        /// To evaluate on.
        evaluation: Option<PathBuf>,
        /// What happens to lines longer than a sequence.
        long_lines: LongLines,
    },
    /// A task that the program makes itself.
    Task {
        /// Its name.
        name: String,
        /// Different examples to train on.
        examples: usize,
        /// Examples to evaluate on.
        held_out: usize,
    },
}

/// What is told and kept, and how often.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cadence {
    /// Steps from one evaluation to the next.
    pub evaluate_every: u64,
    /// Steps from one checkpoint to the next.
    pub checkpoint_every: u64,
    /// Newest checkpoints kept, besides the best.
    pub keep: NonZeroUsize,
    /// Steps from one line of plain output to the next.
    pub log_every: u64,
}
