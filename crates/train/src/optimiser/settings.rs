//! Settings of optimisers, by parameter group.

use serde::{Deserialize, Serialize};

use super::{OptimiserError, ParameterGroup, Schedule};

/// Settings of every group.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OptimiserSettings {
    /// Largest norm of all gradients together; none clips nothing.
    pub clip_norm: Option<f64>,
    /// Of [`ParameterGroup::Matrices`].
    pub matrices: GroupSettings,
    /// Of [`ParameterGroup::Vectors`].
    pub vectors: GroupSettings,
    /// Of [`ParameterGroup::HyperConnections`].
    pub hyper_connections: GroupSettings,
    /// Of [`ParameterGroup::EmbeddingAndHead`].
    pub embedding_and_head: GroupSettings,
    /// Of [`ParameterGroup::Engram`].
    pub engram: GroupSettings,
    /// Of [`ParameterGroup::Adapters`].
    pub adapters: GroupSettings,
}

/// Settings of one group.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupSettings {
    /// What turns gradients into updates.
    pub algorithm: Algorithm,
    /// Peak learning rate.
    pub rate: f64,
    /// The rate over the run.
    pub schedule: Schedule,
    /// Decoupled weight decay: a step multiplies weights by `1 - rate * weight_decay`.
    pub weight_decay: f32,
}

/// What turns gradients into updates. Numbers are f32 where Burn's optimisers hold them so, whatever the parameters
/// are.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Algorithm {
    /// [Adam with decoupled weight decay](https://arxiv.org/abs/1711.05101).
    AdamW(AdamWSettings),
    /// [Momentum with orthogonalised updates](https://kellerjordan.github.io/posts/muon/), for matrices and stacks of
    /// them.
    Muon(MuonSettings),
}

/// Settings of AdamW. The default is that of DeepSeek-V3 where it is published.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdamWSettings {
    /// Decay of the first moment.
    pub beta_1: f32,
    /// Decay of the second moment.
    pub beta_2: f32,
    /// Added to the root of the second moment.
    pub epsilon: f32,
}

impl Default for AdamWSettings {
    fn default() -> Self {
        Self { beta_1: 0.9, beta_2: 0.95, epsilon: 1e-8 }
    }
}

/// Settings of Muon: Nesterov momentum, five Newton-Schulz steps and, as in
/// [Moonlight](https://arxiv.org/abs/2502.16982), updates scaled by `0.2 * sqrt(max(rows, columns))`, which gives them
/// the root mean square of AdamW's, so that AdamW's rates and decay serve.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MuonSettings {
    /// Decay of the momentum.
    pub momentum: f32,
}

impl Default for MuonSettings {
    fn default() -> Self {
        Self { momentum: 0.95 }
    }
}

impl GroupSettings {
    /// AdamW at a constant rate, without weight decay.
    pub fn adamw(rate: f64) -> Self {
        Self {
            algorithm: Algorithm::AdamW(AdamWSettings::default()),
            rate,
            schedule: Schedule::Constant { warm_up: 0 },
            weight_decay: 0.0,
        }
    }

    /// Muon at a constant rate, without weight decay.
    pub fn muon(rate: f64) -> Self {
        Self { algorithm: Algorithm::Muon(MuonSettings::default()), ..Self::adamw(rate) }
    }

    /// The same with another weight decay.
    pub fn with_weight_decay(self, weight_decay: f32) -> Self {
        Self { weight_decay, ..self }
    }

    /// The same with another schedule.
    pub fn with_schedule(self, schedule: Schedule) -> Self {
        Self { schedule, ..self }
    }

    /// The learning rate of a step, counted from 0.
    pub fn rate_at(&self, step: u64) -> f64 {
        self.rate * self.schedule.factor(step)
    }
}

impl Default for OptimiserSettings {
    fn default() -> Self {
        Self::adamw()
    }
}

