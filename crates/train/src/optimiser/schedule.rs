//! How a learning rate changes over a run.

use std::f64::consts::PI;

use serde::{Deserialize, Serialize};

/// A learning rate over a run, as a factor of its peak.
///
/// Steps count from 0. Over the first `warm_up` steps the factor is `(step + 1) / warm_up`: the first step learns
/// already and the last one reaches the peak. Floors are factors, too. With `t` going from 0 to 1 over the fall, the
/// factor is `floor + (1 - floor) * shape(t)`; after the run it stays at the floor.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Schedule {
    /// The peak after the warm-up.
    Constant {
        /// Steps to the peak.
        warm_up: u64,
    },
    /// Half a cosine from the end of the warm-up to the end of the run: `shape(t) = (1 + cos(pi t)) / 2`,
    /// `t = (step - warm_up) / (steps - warm_up)`.
    ///
    /// From [SGDR](https://arxiv.org/abs/1608.03983), without restarts.
    Cosine {
        /// Steps to the peak.
        warm_up: u64,
        /// Steps of the run.
        steps: u64,
        /// Where the factor ends.
        floor: f64,
    },
    /// The peak until `decay` steps before the end, then a fall: `t = (step - (steps - decay)) / decay`.
    ///
    /// From [MiniCPM](https://arxiv.org/abs/2404.06395), where it is called warm-up, stable, decay.
    WarmUpStableDecay {
        /// Steps to the peak.
        warm_up: u64,
        /// Steps of the run.
        steps: u64,
        /// Steps of the fall.
        decay: u64,
        /// How it falls.
        shape: DecayShape,
        /// Where the factor ends.
        floor: f64,
    },
}

/// How a rate falls from its peak.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecayShape {
    /// `shape(t) = 1 - t`
    Linear,
    /// `shape(t) = 1 - sqrt(t)`, which [Hägele et al.](https://arxiv.org/abs/2405.18392) found to end lowest.
    OneMinusSqrt,
}

impl Schedule {
    /// The factor of a step.
    pub fn factor(&self, step: u64) -> f64 {
        if step < self.warm_up() {
            return (step + 1) as f64 / self.warm_up() as f64;
        }
        match *self {
            Self::Constant { .. } => 1.0,
            Self::Cosine { warm_up, steps, floor } => {
                fall(step, warm_up, steps, floor, |t| (1.0 + (PI * t).cos()) / 2.0)
            }
            Self::WarmUpStableDecay { steps, decay, shape, floor, .. } => {
                fall(step, steps.saturating_sub(decay), steps, floor, |t| match shape {
                    DecayShape::Linear => 1.0 - t,
                    DecayShape::OneMinusSqrt => 1.0 - t.sqrt(),
                })
            }
        }
    }

    fn warm_up(&self) -> u64 {
        match *self {
            Self::Constant { warm_up } | Self::Cosine { warm_up, .. } | Self::WarmUpStableDecay { warm_up, .. } => {
                warm_up
            }
        }
    }

    /// What is wrong with it, as key, value and what the value should be.
    pub(super) fn fault(&self) -> Option<(&'static str, String, String)> {
        let (steps, needed, floor) = match *self {
            Self::Constant { .. } => return None,
            Self::Cosine { warm_up, steps, floor } => (steps, warm_up, floor),
            Self::WarmUpStableDecay { warm_up, steps, decay, floor, .. } => {
                (steps, warm_up.saturating_add(decay), floor)
            }
        };
        if steps < needed {
            let expected = format!("at least {needed}, the steps of warm-up and decay");
            return Some(("schedule.steps", steps.to_string(), expected));
        }
        let is_factor = (0.0..=1.0).contains(&floor);
        (!is_factor).then(|| ("schedule.floor", floor.to_string(), "a factor from 0 to 1".to_owned()))
    }
}

