//! The two names of every tensor: the reference's and GGUF's.

use std::fmt;

/// GGUF's and the reference's names of tensors outside the layers.
const MODEL: [(&str, &str); 3] =
    [("token_embd.weight", "embed.weight"), ("output_norm.weight", "norm.weight"), ("output.weight", "head.weight")];

/// GGUF's names behind `blk.N.` and the reference's behind `layers.N.`.
const LAYER: [(&str, &str); 33] = [
    ("hc_attn_fn.weight", "hc_attn_fn"),
    ("hc_ffn_fn.weight", "hc_ffn_fn"),
    ("hc_attn_base.weight", "hc_attn_base"),
    ("hc_ffn_base.weight", "hc_ffn_base"),
    ("hc_attn_scale.weight", "hc_attn_scale"),
    ("hc_ffn_scale.weight", "hc_ffn_scale"),
    ("attn_sinks.weight", "attn.attn_sink"),
    ("attn_q_a.weight", "attn.wq_a.weight"),
    ("attn_q_a_norm.weight", "attn.q_norm.weight"),
    ("attn_q_b.weight", "attn.wq_b.weight"),
    ("attn_kv.weight", "attn.wkv.weight"),
    ("attn_kv_a_norm.weight", "attn.kv_norm.weight"),
    ("attn_output_a.weight", "attn.wo_a.weight"),
    ("attn_output_b.weight", "attn.wo_b.weight"),
    ("attn_compressor_norm.weight", "attn.compressor.norm.weight"),
    ("attn_compressor_kv.weight", "attn.compressor.wkv.weight"),
    ("attn_compressor_gate.weight", "attn.compressor.wgate.weight"),
    ("indexer.attn_q_b.weight", "attn.indexer.wq_b.weight"),
    ("indexer.proj.weight", "attn.indexer.weights_proj.weight"),
    ("indexer.attn_k.weight", "attn.indexer.wk.weight"),
    ("indexer.k_norm.weight", "attn.indexer.k_norm.weight"),
    ("ffn_gate_inp.weight", "ffn.gate.weight"),
    ("exp_probs_b.bias", "ffn.gate.bias"),
    ("exp_probs_b_vl.bias", "ffn.gate.bias_vl"),
    ("ffn_gate_shexp.weight", "ffn.shared_experts.w1.weight"),
    ("ffn_down_shexp.weight", "ffn.shared_experts.w2.weight"),
    ("ffn_up_shexp.weight", "ffn.shared_experts.w3.weight"),
    ("engram_q.weight", "engram.q_weight"),
    ("engram_k.weight", "engram.k_weight"),
    ("engram_embd.weight", "engram.embed.weight"),
    ("engram_wkv.weight", "engram.wkv.weight"),
    ("attn_norm.weight", "attn_norm.weight"),
    ("ffn_norm.weight", "ffn_norm.weight"),
];

/// GGUF's stacks of routed experts behind `blk.N.` and the reference's matrix behind `layers.N.ffn.experts.E.`.
const EXPERTS: [(&str, &str); 3] =
    [("ffn_gate_exps.weight", "w1.weight"), ("ffn_down_exps.weight", "w2.weight"), ("ffn_up_exps.weight", "w3.weight")];

/// Where a GGUF file holds one tensor of the reference.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct GgufName {
    /// The name in the file.
    pub tensor: String,
    /// The place in the stack, slowest axis first, where the file stacks the experts of a layer in one tensor.
    pub expert: Option<usize>,
}

impl GgufName {
    /// Where the tensor of this reference name is, or none where no V4.1 text model has such a tensor.
    pub fn of(reference: &str) -> Option<Self> {
        let Some((layer, name)) = numbered(reference, "layers.") else {
            let tensor = first_of(&MODEL, reference)?.to_owned();
            return Some(Self { tensor, expert: None });
        };
        let (stem, expert) = match numbered(name, "ffn.experts.") {
            Some((expert, matrix)) => (first_of(&EXPERTS, matrix)?, Some(expert)),
            None => (first_of(&LAYER, name)?, None),
        };
        Some(Self { tensor: format!("blk.{layer}.{stem}"), expert })
    }

