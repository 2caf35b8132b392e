//! Optimisers by parameter group.
//!
//! Every parameter belongs to a [`ParameterGroup`] by its name, every group has its [`GroupSettings`], and a
//! [`GroupedOptimiser`] steps them all. Tables larger than memory are trained by the rows that were looked up, in
//! [`rows`].
//!
//! Gradients of micro-batches are added by [`burn::optim::GradientsAccumulator`]: each micro-batch's loss is multiplied
//! by its share of the batch's targets before its backward pass, so that their sum is the gradient of the mean over all
//! targets. Where the shares are known only afterwards, [`scale_gradients`] divides the sum.

mod clip;
mod error;
pub(crate) mod file;
mod group;
mod grouped;
mod muon;
mod parameter;
pub mod rows;
mod schedule;
mod settings;
mod state;
#[cfg(test)]
mod testing;
mod update;

pub use clip::{GradientNorm, clip_gradients, scale_gradients, sum_of_squares};
pub use error::{OptimiserError, UnknownParameter};
pub use group::{ParameterGroup, group_of};
pub use grouped::GroupedOptimiser;
pub use parameter::NamedParameter;
pub use schedule::{DecayShape, Schedule};
pub use settings::{AdamWSettings, Algorithm, GroupSettings, MuonSettings, OptimiserSettings};
