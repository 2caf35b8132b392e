//! One command's measurements, from the devices it finds to what it leaves.

use std::collections::HashMap;
use std::path::PathBuf;

use anyhow::{Result, bail};
use bytesize::ByteSize;
use indicatif::ProgressBar;

use super::ceilings::Ceilings;
use super::compare::Comparison;
use super::options::{DeviceArgs, OutputArgs};
use super::plot;
use super::report::{Agreement, Case, DeviceRecord, Measurement, ModelRecord, Rates, Report, Skipped};
use super::timing::Timing;
use super::work::Work;
use crate::{
    device::DeviceName,
    message, progress,
    table::{
        Align::{Left, Right},
        Table,
    },
};

/// A command under way.
pub(super) struct Session {
    report: Report,
    devices: Vec<(DeviceName, Ceilings)>,
    /// Results of the first device, by case.
    first: HashMap<String, Vec<f32>>,
    spinner: ProgressBar,
}

/// What came of one case on one device.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) case: Case,
    pub(super) timing: Timing,
    pub(super) tokens: Option<usize>,
    pub(super) work: Option<Work>,
    pub(super) peak_memory: Option<u64>,
    /// What was computed, where devices are to agree on it.
    pub(super) results: Option<Results>,
    pub(super) error: Option<f64>,
}

/// Numbers that devices are to agree on.
#[derive(Debug)]
pub(super) struct Results {
    pub(super) values: Vec<f32>,
    /// The width of a row of logits, where they are logits.
    pub(super) row: Option<usize>,
}

impl Measured {
    /// A time, and nothing else yet.
    pub(super) fn new(case: Case, timing: Timing) -> Self {
        Self { case, timing, tokens: None, work: None, peak_memory: None, results: None, error: None }
    }
}

impl Session {
    /// Finds out which devices there are, and what they reach.
    ///
    /// # Errors
    /// When none of them can be used.
    pub(super) fn begin(
        part: &str,
        devices: &DeviceArgs,
        model: Option<ModelRecord>,
        numerics: Option<String>,
    ) -> Result<Self> {
        let mut report = Report::new(part, model, numerics);
        let spinner = progress::spinner("measuring");
        let mut found = Vec::new();
        for device in devices.wanted() {
            match Ceilings::measure(device) {
                Ok(ceilings) => {
                    report.devices.push(DeviceRecord { device: device.to_string(), ceilings });
                    found.push((device, ceilings));
                }
                Err(error) => {
                    report.skipped.push(Skipped { device: device.to_string(), reason: error.to_string() });
                }
            }
        }
        if found.is_empty() {
            let reasons: Vec<&str> = report.skipped.iter().map(|skipped| skipped.reason.as_str()).collect();
            bail!("no device is left: {}", reasons.join("; "));
        }
        Ok(Self { report, devices: found, first: HashMap::new(), spinner })
    }

    /// The devices that are there.
    pub(super) fn devices(&self) -> Vec<DeviceName> {
        self.devices.iter().map(|(device, _)| *device).collect()
    }

    /// Says what is going on, where somebody looks on.
    pub(super) fn announce(&self, device: DeviceName, what: impl std::fmt::Display) {
        self.spinner.set_message(format!("{device}: {what}"));
    }

    /// Takes note of what a device came to.
    pub(super) fn add(&mut self, device: DeviceName, measured: Measured) {
        let Measured { case, timing, tokens, work, peak_memory, results, error } = measured;
        let Some((_, ceilings)) = self.devices.iter().find(|(known, _)| *known == device) else { return };
        let seconds = super::report::Seconds::from(timing);
        let agreement = results.map(|Results { values, row }| match self.first.get(&case.to_string()) {
            Some(first) => Agreement::of(&values, first, row),
            None => {
                let agreement = Agreement::of(&values, &values, row);
                self.first.insert(case.to_string(), values);
                agreement
            }
        });
        self.report.measurements.push(Measurement {
            device: device.to_string(),
            case,
            rates: Rates::new(seconds.median, tokens, work, ceilings),
            seconds,
            tokens,
            work,
            peak_memory,
            agreement,
            error,
        });
    }

    /// Stops showing what is going on, before something is printed.
    pub(super) fn clear(&self) {
        self.spinner.finish_and_clear();
    }

    /// Prints all measurements.
    pub(super) fn print_table(&self) {
        self.clear();
        if let Some(model) = &self.report.model {
            println!("{model}, numerics {}", self.report.numerics.as_deref().unwrap_or("full"));
        }
        println!("{}", table(&self.report));
    }

    /// Prints what there is to say besides measurements, writes the files that were asked for, and compares with earlier
    /// ones.
    pub(super) fn conclude(self, output: &OutputArgs) -> Result<()> {
        self.conclude_with(output, &output.compare)
    }

