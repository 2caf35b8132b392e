//! What adapters are to be like.

use serde::{Deserialize, Serialize};

use super::{AdapterError, targets};

/// The largest rank: more than any matrix that one would adapt has.
const LARGEST_RANK: usize = 1 << 16;

/// What adapters to add to a model, and to which of its linear layers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdapterSettings {
    /// The rank r of the matrices that are added.
    pub rank: usize,
    /// What is added is multiplied by `alpha / rank`.
    pub alpha: f64,
    /// Share of an adapter's inputs that a training step leaves out, from 0 to below 1. Masks are made on the host.
    pub dropout: f64,
    /// Which linear layers are adapted: those whose names end as one of these patterns does. A pattern is the last parts of
    /// a name with `*` for any characters of one part: `attn.wq_b`, `experts.*.w1`, `layers.3.attn.w*`.
    ///
    /// `wkv` alone would be three kinds of layer: `attn.wkv`, `attn.compressor.wkv` and `engram.wkv`. `wo_a`, whose matrix
    /// multiplies in groups, the tables and the head, which losses take apart, cannot be adapted.
    pub targets: Vec<String>,
    /// What first values are drawn by, along with the layer's name.
    pub seed: u64,
}

impl Default for AdapterSettings {
    /// Rank 16 and twice as large an alpha on attention's projections and the shared experts, which every token passes:
    /// an adapter of a routed expert learns from the few tokens that go there.
    fn default() -> Self {
        const TARGETS: [&str; 7] = [
            "attn.wq_a",
            "attn.wq_b",
            "attn.wkv",
            "attn.wo_b",
            "shared_experts.w1",
            "shared_experts.w2",
            "shared_experts.w3",
        ];
        Self { rank: 16, alpha: 32.0, dropout: 0.0, targets: TARGETS.map(String::from).to_vec(), seed: 0 }
    }
}

impl AdapterSettings {
    /// What the product of the two matrices is multiplied by.
    pub fn scale(&self) -> f64 {
        self.alpha / self.rank as f64
    }

    /// Passes settings that any model could have.
    ///
    /// # Errors
    /// [`AdapterError::Setting`].
    pub fn validate(&self) -> Result<(), AdapterError> {
        let check = |holds: bool, key: &'static str, found: String, expected: &'static str| match holds {
            true => Ok(()),
            false => Err(AdapterError::Setting { key, found, expected }),
        };
        let Self { rank, alpha, dropout, targets, seed: _ } = self;
        check((1..=LARGEST_RANK).contains(rank), "rank", rank.to_string(), "a number from 1 to 65536")?;
        check(*alpha > 0.0 && alpha.is_finite(), "alpha", alpha.to_string(), "a number above 0")?;
        check((0.0..1.0).contains(dropout), "dropout", dropout.to_string(), "a number from 0 to below 1")?;
        check(!targets.is_empty(), "targets", "an empty list".to_owned(), "at least one pattern")?;
        for pattern in targets {
            const EXPECTED: &str = "parts of a linear layer's name between dots, of letters, digits, `_` and `*`";
            check(targets::is_pattern(pattern), "targets", format!("`{pattern}`"), EXPECTED)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_come_back_from_json_and_may_be_left_out() {
        let settings = AdapterSettings { rank: 3, dropout: 0.1, seed: 7, ..AdapterSettings::default() };
        let json = serde_json::to_string(&settings).unwrap();
        assert_eq!(serde_json::from_str::<AdapterSettings>(&json).unwrap(), settings);
        let partial: AdapterSettings = serde_json::from_str(r#"{"rank": 4}"#).unwrap();
        assert_eq!(partial, AdapterSettings { rank: 4, ..AdapterSettings::default() });
        assert_eq!(partial.scale(), 8.0);
        assert!(serde_json::from_str::<AdapterSettings>(r#"{"ranks": 4}"#).is_err());
    }

    #[test]
    fn settings_out_of_range_are_told_with_their_key() {
        let valid = AdapterSettings::default();
        valid.validate().unwrap();
        let targets = |targets: &[&str]| targets.iter().copied().map(String::from).collect();
        for (settings, message) in [
            (AdapterSettings { rank: 0, ..valid.clone() }, "rank is 0, expected a number from 1 to 65536"),
            (AdapterSettings { alpha: f64::NAN, ..valid.clone() }, "alpha is NaN, expected a number above 0"),
            (AdapterSettings { dropout: 1.0, ..valid.clone() }, "dropout is 1, expected a number from 0 to below 1"),
            (
                AdapterSettings { targets: targets(&[]), ..valid.clone() },
                "targets is an empty list, expected at least one pattern",
            ),
            (
                AdapterSettings { targets: targets(&["attn..wkv"]), ..valid.clone() },
                "targets is `attn..wkv`, expected parts of a linear layer's name between dots, of letters, digits, `_` \
                 and `*`",
            ),
        ] {
            assert_eq!(settings.validate().unwrap_err().to_string(), format!("adapter setting {message}"));
        }
    }
}
