//! What all parts let users choose.

use std::path::PathBuf;

use clap::Args;

use super::timing::REPEATS;
use crate::{device::DeviceName, numerics::NumericsArg};

/// Where to compute.
#[derive(Debug, Args)]
pub(super) struct DeviceArgs {
    /// Devices, between commas; results are compared with the first one's. Those that are not compiled in or not there are
    /// named and left out.
    #[arg(long, value_name = "DEVICE", value_delimiter = ',', default_values_t = DeviceName::compiled())]
    device: Vec<DeviceName>,
}

impl DeviceArgs {
    /// Each device once.
    pub(super) fn wanted(&self) -> Vec<DeviceName> {
        let mut wanted = Vec::new();
        for device in &self.device {
            if !wanted.contains(device) {
                wanted.push(*device);
            }
        }
        wanted
    }

    #[cfg(test)]
    pub(super) fn of(devices: &[DeviceName]) -> Self {
        Self { device: devices.to_vec() }
    }
}

/// What to compute with.
#[derive(Debug, Args)]
pub(super) struct ModelArgs {
    /// The model: tiny, nano, bytes, small, mid or v4.1-flash, a configuration (.json) or a GGUF file. A configuration's
    /// weights are random.
    #[arg(long, value_name = "MODEL", default_value = "small")]
    pub(super) config: String,
    /// What random weights are made from.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) seed: u64,
    /// Round nowhere, or where the released kernels round.
    #[arg(long, value_enum, default_value_t = NumericsArg::Full)]
    pub(super) numerics: NumericsArg,
}

/// How often to measure.
#[derive(Debug, Args)]
pub(super) struct RepeatArgs {
    /// Timed runs, after one that is not; more where they are shorter than 60 ms on average.
    #[arg(long, value_name = "N", default_value_t = REPEATS, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) repeats: u32,
}

/// What to leave besides the table.
#[derive(Debug, Args)]
pub(super) struct OutputArgs {
    /// Write what was measured as JSON.
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
    /// Compare with a file that --json wrote earlier; may be given more than once. train-step compares loss and gradients
    /// with a .safetensors file: `loss`, and a tensor for each parameter.
    #[arg(long, value_name = "FILE")]
    pub(super) compare: Vec<PathBuf>,
    /// Plot time against length, as an HTML page or an SVG image.
    #[arg(long, value_name = "FILE", value_parser = plot_path)]
    pub(super) plot: Option<PathBuf>,
}

impl OutputArgs {
    /// The earlier reports to compare with, where a part takes files of tensors too.
    pub(super) fn reports(&self) -> impl Iterator<Item = &PathBuf> {
        self.compare.iter().filter(|path| !is_tensors(path))
    }

    /// The files of tensors to compare with, where a part takes them.
    pub(super) fn tensors(&self) -> impl Iterator<Item = &PathBuf> {
        self.compare.iter().filter(|path| is_tensors(path))
    }
}

fn is_tensors(path: &std::path::Path) -> bool {
    path.extension().is_some_and(|extension| extension == "safetensors")
}

fn plot_path(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("html" | "svg") => Ok(path),
        _ => Err("expected a name that ends in .html or .svg".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        devices: DeviceArgs,
        #[command(flatten)]
        model: ModelArgs,
        #[command(flatten)]
        repeats: RepeatArgs,
        #[command(flatten)]
        output: OutputArgs,
    }

    fn parse(args: &[&str]) -> Result<Command, clap::Error> {
        Command::try_parse_from([&["bench"], args].concat())
    }

    #[test]
    fn devices_are_those_compiled_in_or_those_asked_for() {
        assert_eq!(parse(&[]).unwrap().devices.wanted(), DeviceName::compiled());
        let chosen = parse(&["--device", "wgpu,cuda:1,wgpu"]).unwrap();
        assert_eq!(chosen.devices.wanted(), [DeviceName::Wgpu(0), DeviceName::Cuda(1)]);
        assert!(parse(&["--device", "tpu"]).unwrap_err().to_string().contains("unknown device `tpu`"));
    }

    #[test]
    fn reports_and_tensors_are_told_apart() {
        let output = parse(&["--compare", "a.json", "--compare", "b.safetensors"]).unwrap().output;
        assert_eq!(output.reports().collect::<Vec<_>>(), [&PathBuf::from("a.json")]);
        assert_eq!(output.tensors().collect::<Vec<_>>(), [&PathBuf::from("b.safetensors")]);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert!(parse(&["--plot", "a.png"]).unwrap_err().to_string().contains("ends in .html or .svg"));
        assert!(parse(&["--repeats", "0"]).is_err());
        assert!(parse(&["--numerics", "none"]).is_err());
        let numerics = parse(&["--numerics", "reference"]).unwrap().model.numerics;
        assert_eq!(numerics, NumericsArg::Reference);
    }
}
