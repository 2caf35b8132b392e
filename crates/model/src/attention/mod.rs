//! Attention: one key-value vector for all heads, a sliding window, and compressed positions chosen by an indexer.

mod choice;
mod compressor;
mod index_scores;
mod indexer;
mod output;
mod rope;
pub mod select;
pub mod sparse;
pub mod window;

use burn::{
    module::{Module, Param},
    tensor::{Tensor, TensorData, backend::Backend},
};
use dsv41_config::{Config, LayerTopology};

pub use compressor::Compressor;
use index_scores::IndexOperands;
pub use indexer::Indexer;
pub use output::OutputProjection;
pub use rope::{RopeFrequencies, Rotation};

use crate::{
    Indexing, ModelBackend, ModelError,
    linear::{Linear, LinearInput},
    norm::RmsNorm,
    pass::Pass,
    selections::NONE,
    weights::Loader,
};
use sparse::{KeyLists, attention_weights, sparse_attention};
use window::{previous_keys, window_positions, window_width};

/// The attention of one layer.
#[derive(Module, Debug)]
pub struct Attention<B: Backend> {
    /// `[D, q_lora_rank]`
    pub wq_a: Linear<B>,
    /// Norm of the low-rank query.
    pub q_norm: RmsNorm<B>,
    /// `[q_lora_rank, H*d]`
    pub wq_b: Linear<B>,
    /// `[D, d]`
    pub wkv: Linear<B>,
    /// Norm of the key-value vector.
    pub kv_norm: RmsNorm<B>,
    /// A logit for each head, `[H]`.
    pub attn_sink: Param<Tensor<B, 1>>,
    /// Heads to D.
    pub output: OutputProjection<B>,
    /// Where the layer is a kv source.
    pub compressor: Option<Compressor<B>>,
    /// Where the layer is an index source.
    pub indexer: Option<Indexer<B>>,
    #[module(skip)]
    place: LayerTopology,
    #[module(skip)]
    heads: usize,
    #[module(skip)]
    window: usize,
}

impl<B: ModelBackend> Attention<B> {
    /// Loads from a layer's loader.
    pub(crate) fn load(
        from: &Loader<'_, B>,
        config: &Config,
        place: &LayerTopology,
        quantised: LinearInput,
    ) -> Result<Self, ModelError> {
        let from = from.at("attn");
        let (dim, rank, head_dim) = (config.dim, config.q_lora_rank, config.head_dim);
        Ok(Self {
            wq_a: Linear::load(&from, "wq_a", [dim, rank], quantised)?,
            q_norm: RmsNorm::load(&from, "q_norm", rank, config.norm_eps)?,
            wq_b: Linear::load(&from, "wq_b", [rank, config.n_heads * head_dim], quantised)?,
            wkv: Linear::load(&from, "wkv", [dim, head_dim], quantised)?,
            kv_norm: RmsNorm::load(&from, "kv_norm", head_dim, config.norm_eps)?,
            attn_sink: from.param("attn_sink", [config.n_heads])?,
            output: OutputProjection::load(&from, config, quantised)?,
            compressor: place.owns_stream().then(|| Compressor::load(&from, config, place.ratio)).transpose()?,
            indexer: place.owns_index().then(|| Indexer::load(&from, config, quantised)).transpose()?,
            place: place.clone(),
            heads: config.n_heads,
            window: config.window_size,
        })
    }

    /// The linear layers.
    pub(crate) fn linears(&self) -> impl Iterator<Item = &Linear<B>> {
        let compressor = self.compressor.iter().flat_map(|part| [&part.wkv, &part.wk].into_iter().chain(&part.wgate));
        let indexer = self.indexer.iter().flat_map(|part| [&part.wq_b, &part.weights_proj]);
        [&self.wq_a, &self.wq_b, &self.wkv, &self.output.wo_b].into_iter().chain(compressor).chain(indexer)
    }

    /// The linear layers.
    pub(crate) fn linears_mut(&mut self) -> impl Iterator<Item = &mut Linear<B>> {
        let compressor = self
            .compressor
            .iter_mut()
            .flat_map(|part| [&mut part.wkv, &mut part.wk].into_iter().chain(&mut part.wgate));
        let indexer = self.indexer.iter_mut().flat_map(|part| [&mut part.wq_b, &mut part.weights_proj]);
        let own = [&mut self.wq_a, &mut self.wq_b, &mut self.wkv, &mut self.output.wo_b];
        own.into_iter().chain(compressor).chain(indexer)
    }

