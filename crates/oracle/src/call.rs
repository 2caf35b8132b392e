//! What goes into a call, what comes out of it, and what has to hold before it starts.

use std::collections::BTreeMap;

use dsv41_config::{Config, LayerTopology, Topology};
use dsv41_golden::{Captures, LayerSelections, Recorded, Selections};

use crate::cache::Cache;
use crate::capture::Recorder;
use crate::rows::Rows;
use crate::{OracleError, Real};

/// What a call is given besides its tokens.
#[derive(Debug, Clone, Copy, Default)]
pub struct Call<'a> {
    /// Choices to make instead of the run's own. Parts that are absent, or that a layer has no use for, change nothing.
    pub selections: Option<&'a Selections>,
    /// Streams to continue with: where it holds `LN.engram_in`, `LN.h_in` (`[B, S, C, D]`) or `LN.pre_mix_in`
    /// (`[B, S, C]`), these replace what the run has at that point. Everything else in it is ignored.
    pub feed: Option<&'a Captures>,
    /// Whether to record every intermediate result.
    pub capture: bool,
}

/// What a call computed. B sequences, S tokens of this call, V the vocabulary, T compressed positions after the call.
#[derive(Debug, Clone, PartialEq)]
pub struct Output {
    /// `[B, S, V]`: the logits of every position.
    pub logits: Recorded,
    /// Every intermediate result, under the names and in the order of golden files; empty unless asked for.
    pub captures: Captures,
    /// The choices that the run went on with: forced where they were given, else its own.
    pub used: Selections,
    /// What the run's own scores chose, forced or not.
    pub own: Selections,
    /// Index source layer to its own scores `[B, S, T]`, after visibility and candidate masks; -1e30 where masked.
    pub index_scores: BTreeMap<usize, Recorded>,
    /// Layer to its router's `s + bias`, `[B, S, E]`.
    pub router_scores: BTreeMap<usize, Recorded>,
}

/// The tokens of one call: which sequences and positions they are. Token `n` of all is token `n % S` of sequence `n / S`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    /// Sequences, B.
    pub(crate) batch: usize,
    /// Tokens of each, S.
    pub(crate) tokens: usize,
    /// Position of the first.
    pub(crate) start: usize,
}

impl Step {
    /// Checks a call against its cache, before anything is changed.
    pub(crate) fn new<F: Real>(
        config: &Config,
        topology: &Topology,
        ids: &[Vec<u32>],
        cache: &Cache<F>,
        call: Call,
    ) -> Result<Self, OracleError> {
        let step = Self { batch: ids.len(), tokens: ids.first().map_or(0, Vec::len), start: cache.len() };
        step.check_ids(config, ids, cache)?;
        if let Some(selections) = call.selections {
            for layer in topology.layers() {
                if let Some(selections) = selections.layer(layer.layer) {
                    step.check_selections(config, layer, selections)?;
                }
            }
        }
        if let Some(feed) = call.feed {
            step.check_feed(config, feed)?;
        }
        Ok(step)
    }

    fn check_ids<F: Real>(&self, config: &Config, ids: &[Vec<u32>], cache: &Cache<F>) -> Result<(), OracleError> {
        if *cache.config != *config {
            return Err(OracleError::ForeignCache);
        }
        if self.batch != cache.batch() {
            return Err(OracleError::Batch { found: self.batch, expected: cache.batch() });
        }
        if self.count() == 0 {
            return Err(OracleError::Empty);
        }
        for (row, ids) in ids.iter().enumerate() {
            if ids.len() != self.tokens {
                return Err(OracleError::Ragged { row, found: ids.len(), expected: self.tokens });
            }
            let vocab = config.vocab_size;
            if let Some(column) = ids.iter().position(|&id| id as usize >= vocab) {
                return Err(OracleError::Token { id: ids[column], row, column, vocab });
            }
        }
        if self.start + self.tokens > config.max_seq_len {
            return Err(OracleError::Context { start: self.start, tokens: self.tokens, limit: config.max_seq_len });
        }
        Ok(())
    }

    fn check_selections(
        &self,
        config: &Config,
        topology: &LayerTopology,
        selections: &LayerSelections,
    ) -> Result<(), OracleError> {
        let layer = topology.layer;
        let size = |what, found, each| {
            let expected = self.count() * each;
            if found == expected { Ok(()) } else { Err(OracleError::SelectionSize { what, layer, found, expected }) }
        };
        let range = |what, entries: &[i64], lowest, end: usize| match entries
            .iter()
            .position(|&entry| entry < lowest || entry >= end as i64)
        {
            Some(entry) => Err(OracleError::SelectionRange { what, layer, entry, found: entries[entry], lowest, end }),
            None => Ok(()),
        };
        let positions = self.compressed(topology.ratio);
        if let Some(topk) = selections.topk.as_ref().filter(|_| topology.owns_index()) {
            size("topk", topk.len(), config.index_topk.min(positions))?;
            range("topk", topk, -1, positions)?;
        }
        if let Some(candidates) = selections.candidates.as_ref().filter(|_| topology.makes_candidates) {
            size("candidates", candidates.len(), positions)?;
        }
        if let Some(experts) = &selections.experts {
            size("experts", experts.len(), config.n_activated_experts)?;
            range("experts", experts, 0, config.n_routed_experts)?;
        }
        Ok(())
    }

