use std::collections::BTreeMap;

use crate::{router_bias::RouterLoad, run::RouterMetrics};

/// What there was in a micro-batch, or in several.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ObjectiveReport {
    /// Losses by name, unweighted: the mean over layers, times the share of the micro-batch. Those that are off are
    /// absent.
    pub losses: BTreeMap<String, f64>,
    /// What routers did, by layer.
    pub loads: BTreeMap<usize, RouterLoad>,
}

impl ObjectiveReport {
    /// Adds what there was in another micro-batch of the same step.
    pub fn merge(&mut self, other: Self) {
        for (name, loss) in other.losses {
            *self.losses.entry(name).or_default() += loss;
        }
        for (layer, load) in other.loads {
            self.loads.entry(layer).or_default().merge(&load);
        }
    }

    /// What a report says of routers.
    pub fn routers(&self) -> Vec<RouterMetrics> {
        self.loads.iter().map(|(&layer, load)| load.metrics(layer)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(losses: &[(&str, f64)], tokens: [u64; 3], entropy: f64) -> ObjectiveReport {
        ObjectiveReport {
            losses: losses.iter().map(|&(name, loss)| (name.to_owned(), loss)).collect(),
            loads: BTreeMap::from([(2, RouterLoad { tokens: tokens.to_vec(), entropy })]),
        }
    }

    #[test]
    fn losses_and_tokens_add_and_entropies_are_means_over_tokens() {
        let mut step = ObjectiveReport::default();
        step.merge(report(&[("balance", 0.25), ("indexer", 1.0)], [4, 0, 2], 0.5));
        step.merge(report(&[("balance", 0.5), ("indexer", 0.5)], [1, 1, 0], 1.0));
        assert_eq!(step, report(&[("balance", 0.75), ("indexer", 1.5)], [5, 1, 2], 0.625));
        assert_eq!(step.routers(), [RouterMetrics { layer: 2, max_load: 1.875, idle: 0.0, entropy: 0.625 }]);
    }

    #[test]
    fn a_micro_batch_of_padding_changes_nothing() {
        let mut step = report(&[], [4, 0, 2], 0.5);
        step.merge(report(&[], [0; 3], 0.0));
        assert_eq!(step, report(&[], [4, 0, 2], 0.5));
    }
}
