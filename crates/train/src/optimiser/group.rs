//! Which parameters are updated alike.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::UnknownParameter;

/// Parameters that are updated alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParameterGroup {
    /// Weights of the hidden layers' linear maps: attention with its compressor and indexer, experts, the router, and
    /// the engrams' `wkv`, which, unlike the table before it, is multiplied with every token.
    Matrices,
    /// Weights of norms (those of engrams' queries and keys included) and attention sinks.
    Vectors,
    /// Maps, offsets and scales of the hyper-connections.
    HyperConnections,
    /// The embedding and the output head.
    EmbeddingAndHead,
    /// Rows of the engram tables. A step touches few of them, each with the gradient of few tokens.
    Engram,
    /// Both factors of low-rank adapters.
    Adapters,
}

impl ParameterGroup {
    /// Every group, in the order of settings files.
    pub const ALL: [Self; 6] =
        [Self::Matrices, Self::Vectors, Self::HyperConnections, Self::EmbeddingAndHead, Self::Engram, Self::Adapters];
}

impl fmt::Display for ParameterGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Matrices => "matrices",
            Self::Vectors => "vectors",
            Self::HyperConnections => "hyper_connections",
            Self::EmbeddingAndHead => "embedding_and_head",
            Self::Engram => "engram",
            Self::Adapters => "adapters",
        })
    }
}

/// The group of a parameter, by the reference's name of it.
///
/// `None` for the router's bias: it balances the experts' load by a rule of its own and never takes a gradient.
///
/// # Errors
/// When no parameter has this name.
pub fn group_of(name: &str) -> Result<Option<ParameterGroup>, UnknownParameter> {
    use ParameterGroup::*;
    if let Some(base) = name.strip_suffix(".lora_a").or_else(|| name.strip_suffix(".lora_b")) {
        return match place_of(&format!("{base}.weight")) {
            Some(Place::Group(Matrices | EmbeddingAndHead)) => Ok(Some(Adapters)),
            _ => Err(UnknownParameter(name.to_owned())),
        };
    }
    match place_of(name) {
        Some(Place::Group(group)) => Ok(Some(group)),
        Some(Place::RouterBias) => Ok(None),
        None => Err(UnknownParameter(name.to_owned())),
    }
}

/// What a parameter of the model itself is.
enum Place {
    Group(ParameterGroup),
    RouterBias,
}

fn place_of(name: &str) -> Option<Place> {
    use ParameterGroup::*;
    let group = match name {
        "embed.weight" | "head.weight" => EmbeddingAndHead,
        "norm.weight" => Vectors,
        _ => return place_in_layer(after_index(name.strip_prefix("layers.")?)?),
    };
    Some(Place::Group(group))
}

fn place_in_layer(name: &str) -> Option<Place> {
    use ParameterGroup::*;
    let group = match name {
        "hc_attn_fn" | "hc_attn_base" | "hc_attn_scale" | "hc_ffn_fn" | "hc_ffn_base" | "hc_ffn_scale" => {
            HyperConnections
        }
        "attn_norm.weight" | "ffn_norm.weight" => Vectors,
        "attn.attn_sink" | "attn.q_norm.weight" | "attn.kv_norm.weight" => Vectors,
        "attn.compressor.norm.weight" | "attn.indexer.k_norm.weight" => Vectors,
        "attn.wq_a.weight" | "attn.wq_b.weight" | "attn.wkv.weight" | "attn.wo_a.weight" | "attn.wo_b.weight" => {
            Matrices
        }
        "attn.compressor.wkv.weight" | "attn.compressor.wgate.weight" => Matrices,
        "attn.indexer.wq_b.weight" | "attn.indexer.weights_proj.weight" | "attn.indexer.wk.weight" => Matrices,
        "ffn.gate.weight" => Matrices,
        "ffn.gate.bias" => return Some(Place::RouterBias),
        "engram.embed.weight" => Engram,
        "engram.wkv.weight" => Matrices,
        "engram.q_weight" | "engram.k_weight" => Vectors,
        _ => {
            let expert = name.strip_prefix("ffn.experts.").and_then(after_index);
            match expert.or_else(|| name.strip_prefix("ffn.shared_experts."))? {
                "w1.weight" | "w2.weight" | "w3.weight" => Matrices,
                _ => return None,
            }
        }
    };
    Some(Place::Group(group))
}

