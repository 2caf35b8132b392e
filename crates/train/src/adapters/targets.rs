//! Which linear layers a model has, and which of them patterns choose.

use dsv41_config::{Config, Part};
use indexmap::IndexSet;

use super::AdapterError;

/// A linear layer that can be adapted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    /// The reference's name without `.weight`.
    pub(super) linear: String,
    /// `[out, in]`
    pub(super) shape: [usize; 2],
}

/// The linear layers of a model that can be adapted, in the reference's order.
pub(super) fn adaptable(config: &Config) -> Vec<Target> {
    use Part::*;
    let tensors = config.tensors().into_iter().filter_map(|tensor| {
        let linear = tensor.name.strip_suffix(".weight")?;
        let shape = <[usize; 2]>::try_from(tensor.shape).ok()?;
        let is_table_or_mixer = matches!(tensor.part, Embedding | EngramTables | HyperConnections | Head);
        // Its matrix multiplies group by group.
        let is_grouped = linear.ends_with(".wo_a");
        (!is_table_or_mixer && !is_grouped).then(|| Target { linear: linear.to_owned(), shape })
    });
    tensors.collect()
}

/// Those of a model that any of the patterns matches.
///
/// # Errors
/// [`AdapterError::NoTarget`] for a pattern that matches none.
pub(super) fn chosen(config: &Config, patterns: &[String]) -> Result<Vec<Target>, AdapterError> {
    let all = adaptable(config);
    if let Some(pattern) = patterns.iter().find(|pattern| !all.iter().any(|target| matches(pattern, &target.linear))) {
        let kinds: IndexSet<String> = all.iter().map(|target| kind(&target.linear)).collect();
        let there_is = kinds.into_iter().collect::<Vec<_>>().join(", ");
        return Err(AdapterError::NoTarget { pattern: pattern.clone(), there_is });
    }
    let is_chosen = |target: &Target| patterns.iter().any(|pattern| matches(pattern, &target.linear));
    Ok(all.into_iter().filter(is_chosen).collect())
}

/// Whether something is parts between dots, each of the characters of names and `*`.
pub(super) fn is_pattern(text: &str) -> bool {
    let allowed = |character: char| character.is_ascii_alphanumeric() || matches!(character, '_' | '*');
    text.split('.').all(|part| !part.is_empty() && part.chars().all(allowed))
}

/// The patterns as PEFT has `target_modules`: a list where every pattern is the plain end of a name, else one regular
/// expression of whole names.
pub(super) fn peft_targets(patterns: &[String]) -> serde_json::Value {
    if patterns.iter().all(|pattern| !pattern.contains('*')) {
        return patterns.into();
    }
    let expressions: Vec<String> =
        patterns.iter().map(|pattern| pattern.replace('.', r"\.").replace('*', "[^.]*")).collect();
    format!(r"(.*\.)?({})", expressions.join("|")).into()
}

/// Whether a name's last parts are as a pattern has them.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = name.rsplit('.');
    pattern.rsplit('.').all(|pattern| parts.next().is_some_and(|part| part_matches(pattern, part)))
}

/// Whether a part is the pieces of a pattern between its stars, in their order.
fn part_matches(pattern: &str, part: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == part };
    let Some(part) = part.strip_prefix(first) else { return false };
    part.char_indices().map(|(start, _)| start).chain([part.len()]).any(|start| part_matches(rest, &part[start..]))
}

