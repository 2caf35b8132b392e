//! Hyper-connections: the residual stream has C copies, mixed before and after every sublayer.
//!
//! One pass and lagged: the weights with which a sublayer collapses the copies were made by the mixer of the sublayer
//! before it; the weights with which it expands its result are its own mixer's.

mod host;
mod sinkhorn;
mod stream;

use burn::{
    module::{Module, Param},
    tensor::{Tensor, backend::Backend},
};
use dsv41_config::Config;
use dsv41_ops::{CustomOps, custom, into_primitive};

use self::{
    sinkhorn::Sinkhorn,
    stream::{Collapse, Expand},
};
use crate::{ModelError, Numerics, activation::sigmoid, norm::inverse_rms, weights::Loader};

/// What a mixer makes of the stream.
#[derive(Debug, Clone)]
pub struct Mix<B: Backend> {
    /// Collapse weights of the *next* sublayer, `[B, S, C]`.
    pub pre: Tensor<B, 3>,
    /// Weight of the sublayer's result in each copy, `[B, S, C]`.
    pub post: Tensor<B, 3>,
    /// How copies mix, `[B, S, C, C]`: first axis summed over, second axis the new copy.
    pub comb: Tensor<B, 4>,
}

/// The mixer of one sublayer.
#[derive(Module, Debug)]
pub struct HyperConnection<B: Backend> {
    /// `[C*D, (2+C)*C]`
    pub function: Param<Tensor<B, 2>>,
    /// `[(2+C)*C]`
    pub base: Param<Tensor<B, 1>>,
    /// Factors of the three parts, `[3]`.
    pub scale: Param<Tensor<B, 1>>,
    #[module(skip)]
    sinkhorn: Sinkhorn,
    #[module(skip)]
    norm_eps: f64,
}

impl<B: CustomOps> HyperConnection<B> {
    /// Loads `NAME_fn`, `NAME_base` and `NAME_scale` from a layer's loader.
    ///
    /// # Errors
    /// When a weight is missing or has other axes.
    pub fn load(from: &Loader<'_, B>, name: &str, config: &Config) -> Result<Self, ModelError> {
        let copies = config.hc_mult;
        let mixes = (2 + copies) * copies;
        Ok(Self {
            function: from.transposed(&format!("{name}_fn"), [mixes, copies * config.dim])?,
            base: from.param(&format!("{name}_base"), [mixes])?,
            scale: from.param(&format!("{name}_scale"), [3])?,
            sinkhorn: Sinkhorn { iterations: config.hc_sinkhorn_iters, eps: config.hc_eps },
            norm_eps: config.norm_eps,
        })
    }

    /// Reads the stream itself, without a norm, before the sublayer collapses it. All in f32.
    ///
    /// `h` is `[B, S, C, D]`.
    pub fn forward(&self, h: Tensor<B, 4>, numerics: Numerics) -> Mix<B> {
        let [batch, seq, copies, dim] = h.dims();
        let flat = h.reshape([batch * seq, copies * dim]);
        let scale = inverse_rms(flat.clone(), self.norm_eps, numerics);
        let mixes = flat.matmul(self.function.val()) * scale;

        let part = |index: usize, start: usize, width: usize| {
            let scale = self.scale.val().narrow(0, index, 1).unsqueeze::<2>();
            let base = self.base.val().narrow(0, start, width).unsqueeze::<2>();
            mixes.clone().narrow(1, start, width) * scale + base
        };
        let pre = sigmoid(part(0, 0, copies)).add_scalar(self.sinkhorn.eps);
        let post = sigmoid(part(1, copies, copies)).mul_scalar(2.0);
        let logits = part(2, 2 * copies, copies * copies).reshape([batch, seq, copies, copies]);
        let comb = custom(self.sinkhorn, [into_primitive::<B, 4>(logits)]);
        Mix { pre: pre.reshape([batch, seq, copies]), post: post.reshape([batch, seq, copies]), comb }
    }
}

/// `x = sum_c mix[c] * h[c]`, rounded to bf16: `[B, S, C, D]` and `[B, S, C]` to `[B, S, D]`.
pub fn collapse<B: CustomOps>(h: Tensor<B, 4>, mix: Tensor<B, 3>, numerics: Numerics) -> Tensor<B, 3> {
    numerics.bf16(custom(Collapse, [into_primitive(h), into_primitive(mix)]))
}

/// `h'[k] = post[k] * y + sum_j comb[j][k] * h[j]`, rounded to bf16: the sublayer's result `y` (`[B, S, D]`) back into
/// the stream `[B, S, C, D]`.
pub fn expand<B: CustomOps>(h: Tensor<B, 4>, y: Tensor<B, 3>, mix: Mix<B>, numerics: Numerics) -> Tensor<B, 4> {
    let inputs = [into_primitive(h), into_primitive(y), into_primitive(mix.post), into_primitive(mix.comb)];
    numerics.bf16(custom(Expand, inputs))
}
