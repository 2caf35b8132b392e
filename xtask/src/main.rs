//! `cargo xtask`: the project's chores.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use xtask::golden::GoldenArgs;

/// The project's chores.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Golden(GoldenArgs),
}

fn main() -> ExitCode {
    let Command::Golden(golden) = Cli::parse().command;
    match golden.run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}
