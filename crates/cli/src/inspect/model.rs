//! The model that a configuration describes: its shape, what each layer owns and reads, and where its parameters are.

use std::fmt;

use dsv41_config::{
    Config, ConfigError, LayerTopology, ParameterCounts, Part, StoredDtype, StoredTensor, TensorStorage, Topology,
};
use serde_json::{Value, json};

use crate::table::{Align, Table, bytes, grouped, list};

/// Stands for what a layer or a model does not have.
const NONE: &str = "-";

/// A model, described. Displayed as three tables: shape, layers, parameters.
#[derive(Debug, Clone)]
pub struct ModelReport {
    config: Config,
    topology: Topology,
    counts: ParameterCounts,
    /// Bytes of each part in the checkpoint's types, scales included, in the order of [`Part::ALL`].
    stored: [u64; Part::ALL.len()],
}

impl ModelReport {
    /// Describes `config`, which `origin` names in errors.
    ///
    /// # Errors
    /// When the configuration breaks a rule.
    pub fn new(origin: &str, config: Config) -> Result<Self, ConfigError> {
        let within = |error| ConfigError::In { origin: origin.to_owned(), error: Box::new(error) };
        config.validate().map_err(within)?;
        Ok(Self {
            topology: config.topology(),
            counts: config.parameter_counts().map_err(within)?,
            stored: stored_bytes(&config),
            config,
        })
    }

    /// The configuration under the reference's keys, `layers`, and `parameters` by part.
    pub fn to_json(&self) -> Value {
        let parts: Vec<Value> = self
            .parts()
            .map(|(part, count, stored)| {
                json!({
                    "part": part.to_string(),
                    "parameters": count,
                    "share": self.share(count),
                    "stored_bytes": stored,
                })
            })
            .collect();
        let mut object = self.graph_json();
        object["parameters"]["parts"] = json!(parts);
        object["parameters"]["stored_bytes"] = json!(self.all_stored());
        object
    }

    /// As [`ModelReport::to_json`], without what depends on how the parameters are stored.
    pub(super) fn graph_json(&self) -> Value {
        let layers: Vec<Value> = self.topology.layers().iter().map(layer_to_json).collect();
        json!({
            "config": self.config,
            "layers": layers,
            "parameters": { "total": self.counts.total, "activated": self.counts.activated },
        })
    }

    /// One line: how many parameters, and how much memory they take as stored.
    pub(super) fn summary(&self) -> String {
        format!(
            "{} parameters, {} activated per token, {} as stored",
            grouped(self.counts.total),
            grouped(self.counts.activated),
            bytes(self.all_stored()),
        )
    }

    /// What the model is built of, in words and numbers.
    pub(super) fn shape(&self) -> Table<2> {
        let config = &self.config;
        let mut table = self.outline();
        let storage = format!("{}; routed experts {}", name(&config.dtype), storage_name(config.expert_storage()));
        table.row(["storage".to_owned(), storage]);
        table.row(["beyond text".to_owned(), self.beyond_text()]);
        table
    }

    /// What the graph is built of, however its parameters are stored.
    pub(super) fn outline(&self) -> Table<2> {
        let config = &self.config;
        let mut table = Table::new([Align::Left, Align::Left]);
        let mut row = |label: &str, text: String| table.row([label.to_owned(), text]);
        row(
            "stream",
            format!(
                "{} layers of width {}, {} residual copies, vocabulary of {}",
                config.n_layers, config.dim, config.hc_mult, config.vocab_size,
            ),
        );
        row(
            "attention",
            format!(
                "{} heads of {} ({} channels rotate), query rank {}, output in {} groups of rank {}, window of {}",
                config.n_heads,
                config.head_dim,
                config.rope_head_dim,
                config.q_lora_rank,
                config.o_groups,
                config.o_lora_rank,
                config.window_size,
            ),
        );
        row("indexer", self.indexer());
        row("candidates", self.candidates());
        row(
            "experts",
            format!(
                "{} of {} routed and {} shared for a token, hidden width {}, scored by {}",
                config.n_activated_experts,
                config.n_routed_experts,
                config.n_shared_experts,
                config.moe_inter_dim,
                name(&config.score_func),
            ),
        );
        row("engram", self.engram());
        row("context", self.context());
        table
    }

    fn indexer(&self) -> String {
        let config = &self.config;
        if config.index_source_layers.is_empty() {
            return NONE.to_owned();
        }
        format!(
            "{} heads of {}, selects {} compressed positions",
            config.index_n_heads, config.index_head_dim, config.index_topk,
        )
    }

    fn candidates(&self) -> String {
        let config = &self.config;
        match config.candidate_source_layer {
            Some(layer) => format!(
                "{} blocks of {} compressed positions, chosen in layer {layer} for the indexers after it",
                config.candidate_topk_blocks, config.candidate_block_size,
            ),
            None => NONE.to_owned(),
        }
    }

