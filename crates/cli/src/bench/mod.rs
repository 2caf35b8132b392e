//! `dsv41 bench`: how fast the parts of the model are, device by device.

mod linear;
mod timing;
mod train_step;

use anyhow::Result;
use clap::{Args, Subcommand};

pub use linear::LinearArgs;
pub use train_step::TrainStepArgs;

use crate::threads;

/// Which part to time.
#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    part: Part,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// Products of packed matrices with vectors, beside the same matrices in f32.
    Linear(LinearArgs),
    /// One training step: forward with the loss, and backward.
    TrainStep(TrainStepArgs),
}

/// Times what is asked for, on standard output.
///
/// # Errors
/// When a device cannot be used or the arguments make no sense.
pub fn run(args: &BenchArgs) -> Result<()> {
    threads::compute(None, || match &args.part {
        Part::Linear(args) => linear::run(args),
        Part::TrainStep(args) => train_step::run(args),
    })
}
