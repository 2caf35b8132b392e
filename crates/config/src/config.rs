use serde::{Deserialize, Serialize};

use crate::{TensorStorage, Topology};

/// How the router turns logits into scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScoreFunc {
    /// `softmax(x)` over the experts.
    Softmax,
    /// `sigmoid(x)`.
    Sigmoid,
    /// `sqrt(softplus(x))`.
    SqrtSoftplus,
}

/// How the checkpoint stores its quantisable linear layers (`dtype`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Storage {
    /// bfloat16, which Hugging Face's files spell out.
    #[serde(alias = "bfloat16")]
    Bf16,
    /// e4m3 with one e8m0 scale for each 32x32 tile; their inputs pass an fp8 round trip.
    Fp8,
}

/// How the checkpoint stores the routed experts (`expert_dtype`); absent means as `dtype` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExpertStorage {
    /// e2m1 with one e8m0 scale for each 32 along the input; their inputs pass an fp8 round trip.
    Fp4,
    /// As [`Storage::Fp8`].
    Fp8,
}

/// The shape of a model, under the reference's names.
///
/// Deserialising follows the rules of [`Config::from_value`], whatever it is done with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "serde_json::Value")]
pub struct Config {
    /// Rows of the embedding and of the head.
    pub vocab_size: usize,
    /// Width of the residual stream, D.
    pub dim: usize,
    /// Layers of the backbone.
    pub n_layers: usize,
    /// Attention heads, H.
    pub n_heads: usize,
    /// Width of one head, d.
    pub head_dim: usize,
    /// Channels at the end of a head that rotate, r.
    pub rope_head_dim: usize,
    /// Rank of the query projection.
    pub q_lora_rank: usize,
    /// Rank of each group of the output projection.
    pub o_lora_rank: usize,
    /// Groups of the output projection.
    pub o_groups: usize,
    /// Hidden width of one expert.
    pub moe_inter_dim: usize,
    /// Routed experts of a layer.
    pub n_routed_experts: usize,
    /// Shared experts of a layer: always one.
    pub n_shared_experts: usize,
    /// Routed experts chosen for a token.
    pub n_activated_experts: usize,
    /// Score function of the router.
    pub score_func: ScoreFunc,
    /// Divisor of the router's logits.
    pub gate_temp: f64,
    /// Whether the chosen scores are divided by their sum.
    pub norm_topk_prob: bool,
    /// Factor on the routed experts' weights.
    pub route_scale: f64,
    /// Bound of SwiGLU's gate (from above) and up branch (both sides); 0 for none.
    pub swiglu_limit: f64,
    /// Positions of the sliding window, the query's own included.
    pub window_size: usize,
    /// Tokens a compressed position, layer by layer; 0 for none. May be longer than `n_layers`: the tail belongs to
    /// the draft head.
    pub compress_ratios: Vec<usize>,
    /// Layers that compress keys and values.
    pub kv_source_layers: Vec<usize>,
    /// Layers that score compressed positions.
    pub index_source_layers: Vec<usize>,
    /// The layer that makes the candidate mask.
    pub candidate_source_layer: Option<usize>,
    /// Candidate blocks kept for a query.
    pub candidate_topk_blocks: usize,
    /// Compressed positions of one candidate block.
    pub candidate_block_size: usize,
    /// Heads of the indexer.
    pub index_n_heads: usize,
    /// Width of an indexer head.
    pub index_head_dim: usize,
    /// Compressed positions selected for a query.
    pub index_topk: usize,
    /// Copies of the residual stream, C.
    pub hc_mult: usize,
    /// Sinkhorn iterations of the mixing matrix.
    pub hc_sinkhorn_iters: usize,
    /// Guard of the hyper-connections' divisions.
    pub hc_eps: f64,
    /// Layers that begin with an engram, ascending.
    pub engram_layer_ids: Vec<usize>,
    /// Longest n-gram hashed.
    pub engram_max_ngram_size: usize,
    /// The primes of the hash are found above this number less one.
    pub engram_vocab_size: u64,
    /// Hash heads of one n-gram size.
    pub engram_n_heads: usize,
    /// Width of one table row.
    pub engram_head_dim: usize,
    /// Token whose compressed id fills the look-back before the start.
    pub engram_pad_id: usize,
    /// Distinct values of the token map.
    pub engram_compressed_vocab_size: usize,
    /// Rows of each engram layer's table.
    pub engram_num_embeddings: Vec<u64>,
    /// RoPE base of window layers.
    pub rope_theta: f64,
    /// RoPE base of compressed layers.
    pub compress_rope_theta: f64,
    /// YaRN's stretch.
    pub rope_factor: f64,
    /// Context the model was first trained on; 0 switches YaRN off.
    pub original_seq_len: usize,
    /// YaRN's fast bound.
    pub beta_fast: f64,
    /// YaRN's slow bound.
    pub beta_slow: f64,
    /// Epsilon of every RMSNorm.
    pub norm_eps: f64,
    /// Storage of quantisable linear layers.
    pub dtype: Storage,
    /// Storage of routed experts.
    pub expert_dtype: Option<ExpertStorage>,
    /// Longest sequence.
    pub max_seq_len: usize,
    /// Blocks of the draft head.
    pub n_mtp_layers: usize,
    /// Tokens the draft head proposes at once.
    pub dspark_block_size: usize,
    /// Layers of the vision encoder.
    pub vision_n_layers: usize,
    /// Token whose positions an image fills.
    pub image_token_id: Option<usize>,
}

impl Config {
    /// What each layer owns and reads.
    pub fn topology(&self) -> Topology {
        Topology::new(self)
    }

    /// Concatenated table rows of one engram layer and position: hash heads of every n-gram size.
    pub fn engram_slots(&self) -> usize {
        self.engram_n_heads.saturating_mul(self.engram_max_ngram_size.saturating_sub(1))
    }

    /// How the routed experts are stored: `expert_dtype`, or else `dtype`.
    pub fn expert_storage(&self) -> TensorStorage {
        match (self.expert_dtype, self.dtype) {
            (Some(ExpertStorage::Fp4), _) => TensorStorage::Fp4,
            (Some(ExpertStorage::Fp8), _) | (None, Storage::Fp8) => TensorStorage::Fp8Tile,
            (None, Storage::Bf16) => TensorStorage::Bf16,
        }
    }
}
