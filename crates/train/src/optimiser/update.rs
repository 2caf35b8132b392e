//! One step of one parameter.

use burn::{
    optim::{AdamWConfig, AdamWState, AdaptiveMomentumState, SimpleOptimizer},
    tensor::{DType, Tensor, backend::Backend},
};

use super::{Algorithm, GroupSettings, muon};

/// What an optimiser remembers of a parameter, the parameter's axes joined to one.
#[derive(Debug, Clone)]
pub(super) enum ParameterState<B: Backend> {
    AdamW {
        /// Steps taken.
        steps: usize,
        /// Running mean of gradients.
        exp_avg: Tensor<B, 1>,
        /// Running mean of their squares.
        exp_avg_sq: Tensor<B, 1>,
    },
    Muon {
        /// Decayed sum of gradients.
        momentum: Tensor<B, 1>,
    },
}

impl<B: Backend> ParameterState<B> {
    pub(super) fn dtype(&self) -> DType {
        match self {
            Self::AdamW { exp_avg: values, .. } | Self::Muon { momentum: values } => values.dtype(),
        }
    }
}

/// The parameter and its state after a step at a learning rate.
///
/// AdamW is Burn's, which for every element has
///
/// ```text
/// m <- beta_1 m + (1 - beta_1) g        v <- beta_2 v + (1 - beta_2) g^2
/// w <- (1 - rate * weight_decay) w - rate * (m / (1 - beta_1^t)) / (sqrt(v / (1 - beta_2^t)) + epsilon)
/// ```
pub(super) fn step<B: Backend, const D: usize>(
    settings: &GroupSettings,
    rate: f64,
    weight: Tensor<B, D>,
    gradient: Tensor<B, D>,
    state: Option<ParameterState<B>>,
) -> (Tensor<B, D>, Option<ParameterState<B>>) {
    let dims = weight.dims();
    match &settings.algorithm {
        Algorithm::AdamW(algorithm) => {
            let state = match state {
                Some(ParameterState::AdamW { steps, exp_avg, exp_avg_sq }) => {
                    let [exp_avg, exp_avg_sq] = [exp_avg, exp_avg_sq].map(|moment| moment.reshape(dims));
                    Some(AdamWState::new(AdaptiveMomentumState::new(steps, exp_avg, exp_avg_sq)))
                }
                _ => None,
            };
            let adamw = AdamWConfig::new()
                .with_beta_1(algorithm.beta_1)
                .with_beta_2(algorithm.beta_2)
                .with_epsilon(algorithm.epsilon)
                .with_weight_decay(settings.weight_decay)
                .build();
            let (weight, state) = adamw.step(rate, weight, gradient, state);
            let state = state.map(|AdamWState { momentum: AdaptiveMomentumState { time, moment_1, moment_2, .. } }| {
                let [exp_avg, exp_avg_sq] = [moment_1, moment_2].map(|moment| moment.flatten(0, D - 1));
                ParameterState::AdamW { steps: time, exp_avg, exp_avg_sq }
            });
            (weight, state)
        }
        Algorithm::Muon(algorithm) => {
            let momentum = match state {
                Some(ParameterState::Muon { momentum }) => Some(momentum.reshape(dims)),
                _ => None,
            };
            let (weight, momentum) = muon::step(algorithm, settings.weight_decay, rate, weight, gradient, momentum);
            (weight, Some(ParameterState::Muon { momentum: momentum.flatten(0, D - 1) }))
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::{backend::Flex, tensor::TensorData};

    use super::*;
    use crate::optimiser::AdamWSettings;

    /// AdamW on one number, in f64, with the settings' f32 numbers.
    fn reference(settings: &GroupSettings, mut w: f64, gradients: &[f64]) -> f64 {
        let Algorithm::AdamW(AdamWSettings { beta_1, beta_2, epsilon }) = settings.algorithm else { panic!() };
        let [beta_1, beta_2, epsilon, decay] = [beta_1, beta_2, epsilon, settings.weight_decay].map(f64::from);
        let (mut m, mut v) = (0.0, 0.0);
        for (t, g) in (1..).zip(gradients) {
            m = beta_1 * m + (1.0 - beta_1) * g;
            v = beta_2 * v + (1.0 - beta_2) * g * g;
            let (m, v) = (m / (1.0 - beta_1.powi(t)), v / (1.0 - beta_2.powi(t)));
            w = w * (1.0 - settings.rate * decay) - settings.rate * m / (v.sqrt() + epsilon);
        }
        w
    }

    #[test]
    fn one_step_of_adamw_moves_by_the_rate_after_decaying() {
        // At the first step both corrected moments are the gradient's own, so that the update is its sign.
        let settings = GroupSettings::adamw(0.1).with_weight_decay(0.5);
        let after = reference(&settings, 2.0, &[3.0]);
        assert!((after - (2.0 * 0.95 - 0.1)).abs() < 1e-9, "{after}");
    }

    #[test]
    fn steps_of_adamw_equal_a_plain_reference() {
        let settings = GroupSettings::adamw(0.03).with_weight_decay(0.1);
        let weights = [0.5, -2.0, 0.0, 4.0];
        let gradients = |i: usize| [1.0, -0.3, 1e-9, 0.2].map(|g| g * (1.0 + 0.7 * i as f64).cos());
        let expected: Vec<_> = (0..4)
            .map(|j| reference(&settings, weights[j], &(0..5).map(|i| gradients(i)[j]).collect::<Vec<_>>()))
            .collect();
        for (dtype, tolerance) in [(DType::F64, 1e-7), (DType::F32, 1e-6)] {
            let tensor = |values: [f64; 4]| {
                Tensor::<Flex, 2>::from_data(TensorData::new(values.to_vec(), [2, 2]), (&Default::default(), dtype))
            };
            let (mut weight, mut state) = (tensor(weights), None);
            for i in 0..5 {
                (weight, state) = step(&settings, settings.rate, weight, tensor(gradients(i)), state);
            }
            assert_eq!(weight.dtype(), dtype);
            for (found, expected) in weight.into_data().iter::<f64>().zip(&expected) {
                assert!((found - expected).abs() < tolerance, "{dtype:?}: {found}, expected {expected}");
            }
            assert!(matches!(state, Some(ParameterState::AdamW { steps: 5, .. })));
        }
    }
}
