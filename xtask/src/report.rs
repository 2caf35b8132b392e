//! The table and the JSON of `cargo xtask golden`.

use std::{
    fmt::{self, Write as _},
    time::Duration,
};

use dsv41_cli::train::gradients::Checkpointing;
use dsv41_golden::{Bound, Check, Comparison, Deviation, Worst};
use serde::Serialize;

use crate::{
    checks::{Outcome, RegimeOutcome},
    engram_hash::HashComparison,
    gradients::GradientCheck,
};

/// Everything that a run of the command found.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    rows: Vec<Row>,
    #[serde(skip)]
    breaches: Vec<String>,
    notes: Vec<String>,
}

/// One line of the table.
#[derive(Debug, Serialize)]
struct Row {
    golden: String,
    implementation: String,
    check: String,
    regime: String,
    /// Captures (or weights) compared.
    captures: usize,
    /// The largest error in bf16 steps, of the captures judged by steps (of all, where none is).
    worst_steps: Option<f64>,
    /// The largest relative L2 error, of the captures judged by it.
    worst_l2: Option<f64>,
    /// The largest relative deviation of gradients and losses, each as a share of what is allowed.
    worst_share: Option<f64>,
    /// Where the worst error is.
    at: Option<At>,
    /// Integers equal, and compared: integer captures, and choices that layers would have made themselves.
    integers: Option<[usize; 2]>,
    /// Choices that differ among scores within one bf16 step.
    near_ties: usize,
    /// Groups that hold another quantiser code.
    flipped_groups: usize,
    seconds: f64,
    verdict: Verdict,
    /// The breaches in full.
    breaches: Vec<String>,
    /// Capture by capture, where a row is one regime.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    comparisons: Vec<Comparison>,
}

#[derive(Debug, Clone, Serialize)]
struct At {
    regime: String,
    capture: String,
    #[serde(flatten)]
    worst: Worst,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Pass,
    /// Compared, but nothing there is judged.
    Reported,
    Skipped,
    Fail,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Pass => "pass",
            Self::Reported => "reported",
            Self::Skipped => "skipped",
            Self::Fail => "FAIL",
        })
    }
}

impl Report {
    /// Whether nothing broke a bound.
    pub(crate) fn passed(&self) -> bool {
        self.rows.iter().all(|row| row.verdict != Verdict::Fail)
    }

    /// Adds that all `weights` of a golden came out with their checksums.
    pub(crate) fn weights(&mut self, golden: &str, weights: usize, elapsed: Duration) {
        self.rows.push(Row {
            captures: weights,
            integers: Some([weights; 2]),
            ..Row::new(golden, "-", "weights", elapsed, Verdict::Pass)
        });
    }

    /// Adds the hash constants and ids.
    pub(crate) fn hashes(&mut self, comparisons: &[HashComparison], elapsed: Duration) {
        for HashComparison { part, compared, equal } in comparisons {
            let verdict = if equal == compared { Verdict::Pass } else { Verdict::Fail };
            self.push(Row {
                captures: 1,
                integers: Some([*equal, *compared]),
                ..Row::new("engram-hash", "-", part, elapsed / comparisons.len() as u32, verdict)
            });
        }
    }

    /// Adds the gradients and losses of a training golden.
    pub(crate) fn gradients(&mut self, check: &GradientCheck) {
        let share = |deviation: &Deviation| deviation.relative / deviation.tolerance;
        let worst = check.deviations.iter().max_by(|a, b| share(a).total_cmp(&share(b)));
        let breaches: Vec<String> = check
            .deviations
            .iter()
            .filter(|deviation| !deviation.passed())
            .map(|d| format!("{} is off by {:.2e}, allowed {:.0e}", d.name, d.relative, d.tolerance))
            .collect();
        let verdict = if breaches.is_empty() { Verdict::Pass } else { Verdict::Fail };
        let name = match check.checkpointing {
            Checkpointing::None => "gradients".to_owned(),
            other => format!("gradients, {other}"),
        };
        self.push(Row {
            captures: check.deviations.len(),
            worst_share: worst.map(share),
            regime: worst.map_or("-".to_owned(), |worst| worst.name.clone()),
            breaches,
            ..Row::new(&check.golden, &check.device.to_string(), &name, check.elapsed, verdict)
        });
    }

