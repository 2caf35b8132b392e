//! Mixture of experts: a router in f32, routed experts by its choice, and one shared expert for all.

use dsv41_config::{Config, ScoreFunc};

use crate::hyper_connection::softmax;
use crate::linear::{Linear, sum};
use crate::load::Scope;
use crate::selection::best;
use crate::{Numerics, OracleError, Real};

/// The feed-forward sublayer.
pub(crate) struct Moe<F> {
    router: Router<F>,
    experts: Vec<Expert<F>>,
    shared: Expert<F>,
}

/// What the router says of one token.
pub(crate) struct Routing<F> {
    /// `s` of every expert.
    scores: Vec<F>,
    /// `s + bias` of every expert: what the choice is made by.
    pub(crate) biased: Vec<F>,
    /// The chosen experts, best first.
    pub(crate) experts: Vec<i64>,
}

impl<F: Real> Moe<F> {
    pub(crate) fn load(scope: &Scope, config: &Config) -> Result<Self, OracleError> {
        let experts = scope.child("experts");
        Ok(Self {
            router: Router::load(&scope.child("gate"), config)?,
            experts: (0..config.n_routed_experts)
                .map(|expert| Expert::load(&experts.child(&expert.to_string()), config))
                .collect::<Result<_, _>>()?,
            shared: Expert::load(&scope.child("shared_experts"), config)?,
        })
    }

    /// The experts of one token.
    pub(crate) fn route(&self, x: &[F]) -> Routing<F> {
        self.router.route(x)
    }

    /// The weights of the `chosen` experts, in their order.
    pub(crate) fn weights(&self, routing: &Routing<F>, chosen: &[i64]) -> Vec<F> {
        self.router.weights(&routing.scores, chosen)
    }

    /// The sublayer's output for one token: routed outputs summed in order of expert number, then the shared one, and
    /// that sum rounded once.
    pub(crate) fn forward(&self, x: &[F], chosen: &[i64], weights: &[F], numerics: Numerics) -> Vec<F> {
        let mut order: Vec<usize> = (0..chosen.len()).collect();
        order.sort_by_key(|&slot| chosen[slot]);

        let mut sum = vec![F::ZERO; x.len()];
        let mut add = |output: Vec<F>| sum.iter_mut().zip(output).for_each(|(sum, output)| *sum += output);
        for slot in order {
            add(self.experts[chosen[slot] as usize].forward(x, weights[slot], numerics));
        }
        add(self.shared.forward(x, F::ONE, numerics));
        numerics.bf16_all(&mut sum);
        sum
    }
}

struct Router<F> {
    gate: Linear<F>,
    bias: Vec<F>,
    score_func: ScoreFunc,
    temperature: F,
    activated: usize,
    normalise: bool,
    scale: F,
}

impl<F: Real> Router<F> {
    fn load(scope: &Scope, config: &Config) -> Result<Self, OracleError> {
        Ok(Self {
            gate: Linear::load_tensor(scope, "weight", config.n_routed_experts, config.dim)?,
            bias: scope.values("bias", &[config.n_routed_experts])?,
            score_func: config.score_func,
            temperature: F::from_f64(config.gate_temp),
            activated: config.n_activated_experts,
            normalise: config.norm_topk_prob && config.n_activated_experts > 1,
            scale: F::from_f64(config.route_scale),
        })
    }

    fn route(&self, x: &[F]) -> Routing<F> {
        let logits = self.gate.project(x).into_iter().map(|logit| logit / self.temperature);
        let scores: Vec<F> = match self.score_func {
            ScoreFunc::Softmax => {
                let mut scores = logits.collect::<Vec<_>>();
                softmax(&mut scores);
                scores
            }
            ScoreFunc::Sigmoid => logits.map(F::sigmoid).collect(),
            ScoreFunc::SqrtSoftplus => logits.map(|logit| softplus(logit).sqrt()).collect(),
        };
        let biased: Vec<F> = scores.iter().zip(&self.bias).map(|(&score, &bias)| score + bias).collect();
        let experts = best(&biased, self.activated).into_iter().map(|expert| expert as i64).collect();
        Routing { scores, biased, experts }
    }

