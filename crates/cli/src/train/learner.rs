//! A trainer on a device chosen at run time, behind one object-safe interface.
//!
//! As in [`crate::runner`], everything generic over the backend is instantiated here.

use std::path::Path;

use burn::{
    backend::Autodiff,
    tensor::{DType, backend::AutodiffBackend},
};
use dsv41::{LoadOptions, ModelBackend, Transformer};
use dsv41_train::{
    adapters::{self, AdapterError, AdapterFile, AdapterSettings, Base},
    data::Batch,
    losses::Totals,
    objective::ObjectiveReport,
    optimiser::ParameterGroup,
    tables::{EngramTables, TableStorage},
    trainer::{Evaluated, StepSummary, TrainError, Trainer, TrainerSettings},
};

use super::source::{TrainingModel, Unpacked};
use crate::device::{DeviceError, DeviceName, DeviceTask, Precision};

/// Why there is nothing to train.
#[derive(Debug, thiserror::Error)]
pub(super) enum LearnerError {
    /// The device cannot be used.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The model cannot be built or trained.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// What adapters know the model's file by cannot be read.
    #[error("{0}")]
    Base(anyhow::Error),
    /// Threads of a GPU's own are what computes there.
    #[error("--parallel is {found}: expected 1 on {device}")]
    Parallel {
        /// The device.
        device: DeviceName,
        /// Micro-batches at once.
        found: usize,
    },
    /// Adapters cannot be added, written or read.
    #[error(transparent)]
    Adapters(#[from] AdapterError),
}

/// The adapters of a checkpoint, beside what the trainer keeps there.
const ADAPTER: &str = "adapter";

/// What a step came to.
pub(super) struct Learnt {
    /// Its cross entropy.
    pub(super) totals: Totals,
    /// The losses of its layers, and what routers did.
    pub(super) layers: ObjectiveReport,
    /// What it did.
    pub(super) summary: StepSummary,
}

/// A model that is being trained.
pub(super) trait Learner {
    /// Takes a step of these micro-batches.
    fn learn(&mut self, batches: &[Batch]) -> Result<Learnt, TrainError>;

    /// As [`Trainer::evaluate`].
    fn evaluate(&self, batch: &Batch) -> Result<Evaluated, TrainError>;

    /// As [`Trainer::save`], and adapters as other programs read them.
    fn save(&self, folder: &Path) -> Result<(), LearnerError>;

    /// As [`Trainer::restore`].
    fn restore(&mut self, folder: &Path) -> Result<(), LearnerError>;

    /// As [`Trainer::trained`].
    fn trained(&self) -> usize;

    /// As [`Trainer::groups`].
    fn groups(&self) -> Vec<ParameterGroup>;
}

/// Puts a model on a device to train it, with engram tables in `folder` where they are to be in files.
pub(super) fn load(
    device: DeviceName,
    model: &TrainingModel,
    settings: TrainerSettings,
    folder: &Path,
) -> Result<Box<dyn Learner>, LearnerError> {
    if settings.parallel.get() > 1 && !device.is_cpu() {
        return Err(LearnerError::Parallel { device, found: settings.parallel.get() });
    }
    let adapters = model.adapters().map_err(LearnerError::Base)?;
    device.dispatch(Precision::F32, Load { model, adapters, settings, folder })?
}

struct Load<'a> {
    model: &'a TrainingModel,
    adapters: Option<(AdapterSettings, Base)>,
    settings: TrainerSettings,
    folder: &'a Path,
}

impl Load<'_> {
    fn tables(&self) -> Result<EngramTables, TrainError> {
        let (config, weights, settings) = (self.model.config(), self.model.weights(), &self.settings.optimiser.engram);
        match self.settings.engram_tables {
            TableStorage::Tensor => Ok(EngramTables::default()),
            TableStorage::Memory => EngramTables::in_memory(config, weights, settings),
            TableStorage::File => EngramTables::in_folder(config, weights, settings, self.folder),
        }
    }
}

impl DeviceTask for Load<'_> {
    type Output = Result<Box<dyn Learner>, LearnerError>;

    fn run<B: ModelBackend>(self, device: B::Device, dtype: DType) -> Self::Output {
        let tables = self.tables()?;
        let Self { model: source, adapters, settings, .. } = self;
        let options = LoadOptions { dtype, ..LoadOptions::default() };
        let unpacked = Unpacked(source.weights());
        let weights = tables.over(if adapters.is_some() { source.weights() } else { &unpacked });
        let model = Transformer::<Autodiff<B>>::load(source.config(), &weights, source.token_map(), &device, options);
        let mut model = model.map_err(TrainError::from)?;
        if let Some((settings, _)) = &adapters {
            adapters::insert(&mut model, settings)?;
        }
        Ok(Box::new(DeviceLearner { trainer: Some(Trainer::with_tables(model, tables, settings)?), adapters }))
    }
}

struct DeviceLearner<B: AutodiffBackend> {
    /// Gone once a step has failed.
    trainer: Option<Trainer<B>>,
    adapters: Option<(AdapterSettings, Base)>,
}

impl<B: AutodiffBackend> DeviceLearner<B> {
    fn trainer(&self) -> &Trainer<B> {
        self.trainer.as_ref().expect("nothing is asked of a learner after it has failed")
    }

    fn take(&mut self) -> Trainer<B> {
        self.trainer.take().expect("nothing is asked of a learner after it has failed")
    }
}

impl<B> Learner for DeviceLearner<B>
where
    B: ModelBackend + AutodiffBackend,
    B::InnerBackend: ModelBackend,
{
    fn learn(&mut self, batches: &[Batch]) -> Result<Learnt, TrainError> {
        let trainer = self.take();
        let gradients = trainer.gradients(batches)?;
        let (totals, layers) = (gradients.totals, gradients.layers.clone());
        let (trainer, summary) = trainer.step(gradients)?;
        self.trainer = Some(trainer);
        Ok(Learnt { totals, layers, summary })
    }

    fn evaluate(&self, batch: &Batch) -> Result<Evaluated, TrainError> {
        self.trainer().evaluate(batch)
    }

    fn save(&self, folder: &Path) -> Result<(), LearnerError> {
        let trainer = self.trainer();
        trainer.save(folder)?;
        if let Some((settings, base)) = &self.adapters {
            adapters::save(&folder.join(ADAPTER), trainer.model(), settings, base)?;
        }
        Ok(())
    }

    fn restore(&mut self, folder: &Path) -> Result<(), LearnerError> {
        if let Some((_, base)) = &self.adapters {
            // The base may be another one than before, and says so best here.
            AdapterFile::open(&folder.join(ADAPTER))?.factors(self.trainer().model().config(), base)?;
        }
        self.trainer = Some(self.take().restore(folder)?);
        Ok(())
    }

    fn trained(&self) -> usize {
        self.trainer().trained()
    }

    fn groups(&self) -> Vec<ParameterGroup> {
        self.trainer().groups()
    }
}
