//! `dsv41 train` and `dsv41 finetune`: training from the command line.

pub mod display;
pub mod gradients;
mod learner;
mod options;
mod plan;
mod session;
mod source;
mod trained;

use std::path::Path;

use anyhow::{Context as _, Result};
use dsv41_train::{
    data::{BatchStream, Examples as _, Manner},
    run::RunDirectory,
    tables::TableStorage,
};

pub use options::{FinetuneArgs, TrainArgs};
pub use plan::{Cadence, DataPlan, ModelPlan, RunPlan, Tuning};
pub use trained::{TrainedModel, is_run_or_checkpoint};

use crate::interrupt::interruption;
use crate::threads;
use options::Settings;
use session::Session;
use source::{Source, TrainingModel};

/// Engram tables that are trained in files, in a run's folder.
const TABLES: &str = "tables";

/// Trains a small model from random weights, on a task that the program makes itself or on lines of a file.
///
/// # Errors
/// Bad input, an absent device, a loss that is not finite, files that cannot be written.
pub fn run_train(args: &TrainArgs) -> Result<()> {
    threads::compute(None, || match args.resume() {
        Some(folder) => resume(folder),
        None => begin(args.out()?, args.plan()?, &args.settings()),
    })
}

/// Trains a model of a file on lines of another.
///
/// # Errors
/// As [`run_train`].
pub fn run_finetune(args: &FinetuneArgs) -> Result<()> {
    threads::compute(None, || match args.resume() {
        Some(folder) => resume(folder),
        None => begin(args.out()?, args.plan()?, &args.settings()),
    })
}

/// Begins a run in a new folder. Whatever can be found wrong is found before the folder is made.
fn begin(folder: &Path, mut plan: RunPlan, settings: &Settings<'_>) -> Result<()> {
    let model = TrainingModel::open(&plan.model, plan.seed)?;
    settings.complete(&mut plan, model.config(), |plan| steps_of_an_epoch(plan, &model))?;
    train(&plan, &model, folder, || Ok(RunDirectory::create(folder, &plan)?))
}

/// Goes on with the run in a folder as its own settings say.
fn resume(folder: &Path) -> Result<()> {
    let (directory, notices) = RunDirectory::resume(folder)?;
    for notice in notices {
        eprintln!("note: {notice}");
    }
    let plan: RunPlan = directory.files().config()?;
    let model = TrainingModel::open(&plan.model, plan.seed)?;
    train(&plan, &model, folder, || Ok(directory))
}

fn train(
    plan: &RunPlan,
    model: &TrainingModel,
    folder: &Path,
    directory: impl FnOnce() -> Result<RunDirectory>,
) -> Result<()> {
    let device = plan.device.parse().context("the run's device")?;
    let mut display = display::open(plan.steps, plan.cadence.log_every);
    for note in model.notes() {
        display.notice(&format!("note: {note}"));
    }
    let training = Source::training(plan, model)?;
    let held_out = Source::evaluation(plan, model)?;
    for (what, source) in [("training", Some(&training)), ("evaluation", held_out.as_ref())] {
        source.iter().flat_map(|source| source.describe(what)).for_each(|line| display.notice(&line));
    }
    let load = || learner::load(device, model, plan.trainer.clone(), &folder.join(TABLES));
    let (directory, learner) = match plan.trainer.engram_tables {
        // Their files are in the folder, which is this process's own from here on.
        TableStorage::File => (directory()?, load()?),
        TableStorage::Tensor | TableStorage::Memory => {
            let learner = load()?;
            (directory()?, learner)
        }
    };
    display.notice(&format!("{} numbers to train on {device}", learner.trained()));
    let interrupted = interruption()?;
    Session::open(plan, learner, training, held_out, directory, display)?.run(interrupted)
}

/// Steps that use every example once.
fn steps_of_an_epoch(plan: &RunPlan, model: &TrainingModel) -> Result<u64> {
    let training = Source::training(plan, model)?;
    let batches = match plan.layout.manner {
        Manner::Unpacked => training.count().div_ceil(plan.layout.rows),
        Manner::Packed { .. } => {
            let mut stream = BatchStream::new(training, plan.layout, plan.seed)?;
            let mut batches = 0;
            while stream.epoch() == 0 {
                stream.next().transpose()?;
                batches += 1;
            }
            batches
        }
    };
    Ok(batches.div_ceil(plan.accumulation.get()) as u64)
}
