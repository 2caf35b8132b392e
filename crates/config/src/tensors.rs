//! Every tensor of the text model: its name, shape, part and storage, in the order of the reference's state dictionary.

use std::fmt;

use crate::{Config, Storage};

/// Elements that share one scale: along the input of fp4 weights and of table rows, along both axes of an fp8 tile, and
/// in the activations' fp8 and power-of-two fp4 quantisers.
pub(crate) const GROUP: usize = 32;

/// The part of the model that a tensor belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// The token embedding.
    Embedding,
    /// Query, window key and output projections, their norms and the sinks.
    Attention,
    /// The compressed stream's projections and norm.
    Compressor,
    /// The indexer's projections and norm.
    Indexer,
    /// Mixers of the residual copies.
    HyperConnections,
    /// The router's weight and biases.
    Router,
    /// Routed experts.
    RoutedExperts,
    /// The shared expert.
    SharedExperts,
    /// Hashed n-gram tables.
    EngramTables,
    /// The engram's projection and gate weights.
    EngramProjections,
    /// Norms before the sublayers and before the head.
    Norms,
    /// The output head.
    Head,
}

impl Part {
    /// Every part, in the order of the model.
    pub const ALL: [Self; 12] = [
        Self::Embedding,
        Self::Attention,
        Self::Compressor,
        Self::Indexer,
        Self::HyperConnections,
        Self::Router,
        Self::RoutedExperts,
        Self::SharedExperts,
        Self::EngramTables,
        Self::EngramProjections,
        Self::Norms,
        Self::Head,
    ];
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Embedding => "embedding",
            Self::Attention => "attention",
            Self::Compressor => "compressor",
            Self::Indexer => "indexer",
            Self::HyperConnections => "hyper-connections",
            Self::Router => "router",
            Self::RoutedExperts => "routed experts",
            Self::SharedExperts => "shared experts",
            Self::EngramTables => "engram tables",
            Self::EngramProjections => "engram projections",
            Self::Norms => "norms",
            Self::Head => "head",
        })
    }
}

/// How the released checkpoint stores a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TensorStorage {
    /// float32.
    F32,
    /// bfloat16.
    Bf16,
    /// e4m3 with one e8m0 scale for each 32x32 tile.
    Fp8Tile,
    /// e2m1, two to a byte, with one e8m0 scale for each 32 along the input.
    Fp4,
    /// e4m3 with one e8m0 scale for each 32 of a row.
    Fp8Row,
}

/// Element types of the checkpoint's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StoredDtype {
    /// float32.
    F32,
    /// bfloat16.
    Bf16,
    /// 8-bit float, 4 bits of exponent and 3 of mantissa, no infinities.
    F8E4m3,
    /// 8-bit power of two.
    F8E8m0,
    /// Two 4-bit floats in a byte, the even element in the low nibble.
    F4E2m1x2,
}

impl StoredDtype {
    /// torch's name of the type, as golden files have it.
    pub fn torch_name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::Bf16 => "bfloat16",
            Self::F8E4m3 => "float8_e4m3fn",
            Self::F8E8m0 => "float8_e8m0fnu",
            Self::F4E2m1x2 => "float4_e2m1fn_x2",
        }
    }
}

/// One tensor as the checkpoint's files hold it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredTensor {
    /// Its name there.
    pub name: String,
    /// Its shape there; the last axis of packed fp4 counts bytes.
    pub shape: Vec<usize>,
    /// Its element type.
    pub dtype: StoredDtype,
}

/// One tensor of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// The reference's name.
    pub name: String,
    /// The logical shape, `[output, input]` for a matrix, whatever the storage packs.
    pub shape: Vec<usize>,
    /// The part it belongs to.
    pub part: Part,
    /// How the checkpoint stores it.
    pub storage: TensorStorage,
}

impl TensorSpec {
    /// The number of parameters, or none where it does not fit 64 bits.
    pub fn elements(&self) -> Option<u64> {
        self.shape.iter().try_fold(1_u64, |n, &axis| n.checked_mul(u64::try_from(axis).ok()?))
    }

    /// What the files hold for this tensor, in file order: the weight, then its scale where the storage has one.
    pub fn stored(&self) -> Vec<StoredTensor> {
        let (dtype, packed, scaled_axes) = match self.storage {
            TensorStorage::F32 => (StoredDtype::F32, 1, 0),
            TensorStorage::Bf16 => (StoredDtype::Bf16, 1, 0),
            TensorStorage::Fp8Tile => (StoredDtype::F8E4m3, 1, 2),
            TensorStorage::Fp4 => (StoredDtype::F4E2m1x2, 2, 1),
            TensorStorage::Fp8Row => (StoredDtype::F8E4m3, 1, 1),
        };
        let mut stored =
            vec![StoredTensor { name: self.name.clone(), shape: last_axes_divided(&self.shape, 1, packed), dtype }];
        if scaled_axes > 0 {
            let stem = self.name.strip_suffix("weight").unwrap_or(&self.name);
            stored.push(StoredTensor {
                name: format!("{stem}scale"),
                shape: last_axes_divided(&self.shape, scaled_axes, GROUP),
                dtype: StoredDtype::F8E8m0,
            });
        }
        stored
    }
}

