//! Everything a batch of sequences leaves behind for its next tokens.

use burn::tensor::{Tensor, backend::Backend};
use dsv41_config::Config;

use crate::ModelError;

/// The state of a batch of sequences of equal length: window keys, compressed streams with their index keys, tokens of
/// unfinished groups, n-gram history.
///
/// It is appended to by calls of any length, can be cloned (the clone then goes its own way), reset, and truncated by up
/// to `rollback` positions.
#[derive(Debug, Clone)]
pub struct Cache<B: Backend> {
    batch: usize,
    capacity: usize,
    rollback: usize,
    len: usize,
    /// The shortest length that can still be truncated to.
    floor: usize,
    pub(crate) layers: Vec<LayerCache<B>>,
    /// Every sequence's tokens, as many as the longest n-gram and the rollback need.
    pub(crate) history: Vec<Vec<u32>>,
    history_kept: usize,
    /// The kv source that last appended to its stream.
    pub(crate) published: Option<usize>,
}

/// Positions that [`Cache::new`] lets be taken back by default.
pub const DEFAULT_ROLLBACK: usize = 64;

impl<B: Backend> Cache<B> {
    /// An empty cache for `batch` sequences of at most `capacity` positions, truncatable by up to `rollback`.
    ///
    /// # Errors
    /// [`ModelError::ContextExceeded`] when the model has no positions for `capacity`.
    pub fn new(config: &Config, batch: usize, capacity: usize, rollback: usize) -> Result<Self, ModelError> {
        if capacity > config.max_seq_len {
            return Err(ModelError::ContextExceeded { asked: capacity, capacity: config.max_seq_len });
        }
        let layers = config
            .topology()
            .layers()
            .iter()
            .map(|layer| LayerCache {
                window: Tail::new(config.window_size - 1 + rollback),
                stream: layer.owns_stream().then(|| Stream::new(capacity / layer.ratio)),
                group_inputs: (layer.owns_stream() && layer.ratio > 1)
                    .then(|| GroupInputs::new(rollback + layer.ratio - 1)),
                ratio: layer.ratio,
            })
            .collect();
        Ok(Self {
            batch,
            capacity,
            rollback,
            len: 0,
            floor: 0,
            layers,
            history: vec![Vec::new(); batch],
            history_kept: config.engram_max_ngram_size.saturating_sub(1) + rollback,
            published: None,
        })
    }

    /// Positions held.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no position is held.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Sequences.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Positions that fit.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Forgets everything.
    pub fn reset(&mut self) {
        self.len = 0;
        self.floor = 0;
        self.published = None;
        self.history.iter_mut().for_each(Vec::clear);
        self.layers.iter_mut().for_each(LayerCache::reset);
    }

    /// Forgets all but the first `len` positions.
    ///
    /// # Errors
    /// [`ModelError::Rollback`] when `len` is more than is held or further back than the margin; nothing changes then.
    pub fn truncate(&mut self, len: usize) -> Result<(), ModelError> {
        if len > self.len || len < self.floor {
            return Err(ModelError::Rollback { len: self.len, asked: len, margin: self.len - self.floor });
        }
        let dropped = self.len - len;
        for row in &mut self.history {
            row.truncate(row.len().saturating_sub(dropped));
        }
        for layer in &mut self.layers {
            layer.truncate(len, dropped);
        }
        self.len = len;
        self.published = self.last_published();
        Ok(())
    }

    /// Takes note of `tokens` after every layer has appended them.
    pub(crate) fn advance(&mut self, tokens: &[Vec<u32>]) {
        for (row, new) in self.history.iter_mut().zip(tokens) {
            row.extend_from_slice(new);
            let surplus = row.len().saturating_sub(self.history_kept);
            row.drain(..surplus);
        }
        self.len += tokens[0].len();
        self.floor = self.floor.max(self.len.saturating_sub(self.rollback));
    }

    /// The stream of the source that last appended to its own.
    pub(crate) fn published_stream(&self) -> Option<StreamView<B>> {
        self.layers[self.published?].stream.as_ref()?.view()
    }

    /// The source whose newest group ends last, the highest of equal ones: what token-by-token calls leave behind.
    fn last_published(&self) -> Option<usize> {
        let newest_end = |layer: &LayerCache<B>| layer.stream.as_ref().map_or(0, |stream| stream.rows * layer.ratio);
        self.layers
            .iter()
            .enumerate()
            .filter(|(_, layer)| newest_end(layer) > 0)
            .max_by_key(|(index, layer)| (newest_end(layer), *index))
            .map(|(index, _)| index)
    }
}

/// What one layer keeps.
#[derive(Debug, Clone)]
pub(crate) struct LayerCache<B: Backend> {
    pub(crate) window: Tail<B>,
    pub(crate) stream: Option<Stream<B>>,
    pub(crate) group_inputs: Option<GroupInputs<B>>,
    ratio: usize,
}

impl<B: Backend> LayerCache<B> {
    fn reset(&mut self) {
        self.window.held = None;
        if let Some(stream) = &mut self.stream {
            stream.rows = 0;
        }
        if let Some(inputs) = &mut self.group_inputs {
            inputs.values.held = None;
            inputs.scores.held = None;
        }
    }

