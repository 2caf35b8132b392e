//! What was measured, as a file keeps it.

use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use dsv41_gguf::{NewFile, WholeFile};
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use super::ceilings::Ceilings;
use super::timing::Timing;
use super::work::Work;

/// The form of files that this program writes, and the one that it reads.
const FORMAT: u32 = 1;

/// What one command measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Report {
    format: u32,
    /// The part of the model, as the command line names it.
    pub(super) part: String,
    /// The model, where the part is one's.
    pub(super) model: Option<ModelRecord>,
    /// Where calls rounded.
    pub(super) numerics: Option<String>,
    /// Threads that computed on the host.
    pub(super) threads: usize,
    /// Devices, the one that others are compared with first.
    pub(super) devices: Vec<DeviceRecord>,
    /// Devices that were asked for and left out.
    pub(super) skipped: Vec<Skipped>,
    /// In the order in which they were made.
    pub(super) measurements: Vec<Measurement>,
}

/// Which model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ModelRecord {
    pub(super) name: String,
    /// Where its weights came from.
    pub(super) weights: String,
    pub(super) parameters: u64,
}

impl fmt::Display for ModelRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} parameters, {})", self.name, crate::table::grouped(self.parameters), self.weights)
    }
}

/// A device and what it reaches.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct DeviceRecord {
    pub(super) device: String,
    #[serde(flatten)]
    pub(super) ceilings: Ceilings,
}

/// A device that was left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Skipped {
    pub(super) device: String,
    pub(super) reason: String,
}

/// What tells a measurement from others on its device: names and values such as `length` and `512`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Case(IndexMap<String, String>);

impl Case {
    /// A case of these.
    pub(super) fn new<const N: usize>(labels: [(&str, String); N]) -> Self {
        Self(labels.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    }

    /// The case without one of its names.
    pub(super) fn without(&self, name: &str) -> Self {
        let rest = self.0.iter().filter(|(label, _)| *label != name);
        Self(rest.map(|(label, value)| (label.clone(), value.clone())).collect())
    }

    /// The whole number under a name.
    pub(super) fn number(&self, name: &str) -> Option<usize> {
        self.0.get(name)?.parse().ok()
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let labels: Vec<String> = self.0.iter().map(|(name, value)| format!("{name} {value}")).collect();
        f.write_str(&labels.join(", "))
    }
}

/// One thing, timed on one device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Measurement {
    pub(super) device: String,
    pub(super) case: Case,
    pub(super) seconds: Seconds,
    /// Tokens that it worked through, where tokens are what it works through.
    pub(super) tokens: Option<usize>,
    /// What was counted of it.
    pub(super) work: Option<Work>,
    /// What follows from that and the median.
    pub(super) rates: Rates,
    /// The most memory of the host that was resident at once, in bytes.
    pub(super) peak_memory: Option<u64>,
    /// How its results compare with those of the first device.
    pub(super) agreement: Option<Agreement>,
    /// The relative error against f64, where that was computed.
    pub(super) error: Option<f64>,
}

/// Times of repeats.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Seconds {
    pub(super) median: f64,
    pub(super) fastest: f64,
    pub(super) slowest: f64,
    pub(super) repeats: usize,
}

impl Seconds {
    /// From the fastest to the slowest, as a share of the median.
    pub(super) fn spread(self) -> f64 {
        (self.slowest - self.fastest) / self.median
    }
}

impl From<Timing> for Seconds {
    fn from(timing: Timing) -> Self {
        let Timing { median, fastest, slowest, repeats } = timing;
        // A clock that has not moved on would make rates infinite, which JSON cannot tell.
        let seconds = |time: std::time::Duration| time.as_secs_f64().max(1e-9);
        Self { median: seconds(median), fastest: seconds(fastest), slowest: seconds(slowest), repeats }
    }
}

/// How fast it was.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rates {
    pub(super) tokens_per_second: Option<f64>,
    pub(super) bytes_per_second: Option<f64>,
    pub(super) operations_per_second: Option<f64>,
    /// Of the bytes that the device copies in a second.
    pub(super) share_of_copy: Option<f64>,
    /// Of the operations that the device does in a large matrix product.
    pub(super) share_of_product: Option<f64>,
}

impl Rates {
    /// Of work that took `seconds`.
    pub(super) fn new(seconds: f64, tokens: Option<usize>, work: Option<Work>, ceilings: &Ceilings) -> Self {
        let bytes = work.map(|work| work.bytes as f64 / seconds).filter(|&bytes| bytes > 0.0);
        let operations = work.map(|work| work.operations as f64 / seconds).filter(|&operations| operations > 0.0);
        Self {
            tokens_per_second: tokens.map(|tokens| tokens as f64 / seconds),
            bytes_per_second: bytes,
            operations_per_second: operations,
            share_of_copy: bytes.map(|bytes| bytes / ceilings.copied_bytes_per_second),
            share_of_product: operations.map(|operations| operations / ceilings.product_operations_per_second),
        }
    }
}

/// How results compare with those of the first device.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Agreement {
    /// None where one of the results is not finite, or there are not as many.
    pub(super) largest_difference: Option<f64>,
    /// Of rows of logits, those whose largest logit is the same token's.
    pub(super) same_argmax: Option<Share>,
}

/// Some of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Share {
    pub(super) count: usize,
    pub(super) of: usize,
}

