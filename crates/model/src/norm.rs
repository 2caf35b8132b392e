use burn::{
    module::{Module, Param},
    tensor::{Tensor, backend::Backend},
};

use crate::{ModelError, Numerics, weights::Loader};

/// `w * x * rsqrt(mean(x^2) + eps)` over the last axis, rounded to bf16.
///
/// The release's eps is 1e-20 on purpose, and the weight is `w`, not `1 + w`.
#[derive(Module, Debug)]
pub struct RmsNorm<B: Backend> {
    /// `[width]`
    pub weight: Param<Tensor<B, 1>>,
    #[module(skip)]
    eps: f64,
}

impl<B: Backend> RmsNorm<B> {
    pub(crate) fn load(from: &Loader<'_, B>, name: &str, width: usize, eps: f64) -> Result<Self, ModelError> {
        Ok(Self { weight: from.param(&format!("{name}.weight"), [width])?, eps })
    }

    /// `[.., width]` to the same.
    pub fn forward<const D: usize>(&self, x: Tensor<B, D>, numerics: Numerics) -> Tensor<B, D> {
        let scale = inverse_rms(x.clone(), self.eps);
        numerics.bf16(self.weight.val().unsqueeze::<D>() * (x * scale))
    }
}

/// `rsqrt(mean(x^2) + eps)` over the last axis, which stays with length 1.
pub(crate) fn inverse_rms<B: Backend, const D: usize>(x: Tensor<B, D>, eps: f64) -> Tensor<B, D> {
    x.square().mean_dim(D - 1).add_scalar(eps).sqrt().recip()
}