    fn truncate(&mut self, len: usize, dropped: usize) {
        self.window.drop_last(dropped);
        if let Some(stream) = &mut self.stream {
            stream.rows = len / self.ratio;
        }
        if let Some(inputs) = &mut self.group_inputs {
            inputs.values.drop_last(dropped);
            inputs.scores.drop_last(dropped);
        }
    }
}

/// The newest rows of a growing sequence of vectors, `[B, rows, d]`.
#[derive(Debug, Clone)]
pub(crate) struct Tail<B: Backend> {
    held: Option<Tensor<B, 3>>,
    kept: usize,
}

impl<B: Backend> Tail<B> {
    fn new(kept: usize) -> Self {
        Self { held: None, kept }
    }

    /// Appends `new` and returns it behind the `before` rows that preceded it.
    pub(crate) fn extend(&mut self, new: Tensor<B, 3>, before: usize) -> Tensor<B, 3> {
        let added = new.dims()[1];
        let all = match self.held.take() {
            Some(held) => Tensor::cat(vec![held, new], 1),
            None => new,
        };
        self.held = last_rows(all.clone(), self.kept);
        let rows = all.dims()[1];
        let wanted = before + added;
        all.narrow(1, rows - wanted, wanted)
    }

    fn drop_last(&mut self, dropped: usize) {
        if let Some(held) = self.held.take() {
            let left = held.dims()[1].saturating_sub(dropped);
            self.held = (left > 0).then(|| held.narrow(1, 0, left));
        }
    }
}

fn last_rows<B: Backend>(all: Tensor<B, 3>, kept: usize) -> Option<Tensor<B, 3>> {
    let rows = all.dims()[1];
    let left = rows.min(kept);
    (left > 0).then(|| all.narrow(1, rows - left, left))
}

/// Pooling inputs of the newest tokens: those of the unfinished group, and of as many more as may be rolled back into.
#[derive(Debug, Clone)]
pub(crate) struct GroupInputs<B: Backend> {
    pub(crate) values: Tail<B>,
    pub(crate) scores: Tail<B>,
}

impl<B: Backend> GroupInputs<B> {
    fn new(kept: usize) -> Self {
        Self { values: Tail::new(kept), scores: Tail::new(kept) }
    }
}

/// The compressed stream of a kv source: latents that are keys and values at once, and the indexer's keys.
#[derive(Debug, Clone)]
pub(crate) struct Stream<B: Backend> {
    latents: Option<Tensor<B, 3>>,
    keys: Option<Tensor<B, 3>>,
    rows: usize,
    capacity: usize,
}

/// The used rows of a stream.
#[derive(Debug, Clone)]
pub(crate) struct StreamView<B: Backend> {
    /// `[B, T, d]`
    pub(crate) latents: Tensor<B, 3>,
    /// `[B, T, index_head_dim]`
    pub(crate) keys: Tensor<B, 3>,
}

impl<B: Backend> StreamView<B> {
    pub(crate) fn rows(&self) -> usize {
        self.latents.dims()[1]
    }
}

impl<B: Backend> Stream<B> {
    fn new(capacity: usize) -> Self {
        Self { latents: None, keys: None, rows: 0, capacity }
    }

    /// Appends newly finished groups, if any.
    pub(crate) fn extend(&mut self, new: Option<StreamView<B>>) {
        let Some(new) = new else { return };
        let rows = self.rows + new.rows();
        self.latents = Some(write_rows(self.latents.take(), new.latents, self.rows, self.capacity));
        self.keys = Some(write_rows(self.keys.take(), new.keys, self.rows, self.capacity));
        self.rows = rows;
    }

    /// The used rows, if there are any.
    pub(crate) fn view(&self) -> Option<StreamView<B>> {
        let (latents, keys) = (self.latents.as_ref()?, self.keys.as_ref()?);
        (self.rows > 0).then(|| StreamView {
            latents: latents.clone().narrow(1, 0, self.rows),
            keys: keys.clone().narrow(1, 0, self.rows),
        })
    }
}

/// Writes `new` at row `start` of `store`, which doubles when it is full: appending one row then costs one row.
fn write_rows<B: Backend>(
    store: Option<Tensor<B, 3>>,
    new: Tensor<B, 3>,
    start: usize,
    capacity: usize,
) -> Tensor<B, 3> {
    let [batch, added, width] = new.dims();
    let needed = start + added;
    let place = |store: Tensor<B, 3>, rows: Tensor<B, 3>, start: usize| {
        let end = start + rows.dims()[1];
        store.slice_assign([0..batch, start..end, 0..width], rows)
    };
    match store {
        Some(store) if store.dims()[1] >= needed => place(store, new, start),
        Some(store) => {
            let larger = Tensor::zeros([batch, (2 * needed).min(capacity), width], (&new.device(), new.dtype()));
            let larger = if start > 0 { place(larger, store.narrow(1, 0, start), 0) } else { larger };
            place(larger, new, start)
        }
        // A first write of everything so far needs no spare rows yet.
        None => new,
    }
}
