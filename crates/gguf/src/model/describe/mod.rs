//! From a file's metadata and its tensors' shapes to the configuration of the model in it.

mod backbone;
mod candidates;
mod dialect;
mod engram;
mod keys;

use std::collections::HashSet;

use dsv41_config::{Config, TensorSpec};
use indexmap::IndexMap;

pub(super) use self::backbone::SCORE_FUNCS;
pub(super) use self::engram::distinct;
use self::keys::Keys;
use super::error::ModelError;
use super::layout::Layout;
use super::names::{GgufName, in_layer};
use super::plan::TypePlan;
use crate::Metadata;

/// The architecture of the files described here, which prefixes their keys.
pub(super) const ARCHITECTURE: &str = "deepseek41";

/// Names that a note lists before it only counts.
const NAMES_IN_A_NOTE: usize = 5;

/// What a file's header says of the model in it.
#[derive(Debug, Clone, PartialEq)]
pub struct Description {
    /// The model. Its linear layers count as bfloat16: files of this kind are computed in full precision, on their
    /// dequantised values.
    pub config: Config,
    /// The compressed id of every token, where the model has engram layers and the file or the caller has the map.
    pub token_map: Option<Vec<u32>>,
    /// Every tensor of the model that the file holds: [`Config::tensors`], and the routers' biases for image tokens where
    /// the file has them, which the text model does not use.
    pub tensors: Vec<TensorSpec>,
    /// What the file leaves open and how it was filled in, and what it holds beyond the model: one sentence each.
    pub notes: Vec<String>,
}

/// Describes the model of a file.
///
/// `tensors` are the names and shapes of all its tensors, slowest axis first. `token_map` is used where the file has
/// engram layers and no map of its own: some published files lack it, and the tokenizer gives the same.
///
/// # Errors
/// [`ModelError::Architecture`] and [`ModelError::Dialect`] for files of other models and other spellings, otherwise the
/// key or the tensor that is missing or at odds with the rest.
pub fn describe<'a>(
    metadata: &'a Metadata,
    tensors: impl IntoIterator<Item = (&'a str, &'a [usize])>,
    token_map: Option<Vec<u32>>,
) -> Result<Description, ModelError> {
    let header = Header { keys: Keys { metadata }, shapes: tensors.into_iter().collect() };
    dialect::check(&header)?;
    let mut notes = Vec::new();
    let mut config = backbone::describe(&header)?;
    candidates::describe(&header, &mut config, &mut notes)?;
    let token_map = engram::describe(&header, &mut config, token_map, &mut notes)?;
    config.validate()?;
    let tensors = tensors_of(&header, &config, &mut notes)?;
    Ok(Description { config, token_map, tensors, notes })
}

/// A file's header.
struct Header<'a> {
    keys: Keys<'a>,
    /// Shapes of all tensors, slowest axis first.
    shapes: IndexMap<&'a str, &'a [usize]>,
}

impl Header<'_> {
    /// The shape of a matrix.
    fn matrix(&self, tensor: &str) -> Result<[usize; 2], ModelError> {
        match *self.shape(tensor)? {
            [rows, columns] => Ok([rows, columns]),
            ref shape => Err(ModelError::Shape {
                tensor: tensor.to_owned(),
                found: shape.to_vec(),
                expected: "a matrix".to_owned(),
            }),
        }
    }

    fn shape(&self, tensor: &str) -> Result<&[usize], ModelError> {
        let missing = || ModelError::MissingTensor { tensor: tensor.to_owned() };
        self.shapes.get(tensor).copied().ok_or_else(missing)
    }

    /// The layers that have a tensor, ascending.
    fn layers_with(&self, stem: &str) -> Vec<usize> {
        let layers = self.shapes.keys().filter_map(|name| in_layer(name));
        let mut layers: Vec<usize> = layers.filter(|&(_, rest)| rest == stem).map(|(layer, _)| layer).collect();
        layers.sort_unstable();
        layers
    }
}

