//! Checks of the two implementations of the graph against golden files, and the making of new ones.

mod burn_run;
mod checks;
mod choices;
mod engram_hash;
pub mod golden;
mod gradients;
mod implementation;
mod make;
pub mod mutate;
mod report;

pub use burn_run::BurnRun;
pub use checks::{Outcome, RegimeOutcome, run_check};
pub use choices::{ChoiceComparison, compare_choices};
pub use implementation::{Implementation, OracleRun, Step};
pub use make::{Made, make};