    /// Adds a check: one row, or one for each regime.
    pub(crate) fn outcome(
        &mut self,
        golden: &str,
        implementation: &str,
        check: Check,
        outcome: &Outcome,
        by_regime: bool,
    ) {
        let name = match check {
            Check::Fed => "fed",
            Check::Forced => "forced",
            Check::Free => "free",
        };
        if let Some(reason) = &outcome.skipped {
            self.rows.push(Row::new(golden, implementation, name, Duration::ZERO, Verdict::Skipped));
            let note = format!("{golden}: {name} not run: {reason}");
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
        } else if by_regime {
            for regime in &outcome.regimes {
                let comparisons = regime.comparisons.clone();
                let summary = summarise(golden, implementation, name, std::slice::from_ref(regime));
                self.push(Row { comparisons, ..summary });
            }
        } else {
            self.push(summarise(golden, implementation, name, &outcome.regimes));
        }
    }

    fn push(&mut self, row: Row) {
        let place = format!("{} {} {}", row.golden, row.implementation, row.check);
        self.breaches.extend(row.breaches.iter().map(|breach| format!("{place}: {breach}")));
        self.rows.push(row);
    }

    /// The report as one JSON object.
    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a report has string keys alone")
    }
}

impl Row {
    fn new(golden: &str, implementation: &str, check: &str, elapsed: Duration, verdict: Verdict) -> Self {
        Self {
            golden: golden.to_owned(),
            implementation: implementation.to_owned(),
            check: check.to_owned(),
            regime: "-".to_owned(),
            captures: 0,
            worst_steps: None,
            worst_l2: None,
            worst_share: None,
            at: None,
            integers: None,
            near_ties: 0,
            flipped_groups: 0,
            seconds: elapsed.as_secs_f64(),
            verdict,
            breaches: Vec::new(),
            comparisons: Vec::new(),
        }
    }

    fn worst(&self) -> String {
        match (self.worst_l2, self.worst_steps, self.worst_share) {
            (Some(l2), _, _) => format!("{:.2}% L2", 100.0 * l2),
            (None, Some(steps), _) => format!("{steps:.2}"),
            (None, None, Some(share)) => format!("{:.2}% of bound", 100.0 * share),
            (None, None, None) => "-".to_owned(),
        }
    }

    fn location(&self) -> String {
        self.at.as_ref().map_or("-".to_owned(), |at| format!("{} {}[{}]", at.regime, at.capture, at.worst.index))
    }
}

fn summarise(golden: &str, implementation: &str, check: &str, regimes: &[RegimeOutcome]) -> Row {
    let compared = || regimes.iter().flat_map(|regime| regime.comparisons.iter().map(move |c| (regime, c)));
    let floats = || compared().filter(|(_, c)| !c.integer);
    let at = |(regime, comparison): (&RegimeOutcome, &Comparison)| {
        comparison.worst.map(|worst| At { regime: regime.regime.clone(), capture: comparison.capture.clone(), worst })
    };
    let by_l2 = floats().filter(|(_, c)| matches!(c.bounds.value, Some(Bound::RelativeL2(_))));
    let worst_l2 = by_l2.max_by(|a, b| a.1.relative_l2.total_cmp(&b.1.relative_l2));
    let judged_by_steps = |c: &Comparison| matches!(c.bounds.value, Some(Bound::Steps(_)));
    let any_judged = floats().any(|(_, c)| judged_by_steps(c));
    let by_steps = floats().filter(|(_, c)| !any_judged || judged_by_steps(c));
    let worst_steps = by_steps.max_by(|a, b| a.1.steps.total_cmp(&b.1.steps));

    let integers =
        compared().filter(|(_, c)| c.integer).fold([0, 0], |[equal, all], (_, c)| [equal + c.equal, all + c.compared]);
    let choices = || regimes.iter().flat_map(|regime| regime.choices.iter().map(move |choice| (regime, choice)));
    let integers = choices().fold(integers, |[equal, all], (_, choice)| [equal + choice.equal, all + choice.queries]);

    let mut breaches: Vec<String> = compared()
        .filter(|(_, c)| !c.passed())
        .map(|(regime, comparison)| format!("{}: {comparison}", regime.regime))
        .collect();
    for (regime, choice) in choices().filter(|(regime, _)| regime.choices_judged) {
        if let Some(query) = choice.wrong {
            let place = format!("{}: L{}", regime.regime, choice.layer);
            breaches.push(format!("{place}: query {query} chooses other {} where no scores are close", choice.part));
        }
    }
    let verdict = if !breaches.is_empty() {
        Verdict::Fail
    } else if compared().any(|(_, c)| c.is_judged()) {
        Verdict::Pass
    } else {
        Verdict::Reported
    };
    Row {
        regime: match regimes {
            [regime] => regime.regime.clone(),
            _ => format!("all {}", regimes.len()),
        },
        captures: compared().count(),
        worst_steps: worst_steps.map(|(_, c)| c.steps),
        worst_l2: worst_l2.map(|(_, c)| c.relative_l2),
        at: worst_l2.or(worst_steps).and_then(at),
        integers: Some(integers),
        near_ties: choices().map(|(_, choice)| choice.near_ties).sum(),
        flipped_groups: compared().map(|(_, c)| c.flipped_groups).sum(),
        breaches,
        ..Row::new(golden, implementation, check, regimes.iter().map(|regime| regime.elapsed).sum(), verdict)
    }
}