    fn check_feed(&self, config: &Config, feed: &Captures) -> Result<(), OracleError> {
        let mix = vec![self.batch, self.tokens, config.hc_mult];
        let stream = [&mix[..], &[config.dim]].concat();
        for layer in 0..config.n_layers {
            for (capture, expected) in [("engram_in", &stream), ("h_in", &stream), ("pre_mix_in", &mix)] {
                let name = format!("L{layer}.{capture}");
                match feed.get(&name) {
                    Some(fed) if fed.shape != *expected || fed.len() != expected.iter().product::<usize>() => {
                        return Err(OracleError::FeedShape {
                            name,
                            found: fed.shape.clone(),
                            expected: expected.clone(),
                        });
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Tokens of all sequences together.
    pub(crate) fn count(&self) -> usize {
        self.batch * self.tokens
    }

    /// The sequence of token `n`.
    pub(crate) fn sequence(&self, n: usize) -> usize {
        n / self.tokens
    }

    /// The position of token `n` in its sequence.
    pub(crate) fn position(&self, n: usize) -> usize {
        self.start + n % self.tokens
    }

    /// Positions of each sequence after the call.
    pub(crate) fn end(&self) -> usize {
        self.start + self.tokens
    }

    /// Finished groups of `ratio` tokens after the call.
    pub(crate) fn compressed(&self, ratio: usize) -> usize {
        self.end().checked_div(ratio).unwrap_or(0)
    }
}

/// The fed stream called `name`, if there is one. Its shape was checked.
pub(crate) fn fed<F: Real>(feed: Option<&Captures>, name: &str, width: usize) -> Option<Rows<F>> {
    let fed = feed?.get(name)?;
    Some(Rows::new(width, (0..fed.len()).map(|index| F::from_f64(fed.get(index))).collect()))
}

/// The discrete choices of a call in the making.
pub(crate) struct Choices<'a> {
    forced: Option<&'a Selections>,
    pub(crate) used: Selections,
    pub(crate) own: Selections,
}

impl<'a> Choices<'a> {
    pub(crate) fn new(forced: Option<&'a Selections>) -> Self {
        Self { forced, used: Selections::default(), own: Selections::default() }
    }

    pub(crate) fn set_topk(&mut self, layer: usize, own: Vec<i64>) {
        self.set(layer, |selections| &mut selections.topk, own);
    }

    pub(crate) fn set_candidates(&mut self, layer: usize, own: Vec<bool>) {
        self.set(layer, |selections| &mut selections.candidates, own);
    }

    pub(crate) fn set_experts(&mut self, layer: usize, own: Vec<i64>) {
        self.set(layer, |selections| &mut selections.experts, own);
    }

    /// The picks that layer `source` made earlier in this call.
    pub(crate) fn topk(&self, source: usize) -> &[i64] {
        made(self.used.layer(source).and_then(|choices| choices.topk.as_deref()))
    }

    /// The candidate mask that layer `source` made earlier in this call.
    pub(crate) fn candidates(&self, source: usize) -> &[bool] {
        made(self.used.layer(source).and_then(|choices| choices.candidates.as_deref()))
    }

    /// The experts that layer `layer` chose earlier in this call.
    pub(crate) fn experts(&self, layer: usize) -> &[i64] {
        made(self.used.layer(layer).and_then(|choices| choices.experts.as_deref()))
    }

    fn set<T: Clone>(&mut self, layer: usize, part: fn(&mut LayerSelections) -> &mut Option<Vec<T>>, own: Vec<T>) {
        let forced = self.forced.and_then(|forced| part(&mut forced.layer(layer)?.clone()).take());
        *part(self.used.layer_mut(layer)) = Some(forced.unwrap_or_else(|| own.clone()));
        *part(self.own.layer_mut(layer)) = Some(own);
    }
}

/// A choice that the topology says an earlier layer made.
fn made<T>(choice: Option<&[T]>) -> &[T] {
    choice.expect("a validated topology has every source before its readers")
}

/// What a call hands from layer to layer, and collects on the way.
pub(crate) struct CallState<'a, F> {
    pub(crate) step: Step,
    pub(crate) cache: &'a mut Cache<F>,
    pub(crate) choices: Choices<'a>,
    pub(crate) recorder: Recorder,
    pub(crate) index_scores: BTreeMap<usize, Recorded>,
    pub(crate) router_scores: BTreeMap<usize, Recorded>,
}
