//! Whole calls of the model: a forward pass, a prompt that fills the cache, and one token after a context.

use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Args;
use dsv41::LogitsOf;
use dsv41_config::Config;

use super::model::{BenchModel, tokens};
use super::options::{DeviceArgs, ModelArgs, OutputArgs, RepeatArgs};
use super::report::Case;
use super::session::{Measured, Results, Session};
use super::timing::{Timing, repeat};
use super::work::Span;
use crate::{
    memory,
    runner::{self, HostCall, Runner, RunnerOptions},
};

/// What to run the model on.
#[derive(Debug, Args)]
pub(super) struct ForwardArgs {
    #[command(flatten)]
    common: PassArgs,
    /// Tokens of each sequence, several between commas; by default 128 and 512, as far as the model has positions.
    #[arg(long, alias = "length", value_name = "N", value_delimiter = ',')]
    lengths: Vec<usize>,
}

/// What prompts to take in.
#[derive(Debug, Args)]
pub(super) struct PrefillArgs {
    #[command(flatten)]
    common: PassArgs,
    /// Tokens of the prompt, several between commas; by default 128, 512 and 2048, as far as the model has positions.
    #[arg(long, alias = "length", value_name = "N", value_delimiter = ',')]
    lengths: Vec<usize>,
    #[command(flatten)]
    chunk: ChunkArgs,
}

/// After what to make a token.
#[derive(Debug, Args)]
pub(super) struct DecodeArgs {
    #[command(flatten)]
    common: PassArgs,
    /// Tokens before the timed one, several between commas; by default 0, 512 and 2048, as far as the model has positions.
    #[arg(long, value_name = "N", value_delimiter = ',')]
    context: Vec<usize>,
    #[command(flatten)]
    chunk: ChunkArgs,
}

#[derive(Debug, Args)]
struct ChunkArgs {
    /// Tokens of a prompt that run at once.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..))]
    chunk: u32,
}

#[derive(Debug, Args)]
struct PassArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    devices: DeviceArgs,
    /// Sequences at once.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,
    #[command(flatten)]
    repeats: RepeatArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// One kind of call.
#[derive(Debug, Clone, Copy)]
enum Kind {
    /// All tokens at once, with logits of every position.
    Forward,
    /// A prompt in chunks, with the last position's logits.
    Prefill { chunk: usize },
    /// One token after a context.
    Decode { chunk: usize },
}

impl Kind {
    fn part(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Prefill { .. } => "prefill",
            Self::Decode { .. } => "decode",
        }
    }

    /// Positions that a measurement of this size takes.
    fn positions(self, size: usize) -> usize {
        match self {
            Self::Forward | Self::Prefill { .. } => size,
            Self::Decode { .. } => size.saturating_add(1),
        }
    }

    /// Lengths, or contexts, where nothing else is said.
    fn usual(self) -> &'static [usize] {
        match self {
            Self::Forward => &[128, 512],
            Self::Prefill { .. } => &[128, 512, 2048],
            Self::Decode { .. } => &[0, 512, 2048],
        }
    }

    /// The sizes asked for, or the usual ones that fit.
    fn sizes(self, asked: &[usize], config: &Config) -> Result<Vec<usize>> {
        let limit = config.max_seq_len;
        if asked.is_empty() {
            let fitting = self.usual().iter().copied().filter(|&size| self.positions(size) <= limit);
            let fitting: Vec<usize> = fitting.collect();
            return Ok(if fitting.is_empty() { vec![limit] } else { fitting });
        }
        for &size in asked {
            let needed = self.positions(size);
            ensure!(needed > 0, "--lengths has a 0: expected one token or more");
            ensure!(needed <= limit, "{needed} positions are asked for, and the model has {limit}");
        }
        Ok(asked.to_vec())
    }
}

pub(super) fn run_forward(args: &ForwardArgs) -> Result<()> {
    run(&args.common, Kind::Forward, &args.lengths)
}

pub(super) fn run_prefill(args: &PrefillArgs) -> Result<()> {
    run(&args.common, Kind::Prefill { chunk: args.chunk.chunk as usize }, &args.lengths)
}

pub(super) fn run_decode(args: &DecodeArgs) -> Result<()> {
    run(&args.common, Kind::Decode { chunk: args.chunk.chunk as usize }, &args.context)
}

fn run(args: &PassArgs, kind: Kind, asked: &[usize]) -> Result<()> {
    let model = BenchModel::open(&args.model)?;
    let sizes = kind.sizes(asked, model.config())?;
    model.check_memory()?;
    let numerics = Some(args.model.numerics.to_string());
    let mut session = Session::begin(kind.part(), &args.devices, Some(model.record()), numerics)?;
    for device in session.devices() {
        session.announce(device, "loading");
        let options = RunnerOptions { token_map: model.token_map(), ..RunnerOptions::default() };
        let mut runner = runner::load(device, model.config(), model.weights(), options)?;
        for &size in &sizes {
            session.announce(device, size);
            let measured = Pass { args, kind, size, model: &model }.measure(&mut *runner)?;
            session.add(device, measured);
        }
    }
    session.print_table();
    session.conclude(&args.output)
}

