//! Golden files of this project's own: any fixture, run by the oracle.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use dsv41_cli::weights::{GoldenWeights, recipes};
use dsv41_config::Config;
use dsv41_golden::{Capture, Fixture, Golden, Inputs, Regime, SelectionRule, WeightSet};
use indexmap::IndexMap;
use serde_json::Value;

use crate::implementation::{Implementation as _, OracleRun};

/// A golden file and the whole tensors beside it.
pub struct Made {
    /// The samples.
    pub golden: Golden,
    /// The whole tensors.
    pub inputs: Inputs,
}

/// The configuration of a fixture, validated.
///
/// # Errors
/// When a key is missing or breaks a rule.
pub(crate) fn fixture_config(origin: &Path, fixture: &Fixture) -> Result<Config> {
    let config = Config::from_value(&origin.display().to_string(), &Value::Object(fixture.config.clone()))?;
    config.validate().with_context(|| origin.display().to_string())?;
    Ok(config)
}

/// Runs `fixture` with the oracle and samples every result; the files are to lie at `path`.
///
/// # Errors
/// When the fixture's configuration breaks a rule, or its lengths do not fit.
pub fn make(fixture: Fixture, origin: &Path, path: &Path) -> Result<Made> {
    if fixture.selection == SelectionRule::Torch {
        bail!("{}: `selection` is \"torch\": only torch can make such a golden, use \"stable\"", origin.display());
    }
    let config = fixture_config(origin, &fixture)?;
    let weights = recipes(&fixture.salt, &config)?;
    let set = WeightSet::generate(&fixture.salt, &weights)?;
    let mut run = OracleRun::new(&config, &GoldenWeights(set), &fixture)?;

    let tokens = fixture.input_ids();
    let mut regimes = IndexMap::new();
    let mut inputs = Inputs::new(&path.with_extension("inputs.safetensors"));
    for call in fixture.calls() {
        let part: Vec<Vec<u32>> = tokens.iter().map(|row| row[call.start..call.start + call.length].to_vec()).collect();
        let step = run.step(&part, None, None).with_context(|| format!("{}: {}", origin.display(), call.name))?;
        if fixture.regimes.contains(&call.name) {
            let sampled: Regime =
                step.captures.iter().map(|(name, whole)| (name.clone(), Capture::sample(whole))).collect();
            inputs.keep(&call.name, &step.captures);
            regimes.insert(call.name, sampled);
        }
    }
    Ok(Made { golden: Golden { path: path.to_owned(), fixture, weights, regimes }, inputs })
}