/// At most this many breaches are written out under the table.
const BREACHES_SHOWN: usize = 20;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const HEAD: [&str; 10] =
            ["golden", "run", "check", "regime", "captures", "worst", "where", "integers", "time", "verdict"];
        let cells: Vec<[String; 10]> = self
            .rows
            .iter()
            .map(|row| {
                let mut verdict = row.verdict.to_string();
                if row.flipped_groups > 0 {
                    write!(verdict, ", {} code flips", row.flipped_groups)?;
                }
                if row.near_ties > 0 {
                    write!(verdict, ", {} near ties", row.near_ties)?;
                }
                Ok([
                    row.golden.clone(),
                    row.implementation.clone(),
                    row.check.clone(),
                    row.regime.clone(),
                    row.captures.to_string(),
                    row.worst(),
                    row.location(),
                    row.integers.map_or("-".to_owned(), |[equal, all]| format!("{equal}/{all}")),
                    format!("{:.2}s", row.seconds),
                    verdict,
                ])
            })
            .collect::<Result<_, fmt::Error>>()?;
        let widths: Vec<usize> = (0..HEAD.len())
            .map(|column| cells.iter().map(|row| row[column].len()).chain([HEAD[column].len()]).max().unwrap_or(0))
            .collect();
        let mut line = |cells: [&str; 10]| -> fmt::Result {
            let mut text = String::new();
            for (column, (cell, width)) in cells.iter().zip(&widths).enumerate() {
                match column {
                    4 | 5 | 7 | 8 => write!(text, "{cell:>width$}  ")?,
                    _ => write!(text, "{cell:<width$}  ")?,
                }
            }
            writeln!(f, "{}", text.trim_end())
        };
        line(HEAD)?;
        for row in &cells {
            line(std::array::from_fn(|column| row[column].as_str()))?;
        }
        for note in &self.notes {
            writeln!(f, "{note}")?;
        }
        for breach in self.breaches.iter().take(BREACHES_SHOWN) {
            writeln!(f, "breach: {breach}")?;
        }
        if self.breaches.len() > BREACHES_SHOWN {
            writeln!(f, "and {} breaches more (--json has all)", self.breaches.len() - BREACHES_SHOWN)?;
        }
        let count = |verdict| self.rows.iter().filter(|row| row.verdict == verdict).count();
        write!(f, "{} passed, {} failed", count(Verdict::Pass), count(Verdict::Fail))?;
        for (verdict, name) in [(Verdict::Reported, "reported, not judged"), (Verdict::Skipped, "skipped")] {
            if count(verdict) > 0 {
                write!(f, ", {} {name}", count(verdict))?;
            }
        }
        Ok(())
    }
}