/// The shape with its last `axes` axes divided by `by`, a remainder counting as one more.
fn last_axes_divided(shape: &[usize], axes: usize, by: usize) -> Vec<usize> {
    let mut shape = shape.to_vec();
    for axis in shape.iter_mut().rev().take(axes) {
        *axis = axis.div_ceil(by);
    }
    shape
}

impl Config {
    /// Every tensor of the text model, in the reference's order. The draft head and the vision encoder are not among
    /// them, but the router's `bias_vl` is where the model has a vision encoder.
    ///
    /// The list is as long as the model has experts: validate first.
    pub fn tensors(&self) -> Vec<TensorSpec> {
        self.tensors_with_experts(self.n_routed_experts)
    }

    /// The tensors, with the first `experts` of each layer's routed experts alone.
    pub(crate) fn tensors_with_experts(&self, experts: usize) -> Vec<TensorSpec> {
        let mut list = TensorList::default();
        list.add(Part::Embedding, "embed.weight", [self.vocab_size, self.dim], TensorStorage::Bf16);
        for layer in self.topology().layers() {
            list.prefix = format!("layers.{}.", layer.layer);
            self.list_hyper_connections(&mut list);
            self.list_attention(&mut list);
            if layer.owns_stream() {
                self.list_compressor(&mut list, layer.ratio);
            }
            if layer.owns_index() {
                self.list_indexer(&mut list, layer.owns_stream());
            }
            self.list_experts(&mut list, experts);
            if let Some(place) = layer.engram {
                self.list_engram(&mut list, place);
            }
            list.norm(Part::Norms, "attn_norm.weight", self.dim);
            list.norm(Part::Norms, "ffn_norm.weight", self.dim);
        }
        list.prefix.clear();
        list.norm(Part::Norms, "norm.weight", self.dim);
        list.add(Part::Head, "head.weight", [self.vocab_size, self.dim], TensorStorage::F32);
        list.tensors
    }

    fn list_hyper_connections(&self, list: &mut TensorList) {
        let mixes = self.hc_mult.saturating_add(2).saturating_mul(self.hc_mult);
        let stream = self.hc_mult.saturating_mul(self.dim);
        for (name, shape) in [("fn", vec![mixes, stream]), ("base", vec![mixes]), ("scale", vec![3])] {
            for sublayer in ["attn", "ffn"] {
                let name = format!("hc_{sublayer}_{name}");
                list.add(Part::HyperConnections, &name, shape.clone(), TensorStorage::F32);
            }
        }
    }

    fn list_attention(&self, list: &mut TensorList) {
        const PART: Part = Part::Attention;
        let linear = self.linear_storage();
        let heads = self.n_heads.saturating_mul(self.head_dim);
        let ranks = self.o_groups.saturating_mul(self.o_lora_rank);
        list.add(PART, "attn.attn_sink", [self.n_heads], TensorStorage::F32);
        list.add(PART, "attn.wq_a.weight", [self.q_lora_rank, self.dim], linear);
        list.norm(PART, "attn.q_norm.weight", self.q_lora_rank);
        list.add(PART, "attn.wq_b.weight", [heads, self.q_lora_rank], linear);
        list.add(PART, "attn.wkv.weight", [self.head_dim, self.dim], linear);
        list.norm(PART, "attn.kv_norm.weight", self.head_dim);
        list.add(PART, "attn.wo_a.weight", [ranks, heads / self.o_groups.max(1)], TensorStorage::Bf16);
        list.add(PART, "attn.wo_b.weight", [self.dim, ranks], linear);
    }

    /// A group of one token needs no gate, and its projection is not kept in f32.
    fn list_compressor(&self, list: &mut TensorList, ratio: usize) {
        const PART: Part = Part::Compressor;
        let shape = [self.head_dim, self.dim];
        list.norm(PART, "attn.compressor.norm.weight", self.head_dim);
        if ratio == 1 {
            list.add(PART, "attn.compressor.wkv.weight", shape, TensorStorage::Bf16);
        } else {
            list.add(PART, "attn.compressor.wkv.weight", shape, TensorStorage::F32);
            list.add(PART, "attn.compressor.wgate.weight", shape, TensorStorage::F32);
        }
    }

