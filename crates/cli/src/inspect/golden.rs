//! What a golden file holds: a run, the recipes of its weights, and captures.

use std::fmt;

use dsv41_config::Config;
use dsv41_golden::{EngramHashGolden, Golden, Inputs, ProbsDtype, SelectionRule};
use serde_json::{Value, json};

use super::{InspectError, ModelReport};
use crate::table::{Align, Table, grouped, list};

/// A golden file of the text graph, described. Displayed as tables.
#[derive(Debug, Clone)]
pub struct GoldenReport {
    golden: Golden,
    inputs: Option<Inputs>,
    model: ModelReport,
}

impl GoldenReport {
    /// Describes a golden, and reads the inputs file beside it where there is one.
    ///
    /// # Errors
    /// When the fixture's configuration breaks a rule, or the inputs are not those of the golden.
    pub fn new(golden: Golden) -> Result<Self, InspectError> {
        let origin = golden.path.display().to_string();
        let config = Config::from_value(&origin, &Value::Object(golden.fixture.config.clone()))?;
        Ok(Self { model: ModelReport::new(&origin, config)?, inputs: golden.inputs()?, golden })
    }

    /// `fixture`, `model`, `weights`, `regimes` and the `inputs` file (null where there is none).
    pub fn to_json(&self) -> Value {
        let regimes: Vec<Value> = self
            .regimes()
            .map(|regime| {
                json!({
                    "regime": regime.name,
                    "start": regime.start,
                    "tokens": regime.tokens,
                    "captures": regime.captures,
                    "inputs": regime.inputs,
                })
            })
            .collect();
        let inputs = self.inputs.as_ref().map(|_| self.golden.inputs_path().display().to_string());
        json!({
            "fixture": self.golden.fixture.to_map(),
            "model": self.model.to_json(),
            "weights": { "tensors": self.golden.weights.len(), "elements": self.weight_elements() },
            "regimes": regimes,
            "inputs": inputs,
        })
    }

    fn run(&self) -> Table<2> {
        let fixture = &self.golden.fixture;
        let mut table = Table::new([Align::Left, Align::Left]);
        let mut row = |label: &str, text: String| table.row([label.to_owned(), text]);
        row("name", fixture.name.clone());
        row("salt", format!("{:?}", fixture.salt));
        row(
            "tokens",
            format!(
                "batch of {}: {} at once, then {} one by one",
                fixture.batch, fixture.prefill_len, fixture.decode_steps
            ),
        );
        row(
            "probabilities",
            match fixture.probs_dtype {
                ProbsDtype::Bf16 => "rounded to bf16",
                ProbsDtype::F32 => "f32, not rounded",
            }
            .to_owned(),
        );
        row(
            "equal scores",
            match fixture.selection {
                SelectionRule::Stable => "the lowest position is taken",
                SelectionRule::Torch => "as torch chose: a run takes the golden's selections",
            }
            .to_owned(),
        );
        row("switches", self.switches());
        row(
            "weights",
            format!(
                "{} stored tensors of {} elements, made from their names",
                self.golden.weights.len(),
                grouped(self.weight_elements())
            ),
        );
        row("inputs", self.inputs_file());
        table
    }

    /// The released code's slips that the run reproduces.
    fn switches(&self) -> String {
        let fixture = &self.golden.fixture;
        let switches =
            [(fixture.stale_index_keys, "stale_index_keys"), (fixture.keep_masked_picks, "keep_masked_picks")];
        let on = switches.into_iter().filter(|(on, _)| *on);
        let on = list(on.map(|(_, name)| name));
        if on.is_empty() { "none".to_owned() } else { on }
    }

    fn inputs_file(&self) -> String {
        let path = self.golden.inputs_path();
        let name = path.file_name().unwrap_or_default().display();
        match &self.inputs {
            Some(_) => format!("{name}, whole tensors for a run fed layer by layer"),
            None => format!("no {name} beside it, so that layers cannot be fed one by one"),
        }
    }

