//! From a configuration to the metadata of a file: the inverse of describing one.

use dsv41_config::Config;
use dsv41_config::engram::EngramConstants;

use super::describe::{ARCHITECTURE, SCORE_FUNCS, distinct};
use super::error::ModelError;
use crate::{Metadata, Value};

/// The metadata of a model's file, but for tokenizer, name and file type.
///
/// What [`crate::describe`] reads from them is the configuration as text alone: without storage types, vision encoder and
/// draft head.
///
/// # Errors
/// [`ModelError::Config`] when the configuration is not valid, [`ModelError::TokenMap`] when it has engram layers and
/// there is no map that fits it, [`ModelError::Inexpressible`] for values that the format cannot say.
pub fn metadata_of(config: &Config, token_map: Option<&[u32]>) -> Result<Metadata, ModelError> {
    config.validate()?;
    let mut record = Record { metadata: Metadata::new() };
    record.metadata.insert("general.architecture", ARCHITECTURE);
    record.backbone(config)?;
    record.experts(config)?;
    record.compression(config)?;
    if !config.engram_layer_ids.is_empty() {
        record.engram(config, token_map)?;
    }
    Ok(record.metadata)
}

/// Metadata under construction.
struct Record {
    metadata: Metadata,
}

impl Record {
    fn backbone(&mut self, config: &Config) -> Result<(), ModelError> {
        self.count("block_count", config.n_layers)?;
        self.count("context_length", config.max_seq_len)?;
        self.count("embedding_length", config.dim)?;
        self.count("vocab_size", config.vocab_size)?;
        self.count("attention.head_count", config.n_heads)?;
        self.count("attention.head_count_kv", 1)?;
        self.count("attention.key_length", config.head_dim)?;
        self.count("attention.value_length", config.head_dim)?;
        self.float("attention.layer_norm_rms_epsilon", config.norm_eps);
        self.count("attention.q_lora_rank", config.q_lora_rank)?;
        self.count("attention.output_lora_rank", config.o_lora_rank)?;
        self.count("attention.output_group_count", config.o_groups)?;
        self.count("attention.sliding_window", config.window_size)?;
        self.count("rope.dimension_count", config.rope_head_dim)?;
        self.float("rope.freq_base", config.rope_theta);
        self.count("hyper_connection.count", config.hc_mult)?;
        self.count("hyper_connection.sinkhorn_iterations", config.hc_sinkhorn_iters)?;
        self.float("hyper_connection.epsilon", config.hc_eps);
        if config.original_seq_len == 0 {
            self.insert("rope.scaling.type", "none");
            return Ok(());
        }
        self.insert("rope.scaling.type", "yarn");
        self.float("rope.scaling.factor", config.rope_factor);
        self.count("rope.scaling.original_context_length", config.original_seq_len)?;
        self.float("rope.scaling.yarn_beta_fast", config.beta_fast);
        self.float("rope.scaling.yarn_beta_slow", config.beta_slow);
        Ok(())
    }

    fn experts(&mut self, config: &Config) -> Result<(), ModelError> {
        if config.gate_temp != 1.0 {
            return Err(inexpressible("gate_temp", config.gate_temp, "1"));
        }
        let id = SCORE_FUNCS.iter().find(|&&(score_func, _)| score_func == config.score_func).map(|&(_, id)| id);
        let id =
            id.ok_or_else(|| inexpressible("score_func", format!("{:?}", config.score_func), "a known function"))?;
        self.count("expert_count", config.n_routed_experts)?;
        self.count("expert_used_count", config.n_activated_experts)?;
        self.count("expert_shared_count", config.n_shared_experts)?;
        self.count("expert_feed_forward_length", config.moe_inter_dim)?;
        self.float("expert_weights_scale", config.route_scale);
        self.insert("expert_weights_norm", config.norm_topk_prob);
        self.insert("expert_gating_func", id);
        self.count("hash_layer_count", 0)?;
        for name in ["swiglu_clamp_exp", "swiglu_clamp_shexp"] {
            self.insert(name, vec![config.swiglu_limit as f32; config.n_layers]);
        }
        Ok(())
    }

    fn compression(&mut self, config: &Config) -> Result<(), ModelError> {
        self.counts("attention.compress_ratios", &config.compress_ratios)?;
        self.float("attention.compress_rope_freq_base", config.compress_rope_theta);
        if !config.index_source_layers.is_empty() {
            self.count("attention.indexer.head_count", config.index_n_heads)?;
            self.count("attention.indexer.key_length", config.index_head_dim)?;
            self.count("attention.indexer.top_k", config.index_topk)?;
        }
        if let Some(source) = config.candidate_source_layer {
            self.count("attention.candidate_source_layer_id", source)?;
            self.count("attention.candidate_block_size", config.candidate_block_size)?;
            self.count("attention.candidate_top_k_blocks", config.candidate_topk_blocks)?;
        }
        Ok(())
    }

