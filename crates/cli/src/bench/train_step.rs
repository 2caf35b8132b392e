//! One training step: forward with the loss, and backward, apart.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use burn::{
    backend::Autodiff,
    optim::GradientsParams,
    tensor::{DType, Tensor, TensorData},
};
use bytesize::ByteSize;
use clap::{Args, ValueEnum};
use dsv41::{
    BlockCall, Call, LoadOptions, LogitsOf, ModelBackend, ModelError, Objective, Transformer, WeightSource, parameters,
};
use dsv41_config::Config;
use dsv41_train::{InitialWeights, losses::CrossEntropy, trainer::TrainError};
use safetensors::{Dtype, SafeTensors};

use super::model::{open_config, tokens};
use super::options::{DeviceArgs, OutputArgs};
use super::report::{Case, ModelRecord};
use super::session::{Measured as Recorded, Results, Session};
use super::timing::Timing;
use super::work::{Counter, Span, Widths};
use crate::{
    device::{DeviceName, DeviceTask, Precision},
    memory,
    model_source::folded_token_map,
    table::{
        Align::{Left, Right},
        Table,
    },
};

/// Token ids in a file of weights.
const IDS: &str = "input_ids";

/// Which step to take.
#[derive(Debug, Args)]
pub(super) struct TrainStepArgs {
    #[command(flatten)]
    devices: DeviceArgs,
    /// The shape of the model: a configuration, or the name of one as in the other parts.
    #[arg(long, value_name = "MODEL", default_value = "small")]
    config: String,
    /// Weights, and token ids, from a safetensors file with the release's names; random ones by default.
    #[arg(long, value_name = "FILE")]
    weights: Option<PathBuf>,
    /// Sequences.
    #[arg(long, value_name = "N", default_value_t = 2)]
    batch: usize,
    /// Tokens of each; several between commas are timed one after the other.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [512])]
    length: Vec<usize>,
    /// What is computed again for the backward pass, between commas. Where it is blocks, forward runs twice, and both count
    /// as backward.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [RecomputeArg::None])]
    recompute: Vec<RecomputeArg>,
    /// Timed steps, after one that is not.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum RecomputeArg {
    None,
    Blocks,
}

impl fmt::Display for RecomputeArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Blocks => "blocks",
        })
    }
}

/// Prints a table, and how far gradients are from those of a file.
pub(super) fn run(args: &TrainStepArgs) -> Result<()> {
    let config = open_config(&args.config)?;
    let stored = args.weights.as_deref().map(Stored::read).transpose()?;
    let initial = InitialWeights::new(&config, 0);
    let expected = args.output.tensors().map(|path| Stored::read(path)).collect::<Result<Vec<_>>>()?;
    let model = ModelRecord {
        name: args.config.clone(),
        weights: args
            .weights
            .as_ref()
            .map_or_else(|| "random weights of seed 0".to_owned(), |file| file.display().to_string()),
        parameters: config.parameter_counts()?.total,
    };
    let mut session = Session::begin("train-step", &args.devices, Some(model), None)?;
    let mut table = Table::new([Left, Left, Right, Right, Right, Right, Right, Right, Right]);
    let head = ["device", "recompute", "batch", "length", "forward", "backward", "step", "tokens/s", "peak memory"];
    table.row(head);
    let mut comparisons = Vec::new();
    for device in session.devices() {
        for &length in &args.length {
            for &recompute in &args.recompute {
                let ids = match stored.as_ref().map(|stored| stored.ids()).transpose()?.flatten() {
                    Some(ids) => ids,
                    None => tokens(args.batch, length, config.vocab_size),
                };
                let step = TrainStep {
                    config: &config,
                    weights: stored.as_ref().map_or(&initial as &dyn WeightSource, |stored| stored),
                    tokens: &ids,
                    recompute,
                    repeats: args.repeats,
                    expected: &expected,
                };
                session.announce(device, format_args!("{length} tokens"));
                let measured = device.dispatch(Precision::F32, step)??;
                table.row(cells(device, recompute, &ids, &measured));
                let records = records(&config, recompute, &ids, &measured);
                records.into_iter().for_each(|record| session.add(device, record));
                comparisons.extend(measured.comparisons.iter().map(|comparison| format!("{device}: {comparison}")));
            }
        }
    }
    session.clear();
    println!("{table}\nTimes are minima of {} steps after one that is not timed.", args.repeats);
    comparisons.iter().for_each(|comparison| println!("{comparison}"));
    session.conclude_with(&args.output, args.output.reports())
}

