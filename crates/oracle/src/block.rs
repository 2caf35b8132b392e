//! One layer: an engram where the layer has one, then attention and experts, each inside its hyper-connection.

use dsv41_config::engram::EngramLayer;
use dsv41_config::{Config, LayerTopology};
use dsv41_golden::{Captures, Recorded};

use crate::attention::Attention;
use crate::call::{CallState, fed};
use crate::engram::Engram;
use crate::hyper_connection::{Mix, Mixer, collapse};
use crate::load::Scope;
use crate::moe::Moe;
use crate::norm::RmsNorm;
use crate::rows::Rows;
use crate::{Numerics, OracleError, Real, Switches};

/// The residual stream between two layers.
pub(crate) struct Residual<F> {
    /// `[B * S, C * D]`
    pub(crate) h: Rows<F>,
    /// `[B * S, C]`: how the next attention collapses the copies. The layer before made it: the mix lags by one sublayer.
    pub(crate) pre_mix: Rows<F>,
}

/// One layer of the backbone.
pub(crate) struct Block<F> {
    layer: usize,
    numerics: Numerics,
    copies: usize,
    dim: usize,
    pub(crate) engram: Option<Engram<F>>,
    hc_attn: Mixer<F>,
    attn_norm: RmsNorm<F>,
    pub(crate) attn: Attention<F>,
    hc_ffn: Mixer<F>,
    ffn_norm: RmsNorm<F>,
    ffn: Moe<F>,
}

impl<F: Real> Block<F> {
    pub(crate) fn load(
        scope: &Scope,
        config: &Config,
        topology: &LayerTopology,
        engram: Option<&EngramLayer>,
        numerics: Numerics,
        switches: Switches,
    ) -> Result<Self, OracleError> {
        let norm = |name| RmsNorm::load(scope, name, config.dim, config.norm_eps);
        Ok(Self {
            layer: topology.layer,
            numerics,
            copies: config.hc_mult,
            dim: config.dim,
            engram: engram
                .map(|constants| Engram::load(&scope.child("engram"), config, constants.clone()))
                .transpose()?,
            hc_attn: Mixer::load(scope, "attn", config)?,
            attn_norm: norm("attn_norm")?,
            attn: Attention::load(&scope.child("attn"), config, topology, numerics, switches)?,
            hc_ffn: Mixer::load(scope, "ffn", config)?,
            ffn_norm: norm("ffn_norm")?,
            ffn: Moe::load(&scope.child("ffn"), config)?,
        })
    }

    /// The stream after this layer. `hash_ids` are the engram's, if the layer has one.
    pub(crate) fn forward(
        &self,
        residual: Residual<F>,
        hash_ids: Option<&[i64]>,
        feed: Option<&Captures>,
        call: &mut CallState<F>,
    ) -> Residual<F> {
        let Residual { mut h, pre_mix } = residual;
        if let (Some(engram), Some(hash_ids)) = (&self.engram, hash_ids) {
            h = fed(feed, &self.name("engram_in"), h.width()).unwrap_or(h);
            h = self.add_engram(engram, &h, hash_ids, call);
        }
        h = fed(feed, &self.name("h_in"), h.width()).unwrap_or(h);
        let pre_mix = fed(feed, &self.name("pre_mix_in"), pre_mix.width()).unwrap_or(pre_mix);
        self.record_stream("h_in", &h, call);
        self.record_rows("pre_mix_in", &pre_mix, call);

        // The pre that the attention's mixer makes collapses the FFN's input; the FFN's is handed to the next layer.
        let (h, attn_pre) = self.attention(&h, &pre_mix, call);
        let (h, ffn_pre) = self.experts(&h, &attn_pre, call);

        self.record_stream("h_out", &h, call);
        self.record_rows("pre_mix_out", &ffn_pre, call);
        self.attn.record_shared(call);
        Residual { h, pre_mix: ffn_pre }
    }

    fn add_engram(&self, engram: &Engram<F>, h: &Rows<F>, hash_ids: &[i64], call: &mut CallState<F>) -> Rows<F> {
        let step = call.step;
        let slots = hash_ids.len() / step.count();
        let lookups: Vec<_> = hash_ids.chunks_exact(slots).map(|ids| engram.look_up(ids, self.numerics)).collect();
        let out = h.map(|n, h| engram.add(h, &lookups[n].kv, self.numerics));

        let rows: Vec<F> = lookups.iter().flat_map(|lookup| &lookup.rows).copied().collect();
        let kv: Vec<F> = lookups.iter().flat_map(|lookup| &lookup.kv).copied().collect();
        let shape = |rest: &[usize]| [&[step.batch, step.tokens], rest].concat();
        self.record_stream("engram_in", h, call);
        call.recorder.int(self.name("engram_hash_ids"), &shape(&[slots]), hash_ids.iter().copied());
        call.recorder.float(self.name("engram_embed"), &shape(&[slots, rows.len() / hash_ids.len()]), &rows);
        call.recorder.float(self.name("engram_kv"), &shape(&[kv.len() / step.count()]), &kv);
        self.record_stream("engram_out", &out, call);
        out
    }

