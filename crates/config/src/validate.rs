//! The rules a configuration obeys.

use crate::engram::EngramConstants;
use crate::error::{broken, require};
use crate::tensors::GROUP;
use crate::{Config, ConfigError, Storage, TensorStorage};

/// Bound of every count and width, far above any real model, so that products of two of them stay far from overflow.
const MAX_SIZE: usize = 1 << 24;

/// Bound of layers.
const MAX_LAYERS: usize = 1 << 12;

/// Bound of positions: RoPE angles are `position * freq` in f32, which holds every integer up to here.
const MAX_POSITIONS: usize = 1 << 24;

/// Bound of routed experts over all layers, each of which is three tensors or more.
const MAX_EXPERTS: usize = 1 << 18;

/// Bound of Sinkhorn iterations, which cost time alone: the matrix has long converged.
const MAX_SINKHORN_ITERS: usize = 1000;

impl Config {
    /// Checks every rule that the graph relies on.
    ///
    /// # Errors
    /// [`ConfigError::Rule`] for the first rule broken: its key, the value found, and what it has to be.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.check_sizes()?;
        self.check_numbers()?;
        self.check_widths()?;
        self.check_fp8_linears()?;
        self.check_experts()?;
        self.check_tokens()?;
        self.check_positions()?;
        self.check_ratios()?;
        self.check_sources()?;
        self.check_readers()?;
        self.check_indexer()?;
        self.check_candidates()?;
        self.check_engram()?;
        self.parameter_counts().map(|_| ())
    }

    fn check_sizes(&self) -> Result<(), ConfigError> {
        size("vocab_size", self.vocab_size)?;
        size("dim", self.dim)?;
        size("n_heads", self.n_heads)?;
        size("head_dim", self.head_dim)?;
        size("rope_head_dim", self.rope_head_dim)?;
        size("q_lora_rank", self.q_lora_rank)?;
        size("o_lora_rank", self.o_lora_rank)?;
        size("o_groups", self.o_groups)?;
        size("moe_inter_dim", self.moe_inter_dim)?;
        size("n_routed_experts", self.n_routed_experts)?;
        size("n_activated_experts", self.n_activated_experts)?;
        size("window_size", self.window_size)?;
        size("hc_mult", self.hc_mult)?;
        let layers = self.n_layers;
        let rule = format!("must be from 1 to {MAX_LAYERS}");
        require((1..=MAX_LAYERS).contains(&layers), "n_layers", layers, rule)?;
        let iters = self.hc_sinkhorn_iters;
        let rule = format!("must be from 1 to {MAX_SINKHORN_ITERS}");
        require((1..=MAX_SINKHORN_ITERS).contains(&iters), "hc_sinkhorn_iters", iters, rule)
    }

    fn check_numbers(&self) -> Result<(), ConfigError> {
        at_least("norm_eps", self.norm_eps, 0.0)?;
        at_least("hc_eps", self.hc_eps, 0.0)?;
        at_least("swiglu_limit", self.swiglu_limit, 0.0)?;
        above("gate_temp", self.gate_temp, 0.0)?;
        let scale = self.route_scale;
        require((scale as f32).is_finite(), "route_scale", scale, "must be finite in f32")?;
        above("rope_theta", self.rope_theta, 1.0)?;
        above("compress_rope_theta", self.compress_rope_theta, 1.0)?;
        if self.original_seq_len > 0 {
            at_least("rope_factor", self.rope_factor, 1.0)?;
            above("beta_slow", self.beta_slow, 0.0)?;
            at_least("beta_fast", self.beta_fast, self.beta_slow)?;
        }
        Ok(())
    }

    fn check_widths(&self) -> Result<(), ConfigError> {
        let (heads, groups) = (self.n_heads, self.o_groups);
        let rule = format!("must divide into o_groups = {groups} groups of equal size");
        require(heads.is_multiple_of(groups), "n_heads", heads, rule)?;
        // Groups of 32 for the fp8 keys and values; the fp4 latent's groups of 16 are halves of those.
        grouped("head_dim", self.head_dim, "the fp8 quantiser of keys and values")?;
        let rope = self.rope_head_dim;
        require(rope.is_multiple_of(2), "rope_head_dim", rope, "must be even: channels rotate in pairs")?;
        let rule = format!("must be at most head_dim = {}", self.head_dim);
        require(rope <= self.head_dim, "rope_head_dim", rope, rule)
    }

    /// Inputs of fp8 linears are quantised in groups, and their weights in square tiles. The rest of the widths of such
    /// layers are multiples of `head_dim`, `index_head_dim` and `engram_head_dim`, which are checked anyway.
    fn check_fp8_linears(&self) -> Result<(), ConfigError> {
        if self.dtype != Storage::Fp8 {
            return Ok(());
        }
        grouped("dim", self.dim, "fp8 linear layers")?;
        grouped("q_lora_rank", self.q_lora_rank, "fp8 linear layers")?;
        grouped("moe_inter_dim", self.moe_inter_dim, "fp8 linear layers")?;
        let (groups, rank) = (self.o_groups, self.o_lora_rank);
        let rule = format!("times o_groups = {groups} must be a multiple of {GROUP}, for the fp8 input of wo_b");
        require(groups.saturating_mul(rank).is_multiple_of(GROUP), "o_lora_rank", rank, rule)
    }

    fn check_experts(&self) -> Result<(), ConfigError> {
        let (routed, activated) = (self.n_routed_experts, self.n_activated_experts);
        let rule = format!("must be at most n_routed_experts = {routed}");
        require(activated <= routed, "n_activated_experts", activated, rule)?;
        let rule = format!("times n_layers = {} must be at most {MAX_EXPERTS}", self.n_layers);
        require(routed.saturating_mul(self.n_layers) <= MAX_EXPERTS, "n_routed_experts", routed, rule)?;
        let shared = self.n_shared_experts;
        require(shared == 1, "n_shared_experts", shared, "must be 1: the graph has exactly one shared expert")?;
        if self.expert_storage() != TensorStorage::Bf16 {
            grouped("dim", self.dim, "quantised experts")?;
            grouped("moe_inter_dim", self.moe_inter_dim, "quantised experts")?;
        }
        Ok(())
    }

    fn check_tokens(&self) -> Result<(), ConfigError> {
        match self.image_token_id {
            Some(id) => token("image_token_id", id, self.vocab_size),
            None => Ok(()),
        }
    }

    fn check_positions(&self) -> Result<(), ConfigError> {
        let length = self.max_seq_len;
        let rule = format!("must be from 1 to {MAX_POSITIONS}, the positions that f32 angles tell apart");
        require((1..=MAX_POSITIONS).contains(&length), "max_seq_len", length, rule)?;
        let trained = self.original_seq_len;
        let rule = format!("must be at most {MAX_POSITIONS}");
        require(trained <= MAX_POSITIONS, "original_seq_len", trained, rule)
    }

    fn check_ratios(&self) -> Result<(), ConfigError> {
        let ratios = &self.compress_ratios;
        let rule = format!("must hold a ratio for each of the n_layers = {} layers", self.n_layers);
        require(ratios.len() >= self.n_layers, "compress_ratios", list(ratios), rule)?;
        for (layer, &ratio) in ratios.iter().enumerate().take(self.n_layers) {
            let rule = format!("layer {layer}'s must be at most max_seq_len = {}", self.max_seq_len);
            require(ratio <= self.max_seq_len, "compress_ratios", list(ratios), rule)?;
        }
        Ok(())
    }

    fn check_sources(&self) -> Result<(), ConfigError> {
        self.check_source_list("kv_source_layers", &self.kv_source_layers)?;
        self.check_source_list("index_source_layers", &self.index_source_layers)?;
        let index_sources = &self.index_source_layers;
        for kv_source in &self.kv_source_layers {
            let rule = format!("must hold kv source {kv_source}, whose indexer makes the stream's keys");
            require(index_sources.contains(kv_source), "index_source_layers", list(index_sources), rule)?;
        }
        Ok(())
    }

    fn check_source_list(&self, key: &'static str, sources: &[usize]) -> Result<(), ConfigError> {
        ascending(key, sources)?;
        for &source in sources {
            let rule = format!("layer {source} must be less than n_layers = {}", self.n_layers);
            require(source < self.n_layers, key, list(sources), rule)?;
            let rule = format!("layer {source} must have a compress_ratio above 0");
            require(self.compress_ratios[source] > 0, key, list(sources), rule)?;
        }
        Ok(())
    }

    /// As every kv source is an index source, a layer's index source is never before its kv source: it needs no rule of
    /// its own, and what it selects is of the stream that the layer reads.
    fn check_readers(&self) -> Result<(), ConfigError> {
        let ratios = &self.compress_ratios;
        let topology = self.topology();
        for layer in topology.layers().iter().filter(|layer| layer.ratio > 0) {
            let (number, ratio) = (layer.layer, layer.ratio);
            let source = layer.kv_source.ok_or_else(|| {
                let rule = format!("layer {number} has ratio {ratio} and no source at or before it");
                broken("kv_source_layers", list(&self.kv_source_layers), rule)
            })?;
            let found = ratios[source];
            let rule =
                format!("layer {number}'s is {ratio}, but it reads the stream of layer {source}, whose is {found}");
            require(ratio == found, "compress_ratios", list(ratios), rule)?;
        }
        Ok(())
    }

    fn check_indexer(&self) -> Result<(), ConfigError> {
        if self.index_source_layers.is_empty() {
            return Ok(());
        }
        size("index_n_heads", self.index_n_heads)?;
        size("index_head_dim", self.index_head_dim)?;
        size("index_topk", self.index_topk)?;
        grouped("index_head_dim", self.index_head_dim, "the fp4 quantiser of index heads")?;
        let rule = format!("must be at most index_head_dim = {}", self.index_head_dim);
        require(self.rope_head_dim <= self.index_head_dim, "rope_head_dim", self.rope_head_dim, rule)
    }

    /// The mask speaks of compressed positions, so its readers' positions must stand for the same tokens; whether they
    /// are of the same stream does not matter.
    fn check_candidates(&self) -> Result<(), ConfigError> {
        const KEY: &str = "candidate_source_layer";
        let Some(source) = self.candidate_source_layer else {
            return Ok(());
        };
        let sources = &self.index_source_layers;
        let rule = format!("must be one of index_source_layers = {}", list(sources));
        require(sources.contains(&source), KEY, source, rule)?;
        let ratio = self.compress_ratios[source];
        for &reader in sources.iter().filter(|&&layer| layer > source) {
            let found = self.compress_ratios[reader];
            let rule = format!("its ratio is {ratio}, but index source {reader}, which its mask limits, has {found}");
            require(found == ratio, KEY, source, rule)?;
        }
        size("candidate_topk_blocks", self.candidate_topk_blocks)?;
        size("candidate_block_size", self.candidate_block_size)
    }

    fn check_engram(&self) -> Result<(), ConfigError> {
        let layers = &self.engram_layer_ids;
        ascending("engram_layer_ids", layers)?;
        for &layer in layers {
            let rule = format!("layer {layer} must be less than n_layers = {}", self.n_layers);
            require(layer < self.n_layers, "engram_layer_ids", list(layers), rule)?;
        }
        if !layers.is_empty() {
            size("engram_head_dim", self.engram_head_dim)?;
            grouped("engram_head_dim", self.engram_head_dim, "the fp8 scales of table rows")?;
            token("engram_pad_id", self.engram_pad_id, self.vocab_size)?;
        }
        let constants = EngramConstants::new(self)?;
        let rows: Vec<u64> = constants.layers.iter().map(|layer| layer.rows).collect();
        let given = &self.engram_num_embeddings;
        let rule = format!("must be the sums of each engram layer's primes, {}", list(&rows));
        require(*given == rows, "engram_num_embeddings", list(given), rule)
    }
}