    fn engram(&mut self, config: &Config, token_map: Option<&[u32]>) -> Result<(), ModelError> {
        let map = token_map.ok_or(ModelError::TokenMap { found: "no map".to_owned(), expected: entries(config) })?;
        let pad = map.get(config.engram_pad_id).filter(|_| map.len() == config.vocab_size);
        let &pad = pad.ok_or_else(|| ModelError::TokenMap {
            found: format!("a map of {} entries", map.len()),
            expected: entries(config),
        })?;
        let ids = distinct(map)?;
        if ids != config.engram_compressed_vocab_size {
            return Err(ModelError::TokenMap { found: format!("{ids} distinct values"), expected: entries(config) });
        }
        self.counts("engram.layer_ids", &config.engram_layer_ids)?;
        self.count("engram.head_count", config.engram_n_heads)?;
        self.count("engram.key_length", config.engram_head_dim)?;
        self.count("engram.max_ngram_size", config.engram_max_ngram_size)?;
        self.insert("engram.vocab_size", config.engram_vocab_size);
        self.insert("engram.pad_id", pad);
        let layers = EngramConstants::new(config)?.layers;
        let multipliers = layers.iter().flat_map(|layer| layer.multipliers.iter().map(|m| m.cast_unsigned()));
        self.insert("engram.multipliers", multipliers.collect::<Vec<u64>>());
        self.insert("engram.primes", layers.iter().flat_map(|layer| layer.primes.concat()).collect::<Vec<u64>>());
        self.insert("engram.offsets", layers.iter().flat_map(|layer| layer.offsets.clone()).collect::<Vec<u64>>());
        // Below the vocabulary's size, which validation bounds.
        self.insert("engram.token_map", map.iter().map(|&id| id.cast_signed()).collect::<Vec<i32>>());
        Ok(())
    }

    fn insert(&mut self, name: &str, value: impl Into<Value>) {
        self.metadata.insert(format!("{ARCHITECTURE}.{name}"), value);
    }

    fn count(&mut self, name: &'static str, count: usize) -> Result<(), ModelError> {
        let fits = u32::try_from(count).map_err(|_| inexpressible(name, count, "at most 2^32 - 1"))?;
        self.insert(name, fits);
        Ok(())
    }

    fn counts(&mut self, name: &'static str, counts: &[usize]) -> Result<(), ModelError> {
        let fit = |&count: &usize| i32::try_from(count).map_err(|_| inexpressible(name, count, "at most 2^31 - 1"));
        let fits = counts.iter().map(fit).collect::<Result<Vec<i32>, _>>()?;
        self.insert(name, fits);
        Ok(())
    }

    fn float(&mut self, name: &str, value: f64) {
        self.insert(name, value as f32);
    }
}

fn entries(config: &Config) -> String {
    format!("{} entries of {} distinct values", config.vocab_size, config.engram_compressed_vocab_size)
}

fn inexpressible(key: &'static str, found: impl ToString, expected: &'static str) -> ModelError {
    ModelError::Inexpressible { key, found: found.to_string(), expected }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::testing::{released, token_map};

    #[test]
    fn the_released_values_stand_under_their_keys() {
        let config = released("v4.1-flash");
        let metadata = metadata_of(&config, Some(&token_map(&config))).unwrap();
        let ratios = metadata.usizes("deepseek41.attention.compress_ratios").unwrap().unwrap();
        assert_eq!((ratios.len(), ratios[19], ratios[20], ratios[42]), (43, 2, 1, 0));
        for (key, expected) in [
            ("block_count", Value::U32(40)),
            ("context_length", Value::U32(1_048_576)),
            ("attention.layer_norm_rms_epsilon", Value::F32(1e-20)),
            ("rope.scaling.type", "yarn".into()),
            ("rope.scaling.factor", Value::F32(16.0)),
            ("expert_gating_func", Value::U32(4)),
            ("expert_weights_norm", Value::Bool(true)),
            ("swiglu_clamp_shexp", vec![10.0_f32; 40].into()),
            ("hyper_connection.epsilon", Value::F32(1e-6)),
            ("engram.layer_ids", vec![1, 14].into()),
            ("engram.pad_id", Value::U32(2)),
        ] {
            assert_eq!(metadata.get(&format!("deepseek41.{key}")), Some(&expected), "{key}");
        }
        for (array, length) in [("multipliers", 8), ("primes", 48), ("offsets", 48), ("token_map", 129_280)] {
            let values = metadata.u64s(&format!("deepseek41.engram.{array}")).unwrap().unwrap();
            assert_eq!(values.len(), length, "{array}");
        }
    }

    #[test]
    fn what_the_format_cannot_say_is_refused() {
        let tiny = released("tiny");
        let map = token_map(&tiny);
        let message = |config: &Config, map: Option<&[u32]>| metadata_of(config, map).unwrap_err().to_string();
        let cold = Config { gate_temp: 0.5, ..tiny.clone() };
        assert_eq!(message(&cold, Some(&map)), "configuration key `gate_temp` is 0.5, and GGUF can only say 1");
        let invalid = Config { dim: 0, ..tiny.clone() };
        assert!(message(&invalid, Some(&map)).contains("key `dim` is 0"));
        let expected = "expected 64 entries of 64 distinct values";
        assert_eq!(message(&tiny, None), format!("no map for the engram's tokens, {expected}"));
        assert_eq!(
            message(&tiny, Some(&map[..63])),
            format!("a map of 63 entries for the engram's tokens, {expected}")
        );
        let narrow: Vec<u32> = map.iter().map(|id| id % 60).collect();
        assert_eq!(message(&tiny, Some(&narrow)), format!("60 distinct values for the engram's tokens, {expected}"));
    }

    #[test]
    fn a_model_without_engram_layers_needs_no_map() {
        let mut config = released("tiny");
        config.engram_layer_ids.clear();
        config.engram_num_embeddings.clear();
        let metadata = metadata_of(&config, None).unwrap();
        assert!(metadata.iter().all(|(key, _)| !key.contains("engram")));
    }
}
