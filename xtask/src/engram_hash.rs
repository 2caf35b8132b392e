//! The released model's hash constants and a run of hash ids, against both implementations.

use std::path::Path;

use anyhow::Result;
use dsv41::engram::NgramHasher;
use dsv41_config::{Config, engram::EngramConstants};
use dsv41_golden::EngramHashGolden;

/// Numbers of one part, and how many of them are the golden's.
pub(crate) struct HashComparison {
    /// What was compared.
    pub(crate) part: &'static str,
    /// Numbers compared.
    pub(crate) compared: usize,
    /// Numbers equal.
    pub(crate) equal: usize,
}

/// Compares constants (derived from `released`, the released configuration) and ids with the golden at `path`.
///
/// # Errors
/// When the file is wrong or is not about the released configuration.
pub(crate) fn compare(path: &Path, released: &Config) -> Result<Vec<HashComparison>> {
    let golden = EngramHashGolden::read(path)?;
    let config = Config {
        engram_layer_ids: golden.layer_ids.clone(),
        engram_max_ngram_size: golden.max_ngram_size,
        engram_n_heads: golden.n_heads,
        engram_vocab_size: golden.engram_vocab_size,
        engram_compressed_vocab_size: golden.compressed_vocab_size as usize,
        engram_pad_id: golden.pad_id as usize,
        engram_num_embeddings: golden.table_rows.clone(),
        ..released.clone()
    };
    let constants = EngramConstants::new(&config)?.layers;
    let flat = |of: fn(&dsv41_config::engram::EngramLayer) -> Vec<i64>| constants.iter().flat_map(of).collect();
    let derived: Vec<i64> = flat(|layer| {
        let primes = layer.primes.iter().flatten().map(|&prime| prime as i64);
        let offsets = layer.offsets.iter().map(|&offset| offset as i64);
        primes.chain(offsets).chain(layer.multipliers.iter().copied()).chain([layer.rows as i64]).collect()
    });
    let given: Vec<i64> = (0..golden.layer_ids.len())
        .flat_map(|slot| {
            let primes = golden.primes[slot].iter().flatten().map(|&prime| prime as i64);
            let offsets = golden.offsets[slot].iter().map(|&offset| offset as i64);
            primes
                .chain(offsets)
                .chain(golden.multipliers[slot].iter().copied())
                .chain([golden.table_rows[slot] as i64])
                .collect::<Vec<_>>()
        })
        .collect();

    let hasher = NgramHasher::new(&config, None)?;
    let (mut oracle, mut model) = (Vec::new(), Vec::new());
    for tokens in sequences(&golden) {
        for position in 0..tokens.len() {
            for layer in &constants {
                oracle.extend(dsv41_oracle::hash_ids(layer, config.engram_pad_id as u32, &tokens, position));
            }
        }
        // The model hashes call by call: the prefill, then one token after another behind what a cache would remember.
        let prefill = golden.prefill.min(tokens.len());
        let ends = [(0, prefill)].into_iter().chain((prefill..tokens.len()).map(|position| (position, position + 1)));
        for (start, end) in ends {
            let remembered = start.saturating_sub(hasher.look_back());
            let by_slot: Vec<Vec<i64>> = (0..constants.len())
                .map(|slot| hasher.rows(slot, &tokens[remembered..end], start - remembered))
                .collect();
            for position in 0..end - start {
                for rows in &by_slot {
                    let slots = rows.len() / (end - start);
                    model.extend(&rows[position * slots..(position + 1) * slots]);
                }
            }
        }
    }
    let ids: Vec<i64> = golden.hash_ids.iter().flatten().flatten().flatten().copied().collect();
    Ok(vec![
        count("constants", &derived, &given),
        count("ids, oracle", &oracle, &ids),
        count("ids, model", &model, &ids),
    ])
}

/// The golden's sequences, without the tokens of images.
fn sequences(golden: &EngramHashGolden) -> Vec<Vec<Option<u32>>> {
    let rows = golden.input_ids.iter().zip(&golden.token_mask);
    rows.map(|(ids, mask)| ids.iter().zip(mask).map(|(&id, &text)| (text != 0).then_some(id as u32)).collect())
        .collect()
}

fn count(part: &'static str, got: &[i64], want: &[i64]) -> HashComparison {
    let equal = got.iter().zip(want).filter(|(got, want)| got == want).count();
    HashComparison { part, compared: want.len().max(got.len()), equal }
}
