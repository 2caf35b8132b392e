//! The attention sublayer: a sliding window, and in compressed layers the positions that an indexer picks.

use dsv41_config::{Config, LayerTopology};

use crate::call::CallState;
use crate::capture::{KeyLayout, masked_scores};
use crate::indexer::{Candidates, Indexer};
use crate::linear::Linear;
use crate::load::Scope;
use crate::norm::RmsNorm;
use crate::rope::{Rope, Rotation};
use crate::rows::Rows;
use crate::sparse_attention::SparseAttention;
use crate::stream::Source;
use crate::{Numerics, OracleError, Real, Switches};

/// Attention of one layer.
pub(crate) struct Attention<F> {
    topology: LayerTopology,
    numerics: Numerics,
    switches: Switches,
    sparse: SparseAttention,
    heads: usize,
    head_dim: usize,
    index_dim: usize,
    window: usize,
    rope: Rope,
    wq_a: Linear<F>,
    q_norm: RmsNorm<F>,
    wq_b: Linear<F>,
    wkv: Linear<F>,
    kv_norm: RmsNorm<F>,
    attn_sink: Vec<F>,
    /// One for each group of heads.
    wo_a: Vec<Linear<F>>,
    wo_b: Linear<F>,
    source: Option<Source<F>>,
    indexer: Option<Indexer<F>>,
    candidates: Option<Candidates>,
}

impl<F: Real> Attention<F> {
    pub(crate) fn load(
        scope: &Scope,
        config: &Config,
        topology: &LayerTopology,
        numerics: Numerics,
        switches: Switches,
    ) -> Result<Self, OracleError> {
        let (dim, heads, head_dim) = (config.dim, config.n_heads, config.head_dim);
        let (groups, o_rank) = (config.o_groups, config.o_lora_rank);
        Ok(Self {
            numerics,
            switches,
            sparse: SparseAttention::new(numerics, switches),
            heads,
            head_dim,
            index_dim: config.index_head_dim,
            window: config.window_size,
            rope: Rope::new(config, topology.ratio),
            wq_a: Linear::load(scope, "wq_a", config.q_lora_rank, dim)?,
            q_norm: RmsNorm::load(scope, "q_norm", config.q_lora_rank, config.norm_eps)?,
            wq_b: Linear::load(scope, "wq_b", heads * head_dim, config.q_lora_rank)?,
            wkv: Linear::load(scope, "wkv", head_dim, dim)?,
            kv_norm: RmsNorm::load(scope, "kv_norm", head_dim, config.norm_eps)?,
            attn_sink: scope.values("attn_sink", &[heads])?,
            wo_a: Linear::load(scope, "wo_a", groups * o_rank, heads / groups * head_dim)?.split(groups),
            wo_b: Linear::load(scope, "wo_b", dim, groups * o_rank)?,
            source: topology.owns_stream().then(|| Source::load(scope, config, topology.ratio)).transpose()?,
            indexer: topology.owns_index().then(|| Indexer::load(&scope.child("indexer"), config)).transpose()?,
            candidates: topology.makes_candidates.then(|| Candidates::new(config)),
            topology: topology.clone(),
        })
    }

    /// Numbers that the layer's stream keeps of one token, if the layer owns one.
    pub(crate) fn pooled_width(&self) -> Option<usize> {
        self.source.as_ref().map(Source::pooled_width)
    }

    /// The sublayer's output for its normed input `x`, `[B * S, D]` both.
    pub(crate) fn forward(&self, x: &Rows<F>, call: &mut CallState<F>) -> Rows<F> {
        let step = call.step;
        let rotations: Vec<Rotation<F>> =
            (step.start..step.end()).map(|position| self.rope.rotation(position)).collect();
        let rotation = |n: usize| &rotations[n % step.tokens];

        let qr = x.map(|_, x| self.q_norm.forward(&self.wq_a.forward(x, self.numerics), self.numerics));
        let q = qr.map(|n, qr| {
            let mut heads = self.wq_b.forward(qr, self.numerics);
            for head in heads.chunks_exact_mut(self.head_dim) {
                rotation(n).apply(head, self.numerics);
            }
            heads
        });
        self.append_keys(x, &rotations, call);
        self.append_latents(x, call);
        self.choose(x, &qr, &rotations, call);
        self.record_attended(&q, call);

        let o = q.map(|n, heads| self.attend(n, heads, call));
        let layer = self.topology.layer;
        call.recorder.float(
            format!("L{layer}.sa_o"),
            &[step.batch, step.tokens, self.heads, self.head_dim],
            o.values(),
        );
        o.map(|n, heads| self.project(heads, rotation(n)))
    }

