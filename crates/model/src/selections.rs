//! The discrete choices of a call: which compressed positions, which candidates, which experts.

use std::collections::BTreeMap;

use dsv41_config::{Config, Topology};

use crate::{Candidates, ModelError};

/// Marks an empty place of a selection.
pub const NONE: i64 = -1;

/// What one layer chose. An absent part, when handed in, means the layer chooses for itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LayerSelections {
    /// Compressed positions attended, `[B, S, K]` row-major, ascending, -1 last. Index source layers only.
    pub topk: Option<Vec<i64>>,
    /// Which compressed positions later index sources may score. The candidate source only.
    pub candidates: Option<Candidates>,
    /// Routed experts, `[B, S, n_activated]`, best first.
    pub experts: Option<Vec<i64>>,
}

/// The choices of one call by layer: handed in to force a run, taken out to see what it chose.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selections {
    /// Layer number to its choices.
    pub layers: BTreeMap<usize, LayerSelections>,
}

impl Selections {
    /// The choices of one layer, if any.
    pub fn layer(&self, layer: usize) -> Option<&LayerSelections> {
        self.layers.get(&layer)
    }

    /// The choices of one layer, made empty if absent.
    pub fn layer_mut(&mut self, layer: usize) -> &mut LayerSelections {
        self.layers.entry(layer).or_default()
    }

    /// Checks that the choices fit a call of `batch` sequences and `seq` tokens that starts at position `start`.
    ///
    /// # Errors
    /// [`ModelError::Selection`] naming the layer and the part.
    pub(crate) fn check(
        &self,
        config: &Config,
        topology: &Topology,
        [batch, seq]: [usize; 2],
        start: usize,
    ) -> Result<(), ModelError> {
        let queries = batch * seq;
        for (&layer, chosen) in &self.layers {
            let fail = |part, problem| Err(ModelError::Selection { layer, part, problem });
            let Some(place) = topology.layers().get(layer) else {
                return fail("selection", format!("is for a layer that does not exist: there are {}", config.n_layers));
            };
            let positions = (start + seq).checked_div(place.ratio).unwrap_or(0);
            if let Some(topk) = &chosen.topk {
                if !place.owns_index() {
                    return fail("topk", "is for a layer that selects nothing itself".into());
                }
                if !topk.len().is_multiple_of(queries) {
                    return fail("topk", format!("has {} entries, not a multiple of {queries} queries", topk.len()));
                }
                if let Some(bad) = topk.iter().find(|&&t| t != NONE && !(0..positions as i64).contains(&t)) {
                    return fail("topk", format!("names position {bad}, there are {positions}"));
                }
            }
            if let Some(candidates) = &chosen.candidates {
                if !place.makes_candidates {
                    return fail("candidates", "are for a layer that makes none".into());
                }
                if candidates.queries() != queries {
                    return fail("candidates", format!("are of {} queries, expected {queries}", candidates.queries()));
                }
                if candidates.end() > positions {
                    let last = candidates.end() - 1;
                    return fail("candidates", format!("have position {last}, there are {positions}"));
                }
            }
            if let Some(experts) = &chosen.experts {
                let expected = queries * config.n_activated_experts;
                if experts.len() != expected {
                    return fail("experts", format!("have {} entries, expected {expected}", experts.len()));
                }
                if let Some(bad) = experts.iter().find(|&&e| !(0..config.n_routed_experts as i64).contains(&e)) {
                    return fail("experts", format!("name expert {bad}, there are {}", config.n_routed_experts));
                }
            }
        }
        Ok(())
    }
}