/// A count or a width.
fn size(key: &'static str, value: usize) -> Result<(), ConfigError> {
    require((1..=MAX_SIZE).contains(&value), key, value, format!("must be from 1 to {MAX_SIZE}"))
}

/// A width that a quantiser divides into groups.
fn grouped(key: &'static str, value: usize, by: &str) -> Result<(), ConfigError> {
    require(value.is_multiple_of(GROUP), key, value, format!("must be a multiple of {GROUP}, the group of {by}"))
}

/// A list of layers.
fn ascending(key: &'static str, layers: &[usize]) -> Result<(), ConfigError> {
    require(layers.is_sorted_by(|a, b| a < b), key, list(layers), "must be ascending, each layer once")
}

/// Numbers enter the graph as f32, so that is where they must be in range.
fn at_least(key: &'static str, value: f64, bound: f64) -> Result<(), ConfigError> {
    let holds = (value as f32).is_finite() && value >= bound;
    require(holds, key, value, format!("must be finite in f32 and at least {bound}"))
}

fn above(key: &'static str, value: f64, bound: f64) -> Result<(), ConfigError> {
    let holds = (value as f32).is_finite() && value as f32 > bound as f32;
    require(holds, key, value, format!("must be finite in f32 and above {bound}"))
}

fn token(key: &'static str, id: usize, vocab: usize) -> Result<(), ConfigError> {
    require(id < vocab, key, id, format!("must be less than vocab_size = {vocab}"))
}

