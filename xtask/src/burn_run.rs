//! The Burn model as an implementation: its records under the names and in the layouts of golden files.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use burn::tensor::TensorData;
use dsv41::{Candidates, LogitsOf, Numerics, Switches};
use dsv41_cli::{
    device::{DeviceName, Precision},
    runner::{self, HostCall, HostProbe, Runner, RunnerOptions},
    weights::GoldenWeights,
};
use dsv41_config::{Config, Topology};
use dsv41_golden::{Captures, Fixture, LayerSelections, MASKED, ProbsDtype, Recorded, Selections};

use crate::implementation::{Implementation, Step};

/// The Burn model on one device.
pub struct BurnRun {
    runner: Box<dyn Runner>,
    numerics: Numerics,
    switches: Switches,
}

impl BurnRun {
    /// The model of a fixture on a device.
    pub fn new(
        config: &Config,
        weights: &GoldenWeights,
        fixture: &Fixture,
        numerics: Numerics,
        device: DeviceName,
        precision: Precision,
    ) -> Result<Self> {
        let switches = Switches {
            stale_index_keys: fixture.stale_index_keys,
            keep_masked_picks: fixture.keep_masked_picks,
            unrounded_probs: fixture.probs_dtype == ProbsDtype::F32,
        };
        let mut runner =
            runner::load(device, config, weights, RunnerOptions { precision, ..RunnerOptions::default() })?;
        runner.begin(fixture.batch, config.max_seq_len, 0)?;
        Ok(Self { runner, numerics, switches })
    }
}

impl Implementation for BurnRun {
    fn begin(&mut self, batch: usize, rollback: usize) -> Result<()> {
        let capacity = self.runner.config().max_seq_len;
        Ok(self.runner.begin(batch, capacity, rollback)?)
    }

    fn truncate(&mut self, len: usize) -> Result<()> {
        Ok(self.runner.truncate(len)?)
    }

    fn step(&mut self, tokens: &[Vec<u32>], selections: Option<&Selections>, feed: Option<&Captures>) -> Result<Step> {
        let start = self.runner.position();
        let queries = tokens.len() * tokens[0].len();
        let selections = selections.map(|selections| to_model(selections, queries));
        let mut recorder = Recorder { feed, records: BTreeMap::new() };
        let call = HostCall {
            numerics: self.numerics,
            switches: self.switches,
            selections: selections.as_ref(),
            logits: LogitsOf::Every,
            probe: Some(&mut recorder),
        };
        let output = self.runner.forward(tokens, call)?;
        let layout = Layout {
            config: self.runner.config(),
            topology: self.runner.config().topology(),
            batch: tokens.len(),
            seq: tokens[0].len(),
            start,
            records: recorder.records,
        };
        let own = layout.selections(&output.selections);
        layout.step(tokens, own)
    }
}

/// Collects records, and feeds the stream.
struct Recorder<'a> {
    feed: Option<&'a Captures>,
    records: BTreeMap<(Option<usize>, &'static str), TensorData>,
}

impl HostProbe for Recorder<'_> {
    fn record(&mut self, layer: Option<usize>, name: &'static str, data: TensorData) {
        self.records.insert((layer, name), data);
    }

    fn replacement(&mut self, layer: usize, name: &'static str) -> Option<Vec<f64>> {
        let fed = self.feed?.get(&format!("L{layer}.{name}"))?;
        Some((0..fed.len()).map(|index| fed.get(index)).collect())
    }
}

/// One call's records, on their way into the layouts of golden files.
struct Layout<'a> {
    config: &'a Config,
    topology: Topology,
    batch: usize,
    seq: usize,
    start: usize,
    records: BTreeMap<(Option<usize>, &'static str), TensorData>,
}

/// Records whose layout is the golden files' own.
const PLAIN: [&str; 20] = [
    "h_in",
    "pre_mix_in",
    "attn_pre",
    "attn_post",
    "attn_comb",
    "attn_in",
    "sa_q",
    "sa_o",
    "attn_out",
    "ffn_pre",
    "ffn_post",
    "ffn_comb",
    "ffn_in",
    "moe_weights",
    "ffn_out",
    "h_out",
    "pre_mix_out",
    "engram_in",
    "engram_embed",
    "engram_kv",
];

