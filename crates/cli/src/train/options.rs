//! What the commands are told, and the plan that follows from it.

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use clap::{Args, ValueEnum};
use dsv41_config::Config;
use dsv41_train::{
    adapters::AdapterSettings,
    data::{BatchLayout, LongLines, Manner, alignment, tasks},
    objective::ObjectiveSettings,
    optimiser::{DecayShape, OptimiserSettings, Schedule},
    tables::TableStorage,
    trainer::{Recompute, Rounding, TrainerSettings},
};

use super::plan::{Cadence, DataPlan, ModelPlan, RunPlan, Tuning};
use crate::device::DeviceName;

/// Examples that can wait for a batch with room for them.
const LOOK_AHEAD: usize = 64;
/// What a task makes if nothing else is said: more than any run uses.
const TASK_EXAMPLES: usize = 1_000_000;
/// Steps of a run from scratch.
const SCRATCH_STEPS: u64 = 1000;

/// How to train a model from random weights.
#[derive(Debug, Args)]
pub struct TrainArgs {
    /// The shape of the model.
    #[arg(long, value_name = "FILE", required_unless_present = "resume")]
    config: Option<PathBuf>,
    /// A task that the program makes itself: recall or arithmetic.
    #[arg(long, value_name = "NAME", required_unless_present_any = ["resume", "data"], conflicts_with = "data")]
    task: Option<String>,
    /// Different examples of the task to train on.
    #[arg(long, value_name = "N", default_value_t = TASK_EXAMPLES)]
    examples: usize,
    /// Examples of the task to evaluate on, which share nothing with those to train on.
    #[arg(long, value_name = "N", default_value_t = 256)]
    held_out: usize,
    #[command(flatten)]
    lines: LineArgs,
    /// Leave out parts of the graph, to see what they bring.
    #[arg(long, value_name = "PART", value_enum, value_delimiter = ',')]
    ablate: Vec<Part>,
    #[command(flatten)]
    run: RunArgs,
}

/// How to train a model that is there.
#[derive(Debug, Args)]
pub struct FinetuneArgs {
    /// A GGUF file, any member of a shard set, or a configuration, whose weights are then random.
    #[arg(long, value_name = "FILE", required_unless_present = "resume")]
    model: Option<PathBuf>,
    #[command(flatten)]
    lines: LineArgs,
    #[command(flatten)]
    tuning: TuningArgs,
    #[command(flatten)]
    run: RunArgs,
}

/// What of a file's model is trained: adapters, or everything.
#[derive(Debug, Args)]
struct TuningArgs {
    /// Train every weight, unpacked to f32, instead of adapters beside packed ones.
    #[arg(long, conflicts_with_all = ["rank", "alpha", "dropout", "target"])]
    full: bool,
    /// Rank of adapters.
    #[arg(long, value_name = "R")]
    rank: Option<usize>,
    /// What adapters add is multiplied by this over the rank; by default twice the rank.
    #[arg(long, value_name = "ALPHA", allow_negative_numbers = true)]
    alpha: Option<f64>,
    /// Share of adapters' inputs that each step leaves out.
    #[arg(long, value_name = "P", default_value_t = 0.0, allow_negative_numbers = true)]
    dropout: f64,
    /// Linear layers to adapt, by the end of their names with * for any characters of a part, such as attn.wq_b or
    /// experts.*.w1; by default attention's wq_a, wq_b, wkv, wo_b and the shared experts.
    #[arg(long, value_name = "PATTERN", value_delimiter = ',')]
    target: Vec<String>,
}

impl TuningArgs {
    fn tuning(&self, seed: u64) -> Tuning {
        if self.full {
            return Tuning::Full;
        }
        let usual = AdapterSettings::default();
        let rank = self.rank.unwrap_or(usual.rank);
        Tuning::Adapters(AdapterSettings {
            rank,
            alpha: self.alpha.unwrap_or(2.0 * rank as f64),
            dropout: self.dropout,
            targets: if self.target.is_empty() { usual.targets } else { self.target.clone() },
            seed,
        })
    }
}

