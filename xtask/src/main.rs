//! `cargo xtask`: the project's chores.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use xtask::{golden::GoldenArgs, mutate::MutateArgs};

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
    Mutate(MutateArgs),
}

fn main() -> ExitCode {
    let held = match Cli::parse().command {
        Command::Golden(golden) => golden.run(),
        Command::Mutate(mutate) => mutate.run(),
    };
    match held {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("error: {}", dsv41_cli::message::one_line(&error));
            ExitCode::from(2)
        }
    }
}