    /// The bias chooses; it never weighs.
    fn weights(&self, scores: &[F], chosen: &[i64]) -> Vec<F> {
        let mut weights: Vec<F> = chosen.iter().map(|&expert| scores[expert as usize]).collect();
        if self.normalise {
            let divisor = sum(weights.iter().copied()) + F::from_f64(1e-20);
            for weight in &mut weights {
                *weight /= divisor;
            }
        }
        for weight in &mut weights {
            *weight *= self.scale;
        }
        weights
    }
}

/// `ln(1 + e^x)`, and `x` itself above 20, as torch.
fn softplus<F: Real>(x: F) -> F {
    if x > F::from_f64(20.0) { x } else { x.exp().ln_1p() }
}

/// One SwiGLU expert.
struct Expert<F> {
    w1: Linear<F>,
    w2: Linear<F>,
    w3: Linear<F>,
    limit: Option<F>,
}

impl<F: Real> Expert<F> {
    fn load(scope: &Scope, config: &Config) -> Result<Self, OracleError> {
        let (dim, inner) = (config.dim, config.moe_inter_dim);
        Ok(Self {
            w1: Linear::load(scope, "w1", inner, dim)?,
            w2: Linear::load(scope, "w2", dim, inner)?,
            w3: Linear::load(scope, "w3", inner, dim)?,
            limit: (config.swiglu_limit > 0.0).then(|| F::from_f64(config.swiglu_limit)),
        })
    }

    /// `w2(weight * silu(gate) * up)`: the gate is clamped from above alone, the up branch on both sides.
    fn forward(&self, x: &[F], weight: F, numerics: Numerics) -> Vec<F> {
        let gates = self.w1.forward(x, numerics);
        let ups = self.w3.forward(x, numerics);
        let hidden: Vec<F> = gates
            .into_iter()
            .zip(ups)
            .map(|(gate, up)| {
                let (gate, up) = match self.limit {
                    Some(limit) => (gate.min(limit), up.max(-limit).min(limit)),
                    None => (gate, up),
                };
                numerics.bf16(weight * (silu(gate) * up))
            })
            .collect();
        self.w2.forward(&hidden, numerics)
    }
}

/// `x * sigmoid(x)` with one division.
fn silu<F: Real>(x: F) -> F {
    x / (F::ONE + (-x).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softplus_neither_overflows_nor_cancels() {
        assert_eq!(softplus(200.0f32), 200.0);
        assert_eq!(softplus(20.5f32), 20.5);
        assert_eq!(softplus(-30.0f32), libm::expf(-30.0));
        assert!((softplus(0.0f64) - 2f64.ln()).abs() < 1e-15);
    }

    fn router(scale: f64, bias: [f64; 3]) -> Router<f64> {
        Router {
            gate: Linear::of(1, vec![2.0, 1.0, -1.0]),
            bias: bias.to_vec(),
            score_func: ScoreFunc::Sigmoid,
            temperature: 2.0,
            activated: 2,
            normalise: true,
            scale,
        }
    }

    #[test]
    fn the_bias_chooses_and_does_not_weigh() {
        let router = router(1.5, [-9.0, 0.0, 0.0]);
        let routing = router.route(&[2.0]);
        assert_eq!(routing.experts, [1, 2]);
        let [high, low] = [1.0f64, -1.0].map(Real::sigmoid);
        let weights = router.weights(&routing.scores, &routing.experts);
        assert_eq!(
            weights,
            [high / (high + low) * 1.5, low / (high + low) * 1.5],
            "the scale comes after the division"
        );
    }

    #[test]
    fn equal_scores_go_to_the_lowest_expert() {
        assert_eq!(router(1.0, [0.0, 0.0, 0.0]).route(&[0.0]).experts, [0, 1]);
    }

    #[test]
    fn swiglu_is_clamped_before_the_product() {
        let expert = |gate: f64, up: f64, limit| {
            let of = |weight| Linear::of(1, vec![weight]);
            Expert { w1: of(gate), w2: of(1.0), w3: of(up), limit }.forward(&[1.0], 0.5, Numerics::Full)[0]
        };
        assert_eq!(expert(3.0, 4.0, Some(2.0)), 0.5 * (silu(2.0) * 2.0));
        assert_eq!(expert(-3.0, -4.0, Some(2.0)), 0.5 * (silu(-3.0) * -2.0), "the gate has no lower bound");
        assert_eq!(expert(3.0, 4.0, None), 0.5 * (silu(3.0) * 4.0));
    }
}
