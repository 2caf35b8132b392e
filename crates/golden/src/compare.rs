//! A run against a golden, capture by capture.

use std::fmt;

use serde::Serialize;

use crate::bounds::{Bound, Bounds, Check, Codes};
use crate::capture::Capture;
use crate::error::{EntryFault, GoldenError};
use crate::file::Golden;
use crate::inputs::Inputs;
use crate::recorded::{Captures, Recorded, Values, checksum};
use crate::selections::layer_of;

/// The goldens whose free runs are judged: there no rounding decides a selection. Elsewhere free runs are reported.
const FREE_RUNS_JUDGED: [&str; 3] = ["tiny", "released", "published"];

/// An element and its two values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Worst {
    /// Position in the whole tensor, row-major.
    pub index: usize,
    /// The golden's.
    pub want: f64,
    /// The run's.
    pub got: f64,
}

/// Why a capture is out of bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Breach {
    /// The tensors have different shapes.
    Shape,
    /// Other elements are minus infinity.
    Pattern,
    /// The values differ by more than the bound.
    Value,
    /// The run has NaN or plus infinity somewhere, sampled or not.
    NonFinite,
    /// The checksums differ by more than the bound.
    Checksum,
}

/// What the comparison of one capture found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// The capture's name.
    pub capture: String,
    /// Whether it holds integers, which are equal or not: they have no steps.
    pub integer: bool,
    /// Elements compared: the golden's sample, or the whole tensor.
    pub compared: usize,
    /// Elements equal in value.
    pub equal: usize,
    /// The element with the largest error, if any differs. A NaN, or minus infinity on one side only, is an infinite
    /// error.
    pub worst: Option<Worst>,
    /// One bf16 step: `2^(floor(log2 m) - 7)`, m the largest finite magnitude among the compared elements of both sides.
    pub step: f64,
    /// The largest error in bf16 steps.
    pub steps: f64,
    /// Root of the summed squared errors over that of the golden's values, over the compared elements that are finite.
    pub relative_l2: f64,
    /// Groups that hold another quantiser code, where the bound allows for a few.
    pub flipped_groups: usize,
    /// Error of the checksum over the sum of the run's `|value| * (index + 1)`. None where minus infinity swamps it.
    pub checksum_error: Option<f64>,
    /// What was allowed.
    pub bounds: Bounds,
    /// In what it was exceeded.
    pub breaches: Vec<Breach>,
}

impl Comparison {
    /// Whether a bound was there to be kept.
    pub fn is_judged(&self) -> bool {
        self.bounds.value.is_some()
    }

    /// Whether every bound was kept.
    pub fn passed(&self) -> bool {
        self.breaches.is_empty()
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} of {} equal", self.capture, self.equal, self.compared)?;
        if let Some(Worst { index, want, got }) = self.worst {
            write!(f, ", element {index} is {got:e}, the golden says {want:e}")?;
            if !self.integer {
                write!(f, " ({:.2} steps)", self.steps)?;
            }
        }
        if let Some(error) = self.checksum_error.filter(|&error| error > 0.0) {
            write!(f, ", checksum off by {error:.1e}")?;
        }
        if self.breaches.contains(&Breach::Shape) {
            f.write_str(", shapes differ")?;
        }
        Ok(())
    }
}

