use crate::error::broken;
use crate::{Config, ConfigError, Part, TensorSpec};

/// Parameters by part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParameterCounts {
    /// Parameters of each part, in the order of [`Part::ALL`].
    pub parts: Vec<(Part, u64)>,
    /// Parameters of the text model; the scales of quantised weights are not counted.
    pub total: u64,
    /// Parameters that one token passes: of the routed experts the activated ones, of the embedding and of the engram
    /// tables the rows read, and everything else.
    pub activated: u64,
}

impl ParameterCounts {
    /// Parameters of one part.
    pub fn of(&self, part: Part) -> u64 {
        let found = self.parts.iter().find(|(candidate, _)| *candidate == part);
        found.map_or(0, |&(_, count)| count)
    }
}

impl Config {
    /// Counts the parameters of the text model by part.
    ///
    /// # Errors
    /// [`ConfigError::Rule`] when there are more than `i64::MAX`.
    pub fn parameter_counts(&self) -> Result<ParameterCounts, ConfigError> {
        // Experts are alike, so one of each layer is listed and counted for all.
        let tensors = self.tensors_with_experts(1);
        let experts = to_u64(self.n_routed_experts);
        let mut parts = Vec::with_capacity(Part::ALL.len());
        for part in Part::ALL {
            let copies = if part == Part::RoutedExperts { experts } else { 1 };
            let elements = tensors.iter().filter(|tensor| tensor.part == part).map(TensorSpec::elements);
            let count = checked_sum(elements).and_then(|count| count.checked_mul(copies));
            let (key, value) = self.driver(part);
            parts.push((part, countable(count, key, value, &part.to_string())?));
        }
        let sum = checked_sum(parts.iter().map(|&(_, count)| Some(count)));
        let total = countable(sum, "n_layers", self.n_layers, "model")?;
        let activated = parts.iter().map(|&(part, count)| self.activated(part, count)).sum();
        Ok(ParameterCounts { parts, total, activated })
    }

    /// How many of a part's `count` parameters one token passes; never more than `count`.
    fn activated(&self, part: Part, count: u64) -> u64 {
        let passed = match part {
            Part::Embedding => to_u64(self.dim),
            Part::RoutedExperts => {
                (count / to_u64(self.n_routed_experts).max(1)).saturating_mul(to_u64(self.n_activated_experts))
            }
            Part::EngramTables => to_u64(self.engram_layer_ids.len())
                .saturating_mul(to_u64(self.engram_slots()))
                .saturating_mul(to_u64(self.engram_head_dim)),
            _ => count,
        };
        passed.min(count)
    }

    /// The key that sets a part's size before all others.
    fn driver(&self, part: Part) -> (&'static str, usize) {
        match part {
            Part::Embedding | Part::Head => ("vocab_size", self.vocab_size),
            Part::Attention => ("n_heads", self.n_heads),
            Part::Compressor => ("head_dim", self.head_dim),
            Part::Indexer => ("index_n_heads", self.index_n_heads),
            Part::HyperConnections => ("hc_mult", self.hc_mult),
            Part::Router | Part::RoutedExperts => ("n_routed_experts", self.n_routed_experts),
            Part::SharedExperts => ("moe_inter_dim", self.moe_inter_dim),
            Part::EngramTables | Part::EngramProjections => ("engram_head_dim", self.engram_head_dim),
            Part::Norms => ("dim", self.dim),
        }
    }
}

/// The count, or an error where it overflowed on the way or does not fit an `i64`.
fn countable(count: Option<u64>, key: &'static str, value: usize, what: &str) -> Result<u64, ConfigError> {
    count
        .filter(|&count| i64::try_from(count).is_ok())
        .ok_or_else(|| broken(key, value, format!("the parameters of the {what} must number at most 2^63 - 1")))
}

fn checked_sum(mut counts: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    counts.try_fold(0_u64, |sum, count| sum.checked_add(count?))
}

/// Widening: no platform of Rust has a `usize` of more than 64 bits.
fn to_u64(n: usize) -> u64 {
    n as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{fixture, golden, released};

    /// The elements of the reference's own state dictionary, scales apart.
    #[test]
    fn totals_are_the_reference_s() {
        for name in ["tiny", "batch"] {
            let golden = golden(name);
            let weights = golden["weights_meta"].as_object().unwrap();
            let weights = weights.iter().filter(|(key, _)| !key.ends_with(".scale"));
            let expected: u64 = weights.map(|(_, meta)| meta["n"].as_u64().unwrap()).sum();
            assert_eq!(fixture(name).parameter_counts().unwrap().total, expected, "{name}");
        }
    }

    #[test]
    fn storage_does_not_change_counts() {
        assert_eq!(fixture("fp8").parameter_counts().unwrap(), fixture("batch").parameter_counts().unwrap());
    }

    #[test]
    fn the_released_model() {
        let counts = released("v4.1-flash").parameter_counts().unwrap();
        assert_eq!(counts.of(Part::Embedding), 129_280 * 5_120);
        assert_eq!(counts.of(Part::RoutedExperts), 40 * 384 * 3 * 5_120 * 2_304);
        assert_eq!(counts.of(Part::EngramTables), (384_006_168 + 384_016_682) * 256);
        assert_eq!(counts.total, 748_494_684_784);
        assert_eq!(counts.activated, 16_130_606_192);
        assert_eq!(counts.parts.iter().map(|(_, count)| count).sum::<u64>(), counts.total);
    }

    #[test]
    fn a_token_passes_its_experts_and_rows() {
        let config = fixture("tiny");
        let counts = config.parameter_counts().unwrap();
        let idle_experts = counts.of(Part::RoutedExperts) / 2;
        let idle_embedding = 63 * 64;
        let idle_rows = (462 + 630 - 2 * 6) * 32;
        assert_eq!(counts.activated, counts.total - idle_experts - idle_embedding - idle_rows);
    }

    /// Small enough to train on a CPU in minutes, with every part present.
    #[test]
    fn nano_is_small_and_whole() {
        let config = released("nano");
        let counts = config.parameter_counts().unwrap();
        assert!((1_000_000..=1_500_000).contains(&counts.total), "{}", counts.total);
        for (part, count) in &counts.parts {
            assert!(*count > 0, "no {part}");
        }
        let layers = config.topology();
        for ratio in [0, 1, 2] {
            assert!(layers.layers().iter().any(|layer| layer.ratio == ratio), "no ratio {ratio}");
        }
        assert!(layers.layers().iter().any(|layer| layer.candidate_source.is_some()));
        assert!(config.index_source_layers.len() > config.kv_source_layers.len());
        assert_eq!((config.kv_source_layers.len(), config.engram_layer_ids.len(), config.hc_mult), (2, 2, 4));
        assert!(config.original_seq_len > 0);
    }
}