/// Lines to train on.
#[derive(Debug, Args)]
struct LineArgs {
    /// A file with an example a line: {"text": ..}, {"ids": [..]}, or {"messages": [..]} of which the assistant's turns
    /// are learnt.
    #[arg(long, value_name = "FILE.jsonl")]
    data: Option<PathBuf>,
    /// Such a file to evaluate on.
    #[arg(long, value_name = "FILE.jsonl", requires = "data")]
    eval: Option<PathBuf>,
    /// What happens to lines with more tokens than a sequence.
    #[arg(long, value_enum, default_value_t = LongLinesArg::Error, requires = "data")]
    long_lines: LongLinesArg,
    /// A tokenizer.json, instead of the vocabulary of the model's file; without either, text is bytes.
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
}

/// How a run goes.
#[derive(Debug, Args)]
struct RunArgs {
    /// The run's folder, which must not hold anything yet.
    #[arg(long, value_name = "FOLDER", required_unless_present = "resume")]
    out: Option<PathBuf>,
    /// Go on with the run in this folder as it was begun.
    #[arg(long, value_name = "FOLDER", exclusive = true)]
    resume: Option<PathBuf>,

    /// Steps of the run.
    #[arg(long, value_name = "N", conflicts_with = "epochs", value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
    /// Times that every example is used.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    epochs: Option<u64>,
    /// Rows of a batch.
    #[arg(long, value_name = "N", default_value_t = 8)]
    batch: usize,
    /// Batches whose gradients make one step.
    #[arg(long, value_name = "N", default_value = "1")]
    accumulate: NonZeroUsize,
    /// Batches of a step that are computed at once, each on a thread of its own and in memory of its own: on a CPU small
    /// models go faster by it. Results do not depend on it.
    #[arg(long, value_name = "N", default_value = "1")]
    parallel: NonZeroUsize,
    /// Tokens of a sequence; by default the model's context, 512 at most.
    #[arg(long, value_name = "N")]
    length: Option<usize>,
    /// Give each example a row of its own, instead of packing several into one.
    #[arg(long)]
    no_packing: bool,

    /// What turns gradients into updates.
    #[arg(long, value_enum, default_value_t = OptimizerArg::Adamw)]
    optimizer: OptimizerArg,
    /// Peak learning rate of matrices, and of adapters; other groups keep their ratio to it.
    #[arg(long, value_name = "R", allow_negative_numbers = true)]
    rate: Option<f64>,
    /// Weight decay of matrices.
    #[arg(long, value_name = "D", allow_negative_numbers = true)]
    weight_decay: Option<f32>,
    /// Largest norm of all gradients together; 0 for no limit.
    #[arg(long, value_name = "NORM", default_value_t = 1.0, allow_negative_numbers = true)]
    clip: f64,
    /// How the rate goes on after the warm-up.
    #[arg(long, value_enum, default_value_t = ScheduleArg::Cosine)]
    schedule: ScheduleArg,
    /// Steps to the peak rate; by default a twentieth of the run.
    #[arg(long, value_name = "N")]
    warm_up: Option<u64>,
    /// Steps of the fall at the end of the stable-decay schedule; by default a fifth of the run.
    #[arg(long, value_name = "N")]
    decay: Option<u64>,
    /// What the rate falls to, as a share of its peak.
    #[arg(long, value_name = "SHARE", default_value_t = 0.1, allow_negative_numbers = true)]
    floor: f64,
    /// Settings of every group of parameters, as JSON with the keys of a run's config.json at trainer.optimiser, instead
    /// of the options above.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["optimizer", "rate", "weight_decay", "clip", "schedule", "warm_up", "decay", "floor"])]
    optimizer_settings: Option<PathBuf>,
    /// Weight of the loss that balances experts over each sequence.
    #[arg(long, value_name = "W", default_value_t = ObjectiveSettings::default().balance, allow_negative_numbers = true)]
    balance_loss: f64,
    /// Weight of the loss on the squares of the routers' normalisers.
    #[arg(long, value_name = "W", default_value_t = ObjectiveSettings::default().router_z, allow_negative_numbers = true)]
    router_z_loss: f64,
    /// Weight of the loss by which indexers learn what attention attends.
    #[arg(long, value_name = "W", default_value_t = ObjectiveSettings::default().indexer, allow_negative_numbers = true)]
    indexer_loss: f64,
    /// How far each step moves the routers' biases against the load of experts.
    #[arg(long, value_name = "RATE", default_value_t = ObjectiveSettings::default().router_bias_rate, allow_negative_numbers = true)]
    router_bias_rate: f64,
    /// Coefficient of the squared normaliser in the cross entropy.
    #[arg(long, value_name = "Z", default_value_t = 0.0, allow_negative_numbers = true)]
    z_loss: f64,
    /// Where the forward pass rounds: nowhere, or where the released kernels do, with gradients straight through.
    #[arg(long, value_enum, default_value_t = RoundingArg::None)]
    rounding: RoundingArg,
    /// Keep every result for the backward pass, or compute one layer at a time again, for less memory.
    #[arg(long, value_enum, default_value_t = RecomputeArg::None)]
    recompute: RecomputeArg,
    /// Where engram tables are trained: in tensors; or row by row on the host, touched rows in memory, or all in mapped
    /// files of the run's folder.
    #[arg(long, value_enum, default_value_t = TableArg::Tensor)]
    engram_tables: TableArg,

