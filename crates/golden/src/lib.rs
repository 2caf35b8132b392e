//! Golden files: values made from names, the file format, and the comparison of a run with a file.
//!
//! A golden file holds the fixture (configuration, batch, lengths, switches), the recipe of every weight, and for each
//! regime (a prefill, then decode steps) a sample and a checksum of every intermediate result that DeepSeek's own code
//! had there. Weights are never stored: [`fill`](filler::fill) makes them from their names.
//!
//! # The format
//!
//! `NAME.json` is one object:
//! - `fixture`: a [`Fixture`], the configuration's keys and the run's.
//! - `weights_meta`: name to [`WeightMeta`], with `shape`, `n`, `kind`, `dtype`, `scale` and `offset` (or `lo` and `span`
//!   for powers of two) and `ck`.
//! - each regime: capture to [`Capture`], with `shape`, `n`, `stride`, `ck` and `data`.
//!
//! A checksum `ck` is the f64 sum of `value * (index + 1)` over the whole tensor; `data` is every stride-th element, floats
//! to nine digits, [`MASKED`] for minus infinity.
//!
//! `NAME.inputs.safetensors` holds whole tensors of the same run named `regime/capture`: [`Inputs`].
//!
//! # The comparison
//!
//! [`compare_regime`] holds a run's [`Captures`] against a golden's, by the tolerances of one [`Check`]:
//!
//! ```
//! use dsv41_golden::{Bound, Bounds, Capture, Recorded, compare_capture};
//!
//! let golden = Capture::sample(&Recorded::float([2, 2], [1.0, 0.5, -0.25, 0.0]));
//! let run = Recorded::float([2, 2], [1.0, 0.5, -0.2421875, 0.0]);
//! let bounds = Bounds { value: Some(Bound::Steps(2.0)), checksum: Some(1.0 / 256.0) };
//!
//! let comparison = compare_capture("h_out", &golden, &run, bounds);
//! assert_eq!(comparison.worst.map(|worst| worst.index), Some(2));
//! assert_eq!(comparison.steps, 1.0);
//! assert!(!comparison.passed(), "the checksum is off by {:?}", comparison.checksum_error);
//! ```

mod bounds;
mod capture;
mod compare;
mod engram_hash;
mod error;
mod file;
pub mod filler;
mod fixture;
mod gradient;
mod inputs;
mod json;
mod recipes;
mod recorded;
pub mod rounding;
mod selections;
#[cfg(test)]
mod testing;
mod weights;

pub use bounds::{Bound, Bounds, Check, Codes};
pub use capture::{Capture, MASKED};
pub use compare::{Breach, Comparison, Worst, compare_capture, compare_regime, compare_streams, compare_whole};
pub use engram_hash::EngramHashGolden;
pub use error::{EntryFault, GoldenError, Place, WeightFault};
pub use file::{Golden, GoldenKind, Regime};
pub use fixture::{Fixture, ProbsDtype, RegimeCall, SelectionRule};
pub use gradient::{AdamWSteps, Deviation, GradientGolden, GradientRun};
pub use inputs::Inputs;
pub use recipes::{StoredTensor, recipes, weight_part};
pub use recorded::{Captures, Recorded, Values};
pub use selections::{GoldenSelections, LayerSelections, Selections};
pub use weights::{Dtype, Kind, LogicalWeight, StoredAs, WeightMeta, WeightSet};