/// The factor at `step` of a fall from `start` to `end`.
fn fall(step: u64, start: u64, end: u64, floor: f64, shape: impl Fn(f64) -> f64) -> f64 {
    if step < start {
        return 1.0;
    }
    if step >= end {
        return floor;
    }
    let t = (step - start) as f64 / (end - start) as f64;
    floor + (1.0 - floor) * shape(t)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn assert_factors(schedule: Schedule, expected: &[(u64, f64)]) {
        for &(step, factor) in expected {
            let found = schedule.factor(step);
            assert!((found - factor).abs() < 1e-12, "{schedule:?} at {step}: {found}, expected {factor}");
        }
    }

    #[test]
    fn a_constant_rate_climbs_evenly_and_stays() {
        assert_factors(
            Schedule::Constant { warm_up: 4 },
            &[(0, 0.25), (1, 0.5), (2, 0.75), (3, 1.0), (4, 1.0), (9, 1.0)],
        );
        assert_factors(Schedule::Constant { warm_up: 0 }, &[(0, 1.0), (u64::MAX, 1.0)]);
    }

    #[test]
    fn a_cosine_is_halfway_in_the_middle_and_at_its_floor_after_the_end() {
        // A quarter of the way: 0.1 + 0.9 * (1 + sqrt(1/2)) / 2.
        let quarter = 0.868_198_051_533_946_4;
        assert_factors(
            Schedule::Cosine { warm_up: 2, steps: 10, floor: 0.1 },
            &[(0, 0.5), (1, 1.0), (2, 1.0), (4, quarter), (6, 0.55), (10, 0.1), (11, 0.1), (u64::MAX, 0.1)],
        );
        assert_factors(Schedule::Cosine { warm_up: 0, steps: 2, floor: 0.0 }, &[(0, 1.0), (1, 0.5), (2, 0.0)]);
    }

    #[test]
    fn a_stable_rate_falls_only_at_the_end() {
        let linear =
            Schedule::WarmUpStableDecay { warm_up: 2, steps: 10, decay: 4, shape: DecayShape::Linear, floor: 0.2 };
        assert_factors(linear, &[(0, 0.5), (2, 1.0), (6, 1.0), (7, 0.8), (8, 0.6), (9, 0.4), (10, 0.2), (99, 0.2)]);
        let root = Schedule::WarmUpStableDecay {
            warm_up: 0,
            steps: 10,
            decay: 4,
            shape: DecayShape::OneMinusSqrt,
            floor: 0.0,
        };
        assert_factors(root, &[(0, 1.0), (6, 1.0), (7, 0.5), (8, 1.0 - 0.5f64.sqrt()), (10, 0.0)]);
    }

    #[test]
    fn a_fall_of_no_steps_is_a_drop_at_the_end() {
        let schedule =
            Schedule::WarmUpStableDecay { warm_up: 0, steps: 3, decay: 0, shape: DecayShape::Linear, floor: 0.0 };
        assert_factors(schedule, &[(2, 1.0), (3, 0.0)]);
        assert_factors(Schedule::Cosine { warm_up: 3, steps: 3, floor: 0.5 }, &[(2, 1.0), (3, 0.5)]);
    }

    #[test]
    fn a_run_shorter_than_its_phases_is_a_fault_that_says_how_long_it_must_be() {
        let schedule =
            Schedule::WarmUpStableDecay { warm_up: 6, steps: 9, decay: 4, shape: DecayShape::Linear, floor: 0.0 };
        let (key, found, expected) = schedule.fault().unwrap();
        assert_eq!((key, found.as_str()), ("schedule.steps", "9"));
        assert_eq!(expected, "at least 10, the steps of warm-up and decay");
        let (key, found, _) = Schedule::Cosine { warm_up: 0, steps: 9, floor: 1.5 }.fault().unwrap();
        assert_eq!((key, found.as_str()), ("schedule.floor", "1.5"));
        assert_eq!(Schedule::Cosine { warm_up: 9, steps: 9, floor: 1.0 }.fault(), None);
    }

    proptest! {
        #[test]
        fn factors_stay_between_floor_and_peak_and_never_rise_after_the_warm_up(
            warm_up in 0u64..50, stable in 0u64..50, decay in 0u64..50, floor in 0.0f64..=1.0, root in any::<bool>(),
        ) {
            let shape = if root { DecayShape::OneMinusSqrt } else { DecayShape::Linear };
            let steps = warm_up + stable + decay;
            for schedule in [
                Schedule::Cosine { warm_up, steps, floor },
                Schedule::WarmUpStableDecay { warm_up, steps, decay, shape, floor },
            ] {
                prop_assert_eq!(schedule.fault(), None);
                let factors: Vec<_> = (warm_up..steps + 2).map(|step| schedule.factor(step)).collect();
                prop_assert!(factors.iter().all(|factor| (floor - 1e-12..=1.0 + 1e-12).contains(factor)));
                prop_assert!(factors.is_sorted_by(|a, b| *b <= a + 1e-12));
            }
        }
    }
}