/// Every tensor of the model that the file holds, each checked to be there in its shape.
fn tensors_of(header: &Header<'_>, config: &Config, notes: &mut Vec<String>) -> Result<Vec<TensorSpec>, ModelError> {
    // The list is as long as the metadata says, so the file must be found to hold as many layers and experts first.
    for layer in 0..config.n_layers {
        let stack = format!("blk.{layer}.ffn_gate_exps.weight");
        check_shape(header, &stack, &[config.n_routed_experts, config.moe_inter_dim, config.dim])?;
    }
    let image_biases = header.layers_with("exp_probs_b_vl.bias");
    let mut tensors = Vec::new();
    for spec in config.tensors() {
        let layer = spec.name.strip_prefix("layers.").and_then(|rest| rest.strip_suffix(".ffn.gate.bias"));
        let layer = layer.and_then(|layer| layer.parse().ok());
        let image_bias = layer.filter(|layer| image_biases.binary_search(layer).is_ok());
        let name = image_bias.map(|layer| format!("layers.{layer}.ffn.gate.bias_vl"));
        let image_bias = name.map(|name| TensorSpec { name, ..spec.clone() });
        tensors.push(spec);
        tensors.extend(image_bias);
    }
    // The types do not matter here.
    let layout = Layout::new(&tensors, &TypePlan::PUBLISHED)?;
    for tensor in &layout.tensors {
        check_shape(header, &tensor.name, &tensor.shape)?;
    }
    if !image_biases.is_empty() {
        notes.push(format!(
            "{} routers have a bias for image tokens, which a text model does not use.",
            image_biases.len()
        ));
    }
    let known: HashSet<&str> = layout.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    let unknown: Vec<&str> = header.shapes.keys().copied().filter(|name| !known.contains(name)).collect();
    // The likeliest reason for a tensor of the model in a layer that has no use for it is that its companion is lost.
    let stray = unknown.iter().find(|name| is_of_layers(name, config.n_layers));
    if let Some(&tensor) = stray {
        return Err(ModelError::Stray { tensor: tensor.to_owned() });
    }
    notes.extend(unknown_note(&unknown));
    Ok(tensors)
}

/// Whether some V4.1 model of as many layers has a tensor of this name.
fn is_of_layers(tensor: &str, layers: usize) -> bool {
    let name = |expert| GgufName { tensor: tensor.to_owned(), expert };
    let known = name(None).reference().or_else(|| name(Some(0)).reference()).is_some();
    known && in_layer(tensor).is_none_or(|(layer, _)| layer < layers)
}

fn check_shape(header: &Header<'_>, tensor: &str, expected: &[usize]) -> Result<(), ModelError> {
    let found = header.shape(tensor)?;
    if found == expected {
        return Ok(());
    }
    Err(ModelError::Shape {
        tensor: tensor.to_owned(),
        found: found.to_vec(),
        expected: format!("{expected:?}, as the rest of the file says"),
    })
}

/// The note on tensors that no V4.1 text model has, where there are any.
fn unknown_note(names: &[&str]) -> Option<String> {
    let (named, rest) = names.split_at(names.len().min(NAMES_IN_A_NOTE));
    let more = if rest.is_empty() { "" } else { ", ..." };
    let named = named.join(", ");
    (!names.is_empty()).then(|| format!("The file holds {} more than the text model: {named}{more}.", names.len()))
}

#[cfg(test)]
mod tests {
    use dsv41_config::Config;
    use proptest::prelude::*;

    use crate::model::error::ModelError;
    use crate::model::testing::{Header, as_text, released, token_map};
    use crate::{Array, Metadata, Value};

    fn error(header: &Header) -> String {
        header.describe().unwrap_err().to_string()
    }

    #[test]
    fn what_a_configuration_writes_it_reads() {
        for name in ["tiny", "nano", "small", "mid", "v4.1-flash"] {
            let config = released(name);
            let described = Header::of(&config).describe().unwrap();
            assert_eq!(described.config, as_text(config.clone()), "{name}");
            assert_eq!(described.token_map, Some(token_map(&config)), "{name}");
            assert_eq!(described.tensors.len(), config.tensors().len(), "{name}");
        }
    }