    /// The reference's name, or none where it has no such tensor: for a stack without an expert too.
    pub fn reference(&self) -> Option<String> {
        let Some((layer, stem)) = in_layer(&self.tensor) else {
            return second_of(&MODEL, &self.tensor).filter(|_| self.expert.is_none()).map(str::to_owned);
        };
        let name = match self.expert {
            Some(expert) => format!("ffn.experts.{expert}.{}", second_of(&EXPERTS, stem)?),
            None => second_of(&LAYER, stem)?.to_owned(),
        };
        Some(format!("layers.{layer}.{name}"))
    }
}

/// As messages show it: the tensor, and the expert in brackets.
impl fmt::Display for GgufName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.expert {
            Some(expert) => write!(f, "{}[{expert}]", self.tensor),
            None => f.write_str(&self.tensor),
        }
    }
}

/// The layer of a GGUF tensor and the rest of its name.
pub(crate) fn in_layer(tensor: &str) -> Option<(usize, &str)> {
    numbered(tensor, "blk.")
}

/// The number and the rest of `PREFIX<number>.<rest>`; numbers as they are printed, so that a name has one spelling.
fn numbered<'a>(name: &'a str, prefix: &str) -> Option<(usize, &'a str)> {
    let (digits, rest) = name.strip_prefix(prefix)?.split_once('.')?;
    let number: usize = digits.parse().ok()?;
    (number.to_string() == digits).then_some((number, rest))
}

fn first_of<'a>(pairs: &'a [(&'a str, &'a str)], second: &str) -> Option<&'a str> {
    pairs.iter().find(|pair| pair.1 == second).map(|pair| pair.0)
}

fn second_of<'a>(pairs: &'a [(&'a str, &'a str)], first: &str) -> Option<&'a str> {
    pairs.iter().find(|pair| pair.0 == first).map(|pair| pair.1)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::model::testing::released;

    fn name(tensor: &str, expert: Option<usize>) -> GgufName {
        GgufName { tensor: tensor.to_owned(), expert }
    }

    #[test]
    fn every_tensor_of_every_configuration_has_a_place_of_its_own() {
        for config in ["tiny", "nano", "small", "mid", "v4.1-flash"] {
            let mut places = HashSet::new();
            for tensor in released(config).tensors() {
                let place = GgufName::of(&tensor.name).unwrap_or_else(|| panic!("{config}: {}", tensor.name));
                assert_eq!(place.reference().as_ref(), Some(&tensor.name), "{config}");
                assert!(places.insert(place), "{config}: {}", tensor.name);
            }
        }
    }

    #[test]
    fn the_released_model_takes_1046_tensors() {
        let tensors = released("v4.1-flash").tensors();
        let places: HashSet<String> = tensors.iter().map(|tensor| GgufName::of(&tensor.name).unwrap().tensor).collect();
        assert_eq!(places.len(), 1046);
    }

    #[test]
    fn names_are_those_of_published_files() {
        let cases = [
            ("embed.weight", name("token_embd.weight", None)),
            ("layers.3.attn.wq_a.weight", name("blk.3.attn_q_a.weight", None)),
            ("layers.3.ffn.experts.7.w1.weight", name("blk.3.ffn_gate_exps.weight", Some(7))),
            ("layers.0.ffn.experts.0.w2.weight", name("blk.0.ffn_down_exps.weight", Some(0))),
            ("layers.39.ffn.gate.bias_vl", name("blk.39.exp_probs_b_vl.bias", None)),
            ("layers.1.engram.embed.weight", name("blk.1.engram_embd.weight", None)),
        ];
        for (reference, place) in cases {
            assert_eq!(GgufName::of(reference), Some(place));
        }
    }

    #[test]
    fn names_of_other_models_have_no_place() {
        for reference in
            ["", "layers.1", "layers.01.attn_norm.weight", "layers.+1.attn_norm.weight", "mtp.0.norm.weight"]
        {
            assert_eq!(GgufName::of(reference), None, "{reference}");
        }
        for place in [
            name("blk.0.ffn_gate_exps.weight", None),
            name("blk.0.attn_norm.weight", Some(0)),
            name("output.weight", Some(0)),
            name("blk.0.ffn_gate_tid2eid.weight", None),
            name("blk.99999999999999999999999.attn_norm.weight", None),
        ] {
            assert_eq!(place.reference(), None, "{place}");
        }
    }
}