/// A list as JSON has it.
fn list<T: std::fmt::Debug>(values: &[T]) -> String {
    format!("{values:?}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{fixture, released};
    use crate::{ExpertStorage, ScoreFunc};

    /// What breaks a valid configuration, and the key and a piece of the rule that the error has to name.
    type Case = (fn(&mut Config), &'static str, &'static str);

    fn check(base: &Config, cases: &[Case]) {
        base.validate().unwrap();
        for (number, (break_it, key, rule)) in cases.iter().enumerate() {
            let mut config = base.clone();
            break_it(&mut config);
            let error = config.validate().expect_err(&format!("case {number}, {key}: {rule}"));
            assert_eq!(error.key(), Some(*key), "case {number}: {error}");
            assert!(error.to_string().contains(rule), "case {number}: {error}");
        }
    }

    #[test]
    fn sizes() {
        check(
            &fixture("tiny"),
            &[
                (|c| c.vocab_size = 0, "vocab_size", "from 1"),
                (|c| c.dim = 0, "dim", "from 1"),
                (|c| c.dim = usize::MAX, "dim", "to 16777216"),
                (|c| c.n_layers = 0, "n_layers", "from 1"),
                (|c| c.n_layers = usize::MAX, "n_layers", "to 4096"),
                (|c| c.n_heads = 0, "n_heads", "from 1"),
                (|c| c.head_dim = 0, "head_dim", "from 1"),
                (|c| c.rope_head_dim = 0, "rope_head_dim", "from 1"),
                (|c| c.q_lora_rank = 0, "q_lora_rank", "from 1"),
                (|c| c.o_lora_rank = 0, "o_lora_rank", "from 1"),
                (|c| c.o_groups = 0, "o_groups", "from 1"),
                (|c| c.moe_inter_dim = 0, "moe_inter_dim", "from 1"),
                (|c| c.n_routed_experts = 0, "n_routed_experts", "from 1"),
                (|c| c.n_activated_experts = 0, "n_activated_experts", "from 1"),
                (|c| c.window_size = 0, "window_size", "from 1"),
                (|c| c.hc_mult = 0, "hc_mult", "from 1"),
                (|c| c.hc_sinkhorn_iters = 0, "hc_sinkhorn_iters", "from 1 to 1000"),
                (|c| c.hc_sinkhorn_iters = 1001, "hc_sinkhorn_iters", "from 1 to 1000"),
            ],
        );
    }

    #[test]
    fn numbers() {
        check(
            &fixture("tiny"),
            &[
                (|c| c.norm_eps = -1e-20, "norm_eps", "at least 0"),
                (|c| c.hc_eps = f64::NAN, "hc_eps", "finite"),
                (|c| c.swiglu_limit = -1.0, "swiglu_limit", "at least 0"),
                (|c| c.gate_temp = 0.0, "gate_temp", "above 0"),
                (|c| c.gate_temp = 1e-60, "gate_temp", "in f32"),
                (|c| c.route_scale = f64::INFINITY, "route_scale", "finite"),
                (|c| c.route_scale = 1e39, "route_scale", "in f32"),
                (|c| c.rope_theta = 1.0, "rope_theta", "above 1"),
                (|c| c.compress_rope_theta = 0.5, "compress_rope_theta", "above 1"),
                (|c| c.rope_factor = 0.5, "rope_factor", "at least 1"),
                (|c| c.beta_slow = 0.0, "beta_slow", "above 0"),
                (|c| c.beta_fast = 0.5, "beta_fast", "at least 1"),
            ],
        );
        let mut without_yarn = fixture("tiny");
        without_yarn.original_seq_len = 0;
        without_yarn.rope_factor = 0.0;
        without_yarn.beta_slow = 0.0;
        without_yarn.validate().unwrap();
    }

    #[test]
    fn widths() {
        check(
            &fixture("tiny"),
            &[
                (|c| c.o_groups = 3, "n_heads", "divide into o_groups = 3"),
                (|c| c.head_dim = 48, "head_dim", "multiple of 32"),
                (|c| c.rope_head_dim = 7, "rope_head_dim", "even"),
                (|c| c.rope_head_dim = 34, "rope_head_dim", "at most head_dim = 32"),
            ],
        );
    }

    #[test]
    fn fp8_linears_and_quantised_experts() {
        check(
            &fixture("fp8"),
            &[
                (|c| c.dim = 80, "dim", "multiple of 32, the group of fp8 linear"),
                (|c| c.q_lora_rank = 40, "q_lora_rank", "multiple of 32"),
                (|c| c.moe_inter_dim = 48, "moe_inter_dim", "multiple of 32"),
                (|c| c.o_lora_rank = 24, "o_lora_rank", "times o_groups = 2"),
            ],
        );
        let quantised_experts: [Case; 2] = [
            (|c| c.dim = 80, "dim", "quantised experts"),
            (|c| c.moe_inter_dim = 48, "moe_inter_dim", "quantised experts"),
        ];
        for storage in [ExpertStorage::Fp4, ExpertStorage::Fp8] {
            let mut config = fixture("batch");
            config.expert_dtype = Some(storage);
            check(&config, &quantised_experts);
        }
    }

    #[test]
    fn experts_and_tokens() {
        check(
            &fixture("tiny"),
            &[
                (|c| c.n_activated_experts = 5, "n_activated_experts", "at most n_routed_experts = 4"),
                (|c| c.n_shared_experts = 2, "n_shared_experts", "must be 1"),
                (|c| c.n_routed_experts = 1 << 17, "n_routed_experts", "times n_layers = 6"),
                (|c| c.image_token_id = Some(64), "image_token_id", "less than vocab_size = 64"),
                (|c| c.max_seq_len = 0, "max_seq_len", "from 1"),
                (|c| c.max_seq_len = (1 << 24) + 1, "max_seq_len", "to 16777216"),
                (|c| c.original_seq_len = usize::MAX, "original_seq_len", "at most 16777216"),
            ],
        );
    }

    #[test]
    fn sources() {
        check(
            &fixture("tiny"),
            &[
                (|c| c.compress_ratios.truncate(5), "compress_ratios", "each of the n_layers = 6"),
                (|c| c.compress_ratios[3] = 65, "compress_ratios", "layer 3's must be at most max_seq_len = 64"),
                (|c| c.kv_source_layers = vec![4, 2], "kv_source_layers", "ascending"),
                (|c| c.kv_source_layers = vec![2, 2, 4], "kv_source_layers", "each layer once"),
                (|c| c.kv_source_layers = vec![2, 4, 6], "kv_source_layers", "layer 6 must be less than n_layers"),
                (|c| c.kv_source_layers = vec![1, 2, 4], "kv_source_layers", "layer 1 must have a compress_ratio"),
                (|c| c.kv_source_layers = vec![4], "kv_source_layers", "layer 2 has ratio 2 and no source"),
                (
                    |c| c.kv_source_layers = vec![2],
                    "compress_ratios",
                    "layer 4's is 1, but it reads the stream of layer 2",
                ),
                (|c| c.compress_ratios[5] = 4, "compress_ratios", "layer 5's is 4"),
                (|c| c.index_source_layers = vec![2, 5, 4], "index_source_layers", "ascending"),
                (
                    |c| c.index_source_layers = vec![0, 2, 4],
                    "index_source_layers",
                    "layer 0 must have a compress_ratio",
                ),
                (|c| c.index_source_layers = vec![2, 4, 9], "index_source_layers", "layer 9 must be less"),
                (|c| c.index_source_layers = vec![2, 5], "index_source_layers", "must hold kv source 4"),
                (|c| c.index_source_layers.clear(), "index_source_layers", "must hold kv source 2"),
            ],
        );
    }

    #[test]
    fn indexer_and_candidates() {
        check(
            &fixture("tiny"),
            &[
                (|c| c.index_n_heads = 0, "index_n_heads", "from 1"),
                (|c| c.index_head_dim = 0, "index_head_dim", "from 1"),
                (|c| c.index_topk = 0, "index_topk", "from 1"),
                (|c| c.index_head_dim = 40, "index_head_dim", "multiple of 32"),
                (|c| (c.head_dim, c.rope_head_dim) = (64, 48), "rope_head_dim", "at most index_head_dim = 32"),
                (|c| c.candidate_source_layer = Some(3), "candidate_source_layer", "one of index_source_layers"),
                (|c| c.candidate_source_layer = Some(7), "candidate_source_layer", "one of index_source_layers"),
                (|c| c.candidate_source_layer = Some(2), "candidate_source_layer", "index source 4"),
                (|c| c.candidate_topk_blocks = 0, "candidate_topk_blocks", "from 1"),
                (|c| c.candidate_block_size = 0, "candidate_block_size", "from 1"),
            ],
        );
    }

    #[test]
    fn candidates_limit_readers_of_other_streams_too() {
        let mut config = fixture("tiny");
        config.compress_ratios = vec![0, 0, 1, 1, 1, 1];
        config.candidate_source_layer = Some(2);
        config.validate().unwrap();
    }

    #[test]
    fn engram() {
        check(
            &fixture("tiny"),
            &[
                (|c| c.engram_layer_ids = vec![1, 6], "engram_layer_ids", "layer 6 must be less"),
                (|c| c.engram_layer_ids = vec![1, 1], "engram_layer_ids", "each layer once"),
                (|c| c.engram_layer_ids.reverse(), "engram_layer_ids", "ascending"),
                (|c| c.engram_head_dim = 0, "engram_head_dim", "from 1"),
                (|c| c.engram_head_dim = 48, "engram_head_dim", "multiple of 32"),
                (|c| c.engram_pad_id = 64, "engram_pad_id", "less than vocab_size"),
                (|c| c.engram_max_ngram_size = 1, "engram_max_ngram_size", "at least 2"),
                (|c| c.engram_n_heads = 0, "engram_n_heads", "at least 1"),
                (|c| c.engram_n_heads = usize::MAX, "engram_n_heads", "hash slots"),
                (|c| c.engram_vocab_size = 0, "engram_vocab_size", "at least 1"),
                (|c| c.engram_vocab_size = u64::MAX, "engram_vocab_size", "rows a layer"),
                (|c| c.engram_compressed_vocab_size = 0, "engram_compressed_vocab_size", "at least 1"),
                (|c| c.engram_compressed_vocab_size = 1 << 30, "engram_compressed_vocab_size", "less than"),
                (|c| c.engram_num_embeddings[1] += 1, "engram_num_embeddings", "[462, 630]"),
                (|c| c.engram_num_embeddings.truncate(1), "engram_num_embeddings", "[462, 630]"),
            ],
        );
    }

    #[test]
    fn products_that_overflow() {
        check(
            &fixture("tiny"),
            &[
                (
                    |c| (c.n_heads, c.head_dim, c.q_lora_rank) = (1 << 24, 1 << 24, 1 << 24),
                    "n_heads",
                    "the parameters of the attention",
                ),
                (|c| c.hc_mult = 1 << 24, "hc_mult", "the parameters of the hyper-connections"),
                (
                    |c| {
                        c.engram_vocab_size = 1 << 55;
                        c.engram_num_embeddings =
                            EngramConstants::new(c).unwrap().layers.iter().map(|l| l.rows).collect();
                    },
                    "engram_head_dim",
                    "the parameters of the engram tables",
                ),
            ],
        );
    }

    /// Models without compressed layers, candidates or engram, and with every score function, are models too.
    #[test]
    fn parts_may_be_absent() {
        let mut config = fixture("tiny");
        config.score_func = ScoreFunc::Sigmoid;
        config.candidate_source_layer = None;
        config.candidate_topk_blocks = 0;
        config.validate().unwrap();
        config.engram_layer_ids.clear();
        config.engram_num_embeddings.clear();
        config.engram_head_dim = 0;
        config.validate().unwrap();
        config.compress_ratios = vec![0; 6];
        config.kv_source_layers.clear();
        config.index_source_layers.clear();
        config.index_topk = 0;
        config.validate().unwrap();
    }

    #[test]
    fn every_fixture_and_the_released_model_are_valid() {
        for name in ["released", "tiny", "short", "batch", "fp8", "long", "published"] {
            fixture(name).validate().unwrap();
        }
        released("v4.1-flash").validate().unwrap();
    }
}