    #[test]
    fn models_without_a_part_are_written_and_read_too() {
        let tiny = released("tiny");
        let mut without_yarn = tiny.clone();
        (without_yarn.original_seq_len, without_yarn.rope_factor) = (0, 1.0);
        let mut without_engram = tiny.clone();
        without_engram.engram_layer_ids.clear();
        without_engram.engram_num_embeddings.clear();
        let sizes = [
            &mut without_engram.engram_max_ngram_size,
            &mut without_engram.engram_n_heads,
            &mut without_engram.engram_head_dim,
            &mut without_engram.engram_pad_id,
            &mut without_engram.engram_compressed_vocab_size,
        ];
        sizes.into_iter().for_each(|size| *size = 0);
        without_engram.engram_vocab_size = 0;
        let mut window_alone = tiny;
        window_alone.compress_ratios = vec![0; 6];
        window_alone.compress_rope_theta = window_alone.rope_theta;
        (window_alone.kv_source_layers, window_alone.index_source_layers) = (Vec::new(), Vec::new());
        (window_alone.index_n_heads, window_alone.index_head_dim, window_alone.index_topk) = (0, 0, 0);
        window_alone.candidate_source_layer = None;
        (window_alone.candidate_topk_blocks, window_alone.candidate_block_size) = (0, 0);
        for config in [without_yarn, without_engram, window_alone] {
            let mut header = Header::of(&Config { engram_compressed_vocab_size: 64, ..config.clone() });
            if config.engram_layer_ids.is_empty() {
                header = header.without("engram");
            }
            assert_eq!(header.describe().unwrap().config, config);
        }
    }

    #[test]
    fn a_complete_file_leaves_nothing_to_say() {
        assert_eq!(Header::of(&released("tiny")).describe().unwrap().notes, Vec::<String>::new());
    }

    #[test]
    fn tensors_beyond_the_model_are_said() {
        let notes = Header::of(&released("v4.1-flash")).describe().unwrap().notes;
        assert_eq!(notes, ["40 routers have a bias for image tokens, which a text model does not use."]);
        let mut header = Header::of(&released("tiny"));
        for layer in 6..12 {
            header.shapes.push((format!("blk.{layer}.attn_norm.weight"), vec![64]));
        }
        let notes = header.describe().unwrap().notes;
        let start = "The file holds 6 more than the text model: blk.6.attn_norm.weight, ";
        assert!(notes[0].starts_with(start) && notes[0].ends_with(", blk.10.attn_norm.weight, ...."), "{notes:?}");
    }

    #[test]
    fn other_architectures_are_named() {
        let mut header = Header::of(&released("tiny"));
        for (architecture, words) in [
            ("llama", "architecture `llama` (Llama"),
            ("deepseek2", "(DeepSeek-V2, V3 or R1), expected `deepseek41` (DeepSeek-V4.1)"),
            ("deepseek4", "(DeepSeek-V4.1 under V4's name"),
            ("qwen3", "(another model)"),
        ] {
            header.metadata.insert("general.architecture", architecture);
            assert!(error(&header).contains(words), "{}", error(&header));
        }
        let mut v4 = header.without("general.architecture");
        assert_eq!(error(&v4), "key `general.architecture` is missing");
        v4.metadata.insert("general.architecture", "deepseek4");
        v4.shapes.retain(|(name, _)| !name.contains("engram"));
        assert!(error(&v4).contains("(DeepSeek-V4),"), "{}", error(&v4));
    }

    #[test]
    fn other_dialects_are_named() {
        for (tensor, words) in [
            ("blk.0.ffn_gate.3.weight", "a tensor for each expert"),
            ("blk.0.ffn_gate_up_exps.weight", "gate and up matrices in one tensor"),
            ("blk.0.ffn_gate_tid2eid.weight", "DeepSeek-V4,"),
            ("blk.2.indexer_compressor_kv.weight", "DeepSeek-V4,"),
            ("output_hc_fn.weight", "DeepSeek-V4,"),
            ("blk.1.engram_kv.weight", "ds4"),
            ("layers.0.attn.wq_a.weight", "the reference's"),
        ] {
            let mut header = Header::of(&released("tiny"));
            header.shapes.push((tensor.to_owned(), vec![1]));
            assert!(error(&header).starts_with(&format!("tensor `{tensor}` belongs to ")), "{}", error(&header));
            assert!(error(&header).contains(words), "{}", error(&header));
        }
        let mut header = Header::of(&released("tiny"));
        header.metadata.insert("deepseek41.engram.encoding", "e4m3_e8m0_32_row264");
        assert!(
            error(&header).starts_with("key `deepseek41.engram.encoding` belongs to the ds4"),
            "{}",
            error(&header)
        );
    }

