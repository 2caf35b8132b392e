//! What a training run leaves on disk, in one folder that one process writes at a time.
//!
//! | file | holds | written by |
//! |---|---|---|
//! | `config.json` | the settings of the run | [`RunDirectory::create`], once |
//! | `metrics.jsonl` | one line of [`StepMetrics`] a step | [`MetricsLog`] |
//! | `checkpoints/step-000123/` | what the trainer saves, and a manifest with sizes and sums | [`Checkpoints`] |
//! | `report.html` | plots of all that | [`Report`] |
//!
//! Whatever moment the process is killed at, each of them is whole afterwards: files and checkpoints get their name only
//! once they are on disk, and of the metrics no more than the last line can be torn, which is dropped on resuming.

mod checkpoints;
mod directory;
pub(crate) mod durable;
mod error;
mod metrics;
mod metrics_log;
mod notice;
mod number;
mod report;
mod series;
#[cfg(test)]
mod testing;
pub mod units;

pub use checkpoints::{Checkpoint, CheckpointFault, Checkpoints, Score};
pub use directory::{RunDirectory, RunFiles};
pub use error::RunError;
pub use metrics::{Evaluation, RouterMetrics, StepMetrics};
pub use metrics_log::{MetricsLog, MetricsReader};
pub use notice::Notice;
pub use report::Report;
pub use series::{Point, Series};
