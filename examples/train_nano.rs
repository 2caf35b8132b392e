//! Trains a model of 1.3 million parameters from random weights until it recalls what it has read, and says how well.
//!
//! ```console
//! $ cargo run --release --example train_nano
//! ```
//!
//! An example of the task shows eight keys with a value each, then, farther back than any window reaches, asks for four of
//! them. Keys of the evaluation are in no example that is trained on. The aim is 95% of whole answers.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use burn::backend::{Autodiff, Flex};
use dsv41::{LoadOptions, Transformer};
use dsv41_config::Config;
use dsv41_train::{
    InitialWeights,
    data::{
        Batch, BatchLayout, BatchStream, Manner, TaskExamples, alignment,
        tasks::{self, Score, Split},
    },
    optimiser::{DecayShape, OptimiserSettings, Schedule},
    trainer::{Trainer, TrainerSettings},
};

type Device = Autodiff<Flex>;

const STEPS: u64 = 1000;
const AIM: f64 = 0.95;
const SEED: u64 = 0;

fn main() -> Result<ExitCode> {
    let config = Config::from_json("nano.json", include_str!("../configs/nano.json"))?;
    let weights = InitialWeights::new(&config, SEED);
    let model = Transformer::<Device>::load(&config, &weights, None, &Default::default(), LoadOptions::default())?;
    let mut trainer = Trainer::new(model, TrainerSettings { optimiser: optimiser(), ..TrainerSettings::default() })?;
    println!("{} numbers to train", trainer.trained());

    let mut training = batches(&config, Split::Training, 1_000_000)?;
    let held_out: Vec<Batch> = batches(&config, Split::HeldOut, 256)?.take(8).collect::<Result<_, _>>()?;
    let started = Instant::now();
    let mut accuracy = 0.0;
    while trainer.steps() < STEPS {
        let batch = training.next().expect("batches without end")?;
        let gradients = trainer.gradients(&[batch])?;
        let loss = gradients.totals.mean();
        trainer = trainer.step(gradients)?.0;
        if trainer.steps().is_multiple_of(100) {
            accuracy = evaluate(&trainer, &held_out)?;
            let minutes = started.elapsed().as_secs_f64() / 60.0;
            let share = 100.0 * accuracy;
            println!("step {}, {minutes:.1} min: loss {loss:.3}, {share:.1}% of answers recalled", trainer.steps());
        }
    }
    Ok(if accuracy >= AIM { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Muon for matrices and AdamW for the rest; the rate falls over the last fifth.
fn optimiser() -> OptimiserSettings {
    let schedule = Schedule::WarmUpStableDecay {
        warm_up: 20,
        steps: STEPS,
        decay: STEPS / 5,
        shape: DecayShape::OneMinusSqrt,
        floor: 0.05,
    };
    let mut settings = OptimiserSettings::muon().with_schedule(schedule);
    let factor = 4e-3 / settings.matrices.rate;
    settings.groups_mut().into_iter().for_each(|group| group.rate *= factor);
    settings
}

/// Batches of 32 examples, a row each.
fn batches(config: &Config, split: Split, count: usize) -> Result<BatchStream<TaskExamples>> {
    let examples = TaskExamples::new(tasks::by_name("recall")?, split, SEED, count, config.vocab_size)?;
    let layout =
        BatchLayout { rows: 32, length: 96, alignment: alignment(config), manner: Manner::Unpacked, padding: 0 };
    Ok(BatchStream::new(examples, layout, SEED)?)
}

/// The share of answers that are right in whole.
fn evaluate(trainer: &Trainer<Device>, batches: &[Batch]) -> Result<f64> {
    let mut score = Score::default();
    for batch in batches {
        score.add(batch, &trainer.evaluate(batch)?.predicted);
    }
    Ok(score.answer_accuracy())
}