    /// Keys that a file may leave out: what they say is said elsewhere, or has one value in every model.
    const OPTIONAL: [&str; 13] = [
        "vocab_size",
        "value_length",
        "head_count_kv",
        "hash_layer_count",
        "yarn_beta_fast",
        "yarn_beta_slow",
        "engram.layer_ids",
        "engram.key_length",
        "engram.multipliers",
        "engram.primes",
        "engram.offsets",
        "scaling.type",
        "scaling.none",
    ];

    #[test]
    fn a_missing_key_is_named() {
        let header = Header::of(&released("tiny"));
        for (key, _) in header.metadata.iter() {
            let optional = OPTIONAL.iter().any(|name| key.ends_with(name));
            let described = header.without(key).describe();
            match described {
                Ok(_) => assert!(optional, "{key}"),
                Err(error) => {
                    assert!(!optional, "{key}: {error}");
                    assert!(error.to_string().contains(key), "{key}: {error}");
                }
            }
        }
    }

    #[test]
    fn keys_that_contradict_the_rest_are_named() {
        let cases: [(&str, Value, &str); 14] = [
            ("attention.value_length", 16_u32.into(), "is 16, expected 32"),
            ("attention.head_count_kv", 2_u32.into(), "is 2, expected 1"),
            ("hash_layer_count", 3_u32.into(), "is 3, expected 0"),
            ("vocab_size", 63_u32.into(), "is 63, expected 64, the rows of token_embd.weight"),
            ("expert_gating_func", 3_u32.into(), "is 3, expected 1 (softmax)"),
            ("rope.scaling.type", "linear".into(), "is linear, expected `yarn` or `none`"),
            ("swiglu_clamp_exp", vec![10.0_f32; 5].into(), "is 5 values, expected one for each of 6 layers"),
            ("swiglu_clamp_shexp", vec![7.0_f32; 6].into(), "is 7, expected 10"),
            ("engram.layer_ids", vec![1, 3].into(), "is [1, 3], expected [1, 4]"),
            ("engram.key_length", 64_u32.into(), "is 64, expected 32"),
            ("engram.primes", vec![67_u64, 71].into(), "is 2 entries, expected 12"),
            ("engram.offsets", vec![1_u64; 12].into(), "is 1 at place 0, expected 0"),
            ("engram.pad_id", 64_u32.into(), "is 64, expected a value of the token map"),
            ("engram.token_map", vec![0; 63].into(), "is 63 entries, expected 64"),
        ];
        for (name, value, words) in cases {
            let mut header = Header::of(&released("tiny"));
            header.metadata.insert(format!("deepseek41.{name}"), value);
            let expected = format!("key `deepseek41.{name}` {words}");
            assert!(error(&header).starts_with(&expected), "{} is not {expected}", error(&header));
        }
    }

    #[test]
    fn a_vocabulary_may_be_padded_but_not_cut() {
        let mut header = Header::of(&released("tiny"));
        let tokens = |count: usize| vec![String::from("a"); count];
        header.metadata.insert("tokenizer.ggml.tokens", tokens(60));
        header.describe().unwrap();
        header.metadata.insert("tokenizer.ggml.tokens", tokens(65));
        assert!(error(&header).starts_with("key `tokenizer.ggml.tokens` is 65 tokens, expected at most 64"));
    }

    #[test]
    fn tensors_that_are_missing_or_misshapen_are_named() {
        let tiny = released("tiny");
        for (name, _) in &Header::of(&tiny).shapes {
            let mut header = Header::of(&tiny);
            header.shape(name).push(1);
            let shape = error(&header);
            assert!(shape.starts_with(&format!("tensor `{name}` has shape [")), "{name}: {shape}");
            header.shapes.retain(|(other, _)| other != name);
            let missing = error(&header);
            // Where these are says which layers are sources or have an engram, so that others are missed.
            let roles = ["attn_compressor_kv", "indexer.attn_q_b", "engram_embd"];
            let role = roles.iter().any(|stem| name.contains(stem));
            assert!(role || missing == format!("tensor `{name}` is missing"), "{name}: {missing}");
        }
    }

    #[test]
    fn a_tensor_of_a_layer_that_lost_its_source_is_no_ornament() {
        let mut header = Header::of(&released("tiny"));
        header.shapes.retain(|(name, _)| name != "blk.5.indexer.attn_q_b.weight");
        assert!(error(&header).starts_with("tensor `blk.5.indexer.proj.weight` has no use"), "{}", error(&header));
    }

