//! The `dsv41` command.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use dsv41_cli::inspect::Report;

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
    /// Say what a configuration or a golden file holds.
    ///
    /// A configuration (the reference's keys or Hugging Face's): its shape, what each layer owns and reads from which
    /// other layer, its parameters and their memory by part. A golden file: the run, its calls and captures, and the
    /// model.
    Inspect {
        /// A JSON file; what it is shows in its content.
        #[arg(value_name = "CONFIG|GOLDEN")]
        file: PathBuf,
        /// Print one JSON object instead of tables.
        #[arg(long)]
        json: bool,
    },
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(output) => print(&output),
        Err(error) => {
            complain(&error);
            ExitCode::from(2)
        }
    }
}

/// What the command prints.
fn run(cli: Cli) -> anyhow::Result<String> {
    match cli.command {
        Command::Inspect { file, json } => {
            let report = Report::read(&file)?;
            Ok(if json { format!("{:#}\n", report.to_json()) } else { report.to_string() })
        }
    }
}

/// Prints to standard output, whose reader may have seen enough before the end.
fn print(output: &str) -> ExitCode {
    match io::stdout().lock().write_all(output.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            complain(&error);
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

/// One line on standard error. Errors of this workspace name their causes themselves.
fn complain(error: &dyn std::fmt::Display) {
    // Where nobody listens there is nobody to tell.
    let _ = writeln!(io::stderr(), "error: {error}");
}