/// Compares every capture of a regime with the run's.
///
/// # Errors
/// [`GoldenError::Entry`] for a regime or capture that the golden lacks, a capture that the run lacks, or a shape that
/// is not the run's.
pub fn compare_regime(
    golden: &Golden,
    regime: &str,
    run: &Captures,
    check: Check,
) -> Result<Vec<Comparison>, GoldenError> {
    let captures = golden.regime(regime)?;
    let fault = |capture: &str, fault| Err(golden.place(regime, capture).fault(fault));
    if let Some(missing) = run.keys().find(|name| !captures.contains_key(*name)) {
        return fault(missing, EntryFault::Missing);
    }
    let judged = check != Check::Free || FREE_RUNS_JUDGED.contains(&golden.fixture.name.as_str());
    let window_rows = golden.fixture.call(regime).map_or(0, |call| call.window_rows(golden.fixture.window_size));
    let mut comparisons = Vec::with_capacity(captures.len());
    for (name, want) in captures {
        let Some(got) = run.get(name) else {
            return fault(name, EntryFault::Unexpected);
        };
        if got.shape != want.shape {
            return fault(name, EntryFault::Shape { expected: got.shape.clone(), found: want.shape.clone() });
        }
        let bounds = if judged { check.bounds(name, window_rows) } else { Bounds::UNJUDGED };
        comparisons.push(match (bounds.value, run.get("logits")) {
            (Some(Bound::Argmax(steps)), Some(logits)) => compare_choice(name, want, got, logits, steps, bounds),
            _ => compare_capture(name, want, got, bounds),
        });
    }
    Ok(comparisons)
}

/// Compares what each layer of a fed run handed on with what the next layer of the golden got, in whole: `h_out` with
/// `engram_in` (or `h_in`, where the layer has no engram), `pre_mix_out` with `pre_mix_in`.
pub fn compare_streams(inputs: &Inputs, regime: &str, run: &Captures) -> Vec<Comparison> {
    let next = |name: &str| -> Option<&Recorded> {
        if let Some(layer) = layer_of(name, "L", ".h_out") {
            let got = |part| inputs.get(regime, &format!("L{}.{part}", layer + 1));
            got("engram_in").or_else(|| got("h_in"))
        } else {
            let layer = layer_of(name, "L", ".pre_mix_out")?;
            inputs.get(regime, &format!("L{}.pre_mix_in", layer + 1))
        }
    };
    run.iter()
        .filter_map(|(name, got)| {
            let bounds = Bounds { checksum: None, ..Check::Fed.bounds(name, 0) };
            Some(compare_whole(&format!("{name} in whole"), next(name)?, got, bounds))
        })
        .collect()
}

/// Compares a golden's sample and checksum with a whole result.
pub fn compare_capture(name: &str, want: &Capture, got: &Recorded, bounds: Bounds) -> Comparison {
    let mut comparison = Comparison::start(name, got, bounds);
    if want.shape == got.shape && want.n == got.len() {
        comparison.compare_values(want.samples(), got);
        comparison.compare_checksum(want.ck, got);
    } else {
        comparison.breaches.push(Breach::Shape);
    }
    comparison
}

/// Compares two whole results, element by element.
pub fn compare_whole(name: &str, want: &Recorded, got: &Recorded, bounds: Bounds) -> Comparison {
    let mut comparison = Comparison::start(name, got, bounds);
    if want.shape == got.shape && want.len() == got.len() {
        comparison.compare_values(want.values.to_f64().enumerate(), got);
    } else {
        comparison.breaches.push(Breach::Shape);
    }
    comparison
}

/// Compares the ids chosen from logits `[B, V]`: another id than the golden's passes where the logits allow both.
fn compare_choice(
    name: &str,
    want: &Capture,
    got: &Recorded,
    logits: &Recorded,
    steps: f64,
    bounds: Bounds,
) -> Comparison {
    let mut comparison = compare_capture(name, want, got, Bounds::UNJUDGED);
    comparison.bounds = bounds;
    let logits: Vec<f64> = logits.values.to_f64().collect();
    let vocabulary = logits.len() / got.len().max(1);
    // Either side of the tie may be off by the bound.
    let reach = 2.0 * steps * bf16_step(logits.iter().copied());
    let within_reach = |(index, want): (usize, f64)| {
        let row = &logits[index * vocabulary..][..vocabulary];
        let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        want == got.get(index) || (want >= 0.0 && row.get(want as usize).is_some_and(|&logit| logit >= largest - reach))
    };
    if !want.samples().all(within_reach) {
        comparison.breaches.push(Breach::Value);
    }
    comparison
}

