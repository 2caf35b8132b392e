//! What one call carries from layer to layer.

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::tensor::{DType, Tensor, TensorData, backend::Backend};
use dsv41_config::Config;

use crate::{
    Candidates, Numerics, Objective, Probe, Selections,
    attention::{RopeFrequencies, Rotation},
    cache::{Cache, StreamView},
    documents::Documents,
    selections::LayerSelections,
};

/// What the released code does otherwise than its paper would; all off by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Switches {
    /// Between group boundaries of a source that compresses, a one-token call scores the first rows of the index keys
    /// of whichever source published last.
    pub stale_index_keys: bool,
    /// With fewer candidates than `index_topk`, masked positions that the query has passed can be picked and attended.
    pub keep_masked_picks: bool,
    /// Attention probabilities stay in f32 under [`Numerics::Reference`] and [`Numerics::Qat`].
    pub unrounded_probs: bool,
}

/// The positions of a call whose logits are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogitsOf {
    /// All of them.
    #[default]
    Every,
    /// The last one of each sequence, which is all that the next token needs.
    Last,
}

/// How to make a call.
pub struct Call<'a, B: Backend> {
    /// Where to round.
    pub numerics: Numerics,
    /// Quirks of the released code to reproduce.
    pub switches: Switches,
    /// Choices to force; parts left out are chosen as usual.
    pub selections: Option<&'a Selections>,
    /// Where logits are wanted.
    pub logits: LogitsOf,
    /// Where the documents of each row start, where a row holds several: ascending, the first at 0, each where a compressed
    /// position starts. Nothing reaches across. Only in calls without a cache.
    pub documents: Option<&'a [Vec<usize>]>,
    /// What is trained for, besides the result.
    pub objective: Option<&'a mut dyn Objective<B>>,
    /// An observer.
    pub probe: Option<&'a mut dyn Probe<B>>,
}

impl<B: Backend> Default for Call<'_, B> {
    fn default() -> Self {
        Self {
            numerics: Numerics::default(),
            switches: Switches::default(),
            selections: None,
            logits: LogitsOf::default(),
            documents: None,
            objective: None,
            probe: None,
        }
    }
}

/// The state of a call under way.
pub(crate) struct Pass<'a, B: Backend> {
    pub(crate) numerics: Numerics,
    pub(crate) switches: Switches,
    pub(crate) logits: LogitsOf,
    pub(crate) batch: usize,
    pub(crate) seq: usize,
    /// Position of the call's first token.
    pub(crate) start: usize,
    pub(crate) device: B::Device,
    pub(crate) dtype: DType,
    pub(crate) cache: Option<&'a mut Cache<B>>,
    /// What the layers' own scores chose.
    pub(crate) chosen: Selections,
    /// Streams that layers of this call can read, by source.
    pub(crate) streams: BTreeMap<usize, StreamView<B>>,
    /// The selection in force, by index source: `[B, S, K]` with -1 for none.
    pub(crate) topk: BTreeMap<usize, Vec<i64>>,
    /// The candidates in force.
    pub(crate) candidates: Option<Arc<Candidates>>,
    pub(crate) rotations: Rotations<B>,
    pub(crate) documents: Documents,
    pub(crate) objective: Option<&'a mut dyn Objective<B>>,
    /// Whether every selection is handed in and nobody asks what would have been chosen.
    pub(crate) repeats: bool,
    forced: Option<&'a Selections>,
    probe: Option<&'a mut dyn Probe<B>>,
}

/// The rotation of the call's tokens in each kind of layer.
pub(crate) struct Rotations<B: Backend> {
    pub(crate) plain: Rotation<B>,
    pub(crate) compressed: Rotation<B>,
    pub(crate) compressed_frequencies: RopeFrequencies,
}

impl<'a, B: Backend> Pass<'a, B> {
    pub(crate) fn new(
        config: &Config,
        [batch, seq]: [usize; 2],
        cache: Option<&'a mut Cache<B>>,
        call: Call<'a, B>,
        device: B::Device,
        dtype: DType,
    ) -> Self {
        let start = cache.as_ref().map_or(0, |cache| cache.len());
        let compressed_frequencies = RopeFrequencies::compressed(config);
        let positions = start..start + seq;
        let rotations = Rotations {
            plain: RopeFrequencies::plain(config).rotation(positions.clone(), &device, dtype),
            compressed: compressed_frequencies.rotation(positions, &device, dtype),
            compressed_frequencies,
        };
        Self {
            numerics: call.numerics,
            switches: call.switches,
            logits: call.logits,
            batch,
            seq,
            start,
            device,
            dtype,
            cache,
            chosen: Selections::default(),
            streams: BTreeMap::new(),
            topk: BTreeMap::new(),
            candidates: None,
            rotations,
            documents: Documents::new(call.documents, seq),
            objective: call.objective,
            repeats: false,
            forced: call.selections,
            probe: call.probe,
        }
    }

    /// The choices handed in for `layer`.
    pub(crate) fn forced(&self, layer: usize) -> Option<&'a LayerSelections> {
        self.forced.and_then(|forced| forced.layer(layer))
    }

    /// The probe's say on the stream.
    pub(crate) fn stream(
        &mut self,
        layer: usize,
        point: crate::StreamPoint,
        h: Tensor<B, 4>,
        pre_mix: Tensor<B, 3>,
    ) -> (Tensor<B, 4>, Tensor<B, 3>) {
        match &mut self.probe {
            Some(probe) => probe.stream(layer, point, h, pre_mix),
            None => (h, pre_mix),
        }
    }

    /// Whether there is a probe.
    pub(crate) fn observed(&self) -> bool {
        self.probe.is_some()
    }

    /// Shows the probe a tensor.
    pub(crate) fn record<const D: usize>(
        &mut self,
        layer: impl Into<Option<usize>>,
        name: &'static str,
        tensor: &Tensor<B, D>,
    ) {
        if let Some(probe) = &mut self.probe {
            probe.record(layer.into(), name, tensor.to_data());
        }
    }

    /// Shows the probe numbers that live on the host.
    pub(crate) fn record_host(
        &mut self,
        layer: impl Into<Option<usize>>,
        name: &'static str,
        data: impl FnOnce() -> TensorData,
    ) {
        if let Some(probe) = &mut self.probe {
            probe.record(layer.into(), name, data());
        }
    }
}