    /// [`Self::conclude`], but compared with these alone.
    pub(super) fn conclude_with<'a>(
        self,
        output: &OutputArgs,
        earlier: impl IntoIterator<Item = &'a PathBuf>,
    ) -> Result<()> {
        self.clear();
        let report = self.report;
        for DeviceRecord { device, ceilings } in &report.devices {
            println!(
                "{device}: copies {:.1} GB/s, multiplies matrices with {:.1} GFLOP/s",
                ceilings.copied_bytes_per_second / 1e9,
                ceilings.product_operations_per_second / 1e9
            );
        }
        report.skipped.iter().for_each(|skipped| println!("skipped: {}", skipped.reason));
        // A report that cannot be compared with is no reason to lose what was measured.
        if let Some(path) = &output.json {
            report.write(path)?;
        }
        if let Some(path) = &output.plot {
            plot::write(&report, path)?;
        }
        let mut failed = Vec::new();
        for path in earlier {
            match Comparison::with_file(path, &report) {
                Ok(comparison) => println!("\n{comparison}"),
                Err(error) => failed.push(message::one_line(&error)),
            }
        }
        if !failed.is_empty() {
            bail!("{}", failed.join("; "));
        }
        Ok(())
    }
}

/// A row for each measurement.
fn table(report: &Report) -> Table<12> {
    let mut table = Table::new([Left, Left, Right, Right, Right, Right, Right, Right, Right, Right, Right, Right]);
    table.row([
        "device",
        "case",
        "time",
        "spread",
        "tokens/s",
        "GFLOP/s",
        "of product",
        "GB/s",
        "of copy",
        "peak memory",
        "difference",
        "same argmax",
    ]);
    let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let giga = |rate: Option<f64>| or_none(rate.map(|rate| format!("{:.1}", rate / 1e9)));
    let percent = |share: Option<f64>| or_none(share.map(|share| format!("{:.0}%", 100.0 * share)));
    for measurement in &report.measurements {
        let Measurement { device, case, seconds, rates, peak_memory, agreement, .. } = measurement;
        let difference = |agreement: &Agreement| match agreement.largest_difference {
            Some(difference) => format!("{difference:.1e}"),
            None => "not finite".to_owned(),
        };
        let same = |agreement: &Agreement| agreement.same_argmax.map(|same| format!("{} of {}", same.count, same.of));
        table.row([
            device.clone(),
            case.to_string(),
            time_text(seconds.median),
            percent(Some(seconds.spread())),
            or_none(rates.tokens_per_second.map(|rate| format!("{rate:.0}"))),
            giga(rates.operations_per_second),
            percent(rates.share_of_product),
            giga(rates.bytes_per_second),
            percent(rates.share_of_copy),
            or_none(peak_memory.map(|bytes| ByteSize(bytes).display().iec().to_string())),
            or_none(agreement.as_ref().map(difference)),
            or_none(agreement.as_ref().and_then(same)),
        ]);
    }
    table
}

/// A time with three to five digits.
pub(super) fn time_text(seconds: f64) -> String {
    match seconds {
        ..1e-3 => format!("{:.1} µs", 1e6 * seconds),
        1e-3..1.0 => format!("{:.2} ms", 1e3 * seconds),
        _ => format!("{seconds:.3} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::report::tests::report;

    #[test]
    fn times_have_units_that_fit() {
        assert_eq!([2e-6, 0.9995e-3, 0.0123, 59.0].map(time_text), ["2.0 µs", "999.5 µs", "12.30 ms", "59.000 s"]);
    }

    #[test]
    fn what_was_not_measured_is_a_dash_and_what_is_wrong_shows() {
        let text = table(&report(&[("flex", 128, 0.5)])).to_string();
        let row: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(row[..5], ["flex", "length", "128", "500.00", "ms"]);
        assert_eq!(row[row.len() - 3..], ["not", "finite", "-"]);
    }

    #[test]
    fn a_command_needs_one_device_and_names_the_others() {
        if cfg!(feature = "cuda") || !cfg!(feature = "flex") {
            return;
        }
        let begin = |devices: &[DeviceName]| Session::begin("linear", &DeviceArgs::of(devices), None, None);
        let error = begin(&[DeviceName::Cuda(0), DeviceName::Cuda(1)]).err().unwrap().to_string();
        assert!(error.starts_with("no device is left: device `cuda` is not compiled in"), "{error}");
        assert!(error.contains("device `cuda:1` is not compiled in"), "{error}");
        let session = begin(&[DeviceName::Cuda(0), DeviceName::Flex, DeviceName::Flex]).unwrap();
        assert_eq!(session.devices(), [DeviceName::Flex]);
        assert_eq!(session.report.skipped[0].device, "cuda");
    }
}