impl Comparison {
    fn start(name: &str, got: &Recorded, bounds: Bounds) -> Self {
        Self {
            capture: name.to_owned(),
            integer: matches!(got.values, Values::Int(_)),
            compared: 0,
            equal: 0,
            worst: None,
            step: 0.0,
            steps: 0.0,
            relative_l2: 0.0,
            flipped_groups: 0,
            checksum_error: None,
            bounds,
            breaches: Vec::new(),
        }
    }

    fn compare_values(&mut self, want: impl Iterator<Item = (usize, f64)>, got: &Recorded) {
        let pairs: Vec<Worst> = want.map(|(index, want)| Worst { index, want, got: got.get(index) }).collect();
        self.compared = pairs.len();
        self.equal = pairs.iter().filter(|pair| pair.error() == 0.0).count();
        self.worst = pairs
            .iter()
            .copied()
            .filter(|pair| pair.error() > 0.0)
            .reduce(|worst, pair| if pair.error() > worst.error() { pair } else { worst });
        let largest_error = self.worst.map_or(0.0, |worst| worst.error());
        if !self.integer {
            self.step = bf16_step(pairs.iter().flat_map(|pair| [pair.want, pair.got]));
            self.steps = ratio(largest_error, self.step);
        }
        let unmasked = || pairs.iter().filter(|pair| !is_masked(pair.want));
        let squared_error: f64 = unmasked().map(|pair| pair.error().powi(2)).sum();
        let square: f64 = unmasked().map(|pair| pair.want.powi(2)).sum();
        self.relative_l2 = ratio(squared_error.sqrt(), square.sqrt());

        let Some(bound) = self.bounds.value else { return };
        if got.values.to_f64().any(|value| !value.is_finite() && !is_masked(value)) {
            self.breaches.push(Breach::NonFinite);
        }
        if pairs.iter().any(|pair| is_masked(pair.want) != is_masked(pair.got)) {
            self.breaches.push(Breach::Pattern);
        }
        let kept = match bound {
            Bound::Exact | Bound::Argmax(_) => self.worst.is_none(),
            Bound::Steps(steps) => self.steps <= steps,
            Bound::Absolute(error) => largest_error <= error,
            Bound::RelativeL2(error) => self.relative_l2 <= error,
            Bound::Codes(codes) => self.compare_codes(codes, &pairs, got),
        };
        if !kept {
            self.breaches.push(Breach::Value);
        }
    }

    /// Counts the groups with other codes. Whether they are few, and no value is further off than one code.
    fn compare_codes(&mut self, codes: Codes, pairs: &[Worst], got: &Recorded) -> bool {
        let (mut groups, mut last_group, mut last_flipped) = (0, None, None);
        let mut one_code = true;
        for pair in pairs {
            let quantiser = codes.quantiser(&got.shape, pair.index);
            let start = pair.index - pair.index % quantiser.group();
            groups += usize::from(last_group.replace(start) != Some(start));
            if pair.error() <= Codes::STEPS * self.step {
                continue;
            }
            self.flipped_groups += usize::from(last_flipped.replace(start) != Some(start));
            let end = (start + quantiser.group()).min(got.len());
            let largest = (start..end).map(|index| got.get(index).abs()).fold(0.0, f64::max);
            one_code &= pair.error() <= quantiser.one_code(pair.want.abs().max(pair.got.abs()), largest);
        }
        one_code && self.flipped_groups <= Codes::few(groups)
    }

    fn compare_checksum(&mut self, want: f64, got: &Recorded) {
        if got.values.to_f64().any(is_masked) {
            return;
        }
        let found = checksum(got.values.to_f64());
        let error = ratio((found.sum - want).abs(), found.magnitude);
        let error = if error.is_nan() { f64::INFINITY } else { error };
        self.checksum_error = Some(error);
        if self.bounds.checksum.is_some_and(|bound| error > bound) {
            self.breaches.push(Breach::Checksum);
        }
    }
}

