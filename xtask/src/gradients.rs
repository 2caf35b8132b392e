//! The model's gradients and optimiser steps against gradient goldens, in f64.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Result;
use burn::tensor::TensorData;
use dsv41::Numerics;
use dsv41_cli::{
    device::{DeviceName, Precision},
    train::gradients::{Checkpointing, GradientsRequest, gradients},
    weights::GoldenWeights,
};
use dsv41_config::Config;
use dsv41_golden::{Deviation, GradientGolden, GradientRun, Recorded};
use dsv41_train::optimiser::{AdamWSettings, Algorithm, GroupSettings, OptimiserSettings};

/// One way of computing the gradients, and how they compare.
pub(crate) struct GradientCheck {
    pub(crate) golden: String,
    pub(crate) device: DeviceName,
    pub(crate) checkpointing: Checkpointing,
    pub(crate) deviations: Vec<Deviation>,
    pub(crate) elapsed: Duration,
}

/// Checks a golden on every device, with each way of checkpointing.
pub(crate) fn check(path: &Path, devices: &[DeviceName]) -> Result<Vec<GradientCheck>> {
    let golden = GradientGolden::read(path)?;
    let config = Config::from_value(&path.display().to_string(), &golden.config.clone().into())?;
    let weights = GoldenWeights(golden.make_weights()?);
    let mut checks = Vec::new();
    for &device in devices {
        for checkpointing in [Checkpointing::None, Checkpointing::Balanced, Checkpointing::Blocks] {
            let begun = Instant::now();
            let request = GradientsRequest {
                config: &config,
                weights: &weights,
                tokens: &golden.input_ids,
                numerics: Numerics::Full,
                checkpointing,
                settings: settings(&golden),
                steps: golden.adamw.losses.len().saturating_sub(1) as u64,
            };
            let result = gradients(device, Precision::F64, request)?;
            let run = GradientRun {
                loss: result.loss,
                logits: recorded(&result.logits),
                gradients: result
                    .gradients
                    .iter()
                    .map(|(name, gradient)| (name.clone(), gradient.as_ref().map(recorded)))
                    .collect(),
                losses: result.losses,
            };
            let deviations = golden.compare(&run);
            let golden = golden.name.clone();
            checks.push(GradientCheck { golden, device, checkpointing, deviations, elapsed: begun.elapsed() });
        }
    }
    Ok(checks)
}

fn recorded(data: &TensorData) -> Recorded {
    Recorded::float(data.shape.to_vec(), data.iter::<f64>())
}

/// The golden's optimiser: the same for every parameter.
fn settings(golden: &GradientGolden) -> OptimiserSettings {
    let adamw = &golden.adamw;
    let [beta_1, beta_2] = adamw.betas.map(|beta| beta as f32);
    let algorithm = Algorithm::AdamW(AdamWSettings { beta_1, beta_2, epsilon: adamw.eps as f32 });
    let group = GroupSettings::adamw(adamw.lr).with_weight_decay(adamw.weight_decay as f32);
    OptimiserSettings::uniform(GroupSettings { algorithm, ..group })
}