    /// Window keys of the call's tokens. The fp8 round trip covers the whole vector, turned channels included.
    fn append_keys(&self, x: &Rows<F>, rotations: &[Rotation<F>], call: &mut CallState<F>) {
        let windows = &mut call.cache.layers[self.topology.layer].window;
        for (n, x) in x.iter().enumerate() {
            let mut kv = self.kv_norm.forward(&self.wkv.forward(x, self.numerics), self.numerics);
            rotations[n % call.step.tokens].apply(&mut kv, self.numerics);
            self.numerics.fp8(&mut kv);
            windows[call.step.sequence(n)].push(&kv);
        }
    }

    /// Compressed positions that the call's tokens finish.
    fn append_latents(&self, x: &Rows<F>, call: &mut CallState<F>) {
        let layer = self.topology.layer;
        if let (Some(source), Some(streams)) = (&self.source, &mut call.cache.layers[layer].streams) {
            for (n, x) in x.iter().enumerate() {
                let finished = source.append(x, &mut streams[call.step.sequence(n)], &self.rope, self.numerics);
                if finished {
                    call.cache.published = Some(layer);
                }
            }
        }
    }

    /// Scores compressed positions and picks from them, in the layers that own an index.
    fn choose(&self, x: &Rows<F>, qr: &Rows<F>, rotations: &[Rotation<F>], call: &mut CallState<F>) {
        let Some(indexer) = &self.indexer else { return };
        let (layer, step) = (self.topology.layer, call.step);
        let positions = step.compressed(self.topology.ratio);
        let keys: Vec<Rows<F>> = (0..step.batch).map(|sequence| self.index_keys(sequence, call)).collect();
        let inside = self.topology.candidate_source.map(|source| call.choices.candidates(source));

        let (mut scores, mut picks, mut candidates) = (Vec::new(), Vec::new(), Vec::new());
        for (n, (x, qr)) in x.iter().zip(qr.iter()).enumerate() {
            let keys = &keys[step.sequence(n)];
            let mut row = indexer.scores(x, qr, keys, &rotations[n % step.tokens], self.numerics);
            let visible = (step.position(n) + 1) / self.topology.ratio;
            for (t, score) in row.iter_mut().enumerate() {
                if t >= visible || inside.is_some_and(|inside| !inside[n * positions + t]) {
                    *score = F::NEG_INFINITY;
                }
            }
            picks.extend(indexer.pick(&row, visible, self.switches.keep_masked_picks));
            if let Some(maker) = &self.candidates {
                candidates.extend(maker.mask(&row, visible));
            }
            scores.extend(row);
        }

        call.choices.set_topk(layer, picks);
        if self.candidates.is_some() {
            call.choices.set_candidates(layer, candidates);
        }
        let scores = masked_scores(&[step.batch, step.tokens, positions], &scores);
        if positions > 0 {
            call.recorder.copy(format!("L{layer}.index_score"), &scores);
        }
        call.index_scores.insert(layer, scores);
    }

    /// The keys that one sequence's compressed positions are scored by: the layer's own source's, or with
    /// [`Switches::stale_index_keys`] those published last.
    fn index_keys(&self, sequence: usize, call: &CallState<F>) -> Rows<F> {
        let own = self.topology.kv_source;
        let source = if self.switches.stale_index_keys { call.cache.published } else { own };
        let positions = call.step.compressed(self.topology.ratio);
        match source {
            Some(source) => call.cache.stream(source, sequence).keys.resized(positions),
            // Nothing is published before the first group is finished, and until then there is nothing to score.
            None => Rows::empty(self.index_dim),
        }
    }

