//! The compressed stream: every `ratio` tokens become one latent that later tokens can attend to.

use burn::{
    module::Module,
    tensor::{Tensor, activation::softmax, backend::Backend},
};
use dsv41_config::Config;
use dsv41_ops::constant;

use crate::{
    ModelBackend, ModelError,
    cache::StreamView,
    linear::{Linear, LinearInput},
    norm::RmsNorm,
    pass::Pass,
    weights::Loader,
};

/// Makes the latents and the indexer's keys of a kv source.
#[derive(Module, Debug)]
pub struct Compressor<B: Backend> {
    /// `[D, d]`
    pub wkv: Linear<B>,
    /// Channel-by-channel pooling scores, `[D, d]`; absent when one token is one latent.
    pub wgate: Option<Linear<B>>,
    /// Norm of the latent.
    pub norm: RmsNorm<B>,
    /// Index key of a latent, `[d, index_head_dim]`.
    pub wk: Linear<B>,
    /// Norm of the index key.
    pub k_norm: RmsNorm<B>,
    #[module(skip)]
    ratio: usize,
}

impl<B: ModelBackend> Compressor<B> {
    /// Loads from an attention's loader.
    pub(crate) fn load(from: &Loader<'_, B>, config: &Config, ratio: usize) -> Result<Self, ModelError> {
        let (compressor, indexer) = (from.at("compressor"), from.at("indexer"));
        let project = |name| Linear::load(&compressor, name, [config.dim, config.head_dim], LinearInput::Plain);
        Ok(Self {
            wkv: project("wkv")?,
            wgate: (ratio > 1).then(|| project("wgate")).transpose()?,
            norm: RmsNorm::load(&compressor, "norm", config.head_dim, config.norm_eps)?,
            wk: Linear::load(&indexer, "wk", [config.head_dim, config.index_head_dim], LinearInput::Plain)?,
            k_norm: RmsNorm::load(&indexer, "k_norm", config.index_head_dim, config.norm_eps)?,
            ratio,
        })
    }

    /// The stream that `layer` publishes: earlier latents and those that `x` (`[B, S, D]`) completes. `None` while no
    /// group is complete.
    pub(crate) fn forward(&self, x: Tensor<B, 3>, layer: usize, pass: &mut Pass<'_, B>) -> Option<StreamView<B>> {
        let new = self.pool(x, layer, pass).map(|latents| self.finish(latents, pass));
        let Some(cache) = &mut pass.cache else { return new };
        if new.is_some() {
            cache.published = Some(layer);
        }
        let stream = cache.layers[layer].stream.as_mut().expect("a kv source's cache has a stream");
        stream.extend(new);
        stream.view()
    }

    /// The latents `[B, groups, d]` of newly complete groups, normed but neither rotated nor quantised.
    fn pool(&self, x: Tensor<B, 3>, layer: usize, pass: &mut Pass<'_, B>) -> Option<Tensor<B, 3>> {
        let numerics = pass.numerics;
        let Some(wgate) = &self.wgate else {
            return Some(self.norm.forward(self.wkv.forward(x, numerics), numerics));
        };
        let mut values = self.wkv.forward_unrounded(x.clone(), numerics);
        let mut scores = wgate.forward_unrounded(x, numerics);
        if let Some(cache) = &mut pass.cache {
            let waiting = pass.start % self.ratio;
            let inputs = cache.layers[layer].group_inputs.as_mut().expect("a pooling source's cache has group inputs");
            values = inputs.values.extend(values, waiting);
            scores = inputs.scores.extend(scores, waiting);
        }

        let [batch, tokens, width] = values.dims();
        let groups = tokens / self.ratio;
        if groups == 0 {
            return None;
        }
        let by_group =
            |rows: Tensor<B, 3>| rows.narrow(1, 0, groups * self.ratio).reshape([batch, groups, self.ratio, width]);
        let weights = softmax(by_group(scores), 2);
        let pooled = (by_group(values) * weights).sum_dim(2).squeeze_dim::<3>(2);
        Some(self.norm.forward(numerics.bf16(pooled), numerics))
    }

    /// Index keys and cached latents from normed latents. The keys are made first, from the latent as it is.
    fn finish(&self, latents: Tensor<B, 3>, pass: &Pass<'_, B>) -> StreamView<B> {
        let numerics = pass.numerics;
        let groups = latents.dims()[1];
        let first = pass.start / self.ratio;
        let positions = (first..first + groups).map(|group| group * self.ratio);
        let rotation = pass.rotations.compressed_frequencies.rotation(positions, &pass.device, pass.dtype);
        let rotate = |x: Tensor<B, 3>| numerics.bf16(rotation.apply(x.unsqueeze_dim::<4>(2))).squeeze_dim::<3>(2);

        // The keys serve a choice, and the indexer's own loss: no gradient of theirs reaches the latents.
        let keys = self.k_norm.forward(self.wk.forward(constant(latents.clone()), numerics), numerics);
        StreamView { keys: numerics.index_fp4(rotate(keys)), latents: numerics.latent_fp4(rotate(latents)) }
    }
}
