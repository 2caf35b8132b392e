//! What is measured at a step of training.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::number;

/// What was measured at one step.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StepMetrics {
    /// The optimiser's step, counted from 1.
    pub step: u64,
    /// Tokens trained on so far, this step's included.
    pub tokens: u64,
    /// The loss that is minimised, auxiliary losses apart: mean over the step's tokens, in nats.
    #[serde(with = "number")]
    pub loss: f64,
    /// Auxiliary losses by name, unweighted.
    #[serde(with = "number", default, skip_serializing_if = "BTreeMap::is_empty")]
    pub auxiliary_losses: BTreeMap<String, f64>,
    /// The learning rate by group of parameters.
    #[serde(with = "number", default, skip_serializing_if = "BTreeMap::is_empty")]
    pub learning_rates: BTreeMap<String, f64>,
    /// The norm of all gradients together, before clipping.
    #[serde(with = "number")]
    pub gradient_norm: f64,
    /// Tokens of this step by its time.
    #[serde(with = "number")]
    pub tokens_per_second: f64,
    /// The time of this step in seconds.
    #[serde(with = "number")]
    pub seconds: f64,
    /// Routers of the layers that have one, in the order of the layers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routers: Vec<RouterMetrics>,
    /// What evaluation found after this step, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluation: Option<Evaluation>,
    /// The most memory that the process had in use so far, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_memory: Option<u64>,
}

/// How a layer's router spread the tokens of a step over its experts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RouterMetrics {
    /// The layer, from 0.
    pub layer: usize,
    /// Tokens of the busiest expert by those of the mean expert: 1 when the load is even, at most the number of experts.
    #[serde(with = "number")]
    pub max_load: f64,
    /// The share of experts that got no token.
    #[serde(with = "number")]
    pub idle: f64,
    /// The entropy of the router's distribution over experts, in nats: mean over the step's tokens.
    #[serde(with = "number")]
    pub entropy: f64,
}

impl RouterMetrics {
    /// From the tokens that each expert of a layer got. Loads are NaN where there is no token at all.
    pub fn from_counts(layer: usize, tokens: &[u64], entropy: f64) -> Self {
        let experts = tokens.len() as f64;
        let total: u64 = tokens.iter().sum();
        let busiest = tokens.iter().max().copied().unwrap_or_default();
        let idle = tokens.iter().filter(|&&tokens| tokens == 0).count();
        Self { layer, max_load: busiest as f64 * experts / total as f64, idle: idle as f64 / experts, entropy }
    }
}

/// What evaluation on held-out data found.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// The mean loss of a token, in nats.
    #[serde(with = "number")]
    pub loss: f64,
    /// The share of tokens whose most likely prediction is right.
    #[serde(with = "number", default, skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_compare_the_busiest_expert_with_the_mean() {
        let even = RouterMetrics::from_counts(3, &[5, 5, 5, 5], 1.0);
        assert_eq!(even, RouterMetrics { layer: 3, max_load: 1.0, idle: 0.0, entropy: 1.0 });
        let uneven = RouterMetrics::from_counts(0, &[0, 8, 0, 2], 0.5);
        assert_eq!((uneven.max_load, uneven.idle), (3.2, 0.5));
        assert!(RouterMetrics::from_counts(0, &[0, 0], 0.5).max_load.is_nan());
    }

    #[test]
    fn what_was_not_measured_is_not_written() {
        let metrics = StepMetrics { step: 1, tokens: 8, loss: f64::NAN, ..StepMetrics::default() };
        let text = serde_json::to_string(&metrics).unwrap();
        assert_eq!(
            text,
            r#"{"step":1,"tokens":8,"loss":"NaN","gradient_norm":0.0,"tokens_per_second":0.0,"seconds":0.0}"#
        );
    }
}
