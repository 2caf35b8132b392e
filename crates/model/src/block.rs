use burn::{
    module::Module,
    tensor::{Tensor, backend::Backend},
};
use dsv41_config::{Config, LayerTopology};

use crate::{
    ModelBackend, ModelError,
    attention::Attention,
    hyper_connection::{HyperConnection, Mix, collapse, expand},
    linear::LinearInput,
    moe::MixtureOfExperts,
    norm::RmsNorm,
    pass::Pass,
    weights::Loader,
};

/// Attention and feed-forward, each between a collapse and an expansion of the residual stream.
#[derive(Module, Debug)]
pub struct Block<B: Backend> {
    /// Mixer of the attention sublayer.
    pub hc_attn: HyperConnection<B>,
    /// Norm of the attention's input.
    pub attn_norm: RmsNorm<B>,
    /// Attention.
    pub attn: Attention<B>,
    /// Mixer of the feed-forward sublayer.
    pub hc_ffn: HyperConnection<B>,
    /// Norm of the feed-forward's input.
    pub ffn_norm: RmsNorm<B>,
    /// Feed-forward.
    pub ffn: MixtureOfExperts<B>,
}

impl<B: ModelBackend> Block<B> {
    pub(crate) fn load(
        from: &Loader<'_, B>,
        config: &Config,
        place: &LayerTopology,
        dense: LinearInput,
        routed: LinearInput,
    ) -> Result<Self, ModelError> {
        let norm = |name| RmsNorm::load(from, name, config.dim, config.norm_eps);
        Ok(Self {
            hc_attn: HyperConnection::load(from, "hc_attn", config)?,
            attn_norm: norm("attn_norm")?,
            attn: Attention::load(from, config, place, dense)?,
            hc_ffn: HyperConnection::load(from, "hc_ffn", config)?,
            ffn_norm: norm("ffn_norm")?,
            ffn: MixtureOfExperts::load(from, config, dense, routed)?,
        })
    }

    /// The stream `[B, S, C, D]` and the collapse weights `[B, S, C]` that the layer before left, to the same for the
    /// layer after.
    ///
    /// Collapse weights lag: attention collapses with those handed in, the feed-forward with the attention mixer's, and
    /// the feed-forward mixer's go on to the next block. `next` is that block, whose experts can be fetched early.
    pub(crate) fn forward(
        &self,
        h: Tensor<B, 4>,
        pre_mix: Tensor<B, 3>,
        layer: usize,
        next: Option<&Self>,
        pass: &mut Pass<'_, B>,
    ) -> (Tensor<B, 4>, Tensor<B, 3>) {
        let numerics = pass.numerics;

        let mix = self.hc_attn.forward(h.clone(), numerics);
        record_mix(&mix, ["attn_pre", "attn_post", "attn_comb"], layer, pass);
        let x = self.attn_norm.forward(collapse(h.clone(), pre_mix, numerics), numerics);
        pass.record(layer, "attn_in", &x);
        let y = self.attn.forward(x, pass);
        pass.record(layer, "attn_out", &y);
        let pre_mix = mix.pre.clone();
        let h = expand(h, y, mix, numerics);

        let mix = self.hc_ffn.forward(h.clone(), numerics);
        record_mix(&mix, ["ffn_pre", "ffn_post", "ffn_comb"], layer, pass);
        let x = self.ffn_norm.forward(collapse(h.clone(), pre_mix, numerics), numerics);
        pass.record(layer, "ffn_in", &x);
        // One token's experts can be guessed; a prompt's are most of them.
        if let Some(next) = next.filter(|_| pass.seq == 1) {
            next.ffn.prefetch(x.clone(), layer + 1);
        }
        let y = self.ffn.forward(x, layer, pass);
        pass.record(layer, "ffn_out", &y);
        let pre_mix = mix.pre.clone();
        (expand(h, y, mix, numerics), pre_mix)
    }
}

fn record_mix<B: Backend>(mix: &Mix<B>, [pre, post, comb]: [&'static str; 3], layer: usize, pass: &mut Pass<'_, B>) {
    pass.record(layer, pre, &mix.pre);
    pass.record(layer, post, &mix.post);
    pass.record(layer, comb, &mix.comb);
}
