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
};

use burn::{
    module::AutodiffModule as _,
    optim::{GradientsAccumulator, GradientsParams},
    tensor::{Tensor, backend::AutodiffBackend},
};
use dsv41::{BlockCall, Call, ModelBackend, Objective, Transformer, parameters::Parameter};
use serde::{Deserialize, Serialize};

use crate::{
    adapters,
    data::Batch,
    losses::{CrossEntropy, Sequences, Totals},
    objective::{ObjectiveReport, TrainingObjective},
    optimiser::{GroupedOptimiser, NamedParameter, OptimiserError, ParameterGroup, group_of},
    router_bias, weights,
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
    settings: TrainerSettings,
    /// Whether biases of routers are among what is trained.
    moves_biases: bool,
    /// Steps done.
    steps: u64,
}

/// The gradients of a step, and its loss.
#[derive(Debug)]
pub struct StepGradients {
    gradients: GradientsParams,
    /// The cross entropy of all micro-batches.
    pub totals: Totals,
    /// The losses of their layers, and what routers did.
    pub layers: ObjectiveReport,
    lines: Vec<usize>,
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
        Ok(Self { model, optimiser, settings, moves_biases, steps: 0 })
    }

    /// The model as it is now.
    pub fn model(&self) -> &Transformer<B> {
        &self.model
    }

    /// How it is trained.
    pub fn settings(&self) -> &TrainerSettings {
        &self.settings
    }

    /// Numbers that are trained.
    pub fn trained(&self) -> usize {
        let elements = |parameter: Parameter| parameter.dims.iter().product::<usize>();
        weights::trained(&self.model).into_iter().map(elements).sum()
    }

    /// The groups that have a parameter which is trained by gradients.
    pub fn groups(&self) -> Vec<ParameterGroup> {
        let trained = weights::trained(&self.model);
        let has = |group: &ParameterGroup| {
            trained.iter().any(|parameter| matches!(group_of(&parameter.name), Ok(Some(other)) if other == *group))
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
    pub fn gradients(&mut self, batches: &[Batch]) -> Result<StepGradients, TrainError> {
        let lines: Vec<usize> = batches.iter().flat_map(|batch| batch.lines.iter().copied()).collect();
        let targets: usize = batches.iter().map(|batch| batch.counts().targets).sum();
        if targets == 0 {
            return Err(TrainError::NoTargets { step: self.steps + 1, lines });
        }
        let tokens: usize = batches.iter().map(|batch| batch.counts().tokens).sum();
        let mut accumulator = GradientsAccumulator::new();
        let (mut totals, mut layers) = (Totals::default(), ObjectiveReport::default());
        for (index, batch) in batches.iter().enumerate() {
            self.leave_out(Some(index as u64));
            let share = batch.counts().tokens as f64 / tokens as f64;
            let mut objective = TrainingObjective::new(&self.settings.objective, Sequences::of_batch(batch), share)?;
            let (own, gradients) = self.micro_batch(batch, targets as f64, &mut objective)?;
            if !own.nats.is_finite() {
                return Err(self.not_finite(batch, own));
            }
            totals += own;
            layers.merge(objective.finish()?);
            accumulator.accumulate(&self.model, gradients);
        }
        self.leave_out(None);
        Ok(StepGradients { gradients: accumulator.grads(), totals, layers, lines })
    }

    /// Sets what adapters leave out of a micro-batch, or that they leave nothing out.
    fn leave_out(&mut self, micro_batch: Option<u64>) {
        /// More micro-batches than a step has.
        const MICRO_BATCHES: u64 = 1 << 20;

        let TrainerSettings { dropout, seed, .. } = self.settings;
        if dropout > 0.0 {
            let number = micro_batch.map(|index| self.steps.wrapping_mul(MICRO_BATCHES).wrapping_add(index));
            // Neighbouring seeds make unrelated masks, but the sum of two numbers would often be that of two others.
            let seed = |number: u64| seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(number);
            adapters::set_dropout(&mut self.model, number.map(|number| (dropout, seed(number))));
        }
    }

    /// One micro-batch's share of the step's loss, and its gradients.
    fn micro_batch(
        &self,
        batch: &Batch,
        denominator: f64,
        objective: &mut TrainingObjective<B>,
    ) -> Result<(Totals, GradientsParams), TrainError> {
        let targets: Vec<Option<u32>> = batch.targets.iter().flatten().copied().collect();
        let cross_entropy =
            CrossEntropy { z_loss: self.settings.z_loss, denominator: Some(denominator), ..CrossEntropy::default() };
        let mut totals = Totals::default();
        let mut loss = |x: Tensor<B, 3>| -> Result<Tensor<B, 1>, TrainError> {
            let [rows, seq, dim] = x.dims();
            let loss = cross_entropy.forward(x.reshape([rows * seq, dim]), &self.model.head.weight, &targets)?;
            totals = loss.totals;
            Ok(loss.value)
        };
        let numerics = self.settings.rounding.into();
        let documents = Some(&batch.documents[..]);
        let gradients = match self.settings.recompute {
            Recompute::None => {
                let call = Call { numerics, documents, objective: Some(&mut *objective), ..Call::default() };
                let states = self.model.forward_states(&batch.tokens, None, call)?;
                let loss = loss(states.x)?;
                let loss = match objective.take_loss() {
                    Some(terms) => loss + terms,
                    None => loss,
                };
                GradientsParams::from_grads(loss.backward(), &self.model)
            }
            Recompute::Blocks => {
                let call = BlockCall { numerics, documents, ..BlockCall::default() };
                self.model.gradients_by_block(&batch.tokens, call, objective, loss)?
            }
        };
        Ok((totals, gradients))
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
        let StepGradients { mut gradients, layers, lines, .. } = gradients;
        let step = self.steps + 1;
        let norm = self.optimiser.clip(&self.model, &mut gradients, 0.0).map_err(|error| match error {
            OptimiserError::NonFiniteNorm { norm } => TrainError::NonFiniteGradients { step, norm, lines },
            other => other.into(),
        })?;
        self.model = self.optimiser.step(self.model, gradients, self.steps)?;
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
        self.steps = progress.steps;
        Ok(self)
    }
}

impl TrainError {
    fn json(path: &Path, source: serde_json::Error) -> Self {
        Self::Json { file: PathBuf::from(path), source }
    }
}
