use std::{fmt, io, path::PathBuf};

use dsv41::ModelError;

use super::diagnosis::Activations;
use crate::{losses::LossError, objective::ObjectiveError, optimiser::OptimiserError, router_bias::RouterBiasError};

/// Why a model cannot be trained on.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The model cannot be called.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The loss cannot be taken.
    #[error(transparent)]
    Loss(#[from] LossError),
    /// The losses of the layers cannot be taken.
    #[error(transparent)]
    Objective(#[from] ObjectiveError),
    /// The router's biases cannot be moved.
    #[error(transparent)]
    RouterBias(#[from] RouterBiasError),
    /// The optimiser cannot be made, step, or have its state stored.
    #[error(transparent)]
    Optimiser(#[from] OptimiserError),
    /// Batches without a token to predict.
    #[error("step {step}: no token of lines {} is to be learnt", Lines(lines))]
    NoTargets {
        /// The step, from 1.
        step: u64,
        /// The lines of the batches.
        lines: Vec<usize>,
    },
    /// The loss is infinite or not a number.
    #[error(transparent)]
    NonFiniteLoss(Box<NonFiniteLoss>),
    /// Gradients are infinite or not numbers, although the loss is finite.
    #[error("step {step}: the norm of all gradients is {norm}, of lines {}", Lines(lines))]
    NonFiniteGradients {
        /// The step, from 1.
        step: u64,
        /// What came of adding their squares.
        norm: f64,
        /// The lines of the batches.
        lines: Vec<usize>,
    },
    /// The threads of micro-batches cannot be started.
    #[error("threads cannot be started: {0}")]
    Threads(rayon::ThreadPoolBuildError),
    /// A part of a checkpoint cannot be read or written.
    #[error("{}: cannot be {action}: {source}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// What was to be done.
        action: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// A part of a checkpoint is not what it should be.
    #[error("{}: {source}", file.display())]
    Json {
        /// The file.
        file: PathBuf,
        /// What the parser says.
        source: serde_json::Error,
    },
}

/// A loss that is infinite or not a number, and where that may come from.
#[derive(Debug)]
pub struct NonFiniteLoss {
    /// The step, from 1.
    pub step: u64,
    /// The loss.
    pub loss: f64,
    /// The lines of the batch.
    pub lines: Vec<usize>,
    /// What the model computed on the way, where it can still be called.
    pub activations: Option<Activations>,
}

impl std::error::Error for NonFiniteLoss {}

impl fmt::Display for NonFiniteLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {}: the loss is {}, of lines {}", self.step, self.loss, Lines(&self.lines))?;
        match &self.activations {
            Some(activations) => write!(f, "; {activations}"),
            None => Ok(()),
        }
    }
}

/// Line numbers, of which the first few are told.
struct Lines<'a>(&'a [usize]);

impl fmt::Display for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const TOLD: usize = 16;
        for (place, line) in self.0.iter().take(TOLD).enumerate() {
            let before = if place == 0 { "" } else { ", " };
            write!(f, "{before}{line}")?;
        }
        match self.0.len().saturating_sub(TOLD) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}