    /// The attention sublayer: the stream after it and the mixer's pre.
    fn attention(&self, h: &Rows<F>, pre_mix: &Rows<F>, call: &mut CallState<F>) -> (Rows<F>, Rows<F>) {
        let mixes = self.mixes("attn", &self.hc_attn, h, call);
        let x = self.collapse(h, pre_mix, &self.attn_norm);
        self.record_rows("attn_in", &x, call);
        let y = self.attn.forward(&x, call);
        self.record_rows("attn_out", &y, call);
        self.expand(h, &y, mixes)
    }

    /// The mixture-of-experts sublayer: the stream after it and the mixer's pre.
    fn experts(&self, h: &Rows<F>, pre_mix: &Rows<F>, call: &mut CallState<F>) -> (Rows<F>, Rows<F>) {
        let step = call.step;
        let mixes = self.mixes("ffn", &self.hc_ffn, h, call);
        let x = self.collapse(h, pre_mix, &self.ffn_norm);
        self.record_rows("ffn_in", &x, call);

        let routings: Vec<_> = x.iter().map(|x| self.ffn.route(x)).collect();
        call.choices.set_experts(self.layer, routings.iter().flat_map(|routing| &routing.experts).copied().collect());
        let biased: Vec<F> = routings.iter().flat_map(|routing| &routing.biased).copied().collect();
        let experts = biased.len() / step.count();
        call.router_scores.insert(self.layer, Recorded::float([step.batch, step.tokens, experts], biased));

        let chosen = call.choices.experts(self.layer);
        let activated = chosen.len() / step.count();
        let weights: Vec<Vec<F>> = routings
            .iter()
            .zip(chosen.chunks_exact(activated))
            .map(|(routing, chosen)| self.ffn.weights(routing, chosen))
            .collect();
        let y = x.map(|n, x| self.ffn.forward(x, &chosen[n * activated..][..activated], &weights[n], self.numerics));

        let shape = [step.count(), activated];
        call.recorder.float(self.name("moe_weights"), &shape, &weights.concat());
        call.recorder.int(self.name("moe_indices"), &shape, chosen.iter().copied());
        self.record_rows("ffn_out", &y, call);
        self.expand(h, &y, mixes)
    }

    /// The mixes of a sublayer. Mixers read the stream itself, before the sublayer's own collapse and norm.
    fn mixes(&self, sublayer: &str, mixer: &Mixer<F>, h: &Rows<F>, call: &mut CallState<F>) -> Vec<Mix<F>> {
        let mixes: Vec<Mix<F>> = h.iter().map(|h| mixer.mix(h)).collect();
        let copies = self.copies;
        let shape = [call.step.batch, call.step.tokens, copies, copies];
        let mut record = |part: &str, shape: &[usize], values: fn(&Mix<F>) -> &[F]| {
            let values: Vec<F> = mixes.iter().flat_map(values).copied().collect();
            call.recorder.float(self.name(&format!("{sublayer}_{part}")), shape, &values);
        };
        record("pre", &shape[..3], |mix| &mix.pre);
        record("post", &shape[..3], |mix| &mix.post);
        record("comb", &shape, |mix| &mix.comb);
        mixes
    }

    /// A sublayer's normed input.
    fn collapse(&self, h: &Rows<F>, pre_mix: &Rows<F>, norm: &RmsNorm<F>) -> Rows<F> {
        h.map(|n, h| norm.forward(&collapse(pre_mix.row(n), h, self.numerics), self.numerics))
    }

    /// The stream with a sublayer's output `y` mixed in, and the pre of its mixes.
    fn expand(&self, h: &Rows<F>, y: &Rows<F>, mixes: Vec<Mix<F>>) -> (Rows<F>, Rows<F>) {
        let expanded = h.map(|n, h| mixes[n].expand(y.row(n), h, self.numerics));
        let pre = mixes.into_iter().flat_map(|mix| mix.pre).collect();
        (expanded, Rows::new(self.copies, pre))
    }

    fn name(&self, capture: &str) -> String {
        format!("L{}.{capture}", self.layer)
    }

    fn record_stream(&self, capture: &str, h: &Rows<F>, call: &mut CallState<F>) {
        let shape = [call.step.batch, call.step.tokens, self.copies, self.dim];
        call.recorder.float(self.name(capture), &shape, h.values());
    }

    fn record_rows(&self, capture: &str, rows: &Rows<F>, call: &mut CallState<F>) {
        let shape = [call.step.batch, call.step.tokens, rows.width()];
        call.recorder.float(self.name(capture), &shape, rows.values());
    }
}
