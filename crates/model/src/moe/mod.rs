//! Mixture of experts: a router, routed experts, one shared expert.

mod dispatch;
mod expert;
mod router;

use std::sync::Arc;

use burn::{
    module::Module,
    tensor::{Int, Tensor, TensorData, backend::Backend},
};
use dsv41_config::Config;

pub use dispatch::Dispatch;
pub use expert::Expert;
pub use router::{Router, RouterScores};

use crate::{
    ModelBackend, ModelError, Routing,
    linear::{Linear, LinearInput},
    pass::Pass,
    weights::{ExpertResidency, Loader},
};

/// The feed-forward sublayer.
#[derive(Module, Debug)]
pub struct MixtureOfExperts<B: Backend> {
    /// Chooses and weighs experts.
    pub router: Router<B>,
    /// The routed experts.
    pub experts: Vec<Expert<B>>,
    /// Sees every token, unweighted.
    pub shared_experts: Expert<B>,
    /// Who keeps the routed experts in memory, where not all stay there.
    residency: Option<Residency>,
}

/// An [`ExpertResidency`] as a part of a module.
#[derive(Module, Clone, Debug)]
struct Residency {
    keeper: Arc<dyn ExpertResidency>,
}

impl<B: ModelBackend> MixtureOfExperts<B> {
    /// Loads from a layer's loader.
    pub(crate) fn load(
        from: &Loader<'_, B>,
        config: &Config,
        dense: LinearInput,
        routed: LinearInput,
    ) -> Result<Self, ModelError> {
        let from = from.at("ffn");
        let experts = from.at("experts");
        Ok(Self {
            router: Router::load(&from, config)?,
            experts: (0..config.n_routed_experts)
                .map(|expert| Expert::load(&experts.at(expert), config, routed))
                .collect::<Result<_, _>>()?,
            shared_experts: Expert::load(&from.at("shared_experts"), config, dense)?,
            residency: from.residency().map(|keeper| Residency { keeper }),
        })
    }

    /// The linear layers: the router's, every expert's.
    pub(crate) fn linears(&self) -> impl Iterator<Item = &Linear<B>> {
        let experts = self.experts.iter().chain([&self.shared_experts]);
        [&self.router.gate].into_iter().chain(experts.flat_map(|expert| [&expert.w1, &expert.w2, &expert.w3]))
    }

    /// The linear layers: the router's, every expert's.
    pub(crate) fn linears_mut(&mut self) -> impl Iterator<Item = &mut Linear<B>> {
        let experts = self.experts.iter_mut().chain([&mut self.shared_experts]);
        let experts = experts.flat_map(|expert| [&mut expert.w1, &mut expert.w2, &mut expert.w3]);
        [&mut self.router.gate].into_iter().chain(experts)
    }

    /// Has the experts fetched that `x` (`[B, S, D]`) would be sent to: a guess before the layer's own input is known.
    pub(crate) fn prefetch(&self, x: Tensor<B, 3>, layer: usize) {
        if let Some(residency) = &self.residency {
            let [batch, seq, dim] = x.dims();
            let guess = self.router.choose(&self.router.score(x.reshape([batch * seq, dim])));
            let mut experts: Vec<usize> = guess.into_iter().map(|expert| expert as usize).collect();
            experts.sort_unstable();
            experts.dedup();
            residency.keeper.prefetch(layer, &experts);
        }
    }

    /// `[B, S, D]`, normed, to the same. Routed results sum in f32, the shared expert's is added, and that sum is
    /// rounded once.
    pub(crate) fn forward(&self, x: Tensor<B, 3>, layer: usize, pass: &mut Pass<'_, B>) -> Tensor<B, 3> {
        let numerics = pass.numerics;
        let shape @ [batch, seq, dim] = x.dims();
        let tokens = batch * seq;
        let x = x.reshape([tokens, dim]);

        let scores = self.router.score(x.clone());
        let own = self.router.choose(&scores);
        let chosen = pass.forced(layer).and_then(|forced| forced.experts.clone()).unwrap_or_else(|| own.clone());
        pass.chosen.layer_mut(layer).experts = Some(own);
        let activated = chosen.len() / tokens;
        pass.record_host(layer, "router_scores", || {
            TensorData::new(scores.biased.clone(), [tokens, self.experts.len()])
        });
        if let Some(objective) = &mut pass.objective {
            let RouterScores { logits, scores, .. } = &scores;
            let routing = Routing { logits: logits.clone(), scores: scores.clone(), choices: &chosen };
            objective.routing(layer, routing);
        }
        let weights = self.router.weigh(scores, &chosen);
        pass.record(layer, "moe_weights", &weights);
        pass.record_host(layer, "moe_indices", || TensorData::new(chosen.clone(), [tokens, activated]));

        let dispatch = Dispatch::new(&chosen, activated, self.experts.len());
        let indices = |values: Vec<i64>| -> Tensor<B, 1, Int> {
            let count = values.len();
            Tensor::from_data(TensorData::new(values, [count]), &x.device())
        };
        let entry_weights = weights.reshape([tokens * activated, 1]);
        let results = dispatch
            .groups
            .into_iter()
            .map(|(expert, entries)| {
                if let Some(residency) = &self.residency {
                    residency.keeper.touch(layer, expert);
                }
                let rows = indices(entries.iter().map(|entry| entry / activated as i64).collect());
                let weight = entry_weights.clone().select(0, indices(entries));
                self.experts[expert].forward(x.clone().select(0, rows), Some(weight), numerics)
            })
            .collect();
        let by_token = Tensor::cat(results, 0).select(0, indices(dispatch.returns)).reshape([tokens, activated, dim]);
        let routed = by_token.sum_dim(1).squeeze_dim::<2>(1);
        let shared = self.shared_experts.forward(x, None, numerics);
        numerics.bf16(routed + shared).reshape(shape)
    }
}
