//! Hyper-connections: the residual stream has C copies, mixed before and after every sublayer.
//!
//! One pass and lagged: the weights with which a sublayer collapses the copies were made by the mixer of the sublayer
//! before it; the weights with which it expands its result are its own mixer's.

use burn::{
    module::{Module, Param},
    tensor::{Tensor, activation::softmax, backend::Backend},
};
use dsv41_config::Config;

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
    sinkhorn_iters: usize,
    #[module(skip)]
    hc_eps: f64,
    #[module(skip)]
    norm_eps: f64,
}

impl<B: Backend> HyperConnection<B> {
    /// Loads `NAME_fn`, `NAME_base` and `NAME_scale`.
    pub(crate) fn load(from: &Loader<'_, B>, name: &str, config: &Config) -> Result<Self, ModelError> {
        let copies = config.hc_mult;
        let mixes = (2 + copies) * copies;
        Ok(Self {
            function: from.transposed(&format!("{name}_fn"), [mixes, copies * config.dim])?,
            base: from.param(&format!("{name}_base"), [mixes])?,
            scale: from.param(&format!("{name}_scale"), [3])?,
            sinkhorn_iters: config.hc_sinkhorn_iters,
            hc_eps: config.hc_eps,
            norm_eps: config.norm_eps,
        })
    }

    /// Reads the stream itself, without a norm, before the sublayer collapses it. All in f32.
    ///
    /// `h` is `[B, S, C, D]`.
    pub fn forward(&self, h: Tensor<B, 4>) -> Mix<B> {
        let [batch, seq, copies, dim] = h.dims();
        let flat = h.reshape([batch * seq, copies * dim]);
        let scale = inverse_rms(flat.clone(), self.norm_eps);
        let mixes = flat.matmul(self.function.val()) * scale;

        let part = |index: usize, start: usize, width: usize| {
            let scale = self.scale.val().narrow(0, index, 1).unsqueeze::<2>();
            let base = self.base.val().narrow(0, start, width).unsqueeze::<2>();
            mixes.clone().narrow(1, start, width) * scale + base
        };
        let pre = sigmoid(part(0, 0, copies)).add_scalar(self.hc_eps);
        let post = sigmoid(part(1, copies, copies)).mul_scalar(2.0);
        let comb = self.sinkhorn(part(2, 2 * copies, copies * copies).reshape([batch, seq, copies, copies]));
        Mix { pre: pre.reshape([batch, seq, copies]), post: post.reshape([batch, seq, copies]), comb }
    }

    /// Towards a doubly stochastic matrix: a softmax of the rows and one division of the columns, then rows and columns
    /// in turn. Every denominator is guarded.
    fn sinkhorn(&self, logits: Tensor<B, 4>) -> Tensor<B, 4> {
        const ROWS: usize = 3;
        const COLUMNS: usize = 2;
        let divide = |m: Tensor<B, 4>, axis: usize| m.clone() / m.sum_dim(axis).add_scalar(self.hc_eps);
        let mut comb = divide(softmax(logits, ROWS).add_scalar(self.hc_eps), COLUMNS);
        for _ in 1..self.sinkhorn_iters {
            comb = divide(divide(comb, ROWS), COLUMNS);
        }
        comb
    }
}

/// `x = sum_c mix[c] * h[c]`, rounded to bf16: `[B, S, C, D]` and `[B, S, C]` to `[B, S, D]`.
pub fn collapse<B: Backend>(h: Tensor<B, 4>, mix: Tensor<B, 3>, numerics: Numerics) -> Tensor<B, 3> {
    numerics.bf16((h * mix.unsqueeze_dim::<4>(3)).sum_dim(2).squeeze_dim::<3>(2))
}

/// `h'[k] = post[k] * y + sum_j comb[j][k] * h[j]`, rounded to bf16: the sublayer's result `y` (`[B, S, D]`) back into
/// the stream `[B, S, C, D]`.
///
/// The sum is written out, since a matrix product would contract it into fused multiply-adds, which the released code's
/// elementwise products and sums do not.
pub fn expand<B: Backend>(h: Tensor<B, 4>, y: Tensor<B, 3>, mix: Mix<B>, numerics: Numerics) -> Tensor<B, 4> {
    let copies = h.dims()[2];
    let mixed = (0..copies)
        .map(|j| {
            let weights = mix.comb.clone().narrow(2, j, 1).swap_dims(2, 3);
            weights * h.clone().narrow(2, j, 1)
        })
        .reduce(|sum, term| sum + term)
        .expect("the stream has at least one copy");
    numerics.bf16(mix.post.unsqueeze_dim::<4>(3) * y.unsqueeze_dim::<4>(2) + mixed)
}
