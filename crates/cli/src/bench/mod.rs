//! `dsv41 bench`: how fast the model and its parts are, device by device.
//!
//! Every part is measured by a `session::Session`: it finds the devices and what each reaches at best, keeps what was
//! measured as a `report::Report`, compares results with those of the first device, and writes what was asked for.

mod ceilings;
mod compare;
mod linear;
mod model;
mod options;
mod parts;
mod passes;
mod plot;
mod report;
mod session;
mod timing;
mod train_step;
mod work;

use anyhow::Result;
use clap::{Args, Subcommand};

use self::{
    linear::LinearArgs,
    parts::{PartArgs, SparseAttentionArgs},
    passes::{DecodeArgs, ForwardArgs, PrefillArgs},
    train_step::TrainStepArgs,
};
use crate::threads;

/// Which part to time.
#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    part: Part,
    /// Threads that compute on the host; by default one for each core.
    #[arg(long, global = true, value_name = "N")]
    threads: Option<usize>,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// The whole model on sequences, with logits of every position.
    Forward(ForwardArgs),
    /// A prompt that fills the cache, chunk by chunk, to the logits of its last position.
    Prefill(PrefillArgs),
    /// One token after a context.
    Decode(DecodeArgs),
    /// One training step: forward with the loss, and backward.
    TrainStep(TrainStepArgs),
    /// Products of packed matrices with vectors, beside the same matrices in f32.
    Linear(LinearArgs),
    /// An engram: hashes, look-up, projection, gates.
    Engram(PartArgs),
    /// Attention of queries to the window and to chosen compressed positions.
    SparseAttention(SparseAttentionArgs),
    /// A hyper-connection: mixer, collapse, expansion.
    HyperConnection(PartArgs),
}

/// Times what is asked for, on standard output.
///
/// # Errors
/// When no device can be used, the arguments make no sense, or a file cannot be read or written.
pub fn run(args: &BenchArgs) -> Result<()> {
    threads::compute(args.threads, || match &args.part {
        Part::Forward(args) => passes::run_forward(args),
        Part::Prefill(args) => passes::run_prefill(args),
        Part::Decode(args) => passes::run_decode(args),
        Part::TrainStep(args) => train_step::run(args),
        Part::Linear(args) => linear::run(args),
        Part::Engram(args) => parts::run_engram(args),
        Part::SparseAttention(args) => parts::run_sparse_attention(args),
        Part::HyperConnection(args) => parts::run_hyper_connection(args),
    })
}
