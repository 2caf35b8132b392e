//! How much there is to do, counted from a configuration.
//!
//! **Operations** are those of matrix products, of attention's scores and sums, of the indexer's scores and of the residual
//! copies' mixing; a multiplication with its addition is two. Of the experts the activated ones count, of compressed
//! positions those that a query attends to, or that its indexer may choose from. Norms, rotations, activations, rounding
//! and choosing are left out.
//!
//! **Bytes** of a whole call are what it cannot do without: each weight that it needs once, in the width in which the model
//! holds it, table rows once for each token, and what it reads from and writes to the cache. As many experts count as the
//! call's tokens can reach at most. What layers hand to one another is left out. Bytes of a single operation are its
//! operands and its result.

use std::ops::Add;

use dsv41::LogitsOf;
use dsv41_config::{Config, LayerTopology, ParameterCounts, Part};
use dsv41_gguf::PartSize;
use serde::{Deserialize, Serialize};

/// Bytes of a number in a tensor of results.
const F32: u64 = 4;

/// What something comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Work {
    pub(super) operations: u64,
    pub(super) bytes: u64,
}

impl Work {
    /// `times` as many operations and bytes.
    pub(super) fn times(self, times: u64) -> Self {
        Self { operations: self.operations * times, bytes: self.bytes * times }
    }
}

impl Add for Work {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { operations: self.operations + other.operations, bytes: self.bytes + other.bytes }
    }
}

/// Bytes that a parameter of each part takes on average.
#[derive(Debug, Clone)]
pub(super) struct Widths(Vec<(Part, f64)>);

impl Widths {
    /// Everything in f32.
    pub(super) fn f32() -> Self {
        Self(Part::ALL.map(|part| (part, F32 as f64)).to_vec())
    }

    /// As in a file.
    pub(super) fn of_file(sizes: &[PartSize], counts: &ParameterCounts) -> Self {
        let width = |part: Part| {
            let bytes: u64 = sizes.iter().filter(|size| size.part == Some(part)).map(|size| size.bytes).sum();
            (part, bytes as f64 / counts.of(part).max(1) as f64)
        };
        Self(Part::ALL.map(width).to_vec())
    }

    fn bytes(&self, part: Part, parameters: u64) -> u64 {
        let width = self.0.iter().find(|(of, _)| *of == part).map_or(0.0, |(_, width)| *width);
        (parameters as f64 * width).round() as u64
    }
}

/// A call: the next tokens of some sequences.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    pub(super) batch: usize,
    /// Tokens before it, in each sequence.
    pub(super) start: usize,
    /// Its tokens, in each sequence.
    pub(super) tokens: usize,
    pub(super) logits: LogitsOf,
}

impl Span {
    fn all_tokens(self) -> u64 {
        wide(self.batch * self.tokens)
    }

    /// The sum over queries of what depends on how many positions a query sees, itself included.
    fn sum(self, of: impl Fn(usize) -> usize) -> u64 {
        let one: u64 = (self.start..self.start + self.tokens).map(|position| wide(of(position + 1))).sum();
        one * wide(self.batch)
    }
}

/// Counts what calls of one model come to.
#[derive(Debug, Clone)]
pub(super) struct Counter<'a> {
    config: &'a Config,
    widths: Widths,
}

impl<'a> Counter<'a> {
    pub(super) fn new(config: &'a Config, widths: Widths) -> Self {
        Self { config, widths }
    }

    /// A whole call, from tokens to logits.
    pub(super) fn call(&self, span: Span) -> Work {
        let topology = self.config.topology();
        topology.layers().iter().fold(self.ends(span), |sum, layer| sum + self.layer(layer, span))
    }

    /// Forward and backward of a whole call: each product is done again for the gradients of both of its operands, and
    /// each weight read again and its gradient written.
    pub(super) fn training_step(&self, span: Span, recomputed: bool) -> Work {
        self.call(span).times(if recomputed { 4 } else { 3 })
    }