    fn engram(&self) -> String {
        let config = &self.config;
        if config.engram_layer_ids.is_empty() {
            return NONE.to_owned();
        }
        format!(
            "n-grams of 2 to {} tokens, {} hash heads of width {} for each n",
            config.engram_max_ngram_size, config.engram_n_heads, config.engram_head_dim,
        )
    }

    fn context(&self) -> String {
        let config = &self.config;
        let mut text = format!("{} positions, rotary base {}", config.max_seq_len, config.rope_theta);
        if config.compress_ratios.iter().any(|&ratio| ratio > 0) {
            text += &format!(", in compressed layers {}", config.compress_rope_theta);
            if config.original_seq_len > 0 {
                text += &format!(" with YaRN (times {} from {})", config.rope_factor, config.original_seq_len);
            }
        }
        text
    }

    /// Parts that the configuration tells of and that are not counted below.
    fn beyond_text(&self) -> String {
        let config = &self.config;
        let parts = [(config.vision_n_layers, "vision layers"), (config.n_mtp_layers, "draft layers")];
        let present = parts.into_iter().filter(|&(count, _)| count > 0);
        let present = list(present.map(|(count, what)| format!("{count} {what}")));
        if present.is_empty() { NONE.to_owned() } else { format!("{present} (not counted here)") }
    }

    /// What each layer owns and what it reads from whom.
    pub(super) fn layers(&self) -> Table<6> {
        let mut table = Table::new([Align::Right, Align::Right, Align::Left, Align::Left, Align::Left, Align::Left]);
        table.row(["layer", "ratio", "stream", "selection", "candidates", "engram"]);
        for layer in self.topology.layers() {
            let from = |source: Option<usize>| match source {
                Some(source) if source == layer.layer => "own".to_owned(),
                Some(source) => format!("of layer {source}"),
                None => NONE.to_owned(),
            };
            let candidates =
                if layer.makes_candidates { "makes them".to_owned() } else { from(layer.candidate_source) };
            let engram = layer
                .engram
                .map_or(NONE.to_owned(), |place| format!("{} rows", grouped(self.config.engram_num_embeddings[place])));
            let ratio = match layer.ratio {
                0 => NONE.to_owned(),
                ratio => ratio.to_string(),
            };
            table.row([
                layer.layer.to_string(),
                ratio,
                from(layer.kv_source),
                from(layer.index_source),
                candidates,
                engram,
            ]);
        }
        table
    }

    fn parameters(&self) -> Table<4> {
        let mut table = Table::new([Align::Left, Align::Right, Align::Right, Align::Right]);
        let percent = |count: u64| format!("{:.2}%", 100.0 * self.share(count));
        table.row(["part", "parameters", "share", "stored"]);
        for (part, count, stored) in self.parts().filter(|&(_, count, _)| count > 0) {
            table.row([part.to_string(), grouped(count), percent(count), bytes(stored)]);
        }
        let (total, activated) = (self.counts.total, self.counts.activated);
        table.row(["total".to_owned(), grouped(total), percent(total), bytes(self.all_stored())]);
        table.row(["activated per token".to_owned(), grouped(activated), percent(activated), String::new()]);
        table
    }

    /// Each part with its parameters and stored bytes.
    fn parts(&self) -> impl Iterator<Item = (Part, u64, u64)> {
        let counts = self.counts.parts.iter();
        counts.zip(self.stored).map(|(&(part, count), stored)| (part, count, stored))
    }

    /// A model has an embedding at least, so its total is not zero.
    fn share(&self, count: u64) -> f64 {
        count as f64 / self.counts.total as f64
    }

    fn all_stored(&self) -> u64 {
        self.stored.iter().fold(0, |sum, &part| sum.saturating_add(part))
    }
}

impl fmt::Display for ModelReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "SHAPE\n{}\n", self.shape())?;
        writeln!(f, "LAYERS\n{}\n", self.layers())?;
        writeln!(f, "{}\n", legend())?;
        writeln!(f, "PARAMETERS\n{}", self.parameters())
    }
}

/// What the columns of the layers' table mean.
fn legend() -> Table<2> {
    let mut table = Table::new([Align::Left, Align::Left]);
    table.row([
        "ratio",
        "tokens that one compressed position stands for; - where the layer attends to its window alone",
    ]);
    table.row(["stream", "the compressed keys and values it attends to besides the window, with the indexer's keys"]);
    table.row(["selection", "who chooses, for each query, the compressed positions to attend to"]);
    table.row(["candidates", "the blocks of positions that its own selection is limited to"]);
    table.row(["engram", "the table of hashed n-grams that is read before the layer"]);
    table
}

fn layer_to_json(layer: &LayerTopology) -> Value {
    json!({
        "layer": layer.layer,
        "ratio": layer.ratio,
        "kv_source": layer.kv_source,
        "index_source": layer.index_source,
        "candidate_source": layer.candidate_source,
        "makes_candidates": layer.makes_candidates,
        "engram": layer.engram,
    })
}

/// The word that configurations have for a value.
fn name(value: &impl serde::Serialize) -> String {
    match json!(value) {
        Value::String(word) => word,
        other => other.to_string(),
    }
}

