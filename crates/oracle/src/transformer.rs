//! The whole text model.

use std::collections::BTreeMap;
use std::sync::Arc;

use dsv41_config::engram::EngramConstants;
use dsv41_config::{Config, Topology};
use dsv41_golden::{Recorded, WeightSet};

use crate::block::{Block, Residual};
use crate::cache::Cache;
use crate::call::{Call, CallState, Choices, Output, Step};
use crate::capture::Recorder;
use crate::hyper_connection::collapse;
use crate::linear::Linear;
use crate::load::Scope;
use crate::norm::RmsNorm;
use crate::rows::Rows;
use crate::selection::best;
use crate::{Numerics, OracleError, Real, Switches};

/// The text graph of DeepSeek-V4.1 in scalar loops, computing in `F` between the roundings of its [`Numerics`].
pub struct Oracle<F> {
    config: Arc<Config>,
    topology: Topology,
    numerics: Numerics,
    /// `[V, D]`
    embed: Rows<F>,
    blocks: Vec<Block<F>>,
    norm: RmsNorm<F>,
    head: Linear<F>,
}

impl<F: Real> Oracle<F> {
    /// Takes the weights of a model under the reference's names, widened.
    ///
    /// # Errors
    /// A configuration that breaks a rule or needs a token map, and weights that are missing or have other axes.
    pub fn new(
        config: &Config,
        weights: &WeightSet,
        numerics: Numerics,
        switches: Switches,
    ) -> Result<Self, OracleError> {
        config.validate()?;
        let topology = config.topology();
        let engrams = EngramConstants::new(config)?;
        let (compressed, vocab) = (config.engram_compressed_vocab_size, config.vocab_size);
        if !engrams.layers.is_empty() && compressed < vocab {
            return Err(OracleError::TokenMap { compressed, vocab });
        }

        let root = Scope::root(weights);
        let layers = root.child("layers");
        let blocks = topology.layers().iter().map(|layer| {
            let engram = layer.engram.map(|engram| &engrams.layers[engram]);
            Block::load(&layers.child(&layer.layer.to_string()), config, layer, engram, numerics, switches)
        });
        Ok(Self {
            embed: Rows::new(config.dim, root.values("embed.weight", &[vocab, config.dim])?),
            blocks: blocks.collect::<Result<_, _>>()?,
            norm: RmsNorm::load(&root, "norm", config.dim, config.norm_eps)?,
            head: Linear::load(&root, "head", vocab, config.dim)?,
            config: Arc::new(config.clone()),
            topology,
            numerics,
        })
    }

    /// An empty cache for `batch` sequences that can be truncated by up to `rollback` tokens.
    pub fn cache(&self, batch: usize, rollback: usize) -> Cache<F> {
        Cache::new(self.config.clone(), batch, rollback, |layer| self.blocks[layer].attn.pooled_width())
    }

    /// Runs the tokens `ids` (`[B][S]`) that follow those in `cache`, and appends them there.
    ///
    /// However a sequence is cut into calls, each position's results are the same, bit for bit
    /// (but for [`Switches::stale_index_keys`]).
    ///
    /// # Errors
    /// Ids that do not fit the model or the cache, and selections or streams that do not fit the call. The cache is then
    /// as it was.
    pub fn forward(&self, ids: &[Vec<u32>], cache: &mut Cache<F>, call: Call) -> Result<Output, OracleError> {
        let step = Step::new(&self.config, &self.topology, ids, cache, call)?;
        cache.append(ids);
        let hash_ids = self.hash_ids(&step, cache);
        let mut state = CallState {
            step,
            cache,
            choices: Choices::new(call.selections),
            recorder: Recorder::new(call.capture),
            index_scores: BTreeMap::new(),
            router_scores: BTreeMap::new(),
        };

        let mut residual = self.embed(ids, &hash_ids, &mut state);
        for (layer, block) in self.blocks.iter().enumerate() {
            residual = block.forward(residual, hash_ids.get(&layer).map(Vec::as_slice), call.feed, &mut state);
        }
        let logits = self.head(&residual, &mut state);
        Ok(Output {
            logits,
            captures: state.recorder.into_captures(),
            used: state.choices.used,
            own: state.choices.own,
            index_scores: state.index_scores,
            router_scores: state.router_scores,
        })
    }

