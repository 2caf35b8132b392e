//! The `dsv41` command.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use dsv41_cli::bench::{self, BenchArgs};
use dsv41_cli::convert::{self, ConvertArgs, MakeTinyArgs};
use dsv41_cli::export::{self, ExportArgs};
use dsv41_cli::generate::{self, ConsoleError, GenerateArgs};
use dsv41_cli::inspect::{self, InspectArgs};
use dsv41_cli::message::one_line;
use dsv41_cli::train::{self, FinetuneArgs, TrainArgs};

/// Tools for DeepSeek-V4.1 models.
///
/// Exit code 0 when all went well, 1 when the output could not be written, 2 on bad input.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Say what a GGUF file, a configuration or a golden file holds.
    ///
    /// A GGUF file: its container, its model, its tensors by part and type, and what of them a token needs. A
    /// configuration (the reference's keys or Hugging Face's): its shape, what each layer owns and reads from which other
    /// layer, its parameters and their memory by part, and with --types the same of a GGUF file that need not exist. A
    /// golden file: the run, its calls and captures, and the model.
    Inspect(InspectArgs),
    /// Make text with a model.
    ///
    /// The text goes to standard output as it is made, notes and times to standard error. Ctrl-C ends it after the token
    /// under way. Without --model a small built-in one runs.
    Generate(Box<GenerateArgs>),
    /// Write a model as GGUF, in types chosen by part.
    Convert(ConvertArgs),
    /// Write a GGUF file with adapters added up into its matrices.
    ///
    /// Everything else is copied. The report says what rounding the sums to the types of the file has cost.
    Export(ExportArgs),
    /// Make a GGUF file of any shape with weights made from their names, for tests and benchmarks.
    MakeTiny(MakeTinyArgs),
    /// Train a small model from random weights.
    ///
    /// The run's folder holds its settings, metrics, checkpoints and a report with plots. Ctrl-C ends it after the step
    /// under way with a checkpoint; --resume goes on bit for bit.
    Train(Box<TrainArgs>),
    /// Train a model that is there on lines of a file.
    ///
    /// As train otherwise.
    Finetune(Box<FinetuneArgs>),
    /// Time parts of the model, device by device.
    Bench(BenchArgs),
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(output) => print(&output),
        Err(error) => match error.downcast() {
            Ok(ConsoleError::Output(error)) => unprinted(&error),
            Ok(error) => bad_input(&error.into()),
            Err(error) => bad_input(&error),
        },
    }
}

/// What the command prints in the end.
fn run(cli: Cli) -> anyhow::Result<String> {
    match cli.command {
        Command::Inspect(args) => Ok(inspect::run(&args)?),
        Command::Generate(args) => generate::run(&args).map(|()| String::new()),
        Command::Convert(args) => convert::run_convert(&args),
        Command::Export(args) => export::run(&args),
        Command::MakeTiny(args) => convert::run_make_tiny(&args),
        Command::Train(args) => train::run_train(&args).map(|()| String::new()),
        Command::Finetune(args) => train::run_finetune(&args).map(|()| String::new()),
        Command::Bench(args) => bench::run(&args).map(|()| String::new()),
    }
}

/// Prints to standard output.
fn print(output: &str) -> ExitCode {
    io::stdout().lock().write_all(output.as_bytes()).map_or_else(|error| unprinted(&error), |()| ExitCode::SUCCESS)
}

/// What becomes of an output that cannot be written: nothing, where its reader has seen enough.
fn unprinted(error: &io::Error) -> ExitCode {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return ExitCode::SUCCESS;
    }
    complain(&format!("the output cannot be written: {error}"));
    ExitCode::FAILURE
}

fn bad_input(error: &anyhow::Error) -> ExitCode {
    complain(&one_line(error));
    ExitCode::from(2)
}

/// One line on standard error. Errors of this workspace name their causes themselves.
fn complain(error: &dyn std::fmt::Display) {
    // Where nobody listens there is nobody to tell.
    let _ = writeln!(io::stderr(), "error: {error}");
}