    /// The embedding and the head.
    fn ends(&self, span: Span) -> Work {
        let Config { dim, vocab_size, hc_mult, .. } = *self.config;
        let rows = match span.logits {
            LogitsOf::Every => span.all_tokens(),
            LogitsOf::Last => wide(span.batch),
        };
        let embedded = Work { operations: 0, bytes: self.widths.bytes(Part::Embedding, span.all_tokens() * wide(dim)) };
        let collapsed = Work { operations: 2 * rows * wide(hc_mult * dim), bytes: 0 };
        let norm = Work { operations: 0, bytes: self.widths.bytes(Part::Norms, wide(dim)) };
        embedded + collapsed + norm + self.matrices(Part::Head, wide(vocab_size * dim), rows)
    }

    fn layer(&self, layer: &LayerTopology, span: Span) -> Work {
        let Config { dim, hc_mult, .. } = *self.config;
        let tokens = span.all_tokens();
        let mixers = self.matrices(Part::HyperConnections, wide(2 * self.mixes() * hc_mult * dim), tokens);
        let streams = Work { operations: 2 * tokens * wide(2 * hc_mult * dim * (hc_mult + 2)), bytes: 0 };
        let norms = Work { operations: 0, bytes: self.widths.bytes(Part::Norms, wide(2 * dim)) };
        let engram = match layer.engram {
            Some(_) => self.engram_rows(tokens) + self.matrices(Part::EngramProjections, self.engram_matrix(), tokens),
            None => Work::default(),
        };
        mixers + streams + norms + engram + self.attention(layer, span) + self.experts(tokens)
    }

    fn attention(&self, layer: &LayerTopology, span: Span) -> Work {
        let Config { dim, n_heads, head_dim, q_lora_rank, o_lora_rank, o_groups, window_size, .. } = *self.config;
        let tokens = span.all_tokens();
        let (heads, ranks) = (n_heads * head_dim, o_groups * o_lora_rank);
        let projections = q_lora_rank * dim + heads * q_lora_rank + head_dim * dim + o_lora_rank * heads + dim * ranks;
        let before = span.start.min(window_size - 1);
        let kept = Work { operations: 0, bytes: F32 * wide(span.batch * (before + span.tokens) * head_dim) };
        let mut work = self.matrices(Part::Attention, wide(projections), tokens)
            + Work { operations: self.attended(span, layer.ratio) * wide(4 * heads), bytes: 0 }
            + kept;
        if layer.ratio > 0 {
            work = work + self.compressed(layer, span);
        }
        work
    }

    /// What a layer does for compressed positions, but for attending to them.
    fn compressed(&self, layer: &LayerTopology, span: Span) -> Work {
        let Config { dim, head_dim, q_lora_rank, index_n_heads, index_head_dim, index_topk, .. } = *self.config;
        let Config { candidate_topk_blocks, candidate_block_size, .. } = *self.config;
        let tokens = span.all_tokens();
        let positions = (span.start + span.tokens) / layer.ratio;
        let new = wide(span.batch * (positions - span.start / layer.ratio));
        let read = wide(span.batch * positions.min(span.tokens.saturating_mul(index_topk)) * head_dim);
        let mut work = Work { operations: 0, bytes: F32 * read };
        if layer.owns_stream() {
            let projections = if layer.ratio > 1 { 2 } else { 1 } * head_dim * dim;
            work = work
                + self.matrices(Part::Compressor, wide(projections), tokens)
                + self.matrices(Part::Indexer, wide(index_head_dim * head_dim), new)
                + Work { operations: 0, bytes: F32 * new * wide(head_dim + index_head_dim) };
        }
        if layer.owns_index() {
            let candidates = match layer.candidate_source {
                Some(_) => candidate_topk_blocks.saturating_mul(candidate_block_size),
                None => usize::MAX,
            };
            let scored = span.sum(|seen| (seen / layer.ratio).min(candidates));
            let keys = positions.min(span.tokens.saturating_mul(candidates));
            work = work
                + self.matrices(Part::Indexer, wide(index_n_heads * (index_head_dim * q_lora_rank + dim)), tokens)
                + Work {
                    operations: scored * wide(2 * index_n_heads * (index_head_dim + 1)),
                    bytes: F32 * wide(span.batch * keys * index_head_dim),
                };
        }
        work
    }

