//! One forward pass of the same model on every device, and how far the results are apart.
//!
//! ```text
//! cargo run --example compare_backends -p dsv41-cli -- configs/small.json --tokens 64
//! cargo run --example compare_backends -p dsv41-cli --features wgpu -- --device flex,wgpu
//! ```

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::{Parser, ValueEnum};
use dsv41::Numerics;
use dsv41_cli::device::{DeviceError, DeviceName};
use dsv41_cli::runner::{self, HostCall, LoadError, RunnerOptions};
use dsv41_cli::weights::GoldenWeights;
use dsv41_config::Config;
use dsv41_golden::filler;

/// Runs one forward pass of a model on each device, with weights made from their names, and compares the logits with
/// those of the first device.
#[derive(Debug, Parser)]
struct Cli {
    /// The model.
    #[arg(default_value = "configs/tiny.json")]
    config: PathBuf,
    /// Devices, the one to compare with first; all that are compiled in where absent.
    #[arg(long, value_delimiter = ',')]
    device: Vec<DeviceName>,
    /// Where to round.
    #[arg(long, value_enum, default_value_t = Rounding::Full)]
    numerics: Rounding,
    /// Tokens of the one sequence.
    #[arg(long, default_value_t = 16)]
    tokens: usize,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Rounding {
    /// Nowhere.
    Full,
    /// Where the released kernels do: a last bit that differs between devices can grow by a step of fp4.
    Reference,
}

/// What a device gave: the logits of every position, one behind the other.
struct Run {
    logits: Vec<f32>,
    time: Duration,
}

/// One forward pass, and its time without what is made once: kernels are compiled when they are first used.
fn run(
    device: DeviceName,
    config: &Config,
    weights: &GoldenWeights,
    tokens: &[Vec<u32>],
    numerics: Numerics,
) -> Result<Run, LoadError> {
    let mut model = runner::load(device, config, weights, RunnerOptions::default())?;
    let mut forward = || {
        model.begin(tokens.len(), config.max_seq_len, 0)?;
        model.forward(tokens, HostCall { numerics, ..HostCall::default() })
    };
    forward()?;
    let start = Instant::now();
    let logits = forward()?.logits.iter().collect();
    Ok(Run { logits, time: start.elapsed() })
}

fn main() -> ExitCode {
    match compare(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn compare(cli: &Cli) -> anyhow::Result<()> {
    let config = Config::load(&cli.config)?;
    ensure!(cli.tokens > 0, "--tokens is 0: must be at least 1");
    ensure!(
        cli.tokens <= config.max_seq_len,
        "--tokens is {}: the model has {} positions",
        cli.tokens,
        config.max_seq_len
    );
    let weights = GoldenWeights::from_names("", &config)?;
    let ids = filler::integers("", "input_ids", cli.tokens, config.vocab_size as u64);
    // A valid vocabulary is far smaller than u32 reaches.
    let tokens = [ids.into_iter().map(|id| id as u32).collect()];
    let devices = if cli.device.is_empty() { DeviceName::compiled() } else { cli.device.clone() };

    println!("{}, {} tokens, compared with the first device", cli.config.display(), cli.tokens);
    println!("device    largest difference of logits  same argmax          time");
    let mut first: Option<Run> = None;
    for device in devices {
        let numerics = match cli.numerics {
            Rounding::Full => Numerics::Full,
            Rounding::Reference => Numerics::Reference,
        };
        let run = match run(device, &config, &weights, &tokens, numerics) {
            Ok(run) => run,
            Err(LoadError::Device(error @ DeviceError::Absent { .. })) => {
                println!("{error}");
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let reference = first.as_ref().unwrap_or(&run);
        println!(
            "{:<9} {:>28.3e}  {:>11}  {:>9.2} ms",
            device.to_string(),
            largest_difference(&run.logits, &reference.logits),
            same_argmax(&run.logits, &reference.logits, config.vocab_size),
            1e3 * run.time.as_secs_f64(),
        );
        first.get_or_insert(run);
    }
    Ok(())
}

/// NaN counts as infinitely far.
fn largest_difference(left: &[f32], right: &[f32]) -> f32 {
    let apart = left.iter().zip(right).map(|(l, r)| (l - r).abs());
    apart.fold(0.0, |largest, apart| if apart.is_nan() { f32::INFINITY } else { apart.max(largest) })
}

/// At how many positions both have their largest logit at the same token.
fn same_argmax(left: &[f32], right: &[f32], vocab: usize) -> String {
    let positions = left.chunks_exact(vocab).zip(right.chunks_exact(vocab));
    let count = positions.len();
    let same = positions.filter(|(l, r)| argmax(l) == argmax(r)).count();
    format!("{same} of {count}")
}

fn argmax(logits: &[f32]) -> Option<usize> {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]))
}