impl Worst {
    /// The distance between the two values, infinite where only one is minus infinity or either is NaN.
    fn error(&self) -> f64 {
        match (is_masked(self.want), is_masked(self.got)) {
            (true, true) => 0.0,
            (false, false) => {
                let error = (self.want - self.got).abs();
                if error.is_nan() { f64::INFINITY } else { error }
            }
            _ => f64::INFINITY,
        }
    }
}

/// Whether a value is minus infinity, or stands for it: [`MASKED`](crate::MASKED), or -1e30 in f64.
fn is_masked(value: f64) -> bool {
    value <= -1e30
}

/// `2^(floor(log2 m) - 7)`, m the largest finite magnitude; zero if there is none.
fn bf16_step(values: impl Iterator<Item = f64>) -> f64 {
    const FRACTION_BITS: u32 = 52;
    const BF16_FRACTION_BITS: u64 = 7;

    let finite = values.filter(|value| value.is_finite() && !is_masked(*value));
    let largest = finite.fold(0.0, |largest: f64, value| largest.max(value.abs()));
    if largest == 0.0 {
        return 0.0;
    }
    let exponent = (largest.to_bits() >> FRACTION_BITS).saturating_sub(BF16_FRACTION_BITS);
    f64::from_bits(exponent.max(1) << FRACTION_BITS)
}