    /// The compressed positions that token `n` attends to, -1 for none.
    fn picks<'a>(&self, n: usize, call: &'a CallState<F>) -> &'a [i64] {
        match self.topology.index_source {
            Some(source) => {
                let topk = call.choices.topk(source);
                let width = topk.len() / call.step.count();
                &topk[n * width..(n + 1) * width]
            }
            None => &[],
        }
    }

    /// All heads of token `n` over its window, oldest first, then its picks, ascending.
    ///
    /// The released kernel walks the list in blocks, so a result's last bits depend on where in the list a key stands.
    /// Here the window part always takes `window_size` places, which is the released list wherever a window is full, and
    /// makes results independent of how a sequence is cut into calls.
    fn attend(&self, n: usize, heads: &[F], call: &CallState<F>) -> Vec<F> {
        let (sequence, position) = (call.step.sequence(n), call.step.position(n));
        let window = &call.cache.layers[self.topology.layer].window[sequence];
        let mut list: Vec<Option<&[F]>> = ((position + 1).saturating_sub(self.window)..=position)
            .map(|position| Some(window.row(position)))
            .collect();
        list.resize(self.window, None);
        if let Some(source) = self.topology.kv_source {
            let latents = &call.cache.stream(source, sequence).latents;
            list.extend(self.picks(n, call).iter().map(|&t| usize::try_from(t).ok().map(|t| latents.row(t))));
        }
        let heads = heads.chunks_exact(self.head_dim).zip(&self.attn_sink);
        heads.flat_map(|(q, &sink)| self.sparse.attend(q, &list, sink)).collect()
    }

    /// Turns the heads' outputs back and projects them, group by group and then together.
    fn project(&self, heads: &[F], rotation: &Rotation<F>) -> Vec<F> {
        let back = rotation.inverse();
        let mut heads = heads.to_vec();
        for head in heads.chunks_exact_mut(self.head_dim) {
            back.apply(head, self.numerics);
        }
        let groups = heads.chunks_exact(heads.len() / self.wo_a.len()).zip(&self.wo_a);
        let low_rank: Vec<F> = groups.flat_map(|(heads, wo_a)| wo_a.forward(heads, self.numerics)).collect();
        self.wo_b.forward(&low_rank, self.numerics)
    }

    /// Captures of what is attended: queries, keys and indices.
    fn record_attended(&self, q: &Rows<F>, call: &mut CallState<F>) {
        let (layer, step) = (self.topology.layer, call.step);
        let layout = KeyLayout::new(&step, self.window);
        let q_shape = [step.batch, step.tokens, self.heads, self.head_dim];
        let mut keys = Vec::new();
        for sequence in 0..step.batch {
            keys.extend(layout.keys(&call.cache.layers[layer].window[sequence]));
            if let Some(source) = self.topology.kv_source {
                keys.extend_from_slice(call.cache.stream(source, sequence).latents.values());
            }
        }
        let indices: Vec<i64> = (0..step.count())
            .flat_map(|n| layout.indices(step.position(n)).into_iter().chain(layout.compressed(self.picks(n, call))))
            .collect();
        let keys_shape = [step.batch, keys.len() / step.batch / self.head_dim, self.head_dim];
        let indices_shape = [step.batch, step.tokens, indices.len() / step.count()];
        call.recorder.float(format!("L{layer}.sa_q"), &q_shape, q.values());
        call.recorder.float(format!("L{layer}.sa_kv"), &keys_shape, &keys);
        call.recorder.int(format!("L{layer}.sa_topk_idxs"), &indices_shape, indices);
    }

    /// Captures of what the layer hands to later ones: stream, index keys, picks and candidates. None before the first
    /// compressed position.
    pub(crate) fn record_shared(&self, call: &mut CallState<F>) {
        let (layer, step) = (self.topology.layer, call.step);
        let positions = step.compressed(self.topology.ratio);
        if positions == 0 {
            return;
        }
        if self.source.is_some() {
            let (mut latents, mut keys) = (Vec::new(), Vec::new());
            for sequence in 0..step.batch {
                latents.extend_from_slice(call.cache.stream(layer, sequence).latents.values());
                keys.extend_from_slice(self.index_keys(sequence, call).values());
            }
            let shape = |width| [step.batch, positions, width];
            call.recorder.float(format!("shared.L{layer}.compress_kv"), &shape(self.head_dim), &latents);
            call.recorder.float(format!("shared.L{layer}.index_k"), &shape(self.index_dim), &keys);
        }
        if self.indexer.is_some() {
            let layout = KeyLayout::new(&step, self.window);
            let topk = call.choices.topk(layer);
            let shape = [step.batch, step.tokens, topk.len() / step.count()];
            call.recorder.int(format!("shared.L{layer}.topk_idxs"), &shape, layout.compressed(topk));
        }
        if self.candidates.is_some() {
            let candidates = call.choices.candidates(layer).iter().map(|&inside| i64::from(inside));
            call.recorder.int(format!("shared.L{layer}.candidates"), &[step.batch, step.tokens, positions], candidates);
        }
    }
}