/// The whole step, and its two halves where they are apart.
fn records(config: &Config, recompute: RecomputeArg, tokens: &[Vec<u32>], measured: &Measured) -> Vec<Recorded> {
    let (batch, length) = (tokens.len(), tokens[0].len());
    let span = Span { batch, start: 0, tokens: length, logits: LogitsOf::Every };
    let recomputed = matches!(recompute, RecomputeArg::Blocks);
    let record = |step: &str, times: Vec<Duration>| {
        let case = Case::new([
            ("step", step.to_owned()),
            ("recompute", recompute.to_string()),
            ("batch", batch.to_string()),
            ("length", length.to_string()),
        ]);
        Recorded { tokens: Some(batch * length), peak_memory: measured.peak, ..Recorded::new(case, Timing::of(times)) }
    };
    let whole = measured.times.iter().map(|[forward, backward]| *forward + *backward).collect();
    let work = Counter::new(config, Widths::f32()).training_step(span, recomputed);
    // The loss of each device is to be the first one's.
    let results = Some(Results { values: vec![measured.loss as f32], row: None });
    let mut records = vec![Recorded { work: Some(work), results, ..record("whole", whole) }];
    if !recomputed {
        let half = |half: usize| measured.times.iter().map(|times| times[half]).collect();
        records.extend([record("forward", half(0)), record("backward", half(1))]);
    }
    records
}

/// The least of the times of a half.
fn least(times: &[[Duration; 2]], half: usize) -> Duration {
    times.iter().map(|times| times[half]).min().unwrap_or_default()
}

fn cells(device: DeviceName, recompute: RecomputeArg, tokens: &[Vec<u32>], measured: &Measured) -> [String; 9] {
    let [forward, backward] = [0, 1].map(|half| least(&measured.times, half));
    let step = forward + backward;
    let count = tokens.iter().map(Vec::len).sum::<usize>() as f64;
    let seconds = |time: Duration| format!("{:.3} s", time.as_secs_f64());
    let peak = measured.peak.map_or_else(|| "-".to_owned(), |peak| ByteSize(peak).display().iec().to_string());
    [
        device.to_string(),
        recompute.to_string(),
        tokens.len().to_string(),
        tokens[0].len().to_string(),
        seconds(forward),
        seconds(backward),
        seconds(step),
        format!("{:.0}", count / step.as_secs_f64()),
        peak,
    ]
}

/// Tensors of a safetensors file, in memory.
struct Stored {
    path: PathBuf,
    bytes: Vec<u8>,
}

impl Stored {
    fn read(path: &Path) -> Result<Self> {
        let bytes = fs::read(path).with_context(|| format!("{}: cannot be read", path.display()))?;
        SafeTensors::deserialize(&bytes).with_context(|| path.display().to_string())?;
        Ok(Self { path: path.to_owned(), bytes })
    }

    /// The token ids, where the file has them.
    fn ids(&self) -> Result<Option<Vec<Vec<u32>>>> {
        let tensors = SafeTensors::deserialize(&self.bytes)?;
        let Ok(ids) = tensors.tensor(IDS) else { return Ok(None) };
        let said = || format!("{}: `{IDS}` is {:?} of {:?}", self.path.display(), ids.shape(), ids.dtype());
        ensure!(ids.dtype() == Dtype::I64 && ids.shape().len() == 2, "{}, expected rows of I64", said());
        let (numbers, _) = ids.data().as_chunks::<8>();
        let numbers = numbers.iter().map(|number| u32::try_from(i64::from_le_bytes(*number)));
        let numbers = numbers.collect::<Result<Vec<u32>, _>>().with_context(said)?;
        Ok(Some(numbers.chunks_exact(ids.shape()[1].max(1)).map(<[u32]>::to_vec).collect()))
    }

    /// The values of a tensor of F32 or F64.
    fn values(&self, name: &str) -> Option<Vec<f32>> {
        let tensors = SafeTensors::deserialize(&self.bytes).ok()?;
        let tensor = tensors.tensor(name).ok()?;
        match tensor.dtype() {
            Dtype::F32 => Some(tensor.data().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()),
            Dtype::F64 => {
                Some(tensor.data().as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes) as f32).collect())
            }
            _ => None,
        }
    }
}

impl WeightSource for Stored {
    fn weight(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        let count = shape.iter().product::<usize>();
        match self.values(name) {
            Some(values) if values.len() == count => Ok(values),
            // Biases of routers have no gradient and need not be stored.
            None if name.ends_with(".gate.bias") => Ok(vec![0.0; count]),
            _ => Err(ModelError::Weight {
                name: name.to_owned(),
                reason: format!("{} has no such tensor of F32 or F64 with axes {shape:?}", self.path.display()),
            }),
        }
    }
}

struct TrainStep<'a> {
    config: &'a Config,
    weights: &'a dyn WeightSource,
    tokens: &'a [Vec<u32>],
    recompute: RecomputeArg,
    repeats: u32,
    expected: &'a [Stored],
}