/// One case on one device.
struct Pass<'a> {
    args: &'a PassArgs,
    kind: Kind,
    size: usize,
    model: &'a BenchModel,
}

impl Pass<'_> {
    fn measure(&self, runner: &mut dyn Runner) -> Result<Measured> {
        let Self { kind, size, .. } = *self;
        let (config, batch) = (self.model.config(), self.args.batch as usize);
        let prompt = tokens(batch, kind.positions(size), config.vocab_size);
        memory::reset_peak();
        let (timing, values) = match kind {
            Kind::Forward => self.time_prompts(runner, &prompt, size, LogitsOf::Every)?,
            Kind::Prefill { chunk } => self.time_prompts(runner, &prompt, chunk, LogitsOf::Last)?,
            Kind::Decode { chunk } => self.time_tokens(runner, &prompt, chunk)?,
        };
        let (name, start, new, logits) = match kind {
            Kind::Forward => ("length", 0, size, LogitsOf::Every),
            Kind::Prefill { .. } => ("length", 0, size, LogitsOf::Last),
            Kind::Decode { .. } => ("context", size, 1, LogitsOf::Last),
        };
        let span = Span { batch, start, tokens: new, logits };
        Ok(Measured {
            tokens: Some(batch * new),
            // Chunks of a prompt are counted as one call: what they read again is not work that had to be.
            work: Some(self.model.counter().call(span)),
            peak_memory: memory::peak(),
            results: Some(Results { values, row: Some(config.vocab_size) }),
            ..Measured::new(Case::new([("batch", batch.to_string()), (name, size.to_string())]), timing)
        })
    }

    /// Times whole prompts, and gives the last logits.
    fn time_prompts(
        &self,
        runner: &mut dyn Runner,
        prompt: &[Vec<u32>],
        chunk: usize,
        logits: LogitsOf,
    ) -> Result<(Timing, Vec<f32>)> {
        let mut last = Vec::new();
        let timing = repeat(self.args.repeats.repeats, || {
            runner.begin(prompt.len(), prompt[0].len(), 0)?;
            let start = Instant::now();
            last = self.take_in(runner, prompt, chunk, logits)?;
            anyhow::Ok(start.elapsed())
        })?;
        Ok((timing, last))
    }

    /// Times the last token of each sequence after all others, again and again after the same ones.
    fn time_tokens(&self, runner: &mut dyn Runner, all: &[Vec<u32>], chunk: usize) -> Result<(Timing, Vec<f32>)> {
        let context = all[0].len() - 1;
        let (before, token): (Vec<_>, Vec<_>) =
            all.iter().map(|row| (row[..context].to_vec(), row[context..].to_vec())).unzip();
        runner.begin(all.len(), all[0].len(), 1)?;
        if context > 0 {
            self.take_in(runner, &before, chunk, LogitsOf::Last)?;
        }
        let mut last = Vec::new();
        let timing = repeat(self.args.repeats.repeats, || {
            runner.truncate(context)?;
            let start = Instant::now();
            last = self.take_in(runner, &token, 1, LogitsOf::Last)?;
            anyhow::Ok(start.elapsed())
        })?;
        Ok((timing, last))
    }

    /// Runs tokens chunk by chunk, and gives the last chunk's logits.
    fn take_in(
        &self,
        runner: &mut dyn Runner,
        tokens: &[Vec<u32>],
        chunk: usize,
        logits: LogitsOf,
    ) -> Result<Vec<f32>> {
        let length = tokens[0].len();
        let mut last = Vec::new();
        for first in (0..length).step_by(chunk) {
            let rows: Vec<Vec<u32>> =
                tokens.iter().map(|row| row[first..(first + chunk).min(length)].to_vec()).collect();
            let call = HostCall { numerics: self.args.model.numerics.into(), logits, ..HostCall::default() };
            // Numbers on the host can only come after the device has computed.
            last = runner.forward(&rows, call)?.logits.iter::<f32>().collect();
        }
        Ok(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::model::open_config;

    #[test]
    fn usual_sizes_are_those_that_fit() {
        let sizes = |kind: Kind, name| kind.sizes(&[], &open_config(name).unwrap()).unwrap();
        assert_eq!(sizes(Kind::Prefill { chunk: 1 }, "small"), [128, 512, 2048]);
        assert_eq!(sizes(Kind::Prefill { chunk: 1 }, "nano"), [128, 512]);
        assert_eq!(sizes(Kind::Decode { chunk: 1 }, "nano"), [0]);
        assert_eq!(sizes(Kind::Forward, "tiny"), [64]);
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused() {
        let config = open_config("tiny").unwrap();
        let error = |kind: Kind, size| kind.sizes(&[size], &config).unwrap_err().to_string();
        assert_eq!(error(Kind::Forward, 65), "65 positions are asked for, and the model has 64");
        assert_eq!(error(Kind::Decode { chunk: 1 }, 64), "65 positions are asked for, and the model has 64");
        assert_eq!(error(Kind::Prefill { chunk: 1 }, 0), "--lengths has a 0: expected one token or more");
        assert_eq!(Kind::Decode { chunk: 1 }.sizes(&[0, 63], &config).unwrap(), [0, 63]);
    }
}