    /// Keys that all queries of a call attend to, in a layer of that ratio.
    fn attended(&self, span: Span, ratio: usize) -> u64 {
        let Config { window_size, index_topk, .. } = *self.config;
        span.sum(|seen| seen.min(window_size) + seen.checked_div(ratio).unwrap_or(0).min(index_topk))
    }

    fn experts(&self, tokens: u64) -> Work {
        let Config { dim, moe_inter_dim, n_routed_experts, n_activated_experts, n_shared_experts, .. } = *self.config;
        let expert = wide(3 * dim * moe_inter_dim);
        let reached = wide(n_routed_experts).min(tokens * wide(n_activated_experts));
        let routed = Work {
            operations: 2 * tokens * wide(n_activated_experts) * expert,
            bytes: self.widths.bytes(Part::RoutedExperts, reached * expert),
        };
        routed
            + self.matrices(Part::SharedExperts, wide(n_shared_experts) * expert, tokens)
            + self.matrices(Part::Router, wide(n_routed_experts * dim), tokens)
    }

    /// Rows of one engram's table.
    fn engram_rows(&self, tokens: u64) -> Work {
        let rows = tokens * wide(self.config.engram_slots() * self.config.engram_head_dim);
        Work { operations: 0, bytes: self.widths.bytes(Part::EngramTables, rows) }
    }

    fn engram_matrix(&self) -> u64 {
        let Config { dim, hc_mult, engram_head_dim, .. } = *self.config;
        wide(self.config.engram_slots() * engram_head_dim * (hc_mult + 1) * dim)
    }

    /// Matrices that each of `rows` vectors goes through.
    fn matrices(&self, part: Part, parameters: u64, rows: u64) -> Work {
        match rows {
            0 => Work::default(),
            _ => Work { operations: 2 * rows * parameters, bytes: self.widths.bytes(part, parameters) },
        }
    }

    /// What a mixer makes for a token.
    fn mixes(&self) -> usize {
        (2 + self.config.hc_mult) * self.config.hc_mult
    }

    /// The look-up of one engram's rows for `tokens`, into a tensor.
    pub(super) fn engram_look_up(&self, tokens: usize) -> Work {
        let values = wide(tokens * self.config.engram_slots() * self.config.engram_head_dim);
        self.engram_rows(wide(tokens)) + Work { operations: 0, bytes: F32 * values }
    }

    /// The product of looked-up rows with one engram's matrix.
    pub(super) fn engram_projection(&self, tokens: usize) -> Work {
        let Config { dim, hc_mult, engram_head_dim, .. } = *self.config;
        let values = tokens * (self.config.engram_slots() * engram_head_dim + (hc_mult + 1) * dim);
        self.matrices(Part::EngramProjections, self.engram_matrix(), wide(tokens))
            + Work { operations: 0, bytes: F32 * wide(values) }
    }

    /// One engram's gates: two norms, a product of three and a sum for each channel of each copy.
    pub(super) fn engram_gate(&self, tokens: usize) -> Work {
        let Config { dim, hc_mult, .. } = *self.config;
        Work { operations: 9 * wide(tokens * hc_mult * dim), bytes: F32 * wide(tokens * (3 * hc_mult + 1) * dim) }
    }

    /// One sublayer's mixer.
    pub(super) fn mixer(&self, tokens: usize) -> Work {
        let Config { dim, hc_mult, .. } = *self.config;
        let stream = hc_mult * dim;
        self.matrices(Part::HyperConnections, wide(self.mixes() * stream), wide(tokens))
            + Work { operations: 2 * wide(tokens * stream), bytes: F32 * wide(tokens * (stream + self.mixes())) }
    }

