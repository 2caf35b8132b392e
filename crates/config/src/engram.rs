//! Constants of the engram's n-gram hash, which the reference derives from the configuration: the primes, the offsets of
//! each slot's rows in its layer's table, and the multipliers.

mod numpy;
mod primes;

use crate::error::require;
use crate::{Config, ConfigError};
use numpy::Generator;

/// The most hash slots of a model, all engram layers together. Each takes a prime.
const MAX_SLOTS: usize = 1 << 14;

/// From here up, numpy would draw the multipliers from a 32-bit stream.
const COMPRESSED_VOCAB_LIMIT: usize = 1 << 30;

/// Factor of the multipliers' seed.
const SEED_PER_LAYER: u128 = 10_007;

/// The hash constants of every engram layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngramConstants {
    /// In the order of `engram_layer_ids`.
    pub layers: Vec<EngramLayer>,
}

/// The hash constants of one engram layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngramLayer {
    /// The layer's number in the model.
    pub layer: usize,
    /// Table sizes by n-gram size (2 first), then by head.
    pub primes: Vec<Vec<u64>>,
    /// First row of each slot in the layer's table; n-gram size major, head minor.
    pub offsets: Vec<u64>,
    /// Odd factors of the newest token, the one before, and so on: one for each token of the longest n-gram.
    pub multipliers: Vec<i64>,
    /// Rows of the layer's table: the sum of its primes.
    pub rows: u64,
}

impl EngramConstants {
    /// Derives the constants; `engram_num_embeddings` is not read.
    ///
    /// # Errors
    /// [`ConfigError::Rule`] when an engram size is out of its range.
    pub fn new(config: &Config) -> Result<Self, ConfigError> {
        if config.engram_layer_ids.is_empty() {
            return Ok(Self { layers: Vec::new() });
        }
        check_sizes(config)?;
        // The reference restarts its search for each n-gram size and skips every prime used before in any layer, which
        // hands out the primes in ascending order.
        let mut primes = primes::from(config.engram_vocab_size);
        let layers = config
            .engram_layer_ids
            .iter()
            .map(|&layer| EngramLayer::new(config, layer, &mut primes))
            .collect::<Result<_, _>>()?;
        Ok(Self { layers })
    }
}

impl EngramLayer {
    fn new(config: &Config, layer: usize, primes: &mut impl Iterator<Item = u64>) -> Result<Self, ConfigError> {
        let sizes = config.engram_max_ngram_size - 1;
        let primes: Vec<Vec<u64>> = (0..sizes).map(|_| primes.by_ref().take(config.engram_n_heads).collect()).collect();

        let mut offsets = Vec::with_capacity(config.engram_slots());
        let mut rows = 0_u64;
        for &prime in primes.iter().flatten() {
            offsets.push(rows);
            rows = rows.saturating_add(prime);
        }
        // The search ends early where the primes of 64 bits do.
        let complete = offsets.len() == config.engram_slots() && i64::try_from(rows).is_ok();
        require(
            complete,
            "engram_vocab_size",
            config.engram_vocab_size,
            "the primes above it must sum to at most 2^63 - 1 rows a layer",
        )?;
        Ok(Self { layer, primes, offsets, multipliers: multipliers(config, layer), rows })
    }
}

/// Odd multipliers whose products with every compressed id fit an `i64`.
fn multipliers(config: &Config, layer: usize) -> Vec<i64> {
    // `check_sizes` keeps the vocabulary in 1..2^30, so the bound is over 2^32.
    let bound = (i64::MAX as u64 / config.engram_compressed_vocab_size as u64) / 2;
    let mut generator = Generator::seeded(SEED_PER_LAYER * layer as u128);
    (0..config.engram_max_ngram_size).map(|_| generator.below(bound).cast_signed() * 2 + 1).collect()
}

fn check_sizes(config: &Config) -> Result<(), ConfigError> {
    let ngram = config.engram_max_ngram_size;
    require(ngram >= 2, "engram_max_ngram_size", ngram, "must be at least 2: single tokens are not hashed")?;
    let heads = config.engram_n_heads;
    require(heads >= 1, "engram_n_heads", heads, "must be at least 1")?;
    let slots = config.engram_slots().saturating_mul(config.engram_layer_ids.len());
    let rule = format!("heads, n-gram sizes and engram layers make {slots} hash slots, more than {MAX_SLOTS}");
    require(slots <= MAX_SLOTS, "engram_n_heads", heads, rule)?;
    let vocab = config.engram_vocab_size;
    require(vocab >= 1, "engram_vocab_size", vocab, "must be at least 1")?;
    let compressed = config.engram_compressed_vocab_size;
    require(
        (1..COMPRESSED_VOCAB_LIMIT).contains(&compressed),
        "engram_compressed_vocab_size",
        compressed,
        format!("must be at least 1 and less than {COMPRESSED_VOCAB_LIMIT}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{fixture, golden, released};

    /// The released model's 48 primes, offsets, 8 multipliers and table rows, as the reference makes them.
    #[test]
    fn released_constants() {
        let golden = golden("engram-hash");
        let constants = EngramConstants::new(&released("v4.1-flash")).unwrap();
        let layers = &constants.layers;
        let collect = |f: fn(&EngramLayer) -> serde_json::Value| layers.iter().map(f).collect::<serde_json::Value>();
        assert_eq!(collect(|l| l.layer.into()), golden["layer_ids"]);
        assert_eq!(collect(|l| l.primes.clone().into()), golden["primes"]);
        assert_eq!(collect(|l| l.offsets.clone().into()), golden["offsets"]);
        assert_eq!(collect(|l| l.multipliers.clone().into()), golden["multipliers"]);
        assert_eq!(collect(|l| l.rows.into()), golden["table_rows"]);
        assert_eq!(layers[0].rows, 384_006_168);
        assert_eq!(layers[1].rows, 384_016_682);
    }

    #[test]
    fn table_rows_of_the_fixtures() {
        for (name, expected) in [("tiny", [462, 630]), ("batch", [660, 864])] {
            let config = fixture(name);
            let constants = EngramConstants::new(&config).unwrap();
            let rows: Vec<u64> = constants.layers.iter().map(|layer| layer.rows).collect();
            assert_eq!(rows, expected, "{name}");
            assert_eq!(rows, config.engram_num_embeddings, "{name}");
        }
    }

    #[test]
    fn products_fit_an_i64() {
        let mut config = fixture("tiny");
        for compressed in [1, 2, 3, 211, 99_092, COMPRESSED_VOCAB_LIMIT - 1] {
            config.engram_compressed_vocab_size = compressed;
            let largest_id = i64::try_from(compressed - 1).unwrap();
            for layer in EngramConstants::new(&config).unwrap().layers {
                for multiplier in layer.multipliers {
                    assert_eq!(multiplier % 2, 1);
                    assert!(largest_id.checked_mul(multiplier).is_some(), "{largest_id} * {multiplier}");
                }
            }
        }
    }

    #[test]
    fn a_model_without_engram_has_no_constants() {
        let mut config = fixture("tiny");
        config.engram_layer_ids.clear();
        config.engram_n_heads = 0;
        assert!(EngramConstants::new(&config).unwrap().layers.is_empty());
    }

    #[test]
    fn primes_that_run_out_or_overflow_are_an_error() {
        let mut config = fixture("tiny");
        for vocab in [u64::MAX, u64::MAX - 1000, 1 << 62] {
            config.engram_vocab_size = vocab;
            let error = EngramConstants::new(&config).unwrap_err();
            assert_eq!(error.key(), Some("engram_vocab_size"), "{vocab}");
        }
    }
}
