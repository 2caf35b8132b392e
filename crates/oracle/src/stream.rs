//! How a kv source layer feeds its compressed stream, which the layers up to the next source read.

use dsv41_config::Config;

use crate::cache::Stream;
use crate::compressor::Compressor;
use crate::indexer::IndexKeys;
use crate::load::Scope;
use crate::rope::Rope;
use crate::{Numerics, OracleError, Real};

/// Makes latents and index keys, one of each for every `ratio` tokens.
pub(crate) struct Source<F> {
    ratio: usize,
    compressor: Compressor<F>,
    index_keys: IndexKeys<F>,
}

impl<F: Real> Source<F> {
    /// The source of the attention whose weights are below `attn`.
    pub(crate) fn load(attn: &Scope, config: &Config, ratio: usize) -> Result<Self, OracleError> {
        Ok(Self {
            ratio,
            compressor: Compressor::load(&attn.child("compressor"), config, ratio)?,
            index_keys: IndexKeys::load(&attn.child("indexer"), config)?,
        })
    }

    /// Numbers that a stream keeps of one token.
    pub(crate) fn pooled_width(&self) -> usize {
        self.compressor.pooled_width()
    }

    /// Appends one token with the normed input `x`; says whether that finished a group.
    pub(crate) fn append(&self, x: &[F], stream: &mut Stream<F>, rope: &Rope, numerics: Numerics) -> bool {
        stream.inputs.push(&self.compressor.project(x, numerics));
        if !stream.inputs.len().is_multiple_of(self.ratio) {
            return false;
        }
        let group = stream.latents.len();
        let mut latent = self.compressor.latent(&stream.inputs, group, numerics);
        // A latent stands at the position of its group's first token. Its index key is made before it is turned.
        let rotation = rope.rotation(group * self.ratio);
        stream.keys.push(&self.index_keys.forward(&latent, &rotation, numerics));
        rotation.apply(&mut latent, numerics);
        numerics.latent_fp4(&mut latent);
        stream.latents.push(&latent);
        true
    }
}