/// `error / size`, where no error is nothing even of nothing.
fn ratio(error: f64, size: f64) -> f64 {
    if error == 0.0 { 0.0 } else { error / size }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MASKED;
    use crate::testing::golden;

    fn floats(values: &[f64]) -> Recorded {
        Recorded::float([values.len()], values.iter().copied())
    }

    fn whole(want: &[f64], got: &[f64], bound: Bound) -> Comparison {
        let bounds = Bounds { value: Some(bound), checksum: None };
        compare_whole("capture", &floats(want), &floats(got), bounds)
    }

    #[test]
    fn a_step_is_one_bf16_unit_of_the_largest_value() {
        for (largest, step) in
            [(1.0, 1.0 / 128.0), (1.99, 1.0 / 128.0), (-2.0, 1.0 / 64.0), (0.75, 1.0 / 256.0), (0.0, 0.0)]
        {
            assert_eq!(bf16_step([0.0, largest, MASKED, f64::NAN, f64::INFINITY].into_iter()), step, "{largest}");
        }
        assert!(bf16_step([f64::from_bits(1)].into_iter()) > 0.0);
    }

    #[test]
    fn the_worst_element_is_named_with_both_values() {
        let comparison = whole(&[1.0, 0.5, -1.0], &[1.0, 0.5 + 1.0 / 128.0, -1.0 + 3.0 / 128.0], Bound::Steps(2.0));
        assert_eq!(comparison.worst, Some(Worst { index: 2, want: -1.0, got: -1.0 + 3.0 / 128.0 }));
        assert_eq!((comparison.compared, comparison.equal, comparison.steps), (3, 1, 3.0));
        assert_eq!(comparison.breaches, [Breach::Value]);
        let line = comparison.to_string();
        assert_eq!(line, "capture: 1 of 3 equal, element 2 is -9.765625e-1, the golden says -1e0 (3.00 steps)");
    }

    #[test]
    fn bounds_are_inclusive() {
        let step = 1.0 / 128.0;
        let cases = [
            (Bound::Exact, 0.0),
            (Bound::Steps(2.0), 2.0 * step),
            (Bound::Absolute(1e-3), 1e-3),
            (Bound::RelativeL2(0.25), 0.25),
        ];
        for (bound, error) in cases {
            assert!(whole(&[0.0, 1.0], &[error, 1.0], bound).passed(), "{bound:?}");
            assert!(!whole(&[0.0, 1.0], &[error + 1e-9, 1.0], bound).passed(), "{bound:?}");
        }
    }

    #[test]
    fn integers_are_equal_or_not() {
        let ids = |ids: [i64; 3]| Recorded::int([3], ids);
        let comparison = compare_whole(
            "ids",
            &ids([1, 2, 3]),
            &ids([1, 5, 3]),
            Bounds { value: Some(Bound::Exact), checksum: None },
        );
        assert_eq!((comparison.equal, comparison.steps, comparison.integer), (2, 0.0, true));
        assert_eq!(comparison.breaches, [Breach::Value]);
    }

    #[test]
    fn minus_infinity_is_compared_as_a_pattern() {
        let minus_infinity = f64::NEG_INFINITY;
        assert!(whole(&[MASKED, 1.0], &[minus_infinity, 1.0], Bound::Steps(0.0)).passed());
        assert!(whole(&[MASKED, 1.0], &[-1e30, 1.0], Bound::Steps(0.0)).passed());
        let moved = whole(&[MASKED, 1.0], &[1.0, minus_infinity], Bound::Steps(1e9));
        assert_eq!(moved.breaches, [Breach::Pattern, Breach::Value]);
        assert_eq!(moved.steps, f64::INFINITY);
    }

    #[test]
    fn what_is_not_finite_is_a_breach_wherever_it_is() {
        let sample = Capture::sample(&floats(&[1.0; 20]));
        assert!(sample.stride > 1);
        for bad in [f64::NAN, f64::INFINITY] {
            let mut got = [1.0; 20];
            got[1] = bad;
            let bounds = Bounds { value: Some(Bound::Steps(2.0)), checksum: Some(1.0) };
            let comparison = compare_capture("capture", &sample, &floats(&got), bounds);
            assert_eq!(comparison.breaches, [Breach::NonFinite, Breach::Checksum]);
            assert!(!whole(&[1.0], &[bad], Bound::Steps(1e9)).passed());
        }
    }

    #[test]
    fn checksums_cover_what_the_sample_misses() {
        let sample = Capture::sample(&floats(&[1.0; 20]));
        let bounds = Bounds { value: Some(Bound::Steps(2.0)), checksum: Some(1.0 / 256.0) };
        let mut got = [1.0; 20];
        assert_eq!(compare_capture("capture", &sample, &floats(&got), bounds).checksum_error, Some(0.0));
        got[19] = 0.0;
        let comparison = compare_capture("capture", &sample, &floats(&got), bounds);
        assert_eq!(comparison.worst, None);
        assert_eq!(comparison.checksum_error, Some(20.0 / 190.0));
        assert_eq!(comparison.breaches, [Breach::Checksum]);
        // Minus infinity would leave nothing else of a checksum.
        got[19] = f64::NEG_INFINITY;
        assert_eq!(compare_capture("capture", &sample, &floats(&got), bounds).checksum_error, None);
    }

    #[test]
    fn shapes_must_be_equal() {
        let comparison = compare_whole("capture", &floats(&[1.0]), &floats(&[1.0, 1.0]), Bounds::UNJUDGED);
        assert_eq!(comparison.breaches, [Breach::Shape]);
        let sample = Capture::sample(&floats(&[1.0]));
        let comparison = compare_capture("capture", &sample, &floats(&[1.0, 1.0]), Bounds::UNJUDGED);
        assert_eq!(comparison.breaches, [Breach::Shape]);
    }

    #[test]
    fn quantised_captures_may_differ_by_one_code_in_few_groups() {
        let bound = Bound::Codes(Codes::IndexKeys);
        let want = vec![6.0; 3 * 32];
        let flip = |indices: &[usize], value| {
            let mut got = want.clone();
            indices.iter().for_each(|&index| got[index] = value);
            whole(&want, &got, bound)
        };
        let one_group = flip(&[3, 4], 4.0);
        assert!(one_group.passed(), "{one_group}");
        assert_eq!(one_group.flipped_groups, 1);
        // Two codes off, and two groups of three.
        assert!(!flip(&[3], 3.0).passed());
        assert!(!flip(&[3, 40], 4.0).passed());
        // A value just over two steps off is another code; one within them is not.
        assert_eq!(flip(&[3, 40], 6.0 - 2.0 / 32.0).flipped_groups, 0);
    }

    fn logits_run(id: i64, logits: [f64; 3]) -> Vec<Breach> {
        let want = &golden().regimes["decode3"]["next_ids"].clone();
        let (ids, logits) = (Recorded::int([1], [id]), Recorded::float([1, 3], logits));
        let bounds = Check::Fed.bounds("next_ids", 0);
        compare_choice("next_ids", want, &ids, &logits, 2.0, bounds).breaches
    }

    #[test]
    fn another_choice_passes_where_the_logits_are_too_close_to_call() {
        assert_eq!(logits_run(0, [0.5, 0.0, 0.0]), []);
        assert_eq!(logits_run(1, [1.0 - 4.0 / 128.0, 1.0, 0.0]), []);
        assert_eq!(logits_run(1, [1.0 - 5.0 / 128.0, 1.0, 0.0]), [Breach::Value]);
    }

    fn run_of(golden: &Golden, regime: &str) -> Captures {
        let whole = |(name, capture): (&String, &Capture)| Some((name.clone(), capture.whole()?));
        golden.regimes[regime].iter().filter_map(whole).collect()
    }

    #[test]
    fn a_regime_needs_the_same_captures_on_both_sides() {
        let golden = golden();
        let run = run_of(&golden, "decode3");
        let compared = compare_regime(&golden, "decode3", &run, Check::Fed).expect("same captures");
        assert_eq!(compared.len(), golden.regimes["decode3"].len());
        assert!(compared.iter().all(Comparison::passed));
        assert!(compare_regime(&golden, "decode3", &run, Check::Free).expect("same").iter().all(|c| !c.is_judged()));

        let fault_of = |golden: &Golden, run: &Captures| match compare_regime(golden, "decode3", run, Check::Fed) {
            Err(GoldenError::Entry { place, fault }) => (place.capture, fault),
            other => panic!("{other:?}"),
        };
        let mut short = golden.clone();
        short.regimes["decode3"].shift_remove("logits");
        assert!(matches!(fault_of(&short, &run), (name, EntryFault::Missing) if name == "logits"));

        let mut short_run = run.clone();
        short_run.shift_remove("logits");
        assert!(matches!(fault_of(&golden, &short_run), (name, EntryFault::Unexpected) if name == "logits"));

        let mut reshaped = run.clone();
        reshaped["logits"].shape = vec![3, 1];
        assert!(matches!(fault_of(&golden, &reshaped), (name, EntryFault::Shape { .. }) if name == "logits"));

        let missing = compare_regime(&golden, "decode9", &run, Check::Fed).expect_err("no such regime");
        assert_eq!(missing.to_string(), "test.json: decode9: missing");
    }

    #[test]
    fn streams_are_compared_with_the_next_layers_inputs() {
        let mut inputs = Inputs::default();
        let mix = Recorded::float([2], [1.0, 0.0]);
        let stream = Recorded::float([2], [1.0, 2.0]);
        let mut fed = Captures::new();
        fed.insert("L1.engram_in".to_owned(), stream.clone());
        fed.insert("L1.h_in".to_owned(), Recorded::float([2], [3.0, 3.0]));
        fed.insert("L1.pre_mix_in".to_owned(), mix.clone());
        fed.insert("L2.h_in".to_owned(), stream.clone());
        inputs.keep("decode3", &fed);

        let run = Captures::from_iter([
            ("L0.h_out".to_owned(), stream.clone()),
            ("L0.pre_mix_out".to_owned(), mix.clone()),
            ("L1.h_out".to_owned(), Recorded::float([2], [1.0, 9.0])),
            ("L2.h_out".to_owned(), stream),
        ]);
        let compared = compare_streams(&inputs, "decode3", &run);
        let outcome: Vec<_> = compared.iter().map(|c| (c.capture.as_str(), c.passed())).collect();
        let expected = [("L0.h_out in whole", true), ("L0.pre_mix_out in whole", true), ("L1.h_out in whole", false)];
        assert_eq!(outcome, expected);
    }
}
