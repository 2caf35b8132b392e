//! Training a model, step by step.
//!
//! A step is [`Trainer::gradients`] of some micro-batches, then [`Trainer::step`]. The gradient is that of the mean over
//! all targets of all micro-batches, however they are divided.

mod diagnosis;
mod error;
mod settings;

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    thread,
};

use burn::{
    module::{AutodiffModule as _, Module as _},
    optim::{GradientsAccumulator, GradientsParams},
    tensor::{Tensor, backend::AutodiffBackend},
};
use dsv41::{BlockCall, Call, ModelBackend, Objective as _, Transformer, parameters::Parameter};
use rayon::{ThreadPool, ThreadPoolBuilder};
use serde::{Deserialize, Serialize};

use crate::{
    adapters,
    data::Batch,
    losses::{CrossEntropy, Sequences, Totals},
    objective::{LookUpGradients, ObjectiveReport, TrainingObjective},
    optimiser::{GroupedOptimiser, NamedParameter, OptimiserError, ParameterGroup, group_of},
    router_bias,
    tables::{EngramTables, TableGradients},
    weights,
};

pub use diagnosis::{Activation, Activations};
pub use error::{NonFiniteLoss, TrainError};
pub use settings::{Recompute, Rounding, TrainerSettings};

const WEIGHTS: &str = "weights.safetensors";
const OPTIMISER: &str = "optimiser.safetensors";
const PROGRESS: &str = "trainer.json";

/// A model that is being trained.
#[derive(Debug)]
pub struct Trainer<B: AutodiffBackend> {
    model: Transformer<B>,
    optimiser: GroupedOptimiser<B>,
    /// Those that are trained by rows.
    tables: EngramTables,
    settings: TrainerSettings,
    /// Whether biases of routers are among what is trained.
    moves_biases: bool,
    /// What micro-batches at once compute on. In one pool, a thread that waits for a part of one micro-batch would take up
    /// another, while it holds the lock of the first one's graph, for which the other waits in the end.
    pools: Vec<ThreadPool>,
    /// Steps done.
    steps: u64,
}

/// The gradients of a step, and its loss.
#[derive(Debug)]
pub struct StepGradients {
    gradients: GradientsParams,
    rows: TableGradients,
    /// The cross entropy of all micro-batches.
    pub totals: Totals,
    /// The losses of their layers, and what routers did.
    pub layers: ObjectiveReport,
    lines: Vec<usize>,
}

/// What one micro-batch adds to a step.
struct MicroBatch {
    gradients: GradientsParams,
    rows: Vec<LookUpGradients>,
    totals: Totals,
    layers: ObjectiveReport,
}

/// What a step did besides changing the model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepSummary {
    /// The step, from 1.
    pub step: u64,
    /// The norm of all gradients before clipping.
    pub gradient_norm: f64,
}

/// What a model makes of a batch.
#[derive(Debug, Clone, PartialEq)]
pub struct Evaluated {
    /// Its cross entropy.
    pub totals: Totals,
    /// The most likely next token of every position: B rows of S.
    pub predicted: Vec<Vec<u32>>,
}

/// How far a trainer is.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Progress {
    steps: u64,
}