impl OptimiserSettings {
    /// AdamW as DeepSeek-V3 was trained ([report](https://arxiv.org/abs/2412.19437), 4.2): peak rate 2.2e-4 after 2000
    /// steps, weight decay 0.1, here of matrices only, gradients clipped at 1. Engram tables learn five times as fast,
    /// as in [their paper](https://arxiv.org/abs/2601.07372), and adapters at 2e-4, as in
    /// [LoRA's](https://arxiv.org/abs/2106.09685).
    pub fn adamw() -> Self {
        let rate = 2.2e-4;
        let plain = GroupSettings::adamw(rate).with_schedule(Schedule::Constant { warm_up: 2000 });
        Self {
            clip_norm: Some(1.0),
            matrices: plain.with_weight_decay(0.1),
            engram: GroupSettings { rate: 5.0 * rate, ..plain },
            adapters: GroupSettings { rate: 2e-4, ..plain },
            ..Self::uniform(plain)
        }
    }

    /// Muon for matrices; everything else as in [`Self::adamw`]. Adapters may have Muon, too, but their published rates
    /// are AdamW's.
    pub fn muon() -> Self {
        let adamw = Self::adamw();
        let algorithm = Algorithm::Muon(MuonSettings::default());
        Self { matrices: GroupSettings { algorithm, ..adamw.matrices }, ..adamw }
    }

    /// The same for every group, and no clipping.
    pub fn uniform(group: GroupSettings) -> Self {
        Self {
            clip_norm: None,
            matrices: group,
            vectors: group,
            hyper_connections: group,
            embedding_and_head: group,
            engram: group,
            adapters: group,
        }
    }

    /// The settings of every group, in the order of [`ParameterGroup::ALL`].
    pub fn groups_mut(&mut self) -> [&mut GroupSettings; 6] {
        [
            &mut self.matrices,
            &mut self.vectors,
            &mut self.hyper_connections,
            &mut self.embedding_and_head,
            &mut self.engram,
            &mut self.adapters,
        ]
    }

    /// The same with another schedule for every group.
    pub fn with_schedule(mut self, schedule: Schedule) -> Self {
        for group in self.groups_mut() {
            group.schedule = schedule;
        }
        self
    }

    /// The settings of a group.
    pub fn group(&self, group: ParameterGroup) -> &GroupSettings {
        match group {
            ParameterGroup::Matrices => &self.matrices,
            ParameterGroup::Vectors => &self.vectors,
            ParameterGroup::HyperConnections => &self.hyper_connections,
            ParameterGroup::EmbeddingAndHead => &self.embedding_and_head,
            ParameterGroup::Engram => &self.engram,
            ParameterGroup::Adapters => &self.adapters,
        }
    }

    /// Checks every number, and that Muon updates matrices only.
    ///
    /// # Errors
    /// [`OptimiserError::Setting`] for the first that is out of its range.
    pub fn validate(&self) -> Result<(), OptimiserError> {
        if let Some(norm) = self.clip_norm
            && !(norm > 0.0 && norm.is_finite())
        {
            return Err(setting("clip_norm".to_owned(), norm, "a number above 0"));
        }
        ParameterGroup::ALL.into_iter().try_for_each(|group| self.group(group).validate(group))
    }
}

impl GroupSettings {
    fn validate(&self, group: ParameterGroup) -> Result<(), OptimiserError> {
        let check = |holds: bool, key: &str, found: f64, expected: &str| match holds {
            true => Ok(()),
            false => Err(setting(format!("{group}.{key}"), found, expected)),
        };
        let check_rate = |key, value: f64| check(value >= 0.0 && value.is_finite(), key, value, "a number not below 0");
        let check_decay =
            |key, value: f32| check((0.0..1.0).contains(&value), key, value.into(), "a number from 0 to below 1");
        check_rate("rate", self.rate)?;
        check_rate("weight_decay", self.weight_decay.into())?;
        if let Some((key, found, expected)) = self.schedule.fault() {
            return Err(OptimiserError::Setting { key: format!("{group}.{key}"), found, expected });
        }
        match self.algorithm {
            Algorithm::AdamW(AdamWSettings { beta_1, beta_2, epsilon }) => {
                check_decay("algorithm.adamw.beta_1", beta_1)?;
                check_decay("algorithm.adamw.beta_2", beta_2)?;
                let is_above = epsilon > 0.0 && epsilon.is_finite();
                check(is_above, "algorithm.adamw.epsilon", epsilon.into(), "a number above 0")
            }
            Algorithm::Muon(MuonSettings { momentum }) => {
                if !matches!(group, ParameterGroup::Matrices | ParameterGroup::Adapters) {
                    return Err(setting(
                        format!("{group}.algorithm"),
                        "muon",
                        "adamw: Muon is for matrices and adapters",
                    ));
                }
                check_decay("algorithm.muon.momentum", momentum)
            }
        }
    }
}

