//! One run, twice.

use anyhow::{Context as _, Result, bail, ensure};
use dsv41_golden::{Bound, Bounds, compare_whole};
use xtask::Implementation;

use crate::case::{Run, Step};

/// Largest difference between the implementations where both compute in f64, in bf16 steps of a result's largest value.
/// A step is at most 1/128 of that value, so this is less than 1e-9 of it.
const STEPS_IN_F64: f64 = 1e-7;

/// What a call gave, and where in the sequence it stood.
pub(crate) struct Call {
    start: usize,
    length: usize,
    results: xtask::Step,
}

/// The results of every call of a run.
pub(crate) fn play(run: &Run, implementation: &mut dyn Implementation) -> Result<Vec<Call>> {
    implementation.begin(run.fixture.batch, run.rollback)?;
    let (mut calls, mut len) = (Vec::new(), 0);
    for step in &run.steps {
        match step {
            Step::Append(tokens) => {
                let length = tokens[0].len();
                let results = implementation.step(tokens, None, None)?;
                calls.push(Call { start: len, length, results });
                len += length;
            }
            Step::Truncate(target) => {
                implementation.truncate(*target)?;
                len = *target;
            }
        }
    }
    Ok(calls)
}

/// Compares every result of every call: integers exactly, numbers as two computations in f64. Gives the largest
/// difference in bf16 steps.
///
/// # Errors
/// The first result that differs.
pub(crate) fn compare(want: &[Call], got: &[Call]) -> Result<f64> {
    let mut largest: f64 = 0.0;
    for (number, (want, got)) in want.iter().zip(got).enumerate() {
        let place = || format!("call {number} (position {}, {} tokens)", want.start, want.length);
        largest = largest.max(want.compare(got).with_context(place)?);
    }
    Ok(largest)
}

impl Call {
    fn compare(&self, got: &Self) -> Result<f64> {
        let mut largest: f64 = 0.0;
        let (want, got) = (&self.results.captures, &got.results.captures);
        if let Some(name) = got.keys().find(|name| !want.contains_key(*name)) {
            bail!("the oracle has no {name}");
        }
        for (name, want) in want.iter().filter(|(name, _)| self.has_layout(name)) {
            let got = got.get(name).with_context(|| format!("the model has no {name}"))?;
            let integer = matches!(want.values, dsv41_golden::Values::Int(_));
            let bound = if integer { Bound::Exact } else { Bound::Steps(STEPS_IN_F64) };
            let comparison = compare_whole(name, want, got, Bounds { value: Some(bound), checksum: None });
            ensure!(comparison.passed(), "{comparison} {:?}", comparison.breaches);
            largest = largest.max(comparison.steps);
        }
        Ok(largest)
    }

    /// Whether a result has a layout in this call. Golden files, which know a prefill and single tokens, lay out
    /// attended keys and indices into them; for other calls each implementation has its own way.
    fn has_layout(&self, capture: &str) -> bool {
        let last = capture.rsplit_once('.').map_or(capture, |(_, last)| last);
        self.start == 0 || self.length == 1 || !matches!(last, "sa_kv" | "sa_topk_idxs" | "topk_idxs")
    }
}
