//! The candidate mask's settings, which published files leave out.

use dsv41_config::Config;

use super::Header;
use super::keys::{full, missing};
use crate::model::error::ModelError;

/// Layers and sources of the released model, where candidates of layer 20 are 2048 blocks of 8.
const RELEASED_LAYERS: usize = 40;
const RELEASED_KV_SOURCES: [usize; 4] = [2, 8, 14, 20];
const RELEASED_SOURCE: usize = 20;
const RELEASED_INDEX_SOURCES: [usize; 8] = [2, 8, 14, 20, 24, 28, 32, 36];

/// Fills in the candidate keys of a configuration that has its sources.
pub(super) fn describe(header: &Header<'_>, config: &mut Config, notes: &mut Vec<String>) -> Result<(), ModelError> {
    let source = setting(header, &["candidate_source_layer_id", "candidate_source_layer"])?;
    let block = setting(header, &["candidate_block_size"])?;
    let blocks = setting(header, &["candidate_top_k_blocks", "candidate_topk_blocks"])?;
    let named = [source, block, blocks];
    if named.iter().any(Option::is_some) {
        let require = |value: Option<usize>, name: &str| value.ok_or_else(|| missing(&format!("attention.{name}")));
        config.candidate_source_layer = Some(require(source, "candidate_source_layer_id")?);
        config.candidate_block_size = require(block, "candidate_block_size")?;
        config.candidate_topk_blocks = require(blocks, "candidate_top_k_blocks")?;
    } else if is_released(config) && possible_source(config) == Some(RELEASED_SOURCE) {
        config.candidate_source_layer = Some(RELEASED_SOURCE);
        config.candidate_block_size = 8;
        config.candidate_topk_blocks = 2048;
        notes.push(
            "The file names no candidates; its layers are the released model's, and so are the candidates: 2048 blocks of 8 \
             positions, from layer 20."
                .to_owned(),
        );
    } else if let Some(layer) = possible_source(config) {
        notes.push(format!(
            "The layers make candidates possible (from layer {layer}), but the file names none: runs without."
        ));
    }
    Ok(())
}

/// A setting under any of its names, beside the attention's keys or the indexer's.
fn setting(header: &Header<'_>, names: &[&str]) -> Result<Option<usize>, ModelError> {
    let spellings: Vec<String> = ["attention", "attention.indexer"]
        .iter()
        .flat_map(|group| names.iter().map(move |name| full(&format!("{group}.{name}"))))
        .collect();
    Ok(header.keys.spelt(&spellings)?.map(|(value, _)| value))
}

fn is_released(config: &Config) -> bool {
    config.n_layers == RELEASED_LAYERS
        && config.kv_source_layers == RELEASED_KV_SOURCES
        && config.index_source_layers == RELEASED_INDEX_SOURCES
}

/// The first index source whose mask later ones could all read: their positions stand for as many tokens.
fn possible_source(config: &Config) -> Option<usize> {
    let ratio = |layer: &usize| config.compress_ratios.get(*layer);
    let sources = &config.index_source_layers;
    let all_alike = |rest: &&[usize]| rest.iter().all(|layer| ratio(layer) == ratio(&rest[0]));
    (0..sources.len()).map(|start| &sources[start..]).find(all_alike).filter(|rest| rest.len() > 1).map(|rest| rest[0])
}

#[cfg(test)]
mod tests {
    use crate::model::testing::{Header, as_text, released};

    #[test]
    fn every_accepted_spelling_is_read() {
        let expected = released("tiny");
        let plain = Header::of(&expected).without("candidate");
        for group in ["attention", "attention.indexer"] {
            for source in ["candidate_source_layer", "candidate_source_layer_id"] {
                for blocks in ["candidate_topk_blocks", "candidate_top_k_blocks"] {
                    let mut header = plain.clone();
                    header.metadata.insert(format!("deepseek41.{group}.{source}"), 4_u32);
                    header.metadata.insert(format!("deepseek41.{group}.{blocks}"), 4_u32);
                    header.metadata.insert(format!("deepseek41.{group}.candidate_block_size"), 2_u32);
                    assert_eq!(header.describe().unwrap().config, expected, "{group} {source} {blocks}");
                }
            }
        }
    }

    #[test]
    fn spellings_that_disagree_and_settings_by_half_are_refused() {
        let mut header = Header::of(&released("tiny"));
        header.metadata.insert("deepseek41.attention.indexer.candidate_block_size", 3_u32);
        let expected = "key `deepseek41.attention.indexer.candidate_block_size` is 3, expected 2, as key \
                        `deepseek41.attention.candidate_block_size` says";
        assert_eq!(header.describe().unwrap_err().to_string(), expected);
        let half = header.without("block_size");
        let expected = "key `deepseek41.attention.candidate_block_size` is missing";
        assert_eq!(half.describe().unwrap_err().to_string(), expected);
    }

    #[test]
    fn the_released_model_has_its_candidates_whether_named_or_not() {
        let expected = released("v4.1-flash");
        let described = Header::of(&expected).without("candidate").describe().unwrap();
        assert_eq!(described.config, as_text(expected));
        assert!(described.notes[0].contains("2048 blocks of 8"), "{:?}", described.notes);
    }

    #[test]
    fn another_model_that_names_none_runs_without_and_says_so() {
        let described = Header::of(&released("tiny")).without("candidate").describe().unwrap();
        assert_eq!(described.config.candidate_source_layer, None);
        let note = "The layers make candidates possible (from layer 4), but the file names none: runs without.";
        assert_eq!(described.notes, [note]);
    }

    #[test]
    fn layers_of_other_ratios_after_every_source_allow_none() {
        let mut config = released("tiny");
        config.index_source_layers = vec![2, 4];
        config.candidate_source_layer = None;
        (config.candidate_topk_blocks, config.candidate_block_size) = (0, 0);
        assert_eq!(Header::of(&config).describe().unwrap().notes, Vec::<String>::new());
    }
}
