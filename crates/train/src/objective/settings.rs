use serde::{Deserialize, Serialize};

use super::ObjectiveError;

/// Weights of the losses that come in addition to the head's, each a sum over the layers that have it; 0 turns one off.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ObjectiveSettings {
    /// Of [`balance_loss`](crate::losses::balance_loss).
    pub balance: f64,
    /// Of [`router_z_loss`](crate::losses::router_z_loss).
    pub router_z: f64,
    /// Of [`IndexerLoss`](crate::losses::IndexerLoss).
    pub indexer: f64,
    /// How far a step of the optimiser moves the bias of an expert, see
    /// [`router_bias::update`](crate::router_bias::update); 0 leaves biases as they are.
    pub router_bias_rate: f64,
}

impl Default for ObjectiveSettings {
    /// As DeepSeek trained: balance 1e-4 and biases by 1e-3 ([V3](https://arxiv.org/abs/2412.19437), 4.2), no z-loss, and
    /// indexers that follow the attention ([V3.2](https://arxiv.org/abs/2512.02556)).
    fn default() -> Self {
        Self { balance: 1e-4, router_z: 0.0, indexer: 1.0, router_bias_rate: 1e-3 }
    }
}

impl ObjectiveSettings {
    /// The head's loss alone.
    pub const OFF: Self = Self { balance: 0.0, router_z: 0.0, indexer: 0.0, router_bias_rate: 0.0 };

    /// Checks every number.
    ///
    /// # Errors
    /// [`ObjectiveError::Setting`] for the first that is out of its range.
    pub fn validate(&self) -> Result<(), ObjectiveError> {
        let Self { balance, router_z, indexer, router_bias_rate } = *self;
        let settings = [
            ("balance", balance),
            ("router_z", router_z),
            ("indexer", indexer),
            ("router_bias_rate", router_bias_rate),
        ];
        match settings.into_iter().find(|(_, value)| !(*value >= 0.0 && value.is_finite())) {
            Some((key, found)) => Err(ObjectiveError::Setting { key, found }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_may_set_one_weight_and_leave_the_rest() {
        let settings: ObjectiveSettings = serde_json::from_str(r#"{"router_z": 0.001}"#).unwrap();
        assert_eq!(settings, ObjectiveSettings { router_z: 0.001, ..ObjectiveSettings::default() });
        let error = serde_json::from_str::<ObjectiveSettings>(r#"{"router_zet": 0.001}"#).unwrap_err();
        assert!(error.to_string().starts_with("unknown field `router_zet`"), "{error}");
    }

    #[test]
    fn settings_come_back_from_json_exactly() {
        for settings in [ObjectiveSettings::default(), ObjectiveSettings::OFF] {
            settings.validate().unwrap();
            let json = serde_json::to_string(&settings).unwrap();
            assert_eq!(serde_json::from_str::<ObjectiveSettings>(&json).unwrap(), settings);
        }
    }

    #[test]
    fn numbers_out_of_range_are_told_with_their_key() {
        let off = ObjectiveSettings::OFF;
        for (settings, said) in [
            (ObjectiveSettings { balance: -1.0, ..off }, "balance is -1"),
            (ObjectiveSettings { router_z: f64::NAN, ..off }, "router_z is NaN"),
            (ObjectiveSettings { indexer: f64::INFINITY, ..off }, "indexer is inf"),
            (ObjectiveSettings { router_bias_rate: -0.5, ..off }, "router_bias_rate is -0.5"),
        ] {
            let expected = format!("setting objective.{said}, expected a number not below 0");
            assert_eq!(settings.validate().unwrap_err().to_string(), expected);
        }
    }
}
