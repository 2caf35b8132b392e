//! Files of other models, and files of this model in spellings that are not read.

use super::{ARCHITECTURE, Header};
use crate::model::error::ModelError;
use crate::model::names::in_layer;

/// Refuses a file that is not written as this crate reads them, and says what it is.
pub(super) fn check(header: &Header<'_>) -> Result<(), ModelError> {
    check_architecture(header)?;
    check_keys(header)?;
    header.shapes.keys().try_for_each(|tensor| match spelling(tensor) {
        None => Ok(()),
        Some(dialect) => Err(ModelError::Dialect { dialect, evidence: format!("tensor `{tensor}`") }),
    })
}

fn check_architecture(header: &Header<'_>) -> Result<(), ModelError> {
    const KEY: &str = "general.architecture";
    let found: String = header.keys.find_full(KEY)?.ok_or_else(|| ModelError::MissingKey { key: KEY.to_owned() })?;
    let has_engram = !header.layers_with("engram_embd.weight").is_empty()
        || header.keys.metadata.iter().any(|(key, _)| key.starts_with("deepseek4.engram."));
    let model = match found.as_str() {
        ARCHITECTURE => return Ok(()),
        "deepseek4" if has_engram => "DeepSeek-V4.1 under V4's name, from an early or a private converter",
        "deepseek4" => "DeepSeek-V4",
        "deepseek32" => "DeepSeek-V3.2",
        "deepseek2" => "DeepSeek-V2, V3 or R1",
        "deepseek" => "DeepSeek-LLM or DeepSeek-MoE",
        "deepseek_v41" | "deepseek_v41_text" => "DeepSeek-V4.1 under its Hugging Face name",
        "llama" => "Llama or one of its relatives",
        _ => "another model",
    };
    Err(ModelError::Architecture { found, model })
}

fn check_keys(header: &Header<'_>) -> Result<(), ModelError> {
    const MARKS: [(&str, &str); 4] = [
        ("engram.encoding", "the ds4 dialect, whose engram tables are rows of codes"),
        ("engram.storage", "the ds4 dialect, whose engram tables are files of their own"),
        ("engram_layer_ids", "a dialect with Hugging Face's keys"),
        ("hidden_size", "a dialect with Hugging Face's keys"),
    ];
    for (key, _) in header.keys.metadata.iter() {
        let name = key.strip_prefix(ARCHITECTURE).and_then(|rest| rest.strip_prefix('.'));
        if let Some((_, dialect)) = MARKS.iter().find(|(mark, _)| Some(*mark) == name) {
            return Err(ModelError::Dialect { dialect, evidence: format!("key `{key}`") });
        }
    }
    Ok(())
}

/// The dialect or model that a tensor's name gives away.
fn spelling(tensor: &str) -> Option<&'static str> {
    const V4: &str = "DeepSeek-V4, whose layers have no place in V4.1";
    const REFERENCE: &str = "a dialect with the reference's or Hugging Face's tensor names";
    if ["layers.", "model.layers."].iter().any(|prefix| tensor.starts_with(prefix)) {
        return Some(REFERENCE);
    }
    if tensor.starts_with("output_hc_") {
        return Some(V4);
    }
    let (_, stem) = in_layer(tensor)?;
    let single_expert =
        |kind: &str| stem.strip_prefix(kind).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    match stem.strip_suffix(".weight").unwrap_or(stem) {
        "engram_kv" | "engram_q_norm" | "engram_k_norm" => Some("the ds4 dialect, which names the engram otherwise"),
        "ffn_gate_up_exps" => Some("a dialect with the experts' gate and up matrices in one tensor"),
        "ffn_gate_tid2eid" | "attn_compressor_ape" => Some(V4),
        name if name.starts_with("indexer_compressor_") => Some(V4),
        _ if ["ffn_gate.", "ffn_up.", "ffn_down."].into_iter().any(single_expert) => {
            Some("a dialect with a tensor for each expert")
        }
        _ => None,
    }
}