    /// Keys are made where the stream is.
    fn list_indexer(&self, list: &mut TensorList, makes_keys: bool) {
        const PART: Part = Part::Indexer;
        let heads = self.index_n_heads.saturating_mul(self.index_head_dim);
        list.add(PART, "attn.indexer.wq_b.weight", [heads, self.q_lora_rank], self.linear_storage());
        list.add(PART, "attn.indexer.weights_proj.weight", [self.index_n_heads, self.dim], TensorStorage::Bf16);
        if makes_keys {
            list.add(PART, "attn.indexer.wk.weight", [self.index_head_dim, self.head_dim], TensorStorage::Bf16);
            list.norm(PART, "attn.indexer.k_norm.weight", self.index_head_dim);
        }
    }

    fn list_experts(&self, list: &mut TensorList, experts: usize) {
        list.add(Part::Router, "ffn.gate.weight", [self.n_routed_experts, self.dim], TensorStorage::Bf16);
        list.add(Part::Router, "ffn.gate.bias", [self.n_routed_experts], TensorStorage::F32);
        if self.vision_n_layers > 0 {
            list.add(Part::Router, "ffn.gate.bias_vl", [self.n_routed_experts], TensorStorage::F32);
        }
        for expert in 0..experts {
            let name = format!("ffn.experts.{expert}");
            self.list_expert(list, Part::RoutedExperts, &name, self.expert_storage());
        }
        self.list_expert(list, Part::SharedExperts, "ffn.shared_experts", self.linear_storage());
    }

    fn list_expert(&self, list: &mut TensorList, part: Part, name: &str, storage: TensorStorage) {
        let (inter, dim) = (self.moe_inter_dim, self.dim);
        for (matrix, shape) in [("w1", [inter, dim]), ("w2", [dim, inter]), ("w3", [inter, dim])] {
            list.add(part, &format!("{name}.{matrix}.weight"), shape, storage);
        }
    }

    fn list_engram(&self, list: &mut TensorList, place: usize) {
        let rows = self.engram_num_embeddings.get(place).copied().unwrap_or(0);
        let rows = usize::try_from(rows).unwrap_or(usize::MAX);
        let gathered = self.engram_slots().saturating_mul(self.engram_head_dim);
        let keys_and_value = self.hc_mult.saturating_add(1).saturating_mul(self.dim);
        let gate = [self.hc_mult, self.dim];
        list.add(Part::EngramProjections, "engram.q_weight", gate, TensorStorage::Bf16);
        list.add(Part::EngramProjections, "engram.k_weight", gate, TensorStorage::Bf16);
        list.add(Part::EngramTables, "engram.embed.weight", [rows, self.engram_head_dim], TensorStorage::Fp8Row);
        list.add(Part::EngramProjections, "engram.wkv.weight", [keys_and_value, gathered], self.linear_storage());
    }

    /// How linear layers other than the routed experts are stored, but for those that always stay float.
    fn linear_storage(&self) -> TensorStorage {
        match self.dtype {
            Storage::Bf16 => TensorStorage::Bf16,
            Storage::Fp8 => TensorStorage::Fp8Tile,
        }
    }
}

/// Collects tensors under a prefix. Widths that are products saturate, so that a count of their elements overflows.
#[derive(Default)]
struct TensorList {
    prefix: String,
    tensors: Vec<TensorSpec>,
}

impl TensorList {
    fn add(&mut self, part: Part, name: &str, shape: impl Into<Vec<usize>>, storage: TensorStorage) {
        self.tensors.push(TensorSpec { name: format!("{}{name}", self.prefix), shape: shape.into(), part, storage });
    }

    fn norm(&mut self, part: Part, name: &str, width: usize) {
        self.add(part, name, [width], TensorStorage::Bf16);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{fixture, golden};

    /// Names, their order, shapes and types are those of the reference's own state dictionary.
    #[test]
    fn stored_tensors_are_the_reference_s() {
        for name in ["tiny", "batch", "fp8"] {
            let golden = golden(name);
            let expected: Vec<StoredTensor> = fixture(name).tensors().iter().flat_map(TensorSpec::stored).collect();
            let meta = golden["weights_meta"].as_object().unwrap();
            assert_eq!(expected.len(), meta.len(), "{name}");
            for (tensor, (key, meta)) in expected.iter().zip(meta) {
                assert_eq!(&tensor.name, key, "{name}");
                let shape: Vec<usize> = serde_json::from_value(meta["shape"].clone()).unwrap();
                assert_eq!(tensor.shape, shape, "{name}: {key}");
                assert_eq!(tensor.dtype.torch_name(), meta["dtype"], "{name}: {key}");
            }
        }
    }

    #[test]
    fn a_vision_model_routes_images_by_a_bias_of_their_own() {
        let mut config = fixture("tiny");
        config.vision_n_layers = 2;
        let names: Vec<String> = config.tensors().into_iter().map(|tensor| tensor.name).collect();
        let bias = names.iter().position(|name| name == "layers.3.ffn.gate.bias").unwrap();
        assert_eq!(names[bias + 1], "layers.3.ffn.gate.bias_vl");
    }
}
