//! What a sequence leaves behind for its next call.

use std::sync::Arc;

use dsv41_config::{Config, Topology};

use crate::rows::Rows;
use crate::{OracleError, Real};

/// The state of a batch of sequences of equal length.
///
/// Nothing is ever overwritten: every key, latent and pooling input since the start is kept, so a truncation cuts and a
/// clone copies. The rollback margin, which a cache of rings needs, is held to all the same.
#[derive(Debug, Clone)]
pub struct Cache<F> {
    pub(crate) config: Arc<Config>,
    rollback: usize,
    /// The shortest length that a ring with this margin could still return to.
    lowest: usize,
    /// Token ids of each sequence: the n-gram history.
    pub(crate) tokens: Vec<Vec<u32>>,
    /// One for each layer.
    pub(crate) layers: Vec<LayerCache<F>>,
    /// The layer that completed a group last; see [`Switches::stale_index_keys`](crate::Switches::stale_index_keys).
    pub(crate) published: Option<usize>,
}

/// The state of one layer: one entry for each sequence.
#[derive(Debug, Clone)]
pub(crate) struct LayerCache<F> {
    /// Rotated and quantised keys of every position.
    pub(crate) window: Vec<Rows<F>>,
    /// The compressed stream, in the layers that own one.
    pub(crate) streams: Option<Vec<Stream<F>>>,
}

/// The compressed stream of one sequence.
#[derive(Debug, Clone)]
pub(crate) struct Stream<F> {
    /// What each token contributes to its group, unfinished groups included.
    pub(crate) inputs: Rows<F>,
    /// Rotated and quantised latents, one for each finished group.
    pub(crate) latents: Rows<F>,
    /// Index keys of the same groups.
    pub(crate) keys: Rows<F>,
}

impl<F: Real> Cache<F> {
    /// An empty cache; `pooled_width` is what a layer's compressor keeps of a token.
    pub(crate) fn new(
        config: Arc<Config>,
        batch: usize,
        rollback: usize,
        pooled_width: impl Fn(usize) -> Option<usize>,
    ) -> Self {
        let layers = (0..config.n_layers)
            .map(|layer| LayerCache {
                window: vec![Rows::empty(config.head_dim); batch],
                streams: pooled_width(layer).map(|width| {
                    let stream = Stream {
                        inputs: Rows::empty(width),
                        latents: Rows::empty(config.head_dim),
                        keys: Rows::empty(config.index_head_dim),
                    };
                    vec![stream; batch]
                }),
            })
            .collect();
        Self { tokens: vec![Vec::new(); batch], layers, rollback, lowest: 0, published: None, config }
    }

    /// Tokens of each sequence.
    pub fn len(&self) -> usize {
        self.tokens.first().map_or(0, Vec::len)
    }

    /// Whether no token has been seen.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sequences.
    pub fn batch(&self) -> usize {
        self.tokens.len()
    }

    /// Forgets every token after the first `len` of each sequence.
    ///
    /// A ring keeps `rollback` positions more than its window, whatever is appended and cut in between, so what a
    /// truncation gives up cannot be had twice: the margin counts from the longest the sequence ever was.
    ///
    /// # Errors
    /// [`OracleError::Rollback`] when `len` is more than there is, or further back than the margin.
    pub fn truncate(&mut self, len: usize) -> Result<(), OracleError> {
        if len > self.len() || len < self.lowest {
            return Err(OracleError::Rollback { len: self.len(), target: len, lowest: self.lowest });
        }
        for tokens in &mut self.tokens {
            tokens.truncate(len);
        }
        let topology = Topology::new(&self.config);
        for (layer, topology) in self.layers.iter_mut().zip(topology.layers()) {
            for window in &mut layer.window {
                window.truncate(len);
            }
            for stream in layer.streams.iter_mut().flatten() {
                stream.inputs.truncate(len);
                stream.latents.truncate(len / topology.ratio);
                stream.keys.truncate(len / topology.ratio);
            }
        }
        Ok(())
    }

    /// Forgets every token.
    pub fn reset(&mut self) {
        self.lowest = 0;
        self.published = None;
        self.truncate(0).expect("the lowest length is 0 and the cache is at least that long");
    }

    /// The stream of one sequence that layer `source` owns.
    ///
    /// # Panics
    /// When the layer owns none, which a validated topology excludes for sources.
    pub(crate) fn stream(&self, source: usize, sequence: usize) -> &Stream<F> {
        &self.layers[source].streams.as_ref().expect("a kv source owns a stream")[sequence]
    }

    /// Notes `ids`, the new tokens of each sequence.
    pub(crate) fn append(&mut self, ids: &[Vec<u32>]) {
        for (tokens, ids) in self.tokens.iter_mut().zip(ids) {
            tokens.extend(ids);
        }
        self.lowest = self.lowest.max(self.len().saturating_sub(self.rollback));
    }
}