fn storage_name(storage: TensorStorage) -> &'static str {
    match storage {
        TensorStorage::F32 => "f32",
        TensorStorage::Bf16 => "bf16",
        TensorStorage::Fp8Tile | TensorStorage::Fp8Row => "fp8",
        TensorStorage::Fp4 => "fp4",
    }
}

/// Bytes of each part. A validated configuration has fewer than 2^63 parameters, so the sums reach their bound only
/// where no machine could hold the model.
fn stored_bytes(config: &Config) -> [u64; Part::ALL.len()] {
    let mut stored = [0_u64; Part::ALL.len()];
    for tensor in config.tensors() {
        let size: u64 = tensor.stored().iter().map(tensor_bytes).fold(0, u64::saturating_add);
        for (part, sum) in Part::ALL.into_iter().zip(&mut stored) {
            if part == tensor.part {
                *sum = sum.saturating_add(size);
            }
        }
    }
    stored
}

fn tensor_bytes(tensor: &StoredTensor) -> u64 {
    let element: u64 = match tensor.dtype {
        StoredDtype::F32 => 4,
        StoredDtype::Bf16 => 2,
        StoredDtype::F8E4m3 | StoredDtype::F8E8m0 | StoredDtype::F4E2m1x2 => 1,
    };
    tensor.shape.iter().fold(element, |size, &axis| size.saturating_mul(axis as u64))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn report(name: &str) -> ModelReport {
        let path = format!("{}/../../configs/{name}.json", env!("CARGO_MANIFEST_DIR"));
        let config = Config::from_path(Path::new(&path)).unwrap();
        ModelReport::new(name, config).unwrap()
    }

    #[test]
    fn layers_say_what_they_own_and_read() {
        let expected = "
  layer  ratio  stream      selection   candidates  engram
      0      -  -           -           -           -
      1      -  -           -           -           462 rows
      2      2  own         own         -           -
      3      2  of layer 2  of layer 2  -           -
      4      1  own         own         makes them  630 rows
      5      1  of layer 4  own         of layer 4  -";
        assert_eq!(format!("\n{}", report("tiny").layers()), expected);
    }

    /// Embedding and head by hand: 129280 * 5120 elements of 2 and 4 bytes; a routed expert's matrices of half a byte
    /// an element and one byte for 32; table rows of one byte an element and one for 32.
    #[test]
    fn stored_sizes_are_those_of_the_types() {
        let report = report("v4.1-flash");
        let stored = |wanted: Part| {
            let mut parts = report.parts();
            parts.find(|(part, ..)| *part == wanted).unwrap().2
        };
        let vocabulary = 129_280 * 5_120;
        assert_eq!(stored(Part::Embedding), 2 * vocabulary);
        assert_eq!(stored(Part::Head), 4 * vocabulary);
        let experts = 40 * 384 * 3 * 5_120 * 2_304;
        assert_eq!(stored(Part::RoutedExperts), experts / 2 + experts / 32);
        let tables = (384_006_168 + 384_016_682) * 256;
        assert_eq!(stored(Part::EngramTables), tables + tables / 32);
    }

    #[test]
    fn shares_add_up() {
        let json = report("nano").to_json();
        let parts = json["parameters"]["parts"].as_array().unwrap();
        let sum: f64 = parts.iter().map(|part| part["share"].as_f64().unwrap()).sum();
        assert!((sum - 1.0).abs() < 1e-12, "{sum}");
        let stored: u64 = parts.iter().map(|part| part["stored_bytes"].as_u64().unwrap()).sum();
        assert_eq!(json["parameters"]["stored_bytes"], stored);
    }

    #[test]
    fn parts_that_a_model_lacks_are_dashes() {
        let text = std::fs::read_to_string(format!("{}/../../configs/tiny.json", env!("CARGO_MANIFEST_DIR"))).unwrap();
        let mut value: Value = serde_json::from_str(&text).unwrap();
        value["compress_ratios"] = json!([0, 0, 0, 0, 0, 0]);
        for key in ["kv_source_layers", "index_source_layers", "engram_layer_ids", "engram_num_embeddings"] {
            value[key] = json!([]);
        }
        value["candidate_source_layer"] = Value::Null;
        let config = Config::from_value("plain", &value).unwrap();
        let plain = ModelReport::new("plain", config).unwrap();
        let shape = plain.shape().to_string();
        for label in ["indexer", "candidates", "engram", "beyond text"] {
            let line = shape.lines().find(|line| line.trim_start().starts_with(label)).unwrap();
            assert!(line.ends_with("  -"), "{line}");
        }
        assert!(!plain.parameters().to_string().contains("engram"));
    }

    #[test]
    fn a_broken_rule_names_the_file() {
        let mut config = report("tiny").config;
        config.index_topk = 0;
        let error = ModelReport::new("some.json", config).unwrap_err();
        assert!(error.to_string().starts_with("some.json: key `index_topk` is 0: "), "{error}");
    }
}