    fn calls(&self) -> Table<5> {
        let mut table = Table::new([Align::Left, Align::Right, Align::Right, Align::Right, Align::Right]);
        table.row(["regime", "from", "tokens", "captures", "inputs"]);
        for regime in self.regimes() {
            table.row([
                regime.name.to_owned(),
                regime.start.to_string(),
                regime.tokens.to_string(),
                regime.captures.to_string(),
                regime.inputs.to_string(),
            ]);
        }
        table
    }

    fn regimes(&self) -> impl Iterator<Item = RegimeReport<'_>> {
        self.golden.regimes.iter().filter_map(|(name, captures)| {
            // A golden that was read has regimes of its own run alone.
            let call = self.golden.fixture.call(name)?;
            let inputs = self.inputs.as_ref();
            Some(RegimeReport {
                name,
                start: call.start,
                tokens: call.length,
                captures: captures.len(),
                inputs: inputs.map_or(0, |inputs| inputs.regime(name).len()),
            })
        })
    }

    fn weight_elements(&self) -> u64 {
        let shapes = self.golden.weights.values().map(|meta| &meta.shape);
        let elements = |shape: &Vec<usize>| shape.iter().product::<usize>() as u64;
        shapes.map(elements).fold(0, u64::saturating_add)
    }
}

/// What is known of one call.
struct RegimeReport<'a> {
    name: &'a str,
    start: usize,
    tokens: usize,
    captures: usize,
    /// Whole tensors in the inputs file.
    inputs: usize,
}

impl fmt::Display for GoldenReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "RUN\n{}\n", self.run())?;
        writeln!(f, "CALLS\n{}\n", self.calls())?;
        writeln!(f, "MODEL: {}\n{}\n", self.model.summary(), self.model.shape())?;
        writeln!(f, "{}", self.model.layers())
    }
}

/// The golden of engram hashing, described.
#[derive(Debug, Clone)]
pub struct EngramHashReport(pub EngramHashGolden);

impl EngramHashReport {
    /// The sizes of what the file holds.
    pub fn to_json(&self) -> Value {
        let golden = &self.0;
        json!({
            "layer_ids": golden.layer_ids,
            "max_ngram_size": golden.max_ngram_size,
            "n_heads": golden.n_heads,
            "engram_vocab_size": golden.engram_vocab_size,
            "compressed_vocab_size": golden.compressed_vocab_size,
            "table_rows": golden.table_rows,
            "sequences": golden.input_ids.len(),
            "tokens": self.tokens(),
            "prefill": golden.prefill,
            "masked": self.masked(),
        })
    }

    /// Tokens of each sequence.
    fn tokens(&self) -> usize {
        self.0.input_ids.first().map_or(0, Vec::len)
    }

    /// Tokens of all sequences that stand within an image.
    fn masked(&self) -> usize {
        let mask = self.0.token_mask.iter().flatten();
        mask.filter(|&&text| text == 0).count()
    }
}

impl fmt::Display for EngramHashReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let golden = &self.0;
        let mut table = Table::new([Align::Left, Align::Left]);
        let mut row = |label: &str, text: String| table.row([label.to_owned(), text]);
        row("layers", list(&golden.layer_ids));
        row(
            "n-grams",
            format!(
                "of 2 to {} tokens out of {}, {} hash heads for each n",
                golden.max_ngram_size,
                grouped(golden.compressed_vocab_size),
                golden.n_heads
            ),
        );
        row("table rows", golden.table_rows.iter().map(|&rows| grouped(rows)).collect::<Vec<_>>().join(" and "));
        row(
            "sequences",
            format!(
                "{} of {} tokens, {} at once and the others one by one; {} masked",
                golden.input_ids.len(),
                self.tokens(),
                golden.prefill,
                self.masked()
            ),
        );
        row("holds", "primes, offsets, multipliers and hash ids".to_owned());
        writeln!(f, "{table}")
    }
}
