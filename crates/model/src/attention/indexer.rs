//! The indexer: scores compressed positions for a query and selects the best.

use std::sync::Arc;

use burn::{
    module::Module,
    tensor::{Tensor, TensorData, backend::Backend},
};
use dsv41_config::{Config, LayerTopology};
use dsv41_ops::constant;

use super::{
    choice::{Chosen, Rule, Scope, choose},
    index_scores::IndexOperands,
    select::{CandidateRule, Visibility},
};
use crate::{
    ModelBackend, ModelError,
    cache::StreamView,
    linear::{Linear, LinearInput},
    pass::Pass,
    weights::Loader,
};

/// Scores and selects compressed positions.
#[derive(Module, Debug)]
pub struct Indexer<B: Backend> {
    /// Index queries from the low-rank query, `[q_lora_rank, heads * index_head_dim]`.
    pub wq_b: Linear<B>,
    /// Weight of each index head, `[D, heads]`.
    pub weights_proj: Linear<B>,
    #[module(skip)]
    heads: usize,
    #[module(skip)]
    head_dim: usize,
    #[module(skip)]
    topk: usize,
    #[module(skip)]
    candidates: CandidateRule,
}

impl<B: ModelBackend> Indexer<B> {
    /// Loads from an attention's loader.
    pub(crate) fn load(from: &Loader<'_, B>, config: &Config, quantised: LinearInput) -> Result<Self, ModelError> {
        let from = from.at("indexer");
        let (heads, head_dim) = (config.index_n_heads, config.index_head_dim);
        Ok(Self {
            wq_b: Linear::load(&from, "wq_b", [config.q_lora_rank, heads * head_dim], quantised)?,
            weights_proj: Linear::load(&from, "weights_proj", [config.dim, heads], LinearInput::Plain)?,
            heads,
            head_dim,
            topk: config.index_topk,
            candidates: CandidateRule { block_size: config.candidate_block_size, blocks: config.candidate_topk_blocks },
        })
    }

    /// Selects for every query and leaves the selection (and the candidates, where `layer` makes them) in `pass`. Gives
    /// what was scored with, none while no compressed position exists.
    ///
    /// `x` is the attention's input `[B, S, D]`, `low_rank_query` is `[B, S, q_lora_rank]`; both enter as constants, since
    /// a choice passes no gradient.
    pub(crate) fn forward(
        &self,
        x: Tensor<B, 3>,
        low_rank_query: Tensor<B, 3>,
        layer: &LayerTopology,
        pass: &mut Pass<'_, B>,
    ) -> Option<IndexOperands<B>> {
        let source = layer.kv_source.expect("a valid configuration gives an index source a kv source");
        let Some(stream) = pass.streams.get(&source).cloned() else {
            pass.topk.insert(layer.layer, Vec::new());
            return None;
        };
        let (batch, seq) = (pass.batch, pass.seq);
        let keys = self.keys(&stream, layer, pass);
        pass.record(layer.layer, "index_k", &keys);
        let operands = self.operands(constant(x), constant(low_rank_query), keys, pass);
        let forced = pass.forced(layer.layer);
        if pass.repeats {
            let topk = forced.and_then(|forced| forced.topk.clone()).expect("a repeated call has all selections");
            pass.topk.insert(layer.layer, topk);
            return Some(operands);
        }
        let scope = Scope {
            visibility: Visibility::new(pass.start, pass.seq, layer.ratio, &pass.documents),
            candidates: layer.candidate_source.and(pass.candidates.clone()),
        };
        let rule = Rule {
            topk: self.topk,
            keep_masked: pass.switches.keep_masked_picks,
            candidates: layer.makes_candidates.then_some(self.candidates),
        };
        let Chosen { topk, candidates, scores } =
            choose(&operands.constant(), &scope, rule, pass.numerics, pass.observed());

        let positions = scope.visibility.positions();
        if let Some(own) = candidates {
            let in_force = forced.and_then(|forced| forced.candidates.clone()).unwrap_or_else(|| own.clone());
            pass.record_host(layer.layer, "candidates", || {
                TensorData::new(in_force.to_mask(positions), [batch, seq, positions])
            });
            pass.chosen.layer_mut(layer.layer).candidates = Some(own);
            pass.candidates = Some(Arc::new(in_force));
        }
        if let Some(scores) = scores {
            pass.record_host(layer.layer, "index_score", || TensorData::new(scores, [batch, seq, positions]));
        }
        let in_force = forced.and_then(|forced| forced.topk.clone()).unwrap_or_else(|| topk.clone());
        pass.chosen.layer_mut(layer.layer).topk = Some(topk);
        pass.topk.insert(layer.layer, in_force);
        Some(operands)
    }

    /// The layer's own index keys, or the ones that the released code would score ([`crate::Switches::stale_index_keys`]).
    fn keys(&self, stream: &StreamView<B>, layer: &LayerTopology, pass: &Pass<'_, B>) -> Tensor<B, 3> {
        let rows = stream.rows();
        let between_groups = pass.seq == 1 && !(pass.start + 1).is_multiple_of(layer.ratio);
        let stale = match &pass.cache {
            Some(cache) if pass.switches.stale_index_keys && between_groups => cache.published_stream(),
            _ => None,
        };
        match stale {
            None => stream.keys.clone(),
            Some(other) => {
                let there = other.rows().min(rows);
                let keys = other.keys.narrow(1, 0, there);
                if there == rows {
                    return keys;
                }
                let [batch, _, width] = keys.dims();
                let unwritten = Tensor::zeros([batch, rows - there, width], (&pass.device, pass.dtype));
                Tensor::cat(vec![keys, unwritten], 1)
            }
        }
    }

    fn operands(
        &self,
        x: Tensor<B, 3>,
        low_rank_query: Tensor<B, 3>,
        keys: Tensor<B, 3>,
        pass: &Pass<'_, B>,
    ) -> IndexOperands<B> {
        let numerics = pass.numerics;
        let (heads, head_dim) = (self.heads, self.head_dim);
        let query = self.wq_b.forward(low_rank_query, numerics).reshape([pass.batch, pass.seq, heads, head_dim]);
        let query = numerics.index_fp4(numerics.bf16(pass.rotations.compressed.apply(query)));
        let factor = (head_dim as f64).powf(-0.5) * (heads as f64).powf(-0.5);
        let weights = numerics.bf16(self.weights_proj.forward(x, numerics).mul_scalar(factor));
        IndexOperands { query, weights, keys }
    }
}