impl Agreement {
    /// Of results with those of the first device; `row` is the width of a row of logits, where they are logits.
    pub(super) fn of(results: &[f32], first: &[f32], row: Option<usize>) -> Self {
        let apart = results.iter().zip(first).map(|(a, b)| f64::from((a - b).abs()));
        let largest = apart.fold(0.0, |largest, apart| if apart.is_nan() { f64::INFINITY } else { apart.max(largest) });
        let rows = |row: usize| results.chunks_exact(row).zip(first.chunks_exact(row));
        Self {
            largest_difference: Some(largest).filter(|largest| largest.is_finite() && results.len() == first.len()),
            same_argmax: row.map(|row| Share {
                count: rows(row).filter(|(a, b)| argmax(a) == argmax(b)).count(),
                of: first.len() / row,
            }),
        }
    }
}

fn argmax(values: &[f32]) -> Option<usize> {
    (0..values.len()).max_by(|&a, &b| values[a].total_cmp(&values[b]))
}

impl Report {
    /// A report without measurements yet.
    pub(super) fn new(part: &str, model: Option<ModelRecord>, numerics: Option<String>) -> Self {
        Self {
            format: FORMAT,
            part: part.to_owned(),
            model,
            numerics,
            threads: rayon::current_num_threads(),
            devices: Vec::new(),
            skipped: Vec::new(),
            measurements: Vec::new(),
        }
    }

    /// Reads a file that [`Self::write`] wrote.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let name = path.display();
        let text = fs::read_to_string(path).with_context(|| format!("{name}: cannot be read"))?;
        let report: Self =
            serde_json::from_str(&text).with_context(|| format!("{name}: no report of `dsv41 bench --json`"))?;
        let format = report.format;
        ensure!(format == FORMAT, "{name}: a report of format {format}, and this program reads format {FORMAT}");
        Ok(report)
    }

    /// Writes the file, which has its name once it is whole.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let mut json = serde_json::to_string_pretty(self)?;
        json.push('\n');
        write_whole(path, json.as_bytes())
    }
}

/// Writes a file that has its name once it is whole.
pub(super) fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let written = NewFile::create(path).and_then(|mut file| {
        file.write(bytes)?;
        file.close().and_then(WholeFile::publish)
    });
    written.with_context(|| format!("{}: cannot be written", path.display()))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A report with one measurement for each device and length, of that many seconds.
    pub(in crate::bench) fn report(measured: &[(&str, usize, f64)]) -> Report {
        let ceilings = Ceilings { copied_bytes_per_second: 1e10, product_operations_per_second: 1e11 };
        let mut report = Report::new("prefill", None, Some("full".to_owned()));
        report.measurements = measured
            .iter()
            .map(|&(device, length, median)| {
                let work = Some(Work { operations: 1_000_000, bytes: 500 });
                Measurement {
                    device: device.to_owned(),
                    case: Case::new([("length", length.to_string())]),
                    seconds: Seconds { median, fastest: median / 2.0, slowest: median * 1.5, repeats: 5 },
                    tokens: Some(length),
                    work,
                    rates: Rates::new(median, Some(length), work, &ceilings),
                    peak_memory: Some(1 << 20),
                    agreement: Some(Agreement { largest_difference: None, same_argmax: None }),
                    error: None,
                }
            })
            .collect();
        report.devices = vec![DeviceRecord { device: "flex".to_owned(), ceilings }];
        report
    }

    #[test]
    fn a_report_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new.json");
        let mut expected = report(&[("flex", 128, 0.5), ("ndarray", 128, 0.1 + 0.2)]);
        expected.model = Some(ModelRecord { name: "nano".into(), weights: "random, seed 0".into(), parameters: 1 });
        expected.skipped = vec![Skipped { device: "cuda".into(), reason: "not compiled in".into() }];
        expected.write(&path).unwrap();
        assert_eq!(Report::read(&path).unwrap(), expected);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn files_that_are_no_reports_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("old.json");
        let error = || crate::message::one_line(&Report::read(&path).unwrap_err());
        assert!(error().contains("old.json: cannot be read: "), "{}", error());
        fs::write(&path, "{\"dim\": 64}").unwrap();
        assert!(error().contains("old.json: no report of `dsv41 bench --json`: unknown field `dim`"), "{}", error());
        let mut newer = serde_json::to_value(report(&[])).unwrap();
        newer["format"] = 7.into();
        fs::write(&path, newer.to_string()).unwrap();
        assert!(error().ends_with("a report of format 7, and this program reads format 1"), "{}", error());
    }

    #[test]
    fn results_that_are_wrong_show() {
        let first = [1.0, 2.0, 3.0, 9.0, 0.0, 0.0];
        let same = Agreement::of(&first, &first, Some(3));
        assert_eq!(same.largest_difference, Some(0.0));
        assert_eq!(same.same_argmax, Some(Share { count: 2, of: 2 }));
        let other = Agreement::of(&[1.0, 2.5, 3.0, 0.0, 9.0, 0.0], &first, Some(3));
        assert_eq!(other.largest_difference, Some(9.0));
        assert_eq!(other.same_argmax, Some(Share { count: 1, of: 2 }));
        let broken = Agreement::of(&[f32::NAN; 6], &first, None);
        assert_eq!(broken, Agreement { largest_difference: None, same_argmax: None });
        assert_eq!(Agreement::of(&first[..3], &first, None).largest_difference, None);
    }

    #[test]
    fn shares_are_of_what_the_device_reaches() {
        let rates = report(&[("flex", 10, 0.001)]).measurements[0].rates;
        assert_eq!(rates.tokens_per_second, Some(10_000.0));
        assert_eq!((rates.operations_per_second, rates.share_of_product), (Some(1e9), Some(0.01)));
        assert_eq!((rates.bytes_per_second, rates.share_of_copy), (Some(5e5), Some(5e-5)));
    }
}