fn setting(key: String, found: impl ToString, expected: &str) -> OptimiserError {
    OptimiserError::Setting { key, found: found.to_string(), expected: expected.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_valid_and_decay_matrices_only() {
        for settings in [OptimiserSettings::adamw(), OptimiserSettings::muon()] {
            settings.validate().unwrap();
            for group in ParameterGroup::ALL {
                let decays = settings.group(group).weight_decay != 0.0;
                assert_eq!(decays, group == ParameterGroup::Matrices, "{group}");
            }
        }
        let is_muon = |group| matches!(OptimiserSettings::muon().group(group).algorithm, Algorithm::Muon(_));
        let muon: Vec<_> = ParameterGroup::ALL.into_iter().filter(|&group| is_muon(group)).collect();
        assert_eq!(muon, [ParameterGroup::Matrices]);
    }

    #[test]
    fn settings_come_back_from_json_exactly() {
        let schedule = Schedule::Cosine { warm_up: 10, steps: 100, floor: 0.1 };
        for settings in [OptimiserSettings::adamw(), OptimiserSettings::muon().with_schedule(schedule)] {
            let json = serde_json::to_string(&settings).unwrap();
            assert_eq!(serde_json::from_str::<OptimiserSettings>(&json).unwrap(), settings);
        }
    }

    #[test]
    fn a_file_may_set_one_group_and_leave_the_rest() {
        let json = r#"{"vectors": {
            "algorithm": {"adamw": {"beta_1": 0.8, "beta_2": 0.99, "epsilon": 1e-9}},
            "rate": 1e-3, "schedule": {"constant": {"warm_up": 5}}, "weight_decay": 0.0
        }}"#;
        let settings: OptimiserSettings = serde_json::from_str(json).unwrap();
        assert_eq!(settings.vectors.rate_at(0), 2e-4);
        assert_eq!(
            OptimiserSettings { vectors: OptimiserSettings::adamw().vectors, ..settings },
            OptimiserSettings::adamw()
        );
        assert!(serde_json::from_str::<OptimiserSettings>(r#"{"vector": {}}"#).is_err());
    }

    #[test]
    fn numbers_out_of_range_are_told_with_their_key() {
        let adamw = GroupSettings::adamw(1e-3);
        let with = |matrices| OptimiserSettings { matrices, ..OptimiserSettings::uniform(adamw) };
        let betas = AdamWSettings { beta_2: 1.0, ..Default::default() };
        let epsilon = AdamWSettings { epsilon: 0.0, ..Default::default() };
        let momentum = MuonSettings { momentum: -0.5 };
        for (settings, message) in [
            (with(GroupSettings { rate: f64::NAN, ..adamw }), "matrices.rate is NaN, expected a number not below 0"),
            (with(adamw.with_weight_decay(-1.0)), "matrices.weight_decay is -1, expected a number not below 0"),
            (
                with(GroupSettings { algorithm: Algorithm::AdamW(betas), ..adamw }),
                "matrices.algorithm.adamw.beta_2 is 1, expected a number from 0 to below 1",
            ),
            (
                with(GroupSettings { algorithm: Algorithm::AdamW(epsilon), ..adamw }),
                "matrices.algorithm.adamw.epsilon is 0, expected a number above 0",
            ),
            (
                with(GroupSettings { algorithm: Algorithm::Muon(momentum), ..adamw }),
                "matrices.algorithm.muon.momentum is -0.5, expected a number from 0 to below 1",
            ),
            (
                with(adamw.with_schedule(Schedule::Cosine { warm_up: 5, steps: 4, floor: 0.0 })),
                "matrices.schedule.steps is 4, expected at least 5, the steps of warm-up and decay",
            ),
            (
                OptimiserSettings { vectors: GroupSettings::muon(1e-3), ..with(adamw) },
                "vectors.algorithm is muon, expected adamw: Muon is for matrices and adapters",
            ),
            (OptimiserSettings { clip_norm: Some(0.0), ..with(adamw) }, "clip_norm is 0, expected a number above 0"),
        ] {
            assert_eq!(settings.validate().unwrap_err().to_string(), format!("setting {message}"));
        }
    }
}
