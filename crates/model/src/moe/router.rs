use burn::{
    module::{Module, Param},
    tensor::{Tensor, TensorData, activation::softmax, backend::Backend},
};
use dsv41_config::{Config, ScoreFunc};
use dsv41_ops::constant;

use crate::{
    ModelBackend, ModelError, Numerics,
    activation::{sigmoid, softplus},
    linear::{Linear, LinearInput},
    topk::top_k,
    weights::Loader,
};

/// Guard of the normalisation's sum.
const SUM_GUARD: f64 = 1e-20;

/// Scores experts and chooses among them. All in f32.
#[derive(Module, Debug)]
pub struct Router<B: Backend> {
    /// `[D, E]`
    pub gate: Linear<B>,
    /// Added to the scores for the choice alone, `[E]`: it never scales and takes no gradient.
    pub bias: Param<Tensor<B, 1>>,
    #[module(skip)]
    score_func: ScoreFunc,
    #[module(skip)]
    rule: RoutingRule,
}

/// How chosen scores become weights.
#[derive(Debug, Clone, Copy)]
struct RoutingRule {
    activated: usize,
    temperature: f64,
    normalise: bool,
    scale: f64,
}

/// The scores of every token for every expert.
#[derive(Debug, Clone)]
pub struct RouterScores<B: Backend> {
    /// `[N, E]`, over the temperature.
    pub logits: Tensor<B, 2>,
    /// `[N, E]`
    pub scores: Tensor<B, 2>,
    /// What the choice is made by: scores plus bias, `[N, E]` row-major on the host.
    pub biased: Vec<f64>,
}

impl<B: ModelBackend> Router<B> {
    /// Loads from a layer's `ffn.gate`.
    pub(crate) fn load(from: &Loader<'_, B>, config: &Config) -> Result<Self, ModelError> {
        Ok(Self {
            gate: Linear::load(from, "gate", [config.dim, config.n_routed_experts], LinearInput::Plain)?,
            bias: from.at("gate").param("bias", [config.n_routed_experts])?,
            score_func: config.score_func,
            rule: RoutingRule {
                activated: config.n_activated_experts,
                temperature: config.gate_temp,
                normalise: config.norm_topk_prob,
                scale: config.route_scale,
            },
        })
    }

    /// Scores of the tokens `[N, D]`.
    pub fn score(&self, x: Tensor<B, 2>) -> RouterScores<B> {
        let logits = self.gate.forward_unrounded(x, Numerics::Full).div_scalar(self.rule.temperature);
        let scores = match self.score_func {
            ScoreFunc::Softmax => softmax(logits.clone(), 1),
            ScoreFunc::Sigmoid => sigmoid(logits.clone()),
            ScoreFunc::SqrtSoftplus => softplus(logits.clone()).sqrt(),
        };
        let biased = constant(scores.clone()) + constant(self.bias.val()).unsqueeze::<2>();
        RouterScores { logits, scores, biased: biased.into_data().iter::<f64>().collect() }
    }

    /// The experts of each token, best first, equal scores to the lowest expert: `[N, activated]`.
    pub fn choose(&self, scores: &RouterScores<B>) -> Vec<i64> {
        let experts = self.bias.dims()[0];
        scores
            .biased
            .chunks_exact(experts)
            .flat_map(|row| top_k(row, self.rule.activated))
            .map(|expert| expert as i64)
            .collect()
    }

    /// The weights `[N, activated]` of the chosen `experts`: their scores, over their sum where asked, times the scale.
    pub fn weigh(&self, scores: RouterScores<B>, experts: &[i64]) -> Tensor<B, 2> {
        let RoutingRule { activated, normalise, scale, .. } = self.rule;
        let tokens = experts.len() / activated;
        let indices = TensorData::new(experts.to_vec(), [tokens, activated]);
        let chosen = scores.scores.clone().gather(1, Tensor::from_data(indices, &scores.scores.device()));
        let weights =
            if normalise && activated > 1 { chosen.clone() / chosen.sum_dim(1).add_scalar(SUM_GUARD) } else { chosen };
        weights.mul_scalar(scale)
    }
}
