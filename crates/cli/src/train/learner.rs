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
    data::Batch,
    losses::Totals,
    objective::ObjectiveReport,
    optimiser::ParameterGroup,
    trainer::{Evaluated, StepSummary, TrainError, Trainer, TrainerSettings},
};

use super::source::TrainingModel;
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
}

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

    /// As [`Trainer::save`].
    fn save(&self, folder: &Path) -> Result<(), TrainError>;

    /// As [`Trainer::restore`].
    fn restore(&mut self, folder: &Path) -> Result<(), TrainError>;

    /// As [`Trainer::trained`].
    fn trained(&self) -> usize;

    /// As [`Trainer::groups`].
    fn groups(&self) -> Vec<ParameterGroup>;
}

/// Puts a model on a device to train it.
pub(super) fn load(
    device: DeviceName,
    model: &TrainingModel,
    settings: TrainerSettings,
) -> Result<Box<dyn Learner>, LearnerError> {
    Ok(device.dispatch(Precision::F32, Load { model, settings })??)
}

struct Load<'a> {
    model: &'a TrainingModel,
    settings: TrainerSettings,
}

impl DeviceTask for Load<'_> {
    type Output = Result<Box<dyn Learner>, TrainError>;

    fn run<B: ModelBackend>(self, device: B::Device, dtype: DType) -> Self::Output {
        let Self { model, settings } = self;
        let options = LoadOptions { dtype, ..LoadOptions::default() };
        let model =
            Transformer::<Autodiff<B>>::load(model.config(), model.weights(), model.token_map(), &device, options)?;
        Ok(Box::new(DeviceLearner { trainer: Some(Trainer::new(model, settings)?) }))
    }
}

struct DeviceLearner<B: AutodiffBackend> {
    /// Gone once a step has failed.
    trainer: Option<Trainer<B>>,
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
        let gradients = self.trainer().gradients(batches)?;
        let (totals, layers) = (gradients.totals, gradients.layers.clone());
        let (trainer, summary) = self.take().step(gradients)?;
        self.trainer = Some(trainer);
        Ok(Learnt { totals, layers, summary })
    }

    fn evaluate(&self, batch: &Batch) -> Result<Evaluated, TrainError> {
        self.trainer().evaluate(batch)
    }

    fn save(&self, folder: &Path) -> Result<(), TrainError> {
        self.trainer().save(folder)
    }

    fn restore(&mut self, folder: &Path) -> Result<(), TrainError> {
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