impl<B> Trainer<B>
where
    B: ModelBackend + AutodiffBackend,
    B::InnerBackend: ModelBackend,
{
    /// Begins with a model as it is. Its parameters that require gradients are trained.
    ///
    /// # Errors
    /// When a setting is out of its range or a parameter has no group.
    pub fn new(model: Transformer<B>, settings: TrainerSettings) -> Result<Self, TrainError> {
        Self::with_tables(model, EngramTables::default(), settings)
    }

    /// As [`Self::new`], where the model reads these engram tables, which are trained as well.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_tables(
        model: Transformer<B>,
        tables: EngramTables,
        settings: TrainerSettings,
    ) -> Result<Self, TrainError> {
        let trained = weights::trained(&model);
        settings.objective.validate()?;
        let moves_biases = settings.objective.router_bias_rate > 0.0
            && trained.iter().any(|parameter| parameter.name.ends_with(".ffn.gate.bias"));
        let named = trained.into_iter().map(|parameter| NamedParameter {
            id: parameter.id,
            name: parameter.name,
            dims: parameter.dims,
        });
        let optimiser = GroupedOptimiser::new(settings.optimiser, named)?;
        let pools = pools(settings.parallel.get())?;
        Ok(Self { model, optimiser, tables, settings, moves_biases, pools, steps: 0 })
    }

    /// The model as it is now.
    pub fn model(&self) -> &Transformer<B> {
        &self.model
    }

    /// The engram tables that are trained by rows.
    pub fn tables(&self) -> &EngramTables {
        &self.tables
    }

    /// How it is trained.
    pub fn settings(&self) -> &TrainerSettings {
        &self.settings
    }

    /// Numbers that are trained.
    pub fn trained(&self) -> usize {
        let elements = |parameter: Parameter| parameter.dims.iter().product::<usize>();
        weights::trained(&self.model).into_iter().map(elements).sum::<usize>() + self.tables.elements()
    }

    /// The groups that have a parameter which is trained by gradients.
    pub fn groups(&self) -> Vec<ParameterGroup> {
        let trained = weights::trained(&self.model);
        let has = |group: &ParameterGroup| {
            let is_own =
                |parameter: &Parameter| matches!(group_of(&parameter.name), Ok(Some(other)) if other == *group);
            trained.iter().any(is_own) || (*group == ParameterGroup::Engram && self.tables.elements() > 0)
        };
        ParameterGroup::ALL.into_iter().filter(has).collect()
    }

    /// Steps done.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The loss of some micro-batches and its gradients.
    ///
    /// # Errors
    /// When nothing is to be learnt, the model cannot be called, or the loss is not finite.
    pub fn gradients(&self, batches: &[Batch]) -> Result<StepGradients, TrainError> {
        let lines: Vec<usize> = batches.iter().flat_map(|batch| batch.lines.iter().copied()).collect();
        let targets: usize = batches.iter().map(|batch| batch.counts().targets).sum();
        if targets == 0 {
            return Err(TrainError::NoTargets { step: self.steps + 1, lines });
        }
        let tokens: usize = batches.iter().map(|batch| batch.counts().tokens).sum();
        let mut accumulator = GradientsAccumulator::new();
        let mut rows = TableGradients::default();
        let (mut totals, mut layers) = (Totals::default(), ObjectiveReport::default());
        let numbered: Vec<(usize, &Batch)> = batches.iter().enumerate().collect();
        for at_once in numbered.chunks(self.settings.parallel.get()) {
            for (micro_batch, &(_, batch)) in self.micro_batches(at_once, targets, tokens)?.into_iter().zip(at_once) {
                if !micro_batch.totals.nats.is_finite() {
                    return Err(self.not_finite(batch, micro_batch.totals));
                }
                totals += micro_batch.totals;
                layers.merge(micro_batch.layers);
                for LookUpGradients { layer, rows: looked_up, gradients } in micro_batch.rows {
                    let gradients: Vec<f32> = gradients.iter().collect();
                    rows.add(&self.tables, layer, &looked_up, &gradients)?;
                }
                accumulator.accumulate(&self.model, micro_batch.gradients);
            }
        }
        Ok(StepGradients { gradients: accumulator.grads(), rows, totals, layers, lines })
    }

    /// Micro-batches at once, each on threads of its own.
    fn micro_batches(
        &self,
        numbered: &[(usize, &Batch)],
        targets: usize,
        tokens: usize,
    ) -> Result<Vec<MicroBatch>, TrainError> {
        let compute = |model: Transformer<B>, (index, batch): (usize, &Batch)| {
            let share = batch.counts().tokens as f64 / tokens as f64;
            self.micro_batch(self.leaving_out(model, index as u64), batch, targets as f64, share)
        };
        if let &[alone] = numbered {
            return Ok(vec![compute(self.model.clone(), alone)?]);
        }
        let device = self.model.norm.weight.device();
        thread::scope(|scope| {
            let begin = |(&numbered, pool)| {
                // Graphs that share a leaf would wait for one another.
                let model = self.model.clone().fork(&device);
                scope.spawn(move || ThreadPool::install(pool, || compute(model, numbered)))
            };
            let begun: Vec<_> = numbered.iter().zip(&self.pools).map(begin).collect();
            let end = |thread: thread::ScopedJoinHandle<'_, _>| match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            begun.into_iter().map(end).collect()
        })
    }

    /// The model as a micro-batch uses it: adapters leave out what follows from the step and the micro-batch.
    fn leaving_out(&self, mut model: Transformer<B>, micro_batch: u64) -> Transformer<B> {
        /// More micro-batches than a step has.
        const MICRO_BATCHES: u64 = 1 << 20;

        let TrainerSettings { dropout, seed, .. } = self.settings;
        if dropout > 0.0 {
            let number = self.steps.wrapping_mul(MICRO_BATCHES).wrapping_add(micro_batch);
            // Neighbouring seeds make unrelated masks, but the sum of two numbers would often be that of two others.
            let seed = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(number);
            adapters::set_dropout(&mut model, Some((dropout, seed)));
        }
        model
    }

    /// One micro-batch's share of the step's loss, and its gradients.
    fn micro_batch(
        &self,
        model: Transformer<B>,
        batch: &Batch,
        denominator: f64,
        share: f64,
    ) -> Result<MicroBatch, TrainError> {
        let objective = TrainingObjective::new(&self.settings.objective, Sequences::of_batch(batch), share)?;
        let mut objective = objective.with_tables(self.tables.layers());
        let targets: Vec<Option<u32>> = batch.targets.iter().flatten().copied().collect();
        let cross_entropy =
            CrossEntropy { z_loss: self.settings.z_loss, denominator: Some(denominator), ..CrossEntropy::default() };
        let mut totals = Totals::default();
        let mut loss = |x: Tensor<B, 3>| -> Result<Tensor<B, 1>, TrainError> {
            let [rows, seq, dim] = x.dims();
            let loss = cross_entropy.forward(x.reshape([rows * seq, dim]), &model.head.weight, &targets)?;
            totals = loss.totals;
            Ok(loss.value)
        };
        let numerics = self.settings.rounding.into();
        let documents = Some(&batch.documents[..]);
        let gradients = match self.settings.recompute {
            Recompute::None => {
                let call = Call { numerics, documents, objective: Some(&mut objective), ..Call::default() };
                let states = model.forward_states(&batch.tokens, None, call)?;
                let loss = loss(states.x)?;
                let loss = match objective.take_loss() {
                    Some(terms) => loss + terms,
                    None => loss,
                };
                let gradients = loss.backward();
                objective.backward(&|rows| rows.grad(&gradients).map(|gradient| gradient.into_data()));
                GradientsParams::from_grads(gradients, &model)
            }
            Recompute::Blocks => {
                let call = BlockCall { numerics, documents, ..BlockCall::default() };
                model.gradients_by_block(&batch.tokens, call, &mut objective, loss)?
            }
        };
        Ok(MicroBatch { rows: objective.take_row_gradients(), layers: objective.finish()?, gradients, totals })
    }

    /// Runs a batch again and looks where its loss comes from.
    fn not_finite(&self, batch: &Batch, totals: Totals) -> TrainError {
        let mut activations = Activations::default();
        let call = Call {
            numerics: self.settings.rounding.into(),
            documents: Some(&batch.documents),
            probe: Some(&mut activations),
            ..Call::default()
        };
        let seen = self.model.valid().forward_states(&batch.tokens, None, call).is_ok();
        TrainError::NonFiniteLoss(Box::new(NonFiniteLoss {
            step: self.steps + 1,
            loss: totals.mean(),
            lines: batch.lines.clone(),
            activations: seen.then_some(activations),
        }))
    }

    /// The trainer after a step with these gradients.
    ///
    /// # Errors
    /// When a gradient is not finite or does not belong to the model.
    pub fn step(mut self, gradients: StepGradients) -> Result<(Self, StepSummary), TrainError> {
        let StepGradients { mut gradients, mut rows, layers, lines, .. } = gradients;
        let step = self.steps + 1;
        let squares = rows.sum_of_squares();
        let norm = self.optimiser.clip(&self.model, &mut gradients, squares).map_err(|error| match error {
            OptimiserError::NonFiniteNorm { norm } => TrainError::NonFiniteGradients { step, norm, lines },
            other => other.into(),
        })?;
        self.model = self.optimiser.step(self.model, gradients, self.steps)?;
        rows.scale(norm.scale);
        self.tables.step(&rows, self.settings.optimiser.engram.rate_at(self.steps))?;
        if self.moves_biases {
            router_bias::update(&mut self.model, &layers.loads, self.settings.objective.router_bias_rate)?;
        }
        self.steps = step;
        Ok((self, StepSummary { step, gradient_norm: norm.norm }))
    }

    /// The loss of a batch and what the model predicts, without gradients.
    ///
    /// # Errors
    /// When the model cannot be called.
    pub fn evaluate(&self, batch: &Batch) -> Result<Evaluated, TrainError> {
        let model = self.model.valid();
        let numerics = self.settings.rounding.into();
        let call = Call { numerics, documents: Some(&batch.documents), ..Call::default() };
        let x = model.forward_states(&batch.tokens, None, call)?.x;
        let [rows, seq, dim] = x.dims();
        let targets: Vec<Option<u32>> = batch.targets.iter().flatten().copied().collect();
        let loss =
            CrossEntropy::default().forward(x.clone().reshape([rows * seq, dim]), &model.head.weight, &targets)?;
        let predicted = |row| {
            let logits = model.head.forward_unrounded(x.clone().narrow(0, row, 1), numerics);
            // An id is below the size of the vocabulary, which is a `u32`'s.
            logits.argmax(2).into_data().iter::<i64>().map(|id| id as u32).collect()
        };
        Ok(Evaluated { totals: loss.totals, predicted: (0..rows).map(predicted).collect() })
    }

    /// Writes all that is needed to go on bit for bit into a folder.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn save(&self, folder: &Path) -> Result<(), TrainError> {
        weights::save_trained(&self.model, &folder.join(WEIGHTS))?;
        self.optimiser.save(&folder.join(OPTIMISER))?;
        self.tables.save(folder)?;
        let path = folder.join(PROGRESS);
        let json =
            serde_json::to_vec(&Progress { steps: self.steps }).map_err(|source| TrainError::json(&path, source))?;
        let written = fs::File::create(&path).and_then(|mut file| file.write_all(&json).and_then(|()| file.sync_all()));
        written.map_err(|source| TrainError::Io { file: path, action: "written", source })
    }

    /// Goes on from what [`Self::save`] wrote, with a trainer of the same model and settings.
    ///
    /// # Errors
    /// When a file cannot be read, or is of another model or other settings.
    pub fn restore(mut self, folder: &Path) -> Result<Self, TrainError> {
        let path = folder.join(PROGRESS);
        let json = fs::read(&path).map_err(|source| TrainError::Io { file: path.clone(), action: "read", source })?;
        let progress: Progress = serde_json::from_slice(&json).map_err(|source| TrainError::json(&path, source))?;
        let device = self.model.norm.weight.device();
        self.optimiser.load(&folder.join(OPTIMISER), &device)?;
        self.model = weights::restore_trained(self.model, &folder.join(WEIGHTS))?;
        self.tables.restore(folder)?;
        self.steps = progress.steps;
        Ok(self)
    }
}

/// Pools that share the threads there are, where there is to be more than one.
fn pools(count: usize) -> Result<Vec<ThreadPool>, TrainError> {
    /// As much as a process's first thread usually has.
    const STACK: usize = 8 << 20;

    if count == 1 {
        return Ok(Vec::new());
    }
    let threads = (rayon::current_num_threads() / count).max(1);
    let pool = || ThreadPoolBuilder::new().num_threads(threads).stack_size(STACK).build();
    (0..count).map(|_| pool().map_err(TrainError::Threads)).collect()
}

impl TrainError {
    fn json(path: &Path, source: serde_json::Error) -> Self {
        Self::Json { file: PathBuf::from(path), source }
    }
}