    /// The table rows `[B, S, slots]` of each engram layer.
    fn hash_ids(&self, step: &Step, cache: &Cache<F>) -> BTreeMap<usize, Vec<i64>> {
        let sequences: Vec<Vec<Option<u32>>> =
            cache.tokens.iter().map(|tokens| tokens.iter().copied().map(Some).collect()).collect();
        let engrams = self.blocks.iter().enumerate().filter_map(|(layer, block)| Some((layer, block.engram.as_ref()?)));
        engrams
            .map(|(layer, engram)| {
                let tokens = (0..step.count()).map(|n| (&sequences[step.sequence(n)], step.position(n)));
                (layer, tokens.flat_map(|(tokens, position)| engram.hash(tokens, position)).collect())
            })
            .collect()
    }

    /// The stream that enters the first layer: C copies of each token's embedding, collapsed by the first alone.
    fn embed(&self, ids: &[Vec<u32>], hash_ids: &BTreeMap<usize, Vec<i64>>, state: &mut CallState<F>) -> Residual<F> {
        let (step, copies) = (state.step, self.config.hc_mult);
        let ids = ids.concat();
        let embedded: Vec<&[F]> = ids.iter().map(|&id| self.embed.row(id as usize)).collect();

        let recorder = &mut state.recorder;
        recorder.int("input_ids".to_owned(), &[step.batch, step.tokens], ids.iter().map(|&id| i64::from(id)));
        if !hash_ids.is_empty() {
            let slots = self.config.engram_slots();
            let hashes =
                (0..step.count()).flat_map(|n| hash_ids.values().flat_map(move |ids| &ids[n * slots..][..slots]));
            let shape = [step.batch, step.tokens, hash_ids.len(), slots];
            recorder.int("engram_hashes".to_owned(), &shape, hashes.copied());
        }
        recorder.float("embed".to_owned(), &[step.batch, step.tokens, self.config.dim], &embedded.concat());

        let mut first_copy = vec![F::ZERO; copies];
        first_copy[0] = F::ONE;
        Residual {
            h: Rows::new(copies * self.config.dim, embedded.iter().flat_map(|row| row.repeat(copies)).collect()),
            pre_mix: Rows::new(copies, first_copy.repeat(step.count())),
        }
    }

    /// Logits `[B, S, V]`, unrounded. The copies collapse by the last layer's mix; there is no mix of the head's own.
    fn head(&self, residual: &Residual<F>, state: &mut CallState<F>) -> Recorded {
        let (step, recorder) = (state.step, &mut state.recorder);
        let (dim, vocab) = (self.config.dim, self.config.vocab_size);
        let collapsed = residual.h.map(|n, h| collapse(residual.pre_mix.row(n), h, self.numerics));
        let normed = collapsed.map(|_, x| self.norm.forward(x, self.numerics));
        let logits = normed.map(|_, x| self.head.project(x));

        let last = (0..step.batch).map(|sequence| logits.row((sequence + 1) * step.tokens - 1));
        let next_ids = last.clone().map(|logits| best(logits, 1)[0] as i64);
        recorder.float("h_final".to_owned(), &[step.batch, step.tokens, dim], collapsed.values());
        recorder.float("head_in".to_owned(), &[step.batch, step.tokens, dim], normed.values());
        recorder.float("logits".to_owned(), &[step.batch, vocab], &last.clone().collect::<Vec<_>>().concat());
        recorder.float("logits_full".to_owned(), &[step.batch, step.tokens, vocab], logits.values());
        recorder.int("next_ids".to_owned(), &[step.batch], next_ids);
        Recorded::float([step.batch, step.tokens, vocab], logits.values().iter().copied())
    }
}
