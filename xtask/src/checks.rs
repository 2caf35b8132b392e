//! The three checks of an implementation against a golden file.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use dsv41_golden::{
    Captures, Check, Comparison, Golden, GoldenSelections, Inputs, RegimeCall, SelectionRule, compare_regime,
    compare_streams,
};
use serde::Serialize;

use crate::{
    choices::{ChoiceComparison, compare_choices},
    implementation::Implementation,
};

/// What a check of one golden found.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// Regime by regime.
    pub regimes: Vec<RegimeOutcome>,
    /// Why the check was not run, if it was not.
    pub skipped: Option<String>,
}

impl Outcome {
    /// Whether every bound was kept.
    pub fn passed(&self) -> bool {
        self.regimes.iter().all(RegimeOutcome::passed)
    }
}

/// What a check of one regime found.
#[derive(Debug, Clone, Serialize)]
pub struct RegimeOutcome {
    /// The regime.
    pub regime: String,
    /// Capture by capture.
    pub comparisons: Vec<Comparison>,
    /// What layers would have chosen themselves. Judged in the fed check alone.
    pub choices: Vec<ChoiceComparison>,
    /// Whether `choices` are judged.
    pub choices_judged: bool,
    /// Time the implementation took.
    pub elapsed: Duration,
}

impl RegimeOutcome {
    /// Whether every bound was kept.
    pub fn passed(&self) -> bool {
        let chosen = !self.choices_judged || self.choices.iter().all(|choice| choice.wrong.is_none());
        chosen && self.comparisons.iter().all(Comparison::passed)
    }
}

/// Runs one check of `implementation` over all calls of `golden`.
///
/// # Errors
/// When the golden does not fit its own fixture, or the implementation refuses a call.
pub fn run_check(
    check: Check,
    golden: &Golden,
    inputs: Option<&Inputs>,
    implementation: &mut dyn Implementation,
) -> Result<Outcome> {
    let calls = golden.fixture.calls();
    let plan = calls.iter().map(|call| plan(check, golden, inputs, call)).collect::<Result<Result<Vec<_>, _>>>()?;
    let plan = match plan {
        Ok(plan) => plan,
        Err(reason) => return Ok(Outcome { regimes: Vec::new(), skipped: Some(reason) }),
    };

    let tokens = golden.fixture.input_ids();
    let block = golden.fixture.config.get("candidate_block_size").and_then(serde_json::Value::as_u64);
    let block = block.map_or(1, |size| size as usize);
    implementation.begin(golden.fixture.batch, 0)?;
    let mut regimes = Vec::new();
    for (call, plan) in calls.iter().zip(plan) {
        let part: Vec<Vec<u32>> = tokens.iter().map(|row| row[call.start..call.start + call.length].to_vec()).collect();
        let begun = Instant::now();
        let step = implementation
            .step(&part, plan.forced.as_ref().map(|forced| &forced.selections), plan.feed.as_ref())
            .with_context(|| format!("{}: {}", golden.path.display(), call.name))?;
        let elapsed = begun.elapsed();
        if !golden.regimes.contains_key(&call.name) {
            continue;
        }
        let mut comparisons = compare_regime(golden, &call.name, &step.captures, check)?;
        if let (Check::Fed, Some(inputs)) = (check, inputs) {
            comparisons.extend(compare_streams(inputs, &call.name, &step.captures));
        }
        let choices = match &plan.forced {
            Some(forced) => {
                let layers = forced.selections.layers.iter();
                layers.flat_map(|(&layer, want)| compare_choices(&step, layer, want, block)).collect()
            }
            None => Vec::new(),
        };
        let choices_judged = check == Check::Fed;
        regimes.push(RegimeOutcome { regime: call.name.clone(), comparisons, choices, choices_judged, elapsed });
    }
    Ok(Outcome { regimes, skipped: None })
}

/// What a call is given besides its tokens.
struct CallPlan {
    forced: Option<GoldenSelections>,
    feed: Option<Captures>,
}

/// The plan of one call, or why the golden (or the lack of its inputs) does not allow it.
fn plan(check: Check, golden: &Golden, inputs: Option<&Inputs>, call: &RegimeCall) -> Result<Result<CallPlan, String>> {
    let takes_choices = check != Check::Free || golden.fixture.selection == SelectionRule::Torch;
    if !takes_choices {
        return Ok(Ok(CallPlan { forced: None, feed: None }));
    }
    if !golden.regimes.contains_key(&call.name) {
        return Ok(Err(format!("the file has no regime {}", call.name)));
    }
    let without = |what: &str| {
        let path = golden.inputs_path();
        let state = if inputs.is_some() { "does not hold it" } else { "is not there" };
        Err(format!("{}: {what} is needed in whole, and {} {state}", call.name, path.display()))
    };
    let mut forced = golden.selections(&call.name, inputs)?;
    if check == Check::Free {
        // Only what torch's sort left open: the indexer's selections.
        forced.selections.layers.values_mut().for_each(|chosen| chosen.experts = None);
        forced.left_out.retain(|name| !name.ends_with("moe_indices"));
    }
    if let Some(name) = forced.left_out.first() {
        return Ok(without(name));
    }
    let feed = match check {
        Check::Fed => match feed(golden, inputs, &call.name)? {
            Ok(feed) => Some(feed),
            Err(name) => return Ok(without(&name)),
        },
        Check::Forced | Check::Free => None,
    };
    Ok(Ok(CallPlan { forced: Some(forced), feed }))
}

/// Every layer's inputs in whole, or the name of the first one that is only sampled.
fn feed(golden: &Golden, inputs: Option<&Inputs>, regime: &str) -> Result<Result<Captures, String>> {
    let mut feed = Captures::new();
    for name in golden.regime(regime)?.keys() {
        let part = name.rsplit('.').next();
        if name.starts_with('L') && matches!(part, Some("engram_in" | "h_in" | "pre_mix_in")) {
            match golden.whole(regime, name, inputs)? {
                Some(whole) => feed.insert(name.clone(), whole),
                None => return Ok(Err(name.clone())),
            };
        }
    }
    Ok(Ok(feed))
}