    /// The copies' weighted sum.
    pub(super) fn collapse(&self, tokens: usize) -> Work {
        let Config { dim, hc_mult, .. } = *self.config;
        let values = tokens * (hc_mult * dim + hc_mult + dim);
        Work { operations: 2 * wide(tokens * hc_mult * dim), bytes: F32 * wide(values) }
    }

    /// The copies mixed with each other and a sublayer's result.
    pub(super) fn expand(&self, tokens: usize) -> Work {
        let Config { dim, hc_mult, .. } = *self.config;
        let values = tokens * (2 * hc_mult * dim + dim + hc_mult * (hc_mult + 1));
        Work { operations: 2 * wide(tokens * hc_mult * dim * (hc_mult + 1)), bytes: F32 * wide(values) }
    }

    /// Attention of a call's queries to the window and to chosen compressed positions.
    pub(super) fn sparse_attention(&self, span: Span, ratio: usize) -> Work {
        let Config { n_heads, head_dim, window_size, .. } = *self.config;
        let heads = n_heads * head_dim;
        let positions = (span.start + span.tokens).checked_div(ratio).unwrap_or(0);
        let keys = span.start.min(window_size - 1) + span.tokens + positions;
        Work {
            operations: self.attended(span, ratio) * wide(4 * heads),
            bytes: F32 * (2 * span.all_tokens() * wide(heads) + wide(span.batch * keys * head_dim)),
        }
    }
}

/// Widening: no platform of Rust has a `usize` of more than 64 bits.
fn wide(n: usize) -> u64 {
    n as u64
}

#[cfg(test)]
mod tests {
    use dsv41_config::TensorSpec;
    use dsv41_quant::GgmlType;

    use super::*;
    use crate::bench::model::bundled;

    fn config(name: &str) -> Config {
        bundled(name).unwrap().unwrap()
    }

    fn span(start: usize, tokens: usize) -> Span {
        Span { batch: 1, start, tokens, logits: LogitsOf::Every }
    }

    /// Matrices of the model, as its own list of tensors has them, that multiply a token.
    fn multiplied(config: &Config) -> u64 {
        let looked_up = |tensor: &TensorSpec| {
            matches!(tensor.part, Part::Embedding | Part::EngramTables)
                || ["q_weight", "k_weight"].iter().any(|name| tensor.name.ends_with(name))
        };
        let tensors = config.tensors();
        let sum = |routed: bool| -> u64 {
            let matrices = tensors.iter().filter(|tensor| tensor.shape.len() == 2 && !looked_up(tensor));
            let of = matrices.filter(|tensor| (tensor.part == Part::RoutedExperts) == routed);
            of.map(|tensor| tensor.elements().unwrap()).sum()
        };
        sum(false) + sum(true) / config.n_routed_experts as u64 * config.n_activated_experts as u64
    }

    /// The second token, which closes the first group of every layer that groups.
    #[test]
    fn a_token_is_multiplied_with_every_matrix_of_the_model() {
        for name in ["tiny", "nano", "small", "mid"] {
            let config = config(name);
            let counter = Counter::new(&config, Widths::f32());
            let layers = config.topology();
            let (heads, copies) = (config.n_heads * config.head_dim, config.hc_mult);
            let others: u64 = layers
                .layers()
                .iter()
                .map(|layer| {
                    let seen = 2_usize.min(config.window_size);
                    let chosen = 2_usize.checked_div(layer.ratio).unwrap_or(0).min(config.index_topk);
                    let scored = if layer.owns_index() { 2 / layer.ratio } else { 0 };
                    let attention = 4 * heads * (seen + chosen);
                    let scores = 2 * config.index_n_heads * (config.index_head_dim + 1) * scored;
                    let streams = 2 * 2 * copies * config.dim * (copies + 2);
                    (attention + scores + streams) as u64
                })
                .sum();
            let collapse = 2 * (copies * config.dim) as u64;
            assert_eq!(counter.call(span(1, 1)).operations, 2 * multiplied(&config) + others + collapse, "{name}");
        }
    }

