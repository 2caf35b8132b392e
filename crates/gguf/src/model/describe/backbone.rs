//! Everything but candidates and engram: sizes, numbers, ratios, and the sources, which no key names.

use dsv41_config::{Config, ScoreFunc, Storage};

use super::Header;
use super::keys::{Keys, missing, wrong};
use crate::model::error::ModelError;

/// The gating function's numbers in files.
pub(crate) const SCORE_FUNCS: [(ScoreFunc, u32); 3] =
    [(ScoreFunc::Softmax, 1), (ScoreFunc::Sigmoid, 2), (ScoreFunc::SqrtSoftplus, 4)];

/// The configuration without candidates and engram.
pub(super) fn describe(header: &Header<'_>) -> Result<Config, ModelError> {
    let keys = &header.keys;
    check_fixed(keys)?;
    let n_layers = keys.required("block_count")?;
    let head_dim = keys.required("attention.key_length")?;
    keys.agrees("attention.value_length", &head_dim, "as keys are values")?;
    let compress_ratios: Vec<usize> = keys.required("attention.compress_ratios")?;
    let compresses = compress_ratios.iter().take(n_layers).any(|&ratio| ratio > 0);
    let index_source_layers = header.layers_with("indexer.attn_q_b.weight");
    let indexes = !index_source_layers.is_empty();
    let rope_theta = keys.required("rope.freq_base")?;
    let yarn = yarn(keys)?;
    Ok(Config {
        vocab_size: vocabulary(header)?,
        dim: keys.required("embedding_length")?,
        n_layers,
        n_heads: keys.required("attention.head_count")?,
        head_dim,
        rope_head_dim: keys.required("rope.dimension_count")?,
        q_lora_rank: keys.required("attention.q_lora_rank")?,
        o_lora_rank: keys.required("attention.output_lora_rank")?,
        o_groups: keys.required("attention.output_group_count")?,
        moe_inter_dim: keys.required("expert_feed_forward_length")?,
        n_routed_experts: keys.required("expert_count")?,
        n_shared_experts: keys.required("expert_shared_count")?,
        n_activated_experts: keys.required("expert_used_count")?,
        score_func: score_func(keys)?,
        gate_temp: 1.0,
        norm_topk_prob: keys.required("expert_weights_norm")?,
        route_scale: keys.required("expert_weights_scale")?,
        swiglu_limit: swiglu_limit(keys, n_layers)?,
        window_size: keys.required("attention.sliding_window")?,
        compress_ratios,
        kv_source_layers: header.layers_with("attn_compressor_kv.weight"),
        index_source_layers,
        candidate_source_layer: None,
        candidate_topk_blocks: 0,
        candidate_block_size: 0,
        index_n_heads: keys.required_if(indexes, "attention.indexer.head_count")?,
        index_head_dim: keys.required_if(indexes, "attention.indexer.key_length")?,
        index_topk: keys.required_if(indexes, "attention.indexer.top_k")?,
        hc_mult: keys.required("hyper_connection.count")?,
        hc_sinkhorn_iters: keys.required("hyper_connection.sinkhorn_iterations")?,
        hc_eps: keys.required("hyper_connection.epsilon")?,
        engram_layer_ids: Vec::new(),
        engram_max_ngram_size: 0,
        engram_vocab_size: 0,
        engram_n_heads: 0,
        engram_head_dim: 0,
        engram_pad_id: 0,
        engram_compressed_vocab_size: 0,
        engram_num_embeddings: Vec::new(),
        rope_theta,
        compress_rope_theta: if compresses { keys.required("attention.compress_rope_freq_base")? } else { rope_theta },
        rope_factor: yarn.factor,
        original_seq_len: yarn.original_seq_len,
        beta_fast: yarn.beta_fast,
        beta_slow: yarn.beta_slow,
        norm_eps: keys.required("attention.layer_norm_rms_epsilon")?,
        dtype: Storage::Bf16,
        expert_dtype: None,
        max_seq_len: keys.required("context_length")?,
        n_mtp_layers: 0,
        dspark_block_size: 0,
        vision_n_layers: 0,
        image_token_id: None,
    })
}

/// Keys that have one value in every V4.1 model.
fn check_fixed(keys: &Keys<'_>) -> Result<(), ModelError> {
    keys.agrees("attention.head_count_kv", &1_usize, "as all heads share one key")?;
    keys.agrees("hash_layer_count", &0_usize, "as no layer routes by hashing")?;
    keys.agrees("leading_dense_block_count", &0_usize, "as every layer has experts")
}

/// The rows of the embedding, which the other sources of the vocabulary's size must not contradict. Rows without a token
/// are padding.
fn vocabulary(header: &Header<'_>) -> Result<usize, ModelError> {
    let [rows, _] = header.matrix("token_embd.weight")?;
    header.keys.agrees("vocab_size", &rows, "the rows of token_embd.weight")?;
    const TOKENS: &str = "tokenizer.ggml.tokens";
    let tokens = header.keys.metadata.strings(TOKENS)?.map_or(0, <[String]>::len);
    if tokens <= rows {
        return Ok(rows);
    }
    Err(ModelError::Key {
        key: TOKENS.to_owned(),
        found: format!("{tokens} tokens"),
        expected: format!("at most {rows}, the rows of token_embd.weight"),
    })
}

fn score_func(keys: &Keys<'_>) -> Result<ScoreFunc, ModelError> {
    const NAME: &str = "expert_gating_func";
    let id: u32 = keys.required(NAME)?;
    let found = SCORE_FUNCS.into_iter().find(|&(_, number)| number == id);
    let expected = || "1 (softmax), 2 (sigmoid) or 4 (square root of softplus)";
    found.map(|(score_func, _)| score_func).ok_or_else(|| wrong(NAME, id, expected()))
}

/// The one limit of the layers' lists for routed and shared experts.
fn swiglu_limit(keys: &Keys<'_>, n_layers: usize) -> Result<f64, ModelError> {
    let mut limit = None;
    for name in ["swiglu_clamp_exp", "swiglu_clamp_shexp"] {
        let limits: Vec<f64> = keys.required(name)?;
        if limits.len() < n_layers {
            return Err(wrong(name, format!("{} values", limits.len()), format!("one for each of {n_layers} layers")));
        }
        for found in limits {
            let expected = *limit.get_or_insert(found);
            if found != expected {
                return Err(wrong(name, found, format!("{expected}, as all layers and experts have one limit")));
            }
        }
    }
    limit.ok_or_else(|| missing("swiglu_clamp_exp"))
}

/// How positions are stretched.
struct Yarn {
    factor: f64,
    original_seq_len: usize,
    beta_fast: f64,
    beta_slow: f64,
}

fn yarn(keys: &Keys<'_>) -> Result<Yarn, ModelError> {
    const TYPE: &str = "rope.scaling.type";
    let none = Yarn { factor: 1.0, original_seq_len: 0, beta_fast: 32.0, beta_slow: 1.0 };
    match keys.find::<String>(TYPE)?.as_deref() {
        None | Some("none") => Ok(none),
        Some("yarn") => Ok(Yarn {
            factor: keys.required("rope.scaling.factor")?,
            original_seq_len: keys.required("rope.scaling.original_context_length")?,
            beta_fast: keys.find("rope.scaling.yarn_beta_fast")?.unwrap_or(none.beta_fast),
            beta_slow: keys.find("rope.scaling.yarn_beta_slow")?.unwrap_or(none.beta_slow),
        }),
        Some(other) => Err(wrong(TYPE, other, "`yarn` or `none`")),
    }
}