impl Layout<'_> {
    /// What the model chose, candidates as masks over all positions.
    fn selections(&self, chosen: &dsv41::Selections) -> Selections {
        let layers = chosen.layers.iter().map(|(&layer, chosen)| {
            let dsv41::LayerSelections { topk, candidates, experts } = chosen.clone();
            let positions = || (self.start + self.seq) / self.topology.layers()[layer].ratio;
            let candidates = candidates.map(|candidates| candidates.to_mask(positions()));
            (layer, LayerSelections { topk, candidates, experts })
        });
        Selections { layers: layers.collect() }
    }

    fn step(self, tokens: &[Vec<u32>], own: Selections) -> Result<Step> {
        let mut step =
            Step { captures: Captures::new(), own, index_scores: BTreeMap::new(), router_scores: BTreeMap::new() };
        self.model_captures(tokens, &mut step.captures)?;
        for layer in 0..self.config.n_layers {
            self.layer_captures(layer, &mut step)?;
        }
        Ok(step)
    }

    fn model_captures(&self, tokens: &[Vec<u32>], captures: &mut Captures) -> Result<()> {
        let (batch, seq, vocab) = (self.batch, self.seq, self.config.vocab_size);
        captures.insert("input_ids".into(), Recorded::int([batch, seq], tokens.iter().flatten().copied()));
        for name in ["embed", "h_final", "head_in", "logits_full"] {
            captures.insert(name.into(), floats(self.record(None, name)?));
        }
        let logits: Vec<f64> = self.record(None, "logits_full")?.iter().collect();
        let last: Vec<f64> =
            logits.chunks_exact(seq * vocab).flat_map(|row| &row[(seq - 1) * vocab..]).copied().collect();
        let next = last.chunks_exact(vocab).map(|row| dsv41::topk::top_k(row, 1)[0] as i64);
        captures.insert("next_ids".into(), Recorded::int([batch], next.collect::<Vec<_>>()));
        captures.insert("logits".into(), Recorded::float([batch, vocab], last));

        let layers = &self.config.engram_layer_ids;
        if !layers.is_empty() {
            let by_layer: Vec<Vec<i64>> = layers
                .iter()
                .map(|&layer| Ok(self.record(Some(layer), "engram_hash_ids")?.iter().collect()))
                .collect::<Result<_>>()?;
            let slots = by_layer[0].len() / (batch * seq);
            let ids = (0..batch * seq).flat_map(|query| {
                by_layer.iter().flat_map(move |rows| rows[query * slots..(query + 1) * slots].to_vec())
            });
            captures.insert("engram_hashes".into(), Recorded::int([batch, seq, layers.len(), slots], ids));
        }
        Ok(())
    }

    fn layer_captures(&self, layer: usize, step: &mut Step) -> Result<()> {
        let place = self.topology.layer(layer);
        let captures = &mut step.captures;
        for name in PLAIN.into_iter().chain(["engram_out"]) {
            if let Some(data) = self.records.get(&(Some(layer), name)) {
                captures.insert(format!("L{layer}.{name}"), floats(data));
            }
        }
        for name in ["engram_hash_ids", "moe_indices"] {
            if let Some(data) = self.records.get(&(Some(layer), name)) {
                captures.insert(format!("L{layer}.{name}"), ints(data));
            }
        }
        step.router_scores.insert(layer, floats(self.record(Some(layer), "router_scores")?));
        captures.insert(format!("L{layer}.sa_kv"), self.attended_keys(layer)?);
        let (window, window_width) = self.window_indices(layer)?;
        let (selected, selected_width) = self.compressed_indices(layer)?;
        let joined =
            window.chunks_exact(window_width).cycle().zip(0..self.batch * self.seq).flat_map(|(window, query)| {
                let selected = &selected[query * selected_width..(query + 1) * selected_width];
                window.iter().chain(selected).copied().collect::<Vec<_>>()
            });
        let shape = [self.batch, self.seq, window_width + selected_width];
        captures.insert(format!("L{layer}.sa_topk_idxs"), Recorded::int(shape, joined));

        if place.owns_stream() && self.records.contains_key(&(Some(layer), "compress_kv")) {
            for name in ["compress_kv", "index_k"] {
                captures.insert(format!("shared.L{layer}.{name}"), floats(self.record(Some(layer), name)?));
            }
        }
        if let Some(scores) = self.records.get(&(Some(layer), "index_score")) {
            let scores = floats(scores);
            let shape = [self.batch, self.seq, selected_width];
            captures.insert(format!("shared.L{layer}.topk_idxs"), Recorded::int(shape, selected));
            captures.insert(format!("L{layer}.index_score"), masked(&scores));
            step.index_scores.insert(layer, scores);
        }
        if let Some(mask) = self.records.get(&(Some(layer), "candidates")) {
            captures.insert(format!("shared.L{layer}.candidates"), ints(mask));
        }
        Ok(())
    }

    fn is_prefill(&self) -> bool {
        self.start == 0
    }

    /// Rows of the window that come before the compressed ones.
    fn window_rows(&self) -> usize {
        if self.is_prefill() { self.seq } else { self.config.window_size }
    }

    /// Prefill: the call's keys; decode: the ring, in which a position's slot is its remainder by the window. Then the
    /// compressed keys.
    fn attended_keys(&self, layer: usize) -> Result<Recorded> {
        let width = self.config.head_dim;
        let keys = floats(self.record(Some(layer), "window_keys")?);
        let held = keys.shape[1];
        let rows = self.window_rows();
        let source = self.topology.layer(layer).kv_source;
        let compressed = source.and_then(|source| self.records.get(&(Some(source), "compress_kv"))).map(floats);
        let compressed_rows = compressed.as_ref().map_or(0, |compressed| compressed.shape[1]);
        let first = self.start + self.seq - held;

        let mut values = Vec::new();
        for sequence in 0..self.batch {
            let mut window = vec![0.0; rows * width];
            for row in 0..held {
                let slot = (first + row) % rows;
                for channel in 0..width {
                    window[slot * width + channel] = keys.get((sequence * held + row) * width + channel);
                }
            }
            values.extend(window);
            if let Some(compressed) = &compressed {
                let size = compressed_rows * width;
                values.extend((sequence * size..(sequence + 1) * size).map(|index| compressed.get(index)));
            }
        }
        Ok(Recorded::float([self.batch, rows + compressed_rows, width], values))
    }

    /// `[S, width]` indices into [`Self::attended_keys`]: as the model lists them in the prefill; in decode the ring's
    /// slots oldest first, after as many -1 as the window is not yet full.
    fn window_indices(&self, layer: usize) -> Result<(Vec<i64>, usize)> {
        let data = self.record(Some(layer), "window_positions")?;
        let listed_width = data.shape[1];
        let positions: Vec<i64> = data.iter().collect();
        if self.is_prefill() {
            return Ok((positions, listed_width));
        }
        let rows = self.config.window_size;
        let indices = positions
            .chunks_exact(listed_width)
            .flat_map(|listed| {
                let present = listed.iter().filter(|&&position| position >= 0);
                let missing = rows - present.clone().count();
                std::iter::repeat_n(-1, missing).chain(present.map(|position| position % rows as i64))
            })
            .collect();
        Ok((indices, rows))
    }

    /// `[B, S, width]` indices into [`Self::attended_keys`].
    fn compressed_indices(&self, layer: usize) -> Result<(Vec<i64>, usize)> {
        let data = self.record(Some(layer), "compressed_positions")?;
        let offset = self.window_rows() as i64;
        let indices = data.iter::<i64>().map(|t| if t < 0 { t } else { t + offset }).collect();
        Ok((indices, data.shape[1]))
    }

    fn record(&self, layer: Option<usize>, name: &'static str) -> Result<&TensorData> {
        self.records.get(&(layer, name)).with_context(|| format!("the model recorded no `{name}` in layer {layer:?}"))
    }
}

fn floats(data: &TensorData) -> Recorded {
    Recorded::float(data.shape.to_vec(), data.iter::<f64>())
}

fn ints(data: &TensorData) -> Recorded {
    Recorded::int(data.shape.to_vec(), data.iter::<i64>())
}

fn masked(scores: &Recorded) -> Recorded {
    let values = (0..scores.len()).map(|index| scores.get(index));
    Recorded::float(scores.shape.clone(), values.map(|score| if score.is_finite() { score } else { MASKED }))
}

fn to_model(selections: &Selections, queries: usize) -> dsv41::Selections {
    let layers = selections.layers.iter().map(|(&layer, chosen)| {
        let LayerSelections { topk, candidates, experts } = chosen.clone();
        let candidates = candidates.map(|mask| Candidates::from_mask(&mask, queries));
        (layer, dsv41::LayerSelections { topk, candidates, experts })
    });
    dsv41::Selections { layers: layers.collect() }
}