    /// `[B, S, D]`, normed, to `[B, S, D]`.
    pub(crate) fn forward(&self, x: Tensor<B, 3>, pass: &mut Pass<'_, B>) -> Tensor<B, 3> {
        let numerics = pass.numerics;
        let layer = self.place.layer;
        let [batch, seq, _] = x.dims();
        let rotation =
            if self.place.ratio == 0 { pass.rotations.plain.clone() } else { pass.rotations.compressed.clone() };

        let low_rank = self.q_norm.forward(self.wq_a.forward(x.clone(), numerics), numerics);
        let query = self.wq_b.forward(low_rank.clone(), numerics).reshape([batch, seq, self.heads, self.head_dim()]);
        let query = numerics.bf16(rotation.apply(query));
        let kv = self.kv_norm.forward(self.wkv.forward(x.clone(), numerics), numerics);
        let kv = numerics.bf16(rotation.apply(kv.unsqueeze_dim::<4>(2))).squeeze_dim::<3>(2);
        let window_keys = self.window_keys(numerics.fp8(kv), pass);

        if let Some(compressor) = &self.compressor
            && let Some(stream) = compressor.forward(x.clone(), layer, pass)
        {
            pass.record(layer, "compress_kv", &stream.latents);
            pass.streams.insert(layer, stream);
        }
        let index = self.indexer.as_ref().and_then(|indexer| indexer.forward(x, low_rank, &self.place, pass));
        let (keys, lists) = self.selected_keys(window_keys, pass);
        if let Some(index) = index {
            self.show_indexing(index, &query, &keys, &lists, pass);
        }

        pass.record(layer, "sa_q", &query);
        let round_probs = !pass.switches.unrounded_probs;
        let heads = sparse_attention(query, keys, &lists, self.attn_sink.val(), numerics, round_probs);
        pass.record(layer, "sa_o", &heads);
        self.output.forward(numerics.bf16(rotation.apply_inverse(heads)), numerics)
    }

    /// Shows the call's objective how the indexer scored what is attended.
    fn show_indexing(
        &self,
        index: IndexOperands<B>,
        query: &Tensor<B, 4>,
        keys: &Tensor<B, 3>,
        lists: &KeyLists,
        pass: &mut Pass<'_, B>,
    ) {
        let Some(objective) = pass.objective.as_deref_mut().filter(|objective| objective.wants_indexing()) else {
            return;
        };
        let selected = &pass.topk[&self.place.layer];
        let [batch, seq, ..] = query.dims();
        let width = selected.len() / (batch * seq);
        let weights = attention_weights(query.clone(), keys.clone(), lists, self.attn_sink.val());
        let attended = weights.narrow(1, lists.width - width, width).reshape([batch, seq, width]);
        let IndexOperands { query, weights, keys } = index;
        objective.indexing(self.place.layer, Indexing { query, weights, keys, selected, attended });
    }

    fn head_dim(&self) -> usize {
        self.wkv.weight.dims()[1]
    }

    /// The keys of the window: those before the call that its first query sees, then the call's own.
    fn window_keys(&self, new: Tensor<B, 3>, pass: &mut Pass<'_, B>) -> Tensor<B, 3> {
        let layer = self.place.layer;
        let before = previous_keys(pass.start, self.window);
        let keys = match &mut pass.cache {
            Some(cache) => cache.layers[layer].window.extend(new, before),
            None => new,
        };
        pass.record(layer, "window_keys", &keys);
        keys
    }

    /// Window keys and compressed latents in one tensor, and each query's list over it: window oldest first, then the
    /// compressed positions ascending.
    fn selected_keys(&self, window_keys: Tensor<B, 3>, pass: &mut Pass<'_, B>) -> (Tensor<B, 3>, KeyLists) {
        let layer = self.place.layer;
        let window_rows = window_keys.dims()[1];
        let window_width = window_width(pass.start, pass.seq, self.window);
        let first = (pass.start + pass.seq - window_rows) as i64;
        let queries = pass.batch * pass.seq;
        let window: Vec<i64> = (0..pass.batch)
            .flat_map(|row| {
                window_positions(pass.start, pass.seq, self.window, |query| pass.documents.start(row, query))
            })
            .collect();
        let seq = pass.seq;
        pass.record_host(layer, "window_positions", || {
            TensorData::new(window[..seq * window_width].to_vec(), [seq, window_width])
        });

        let topk = self.place.index_source.and_then(|source| pass.topk.get(&source));
        let compressed = topk.map_or(&[][..], Vec::as_slice);
        let compressed_width = compressed.len() / queries;
        let width = window_width + compressed_width;
        let mut rows = Vec::with_capacity(queries * width);
        for query in 0..queries {
            let seen = &window[query * window_width..(query + 1) * window_width];
            rows.extend(seen.iter().map(|&position| if position == NONE { NONE } else { position - first }));
            let picked = &compressed[query * compressed_width..(query + 1) * compressed_width];
            rows.extend(picked.iter().map(|&t| if t == NONE { NONE } else { t + window_rows as i64 }));
        }
        let selection = compressed.to_vec();
        pass.record_host(layer, "compressed_positions", || TensorData::new(selection, [queries, compressed_width]));

        let stream = self.place.kv_source.and_then(|source| pass.streams.get(&source));
        let keys = match stream {
            Some(stream) => Tensor::cat(vec![window_keys, stream.latents.clone()], 1),
            None => window_keys,
        };
        (keys, KeyLists { rows, width })
    }
}