    #[test]
    fn a_file_that_promises_more_than_it_holds_is_refused_at_once() {
        let mut header = Header::of(&released("tiny"));
        header.metadata.insert("deepseek41.block_count", 4096_u32);
        header.metadata.insert("deepseek41.attention.compress_ratios", vec![0; 4096]);
        header.metadata.insert("deepseek41.swiglu_clamp_exp", vec![10.0_f32; 4096]);
        header.metadata.insert("deepseek41.swiglu_clamp_shexp", vec![10.0_f32; 4096]);
        let mut window = header.clone();
        window.shapes.retain(|(name, _)| !name.contains("indexer") && !name.contains("compressor"));
        let window = window.without("candidate");
        assert_eq!(error(&window), "tensor `blk.6.ffn_gate_exps.weight` is missing");
        header.metadata.insert("deepseek41.block_count", u64::MAX);
        assert!(matches!(header.describe(), Err(ModelError::Key { .. } | ModelError::Config(_))));
    }

    /// Values of every kind, plausible and absurd.
    fn value() -> impl Strategy<Value = Value> {
        let number = || prop_oneof![0_u64..10, any::<u64>(), Just(u64::MAX), Just(1 << 24), Just(1 << 31)];
        let list = || prop::collection::vec(number(), 0..14);
        prop_oneof![
            number().prop_map(Value::U64),
            number().prop_map(|n| Value::I64(n.cast_signed())),
            any::<f32>().prop_map(Value::F32),
            any::<bool>().prop_map(Value::Bool),
            Just(Value::from("yarn")),
            list().prop_map(|list| Value::Array(Array::U64(list))),
            list().prop_map(|list| Value::Array(Array::I32(list.into_iter().map(|n| n as i32).collect()))),
            prop::collection::vec(any::<f32>(), 0..8).prop_map(|list| Value::Array(Array::F32(list))),
        ]
    }

    /// What may happen to a file.
    #[derive(Debug, Clone)]
    enum Change {
        Value(prop::sample::Index, Value),
        NoKey(prop::sample::Index),
        NoTensor(prop::sample::Index),
        Axis(prop::sample::Index, prop::sample::Index, usize),
    }

    fn change() -> impl Strategy<Value = Change> {
        let index = any::<prop::sample::Index>;
        prop_oneof![
            4 => (index(), value()).prop_map(|(key, value)| Change::Value(key, value)),
            1 => index().prop_map(Change::NoKey),
            1 => index().prop_map(Change::NoTensor),
            1 => (index(), index(), prop_oneof![1_usize..300, Just(1 << 40), Just(usize::MAX)])
                .prop_map(|(tensor, axis, length)| Change::Axis(tensor, axis, length)),
        ]
    }

    fn apply(header: &mut Header, change: &Change) {
        let keys: Vec<String> = header.metadata.iter().map(|(key, _)| key.to_owned()).collect();
        match change {
            Change::Value(key, value) => drop(header.metadata.insert(key.get(&keys).clone(), value.clone())),
            Change::NoKey(key) => {
                let removed = key.get(&keys);
                let mut metadata = Metadata::new();
                for (key, value) in header.metadata.iter().filter(|(key, _)| key != removed) {
                    metadata.insert(key, value.clone());
                }
                header.metadata = metadata;
            }
            Change::NoTensor(tensor) => {
                let place = tensor.index(header.shapes.len());
                header.shapes.remove(place);
            }
            Change::Axis(tensor, axis, length) => {
                let place = tensor.index(header.shapes.len());
                let shape = &mut header.shapes[place].1;
                let axis = axis.index(shape.len());
                shape[axis] = *length;
            }
        }
    }

    proptest! {
        /// Whatever a file says, there is a description that is valid, or an error.
        #[test]
        fn a_changed_file_is_described_or_refused(
            from_mid in any::<bool>(),
            changes in prop::collection::vec(change(), 1..4),
        ) {
            let mut header = Header::of(&released(if from_mid { "small" } else { "tiny" }));
            for change in &changes {
                apply(&mut header, change);
            }
            if let Ok(description) = header.describe() {
                description.config.validate().unwrap();
                prop_assert!(description.tensors.len() >= description.config.tensors().len());
            }
        }
    }
}
