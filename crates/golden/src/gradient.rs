//! The gradient golden: loss, logits and gradients of one batch in f64 with the quantisers off, and the losses around ten
//! AdamW steps.

use std::fs;
use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use serde_json::{Map, Value};

use crate::capture::Capture;
use crate::error::{GoldenError, Place};
use crate::file::{make_weights, read_recipes};
use crate::filler::integers;
use crate::json::{self, Entry};
use crate::recorded::{Recorded, checksum};
use crate::weights::{WeightMeta, WeightSet};

/// How far a result may be off, relative to the largest element of the tensor.
const TOLERANCE: f64 = 1e-4;
/// How far a loss around the AdamW steps may be off, relative.
const LOSS_TOLERANCE: f64 = 1e-3;
/// Beyond any golden; a corrupt length must not ask for memory.
const MAX_TOKENS: usize = 1 << 22;

/// A golden file of a training step.
#[derive(Debug, Clone, PartialEq)]
pub struct GradientGolden {
    /// Where it came from.
    pub path: PathBuf,
    /// The golden's name.
    pub name: String,
    /// Prefix of every name that values are made from.
    pub salt: String,
    /// The configuration under the reference's names.
    pub config: Map<String, Value>,
    /// How to make each stored tensor.
    pub weights: IndexMap<String, WeightMeta>,
    /// Tokens, one row a sequence.
    pub input_ids: Vec<Vec<u32>>,
    /// Mean cross entropy of every next token, in nats.
    pub loss: f64,
    /// `[B, S, vocab]`
    pub logits: Capture,
    /// Each parameter's gradient in the layout of the file; none where none flows.
    pub gradients: IndexMap<String, Option<Capture>>,
    /// The steps after it.
    pub adamw: AdamWSteps,
}

/// AdamW on every parameter that has a gradient, with the same decay for all.
#[derive(Debug, Clone, PartialEq)]
pub struct AdamWSteps {
    /// Learning rate.
    pub lr: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Decay of the first and the second moment.
    pub betas: [f64; 2],
    /// Added to the root of the second moment.
    pub eps: f64,
    /// The loss before the first step and after each.
    pub losses: Vec<f64>,
}

impl GradientGolden {
    /// Whether the file holds a golden of this kind.
    ///
    /// # Errors
    /// [`GoldenError::Read`] or [`GoldenError::Json`].
    pub fn is_one(path: &Path) -> Result<bool, GoldenError> {
        Ok(read_json(path)?.get("train").is_some())
    }

    /// Reads a golden file.
    ///
    /// # Errors
    /// [`GoldenError::Read`], [`GoldenError::Json`], and [`GoldenError::Entry`] for everything else that can be wrong.
    pub fn read(path: &Path) -> Result<Self, GoldenError> {
        let file = Place::file(path);
        let value = read_json(path)?;
        let top = Entry::new(&file, "file", &value)?;
        let config = top.read("fixture", "an object", Value::as_object)?.clone();
        let place = file.regime("fixture");
        let fixture = Entry::of(&place, &config);
        let salt = fixture.optional("salt").map_or(Ok(""), |_| fixture.string("salt"))?.to_owned();
        let input_ids = input_ids(fixture, &salt)?;

        let place = file.regime("train");
        let train = Entry::new(&place, "train", top.get("train")?)?;
        let capture = |name: &str, value| {
            let place = place.capture(name);
            Capture::from_json(name, Entry::new(&place, "capture", value)?)
        };
        let gradients = train.read("grads", "an object", Value::as_object)?;
        let gradients = gradients
            .iter()
            .map(|(name, value)| Ok((name.clone(), (!value.is_null()).then(|| capture(name, value)).transpose()?)))
            .collect::<Result<_, GoldenError>>()?;
        let golden = Self {
            path: path.to_owned(),
            name: fixture.string("name")?.to_owned(),
            salt,
            weights: read_recipes(&file, top)?,
            input_ids,
            loss: train.f64("loss")?,
            logits: capture("logits_full", train.get("logits_full")?)?,
            gradients,
            adamw: AdamWSteps::read(Entry::new(&place.capture("adamw"), "adamw", train.get("adamw")?)?)?,
            config: config.clone(),
        };
        let recorded = capture("input_ids", train.get("input_ids")?)?;
        let ids: Vec<u32> = golden.input_ids.concat();
        if recorded.n != ids.len() || recorded.samples().any(|(index, id)| id != f64::from(ids[index])) {
            return Err(train.value("input_ids", "other ids", "those made from their name and the salt"));
        }
        Ok(golden)
    }

    /// Makes the weights and checks every checksum.
    ///
    /// # Errors
    /// [`GoldenError::Entry`] that names the weight.
    pub fn make_weights(&self) -> Result<WeightSet, GoldenError> {
        make_weights(&self.path, &self.salt, &self.weights)
    }

    /// Sequences.
    pub fn batch(&self) -> usize {
        self.input_ids.len()
    }

    /// Tokens of a sequence.
    pub fn length(&self) -> usize {
        self.input_ids[0].len()
    }