/// What follows `N.`.
fn after_index(name: &str) -> Option<&str> {
    let (index, rest) = name.split_once('.')?;
    index.bytes().all(|digit| digit.is_ascii_digit()).then_some(rest).filter(|_| !index.is_empty())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Every parameter of a golden's model, and whether a gradient flows to it.
    fn golden_parameters(name: &str) -> Vec<(String, bool)> {
        let path = format!("{}/../../goldens/gradients/{name}.json", env!("CARGO_MANIFEST_DIR"));
        let golden: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let gradients = golden["train"]["grads"].as_object().unwrap();
        gradients.iter().map(|(name, gradient)| (name.clone(), !gradient.is_null())).collect()
    }

    #[test]
    fn every_parameter_of_the_goldens_has_the_group_of_its_kind() {
        for golden in ["grad-tiny", "grad-wide"] {
            let mut counts = BTreeMap::new();
            for (name, has_gradient) in golden_parameters(golden) {
                let group = group_of(&name).unwrap();
                *counts.entry(group).or_insert(0) += 1;
                match group {
                    None => assert!(name.ends_with("ffn.gate.bias") && !has_gradient, "{name}"),
                    Some(ParameterGroup::HyperConnections) => assert!(name.contains(".hc_"), "{name}"),
                    Some(ParameterGroup::EmbeddingAndHead) => assert_eq!(name.split('.').count(), 2, "{name}"),
                    Some(ParameterGroup::Engram) => assert!(name.ends_with("engram.embed.weight"), "{name}"),
                    Some(ParameterGroup::Vectors) => {
                        let vector = ["norm.weight", "attn_sink", "q_weight", "k_weight"];
                        assert!(vector.iter().any(|end| name.ends_with(end)), "{name}");
                    }
                    Some(ParameterGroup::Matrices) => assert!(name.contains(".w") || name.contains("gate"), "{name}"),
                    Some(ParameterGroup::Adapters) => panic!("{name} is no adapter"),
                }
            }
            assert_eq!(counts[&Some(ParameterGroup::EmbeddingAndHead)], 2);
            assert_eq!(counts.len(), 6, "{golden} has parameters of every group but adapters");
        }
    }

    #[test]
    fn the_factors_of_an_adapter_are_adapters_wherever_a_matrix_is() {
        for name in [
            "layers.0.attn.wq_a.lora_a",
            "layers.0.attn.wq_a.lora_b",
            "layers.12.ffn.experts.3.w2.lora_a",
            "layers.1.engram.wkv.lora_b",
            "head.lora_a",
        ] {
            assert_eq!(group_of(name).unwrap(), Some(ParameterGroup::Adapters), "{name}");
        }
        for name in
            ["norm.lora_a", "layers.0.attn.lora_a", "layers.0.ffn.gate.bias.lora_a", "layers.1.engram.embed.lora_a"]
        {
            assert!(group_of(name).is_err(), "{name}");
        }
    }

    #[test]
    fn a_name_that_no_parameter_has_is_an_error_that_tells_it() {
        for name in [
            "",
            "weight",
            "layers.embed.weight",
            "layers..attn.wkv.weight",
            "layers.x.attn.wkv.weight",
            "layers.0.attn.wkv",
            "layers.0.attn.wkv.weight.weight",
            "layers.0.ffn.experts.w1.weight",
            "layers.0.ffn.experts.0.w4.weight",
            "layers.0.hc_attn_gate",
        ] {
            assert_eq!(group_of(name), Err(UnknownParameter(name.to_owned())));
        }
        assert_eq!(group_of("embed.bias").unwrap_err().to_string(), "no parameter of the model is named `embed.bias`");
    }
}