    /// Steps from one evaluation to the next; by default a tenth of the run.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    evaluate_every: Option<u64>,
    /// Steps from one checkpoint to the next; by default a tenth of the run.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    checkpoint_every: Option<u64>,
    /// Newest checkpoints kept, besides the best.
    #[arg(long, value_name = "N", default_value = "2")]
    keep: NonZeroUsize,
    /// Steps from one line of output to the next, where it is no terminal.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    log_every: u64,
    /// The order of examples and all random numbers follow from it.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Where to compute: ndarray, flex, wgpu[:N] or cuda[:N].
    #[arg(long, value_name = "DEVICE", default_value = "flex")]
    device: DeviceName,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum OptimizerArg {
    /// For everything.
    Adamw,
    /// For matrices, and AdamW for the rest.
    Muon,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ScheduleArg {
    /// Half a cosine down to the floor.
    Cosine,
    /// The peak to the end.
    Constant,
    /// The peak until the last steps, then down to the floor.
    StableDecay,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum RoundingArg {
    None,
    Qat,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum RecomputeArg {
    None,
    Blocks,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TableArg {
    Tensor,
    Memory,
    File,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum LongLinesArg {
    Error,
    Cut,
    Skip,
}

/// A part of the graph that can be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Part {
    /// The n-gram tables.
    Engram,
    /// All copies of the residual stream but one.
    HyperConnections,
    /// The compressed streams and their indexers, so that layers see their window alone.
    Compression,
}

impl Part {
    /// Takes the part out of a configuration.
    fn leave_out(self, config: &mut Config) {
        match self {
            Self::Engram => {
                config.engram_layer_ids.clear();
                config.engram_num_embeddings.clear();
            }
            Self::HyperConnections => config.hc_mult = 1,
            Self::Compression => {
                config.compress_ratios.fill(0);
                config.kv_source_layers.clear();
                config.index_source_layers.clear();
                config.candidate_source_layer = None;
            }
        }
    }
}

/// How long a run is to be.
#[derive(Debug, Clone, Copy)]
pub(super) enum Length {
    Steps(u64),
    Epochs(u64),
}

impl TrainArgs {
    pub(super) fn resume(&self) -> Option<&Path> {
        self.run.resume.as_deref()
    }

    pub(super) fn out(&self) -> Result<&Path> {
        self.run.out()
    }

    pub(super) fn settings(&self) -> Settings<'_> {
        Settings { run: &self.run, usual: Length::Steps(SCRATCH_STEPS) }
    }

    /// The plan, but for what follows from the model and the data: see [`Settings::complete`].
    pub(super) fn plan(&self) -> Result<RunPlan> {
        let path = self.config.as_deref().context("--config is missing")?;
        let mut config = Config::load(path)?;
        self.ablate.iter().for_each(|part| part.leave_out(&mut config));
        let data = match &self.task {
            Some(name) => {
                // An unknown name is told before anything is made.
                tasks::by_name(name)?;
                DataPlan::Task { name: name.clone(), examples: self.examples, held_out: self.held_out }
            }
            None => self.lines.plan()?,
        };
        let model = ModelPlan::Scratch { config: Box::new(config), tokenizer: self.lines.tokenizer.clone() };
        self.run.plan(model, data)
    }
}

impl FinetuneArgs {
    pub(super) fn resume(&self) -> Option<&Path> {
        self.run.resume.as_deref()
    }

    pub(super) fn out(&self) -> Result<&Path> {
        self.run.out()
    }

    pub(super) fn settings(&self) -> Settings<'_> {
        Settings { run: &self.run, usual: Length::Epochs(1) }
    }

    /// The plan, but for what follows from the model and the data: see [`Settings::complete`].
    pub(super) fn plan(&self) -> Result<RunPlan> {
        let path = self.model.as_deref().context("--model is missing")?;
        let tokenizer = self.lines.tokenizer.clone();
        let model = match path.extension() {
            Some(extension) if extension == "json" => {
                ModelPlan::Scratch { config: Box::new(Config::load(path)?), tokenizer }
            }
            _ => ModelPlan::File { path: path.to_owned(), tokenizer, tuning: self.tuning.tuning(self.run.seed) },
        };
        let mut plan = self.run.plan(model, self.lines.plan()?)?;
        if let ModelPlan::File { tuning: Tuning::Adapters(adapters), .. } = &plan.model {
            adapters.validate()?;
            ensure!(
                self.run.engram_tables == TableArg::Tensor,
                "--engram-tables: adapters are trained alone; --full trains the tables"
            );
            plan.trainer.dropout = adapters.dropout;
            // What is not trained has no use for losses of its own.
            plan.trainer.objective = ObjectiveSettings::OFF;
        }
        Ok(plan)
    }
}

impl LineArgs {
    fn plan(&self) -> Result<DataPlan> {
        Ok(DataPlan::Lines {
            training: self.data.clone().context("--data is missing")?,
            evaluation: self.eval.clone(),
            long_lines: match self.long_lines {
                LongLinesArg::Error => LongLines::Error,
                LongLinesArg::Cut => LongLines::Cut,
                LongLinesArg::Skip => LongLines::Skip,
            },
        })
    }
}

impl RunArgs {
    fn out(&self) -> Result<&Path> {
        self.out.as_deref().context("--out is missing")
    }

    /// A plan whose lengths are still open.
    fn plan(&self, model: ModelPlan, data: DataPlan) -> Result<RunPlan> {
        /// More than the largest machines have cores.
        const MOST_AT_ONCE: usize = 1024;

        let parallel = self.parallel.get();
        ensure!(parallel <= MOST_AT_ONCE, "--parallel is {parallel}: expected 1 to {MOST_AT_ONCE}");
        let manner = if self.no_packing { Manner::Unpacked } else { Manner::Packed { look_ahead: LOOK_AHEAD } };
        Ok(RunPlan {
            model,
            data,
            layout: BatchLayout { rows: self.batch, length: 0, alignment: 1, manner, padding: 0 },
            accumulation: self.accumulate,
            steps: 0,
            seed: self.seed,
            trainer: TrainerSettings {
                optimiser: OptimiserSettings::default(),
                rounding: match self.rounding {
                    RoundingArg::None => Rounding::None,
                    RoundingArg::Qat => Rounding::Qat,
                },
                recompute: match self.recompute {
                    RecomputeArg::None => Recompute::None,
                    RecomputeArg::Blocks => Recompute::Blocks,
                },
                objective: ObjectiveSettings {
                    balance: self.balance_loss,
                    router_z: self.router_z_loss,
                    indexer: self.indexer_loss,
                    router_bias_rate: self.router_bias_rate,
                },
                dropout: 0.0,
                seed: self.seed,
                z_loss: self.z_loss,
                engram_tables: match self.engram_tables {
                    TableArg::Tensor => TableStorage::Tensor,
                    TableArg::Memory => TableStorage::Memory,
                    TableArg::File => TableStorage::File,
                },
                // More at once than there are would wait for nothing.
                parallel: self.parallel.min(self.accumulate),
            },
            device: self.device.to_string(),
            cadence: Cadence { evaluate_every: 0, checkpoint_every: 0, keep: self.keep, log_every: self.log_every },
        })
    }
}

/// What completes a plan.
pub(super) struct Settings<'a> {
    run: &'a RunArgs,
    usual: Length,
}

impl Settings<'_> {
    /// Fills in what follows from the model and the data. `epoch` counts the steps of an epoch of a plan whose layout is
    /// known.
    pub(super) fn complete(
        &self,
        plan: &mut RunPlan,
        config: &Config,
        epoch: impl FnOnce(&RunPlan) -> Result<u64>,
    ) -> Result<()> {
        /// What a sequence has if nothing else is said.
        const LENGTH: usize = 512;

        let run = self.run;
        let length = run.length.unwrap_or(config.max_seq_len.min(LENGTH));
        let context = config.max_seq_len;
        ensure!(length <= context, "--length is {length}, the model's context has {context} positions");
        plan.layout.length = length;
        plan.layout.alignment = alignment(config);
        plan.layout.check()?;

        let asked = run.steps.map(Length::Steps).or(run.epochs.map(Length::Epochs)).unwrap_or(self.usual);
        plan.steps = match asked {
            Length::Steps(steps) => steps,
            Length::Epochs(epochs) => epoch(plan)?.saturating_mul(epochs),
        };
        let tenth = plan.steps.div_ceil(10);
        plan.cadence.evaluate_every = run.evaluate_every.unwrap_or(tenth);
        plan.cadence.checkpoint_every = run.checkpoint_every.unwrap_or(tenth);
        plan.trainer.optimiser = match &run.optimizer_settings {
            Some(path) => read_settings(path)?,
            None => run.optimiser(plan.steps),
        };
        Ok(plan.trainer.optimiser.validate()?)
    }
}

impl RunArgs {
    fn optimiser(&self, steps: u64) -> OptimiserSettings {
        let mut settings = match self.optimizer {
            OptimizerArg::Adamw => OptimiserSettings::adamw(),
            OptimizerArg::Muon => OptimiserSettings::muon(),
        };
        settings.clip_norm = (self.clip > 0.0).then_some(self.clip);
        if let Some(weight_decay) = self.weight_decay {
            settings.matrices.weight_decay = weight_decay;
        }
        if let Some(rate) = self.rate {
            let factor = rate / settings.matrices.rate;
            settings.groups_mut().into_iter().for_each(|group| group.rate *= factor);
            settings.adapters.rate = rate;
        }
        let warm_up = self.warm_up.unwrap_or(steps / 20);
        settings.with_schedule(match self.schedule {
            ScheduleArg::Constant => Schedule::Constant { warm_up },
            ScheduleArg::Cosine => Schedule::Cosine { warm_up, steps, floor: self.floor },
            ScheduleArg::StableDecay => Schedule::WarmUpStableDecay {
                warm_up,
                steps,
                decay: self.decay.unwrap_or(steps / 5),
                shape: DecayShape::OneMinusSqrt,
                floor: self.floor,
            },
        })
    }
}

fn read_settings(path: &Path) -> Result<OptimiserSettings> {
    let json = fs::read(path).with_context(|| format!("{}: cannot be read", path.display()))?;
    serde_json::from_slice(&json).with_context(|| path.display().to_string())
}