    #[test]
    fn a_call_of_many_tokens_is_as_many_calls_of_one() {
        let config = config("small");
        let counter = Counter::new(&config, Widths::f32());
        let one_by_one: u64 = (0..300).map(|start| counter.call(span(start, 1)).operations).sum();
        assert_eq!(counter.call(span(0, 300)).operations, one_by_one);
        let batch = Span { batch: 3, ..span(0, 300) };
        assert_eq!(counter.call(batch).operations, 3 * one_by_one);
        assert!(counter.call(batch).bytes < 2 * counter.call(span(0, 300)).bytes, "weights are read once");
    }

    #[test]
    fn the_last_position_alone_spares_the_head() {
        let config = config("small");
        let counter = Counter::new(&config, Widths::f32());
        let (every, last) = (span(0, 64), Span { logits: LogitsOf::Last, ..span(0, 64) });
        let head = 2 * config.dim * (config.vocab_size + config.hc_mult);
        let spared = counter.call(every).operations - counter.call(last).operations;
        assert_eq!(spared, 63 * head as u64);
    }

    /// Everything but the vectors that are no norm's, the expert's rows that were not reached and the tables' rows.
    #[test]
    fn a_long_call_reads_about_every_weight_once() {
        let config = config("mid");
        let counts = config.parameter_counts().unwrap();
        let tables = counts.of(Part::EngramTables) + counts.of(Part::Embedding);
        let weights = 4 * (counts.total - tables);
        let rows = 4 * 512 * (config.dim + 2 * config.engram_slots() * config.engram_head_dim) as u64;
        let bytes = Counter::new(&config, Widths::f32()).call(span(0, 512)).bytes;
        let cached = bytes.checked_sub(weights + rows).map_or(0.0, |cached| cached as f64);
        assert!(bytes > (weights + rows) / 1000 * 999, "{bytes}");
        assert!(cached < 0.01 * bytes as f64, "{cached}");
    }

    #[test]
    fn packed_weights_take_what_their_file_says() {
        let config = config("small");
        let counts = config.parameter_counts().unwrap();
        let size = |part, bytes| PartSize { part: Some(part), ty: GgmlType::Q8_0, tensors: 1, bytes };
        let head = counts.of(Part::Head);
        let widths = Widths::of_file(&[size(Part::Head, head / 2), size(Part::Head, head / 4)], &counts);
        assert_eq!(widths.bytes(Part::Head, 100), 75);
        assert_eq!(widths.bytes(Part::Router, 100), 0);
    }

    #[test]
    fn a_window_is_all_that_plain_layers_attend_to() {
        let config = config("small");
        let counter = Counter::new(&config, Widths::f32());
        let heads = 4 * (config.n_heads * config.head_dim) as u64;
        assert_eq!(counter.sparse_attention(span(1000, 1), 0).operations, heads * 64);
        assert_eq!(counter.sparse_attention(span(1000, 1), 1).operations, heads * (64 + 128));
        assert_eq!(counter.sparse_attention(span(99, 1), 2).operations, heads * (64 + 50));
        assert_eq!(counter.sparse_attention(span(0, 3), 0).operations, heads * 6);
    }

    #[test]
    fn a_training_step_is_three_passes_and_one_more_where_blocks_run_again() {
        let config = config("tiny");
        let counter = Counter::new(&config, Widths::f32());
        let once = counter.call(span(0, 16));
        assert_eq!(counter.training_step(span(0, 16), false), once + once + once);
        assert_eq!(counter.training_step(span(0, 16), true).operations, 4 * once.operations);
    }
}