/// A name without its layer, and with `*` for the number of an expert.
fn kind(linear: &str) -> String {
    let parts = linear.split('.').map(|part| if part.parse::<usize>().is_ok() { "*" } else { part });
    let name = parts.collect::<Vec<_>>().join(".");
    name.strip_prefix("layers.*.").unwrap_or(&name).to_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::adapters::{AdapterSettings, testing};

    fn names(patterns: &[&str]) -> Vec<String> {
        let patterns: Vec<String> = patterns.iter().copied().map(String::from).collect();
        let targets = chosen(&testing::config(), &patterns).unwrap();
        targets.into_iter().map(|target| target.linear).collect()
    }

    #[test]
    fn what_can_be_adapted_are_the_model_s_linear_layers_but_the_head() {
        let model = testing::model();
        let expected: BTreeSet<_> = model
            .linears()
            .into_iter()
            .filter(|linear| linear.name() != "head")
            .map(|linear| (linear.name().to_owned(), linear.weight.dims()))
            .collect();
        let found: BTreeSet<_> = adaptable(model.config())
            .into_iter()
            .map(|Target { linear, shape: [output, input] }| (linear, [input, output]))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn patterns_are_the_last_parts_of_names() {
        let in_layer = |ends: &[&str], layer: usize| -> Vec<String> {
            ends.iter().map(|end| format!("layers.{layer}.{end}")).collect()
        };
        assert_eq!(names(&["layers.2.attn.w*"]), in_layer(&["attn.wq_a", "attn.wq_b", "attn.wkv", "attn.wo_b"], 2));
        assert_eq!(names(&["layers.0.ffn.experts.1.w*"]).len(), 3);
        let config = testing::config();
        assert_eq!(names(&["experts.*.w2"]).len(), config.n_layers * config.n_routed_experts);
        assert_eq!(names(&["attn.wkv"]).len(), config.n_layers);
        assert_eq!(names(&["wkv"]).len(), config.n_layers + 2 + config.engram_layer_ids.len());
    }

    #[test]
    fn the_default_takes_what_every_token_passes() {
        let config = testing::config();
        let chosen = chosen(&config, &AdapterSettings::default().targets).unwrap();
        assert_eq!(chosen.len(), 7 * config.n_layers);
        let kinds: IndexSet<String> = chosen.iter().map(|target| kind(&target.linear)).collect();
        let expected = ["attn.wq_a", "attn.wq_b", "attn.wkv", "attn.wo_b"].map(String::from).into_iter();
        let shared = ["w1", "w2", "w3"].map(|matrix| format!("ffn.shared_experts.{matrix}"));
        assert!(kinds.into_iter().eq(expected.chain(shared)));
    }

    #[test]
    fn a_pattern_that_matches_nothing_tells_what_there_is() {
        for pattern in ["wo_a", "head", "embed", "experts.w1", "q_a", "layers.99.attn.wkv", "gate.bias"] {
            let patterns = ["attn.wkv".to_owned(), pattern.to_owned()];
            let error = chosen(&testing::config(), &patterns).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!(
                    "target `{pattern}` matches no linear layer that can be adapted; there are attn.wq_a, attn.wq_b, \
                     attn.wkv, attn.wo_b, ffn.gate, ffn.experts.*.w1, ffn.experts.*.w2, ffn.experts.*.w3, \
                     ffn.shared_experts.w1, ffn.shared_experts.w2, ffn.shared_experts.w3, engram.wkv, \
                     attn.compressor.wkv, attn.compressor.wgate, attn.indexer.wq_b, attn.indexer.weights_proj, \
                     attn.indexer.wk"
                )
            );
        }
    }

    #[test]
    fn stars_stay_within_a_part() {
        assert!(part_matches("*", "w1") && part_matches("w*", "w1") && part_matches("*_proj", "weights_proj"));
        assert!(part_matches("w*_*", "wq_a") && !part_matches("w*_*", "wkv") && !part_matches("q*", "wq_a"));
        assert!(!matches("attn.*", "layers.0.attn.indexer.wk") && matches("*.attn.wkv", "layers.0.attn.wkv"));
    }

    #[test]
    fn peft_gets_a_list_or_an_expression() {
        let targets = |patterns: &[&str]| peft_targets(&patterns.iter().copied().map(String::from).collect::<Vec<_>>());
        assert_eq!(targets(&["attn.wkv", "wq_a"]), serde_json::json!(["attn.wkv", "wq_a"]));
        assert_eq!(targets(&["wq_a", "experts.*.w1"]), serde_json::json!(r"(.*\.)?(wq_a|experts\.[^.]*\.w1)"));
    }
}
