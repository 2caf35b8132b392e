//! Norms by the root mean square.

mod op;

use burn::{
    module::{Module, Param},
    tensor::{Tensor, backend::Backend},
};
use dsv41_ops::{CustomOps, custom, into_primitive};

pub(crate) use self::op::Order;
use self::op::{InverseRms, Normalise};
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
}

impl<B: CustomOps> RmsNorm<B> {
    /// `[.., width]` to the same.
    pub fn forward<const D: usize>(&self, x: Tensor<B, D>, numerics: Numerics) -> Tensor<B, D> {
        let shape = x.dims();
        let inputs = [into_primitive(rows(x)), into_primitive(self.weight.val())];
        numerics.bf16(custom::<B, _, 2, 2>(Normalise { eps: self.eps, order: numerics.into() }, inputs).reshape(shape))
    }
}

/// `rsqrt(mean(x^2) + eps)` over the last axis, which stays with length 1.
pub(crate) fn inverse_rms<B: CustomOps, const D: usize>(x: Tensor<B, D>, eps: f64, numerics: Numerics) -> Tensor<B, D> {
    let mut shape = x.dims();
    shape[D - 1] = 1;
    custom::<B, _, 1, 2>(InverseRms { eps, order: numerics.into() }, [into_primitive(rows(x))]).reshape(shape)
}

/// `[.., width]` as `[n, width]`.
fn rows<B: Backend, const D: usize>(x: Tensor<B, D>) -> Tensor<B, 2> {
    let width = x.dims()[D - 1];
    x.reshape([-1, width as i32])
}

#[cfg(test)]
mod tests;
