//! How a model is trained.

use std::num::NonZeroUsize;

use dsv41::Numerics;
use serde::{Deserialize, Serialize};

use crate::{objective::ObjectiveSettings, optimiser::OptimiserSettings, tables::TableStorage};

/// How a model is trained.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainerSettings {
    /// What turns gradients into updates.
    pub optimiser: OptimiserSettings,
    /// Where the forward pass rounds.
    #[serde(default)]
    pub rounding: Rounding,
    /// What is computed again for the backward pass.
    #[serde(default)]
    pub recompute: Recompute,
    /// What is minimised besides the cross entropy.
    #[serde(default)]
    pub objective: ObjectiveSettings,
    /// The share of adapters' inputs that a step leaves out, 0 for none.
    #[serde(default)]
    pub dropout: f64,
    /// What is left out follows from it, the step and the micro-batch.
    #[serde(default)]
    pub seed: u64,
    /// The coefficient of the cross entropy's squared normaliser, 0 for none; see
    /// [`CrossEntropy`](crate::losses::CrossEntropy).
    #[serde(default)]
    pub z_loss: f64,
    /// Where engram tables are.
    #[serde(default)]
    pub engram_tables: TableStorage,
    /// Micro-batches of a step that are computed at once, each on a thread of its own. Results do not depend on it.
    #[serde(default = "one")]
    pub parallel: NonZeroUsize,
}

fn one() -> NonZeroUsize {
    NonZeroUsize::MIN
}

impl Default for TrainerSettings {
    fn default() -> Self {
        Self {
            optimiser: OptimiserSettings::default(),
            rounding: Rounding::default(),
            recompute: Recompute::default(),
            objective: ObjectiveSettings::default(),
            dropout: 0.0,
            seed: 0,
            z_loss: 0.0,
            engram_tables: TableStorage::default(),
            parallel: one(),
        }
    }
}

/// Where the forward pass rounds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rounding {
    /// Nowhere.
    #[default]
    None,
    /// Where the released kernels do, with gradients straight through: quantisation-aware training.
    Qat,
}

/// What is computed again for the backward pass.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recompute {
    /// Nothing: every result is kept.
    #[default]
    None,
    /// One layer at a time, from its input: less memory for about a third more time.
    Blocks,
}

impl From<Rounding> for Numerics {
    fn from(rounding: Rounding) -> Self {
        match rounding {
            Rounding::None => Self::Full,
            Rounding::Qat => Self::Qat,
        }
    }
}