struct Measured {
    /// Forward and backward of each step.
    times: Vec<[Duration; 2]>,
    loss: f64,
    peak: Option<u64>,
    comparisons: Vec<String>,
}

/// Times of one step, its loss and gradients.
struct Taken {
    forward: Duration,
    backward: Duration,
    loss: f64,
    gradients: GradientsParams,
}

impl DeviceTask for TrainStep<'_> {
    type Output = Result<Measured>;

    fn run<B: ModelBackend>(self, device: B::Device, dtype: DType) -> Self::Output {
        let map = (!self.config.engram_layer_ids.is_empty()).then(|| folded_token_map(self.config));
        let options = LoadOptions { dtype, ..LoadOptions::default() };
        let model = Transformer::<Autodiff<B>>::load(self.config, self.weights, map, &device, options)?;
        let first = self.take::<B>(&model, &device)?;
        let comparisons = self.expected.iter().map(|expected| compare::<B>(&model, &first, expected)).collect();
        let loss = first.loss;
        drop(first);
        memory::reset_peak();
        let mut times = Vec::new();
        for _ in 0..self.repeats {
            let taken = self.take::<B>(&model, &device)?;
            times.push([taken.forward, taken.backward]);
        }
        Ok(Measured { times, loss, peak: memory::peak(), comparisons })
    }
}

impl TrainStep<'_> {
    /// The mean cross entropy of every next token, and its gradients.
    fn take<B: ModelBackend>(&self, model: &Transformer<Autodiff<B>>, device: &B::Device) -> Result<Taken> {
        let targets: Vec<Option<u32>> =
            self.tokens.iter().flat_map(|row| row[1..].iter().copied().map(Some).chain([None])).collect();
        let mut value = 0.0;
        let mut loss = |x: Tensor<Autodiff<B>, 3>| -> Result<Tensor<Autodiff<B>, 1>, TrainError> {
            let [batch, seq, dim] = x.dims();
            let loss = CrossEntropy::default().forward(x.reshape([batch * seq, dim]), &model.head.weight, &targets)?;
            value = loss.totals.mean();
            Ok(loss.value)
        };
        let started = Instant::now();
        let (forward, gradients) = match self.recompute {
            RecomputeArg::None => {
                let x = model.forward_states(self.tokens, None, Call::default())?.x;
                let loss = loss(x)?;
                let forward = started.elapsed();
                (forward, GradientsParams::from_grads(loss.backward(), model))
            }
            RecomputeArg::Blocks => (
                Duration::ZERO,
                model.gradients_by_block(self.tokens, BlockCall::default(), &mut NoObjective, &mut loss)?,
            ),
        };
        B::sync(device).ok().context("the device failed")?;
        Ok(Taken { forward, backward: started.elapsed() - forward, loss: value, gradients })
    }
}

/// Nothing but the loss.
struct NoObjective;

impl<B: burn::tensor::backend::Backend> Objective<B> for NoObjective {}

/// How far loss and gradients are from those of a file.
fn compare<B: ModelBackend>(model: &Transformer<Autodiff<B>>, taken: &Taken, expected: &Stored) -> String {
    let mut distances: HashMap<String, f64> = HashMap::new();
    let mut missing = Vec::new();
    let mut visit = |name: &str, gradient: Option<TensorData>| match (gradient, expected.values(name)) {
        (Some(gradient), Some(expected)) => {
            let square = |x: f64| x * x;
            let error: f64 = gradient.iter::<f64>().zip(&expected).map(|(a, &b)| square(a - f64::from(b))).sum();
            let norm: f64 = expected.iter().map(|&x| square(f64::from(x))).sum();
            distances.insert(name.to_owned(), (error / norm.max(f64::MIN_POSITIVE)).sqrt());
        }
        (None, None) => {}
        // Where no token went, one has zeros and the other has none.
        (Some(gradient), None) if gradient.iter::<f64>().all(|x| x == 0.0) => {}
        (None, Some(expected)) if expected.iter().all(|&x| x == 0.0) => {}
        _ => missing.push(name.to_owned()),
    };
    parameters::visit_gradients(model, model.parameters(), &taken.gradients, |parameter, gradient| {
        visit(&parameter.name, gradient);
    });
    let loss = expected.values("loss").and_then(|loss| loss.first().copied()).map_or(f64::NAN, f64::from);
    let worst = distances.iter().max_by(|a, b| a.1.total_cmp(b.1));
    let worst = worst.map_or_else(String::new, |(name, distance)| format!(", the farthest {distance:.2e} ({name})"));
    let missing =
        if missing.is_empty() { String::new() } else { format!(", only on one side: {}", missing.join(", ")) };
    format!(
        "loss {:.6}, of the file {loss:.6}; {} gradients by relative L2 distance{worst}{missing}",
        taken.loss,
        distances.len()
    )
}
