//! Two reports, measurement by measurement.

use std::fmt;
use std::path::Path;

use anyhow::{Result, ensure};

use super::report::{Measurement, Report};
use super::session::time_text;
use crate::table::{
    Align::{Left, Right},
    Table,
};

/// How a report compares with an earlier one. Displayed as a table and notes.
#[derive(Debug)]
pub(super) struct Comparison {
    name: String,
    pairs: Vec<Pair>,
    /// What only the earlier one has.
    before_alone: Vec<String>,
    /// What only the later one has.
    now_alone: Vec<String>,
    /// What else is not the same.
    differences: Vec<String>,
}

/// One measurement in both.
#[derive(Debug)]
struct Pair {
    device: String,
    case: String,
    before: f64,
    now: f64,
}

impl Comparison {
    /// Compares with the report in a file.
    ///
    /// # Errors
    /// When the file cannot be read or is of another part.
    pub(super) fn with_file(path: &Path, now: &Report) -> Result<Self> {
        let before = Report::read(path)?;
        let name = path.display().to_string();
        ensure!(before.part == now.part, "{name}: a report of `{}`, and this is `{}`", before.part, now.part);
        Ok(Self::new(name, &before, now))
    }

    fn new(name: String, before: &Report, now: &Report) -> Self {
        let is = |other: &Measurement| {
            let (device, case) = (other.device.clone(), other.case.clone());
            move |one: &&Measurement| one.device == device && one.case == case
        };
        let alone = |these: &Report, those: &Report| -> Vec<String> {
            let missing =
                these.measurements.iter().filter(|one| !those.measurements.iter().any(|other| is(one)(&other)));
            missing.map(|one| format!("{}, {}", one.device, one.case)).collect()
        };
        let pairs = now.measurements.iter().filter_map(|later| {
            let earlier = before.measurements.iter().find(is(later))?;
            Some(Pair {
                device: later.device.clone(),
                case: later.case.to_string(),
                before: earlier.seconds.median,
                now: later.seconds.median,
            })
        });
        Self {
            name,
            pairs: pairs.collect(),
            before_alone: alone(before, now),
            now_alone: alone(now, before),
            differences: differences(before, now),
        }
    }
}

/// What makes times differ besides the program.
fn differences(before: &Report, now: &Report) -> Vec<String> {
    let shown = |what: &str, before: Option<String>, now: Option<String>| {
        let text = |side: Option<String>| side.unwrap_or_else(|| "none".to_owned());
        (before != now).then(|| format!("{what}: {} before, {} now", text(before), text(now)))
    };
    let model = |report: &Report| report.model.as_ref().map(ToString::to_string);
    let threads = |report: &Report| Some(report.threads.to_string());
    [
        shown("model", model(before), model(now)),
        shown("numerics", before.numerics.clone(), now.numerics.clone()),
        shown("threads", threads(before), threads(now)),
    ]
    .into_iter()
    .flatten()
    .collect()
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Compared with {}:", self.name)?;
        if !self.pairs.is_empty() {
            let mut table = Table::new([Left, Left, Right, Right, Right]);
            table.row(["device", "case", "before", "now", "now / before"]);
            for Pair { device, case, before, now } in &self.pairs {
                let ratio = format!("{:.2}", now / before);
                table.row([device.clone(), case.clone(), time_text(*before), time_text(*now), ratio]);
            }
            write!(f, "\n{table}")?;
        }
        self.before_alone.iter().try_for_each(|one| write!(f, "\n  only before: {one}"))?;
        self.now_alone.iter().try_for_each(|one| write!(f, "\n  only now: {one}"))?;
        self.differences.iter().try_for_each(|one| write!(f, "\n  not the same {one}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::report::tests::report;

    #[test]
    fn what_is_in_both_has_a_ratio_and_the_rest_a_name() {
        let before = report(&[("flex", 128, 0.5), ("flex", 512, 4.0), ("wgpu", 128, 1.0)]);
        let now = report(&[("flex", 512, 1.0), ("flex", 128, 0.75), ("ndarray", 128, 2.0)]);
        let comparison = Comparison::new("old.json".to_owned(), &before, &now).to_string();
        let expected = "\
Compared with old.json:
  device  case           before        now  now / before
  flex    length 512    4.000 s    1.000 s          0.25
  flex    length 128  500.00 ms  750.00 ms          1.50
  only before: wgpu, length 128
  only now: ndarray, length 128";
        assert_eq!(comparison, expected);
    }

    #[test]
    fn other_conditions_are_told() {
        let before = report(&[]);
        let mut now = report(&[]);
        now.numerics = Some("reference".to_owned());
        now.threads = before.threads + 1;
        let comparison = Comparison::new("old.json".to_owned(), &before, &now);
        let [first, second] = &comparison.differences[..] else { panic!("{comparison}") };
        assert_eq!(first, "numerics: full before, reference now");
        assert!(second.starts_with("threads: "), "{second}");
    }

    #[test]
    fn a_report_of_another_part_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("old.json");
        report(&[]).write(&path).unwrap();
        let mut now = report(&[]);
        now.part = "decode".to_owned();
        let error = Comparison::with_file(&path, &now).unwrap_err().to_string();
        assert!(error.ends_with("old.json: a report of `prefill`, and this is `decode`"), "{error}");
    }
}
