//! Parts of the model by themselves, on made-up inputs.

mod engram;
mod hyper_connection;
mod sparse_attention;

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use burn::tensor::{DType, Tensor, TensorData, backend::Backend};
use clap::Args;
use dsv41_config::Config;

pub(super) use engram::run as run_engram;
pub(super) use hyper_connection::run as run_hyper_connection;
pub(super) use sparse_attention::{SparseAttentionArgs, run as run_sparse_attention};

use super::model::values;
use super::options::{DeviceArgs, ModelArgs, OutputArgs, RepeatArgs};
use super::report::Case;
use super::session::{Measured, Results};
use super::timing::repeat;
use super::work::Work;
use crate::memory;

/// How much to give a part.
#[derive(Debug, Args)]
pub(super) struct PartArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    devices: DeviceArgs,
    /// Tokens at once, several between commas.
    #[arg(long, alias = "length", value_name = "N", value_delimiter = ',', default_values_t = [1, 128, 512])]
    lengths: Vec<usize>,
    #[command(flatten)]
    repeats: RepeatArgs,
    #[command(flatten)]
    output: OutputArgs,
}

impl PartArgs {
    /// Refuses lengths that make no sense with so many tokens before them.
    fn check(&self, before: usize, config: &Config) -> Result<()> {
        for &length in &self.lengths {
            ensure!(length > 0, "--lengths has a 0: expected one token or more");
            let (positions, limit) = (before.saturating_add(length), config.max_seq_len);
            ensure!(positions <= limit, "{positions} positions are asked for, and the model has {limit}");
        }
        Ok(())
    }
}

/// Where a part runs, and how often.
struct Stand<B: Backend> {
    device: B::Device,
    dtype: DType,
    repeats: u32,
}

impl<B: Backend> Stand<B> {
    /// Numbers from -1 to 1 that are the same on every device.
    fn tensor<const D: usize>(&self, name: &str, shape: [usize; D]) -> Tensor<B, D> {
        let values = values(name, shape.iter().product());
        Tensor::from_data(TensorData::new(values, shape), (&self.device, self.dtype))
    }

    /// Times one step of a part, to the end of what the device computes.
    fn time<const D: usize>(
        &self,
        [step, length]: [&str; 2],
        tokens: usize,
        work: Work,
        mut compute: impl FnMut() -> Result<Tensor<B, D>>,
    ) -> Result<Measured> {
        memory::reset_peak();
        let mut result = None;
        let timing = repeat(self.repeats, || {
            let start = Instant::now();
            let computed = compute()?;
            B::sync(&self.device).ok().context("the device failed")?;
            let time = start.elapsed();
            result = Some(computed);
            anyhow::Ok(time)
        })?;
        let peak_memory = memory::peak();
        let values = result.map(|result| result.into_data().iter::<f32>().collect());
        Ok(Measured {
            tokens: Some(tokens),
            work: Some(work),
            peak_memory,
            results: values.map(|values| Results { values, row: None }),
            ..Measured::new(Case::new([("step", step.to_owned()), ("length", length.to_owned())]), timing)
        })
    }
}