    /// How a run's result compares: the loss, the logits, every gradient, the losses around the steps.
    pub fn compare(&self, run: &GradientRun) -> Vec<Deviation> {
        let mut deviations = vec![
            Deviation::of_number("loss", self.loss, run.loss, TOLERANCE),
            Deviation::of_tensor("logits_full", Some(&self.logits), Some(&run.logits)),
        ];
        deviations.extend(self.gradients.iter().map(|(name, want)| {
            let got = run.gradients.get(name).and_then(Option::as_ref);
            Deviation::of_tensor(name, want.as_ref(), got)
        }));
        let strays = run.gradients.iter().filter(|(name, _)| !self.gradients.contains_key(*name));
        deviations.extend(strays.map(|(name, got)| Deviation::of_tensor(name, None, got.as_ref())));
        deviations.extend(self.adamw.losses.iter().enumerate().map(|(step, &want)| {
            let got = run.losses.get(step).copied().unwrap_or(f64::NAN);
            Deviation::of_number(&format!("adamw.losses[{step}]"), want, got, LOSS_TOLERANCE)
        }));
        deviations
    }
}

impl AdamWSteps {
    fn read(entry: Entry<'_>) -> Result<Self, GoldenError> {
        let numbers = |key| {
            let read = |value: &Value| value.as_array()?.iter().map(Value::as_f64).collect::<Option<Vec<f64>>>();
            entry.read(key, "an array of numbers", read)
        };
        let betas = numbers("betas")?;
        let betas = <[f64; 2]>::try_from(betas.as_slice())
            .map_err(|_| entry.value("betas", format!("{} numbers", betas.len()), "2 numbers"))?;
        Ok(Self {
            lr: entry.f64("lr")?,
            weight_decay: entry.f64("weight_decay")?,
            betas,
            eps: entry.f64("eps")?,
            losses: numbers("losses")?,
        })
    }
}

/// What a run gave.
#[derive(Debug, Clone, PartialEq)]
pub struct GradientRun {
    /// Mean cross entropy, in nats.
    pub loss: f64,
    /// `[B, S, vocab]`
    pub logits: Recorded,
    /// Each parameter's gradient in the layout of the file; none where none flows.
    pub gradients: IndexMap<String, Option<Recorded>>,
    /// The loss before the first AdamW step and after each.
    pub losses: Vec<f64>,
}

/// How far one result of a run is off.
#[derive(Debug, Clone, PartialEq)]
pub struct Deviation {
    /// The result's name.
    pub name: String,
    /// The largest deviation found, relative; infinite where one side has a gradient and the other none.
    pub relative: f64,
    /// What is allowed.
    pub tolerance: f64,
}

impl Deviation {
    /// Whether the deviation is allowed.
    pub fn passed(&self) -> bool {
        self.relative <= self.tolerance
    }

    fn of_number(name: &str, want: f64, got: f64, tolerance: f64) -> Self {
        let relative = (got - want).abs() / want.abs();
        Self { name: name.to_owned(), relative: if relative.is_nan() { f64::INFINITY } else { relative }, tolerance }
    }

    /// Every stored element against the tensor's largest, the norm of the stored ones, and the checksum against the sum
    /// of its summands' magnitudes.
    fn of_tensor(name: &str, want: Option<&Capture>, got: Option<&Recorded>) -> Self {
        let relative = match (want, got) {
            (None, None) => 0.0,
            (Some(want), Some(got)) if want.shape == got.shape => tensor_deviation(want, got),
            _ => f64::INFINITY,
        };
        Self { name: name.to_owned(), relative, tolerance: TOLERANCE }
    }
}

fn tensor_deviation(want: &Capture, got: &Recorded) -> f64 {
    let largest = got.values.to_f64().fold(0.0, |largest: f64, value| largest.max(value.abs()));
    let sum = checksum(got.values.to_f64());
    let pairs = || want.samples().map(|(index, value)| (value, got.get(index)));
    let element = pairs().map(|(want, got)| (want - got).abs()).fold(0.0, f64::max) / largest;
    let squares = |f: fn((f64, f64)) -> f64| pairs().map(f).map(|value| value * value).sum::<f64>().sqrt();
    let norm = squares(|(want, got)| want - got) / squares(|(want, _)| want);
    let checksum = (want.ck - sum.sum).abs() / sum.magnitude;
    let norm = if squares(|(want, _)| want) == 0.0 { element } else { norm };
    // A tensor that is zero throughout on both sides divides nothing by nothing.
    let zero = largest == 0.0 && want.ck == 0.0;
    let of = |ratio: f64| match ratio.is_nan() {
        true if zero => 0.0,
        true => f64::INFINITY,
        false => ratio,
    };
    of(element).max(of(norm)).max(of(checksum))
}

fn read_json(path: &Path) -> Result<Value, GoldenError> {
    let file = Place::file(path);
    let text = fs::read_to_string(path).map_err(|source| GoldenError::Read { file: file.file.clone(), source })?;
    json::parse(&file, &text)
}

fn input_ids(fixture: Entry<'_>, salt: &str) -> Result<Vec<Vec<u32>>, GoldenError> {
    let (batch, length, vocab) = (fixture.usize("batch")?, fixture.usize("length")?, fixture.usize("vocab_size")?);
    if batch == 0 || length < 2 || batch.checked_mul(length).is_none_or(|tokens| tokens > MAX_TOKENS) {
        let rule = format!("at least two tokens a sequence, at most {MAX_TOKENS} in all");
        return Err(fixture.value("length", format!("{batch} x {length}"), rule));
    }
    if vocab == 0 || u32::try_from(vocab).is_err() {
        return Err(fixture.value("vocab_size", vocab, "at least 1 and less than 2^32"));
    }
    let ids = integers(salt, "input_ids", batch * length, vocab as u64);
    Ok(ids.chunks(length).map(|row| row.iter().map(|&id| id as u32).collect()).collect())
}
