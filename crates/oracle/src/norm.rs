//! RMSNorm.

use crate::linear::dot;
use crate::load::Scope;
use crate::{Numerics, OracleError, Real};

/// `w * (x * rsqrt(mean(x^2) + eps))`, rounded to bf16. The weight is plain `w`, not `1 + w`.
pub(crate) struct RmsNorm<F> {
    weight: Vec<F>,
    eps: F,
}

impl<F: Real> RmsNorm<F> {
    /// The weight `name.weight`.
    pub(crate) fn load(scope: &Scope, name: &str, width: usize, eps: f64) -> Result<Self, OracleError> {
        Ok(Self { weight: scope.values(&format!("{name}.weight"), &[width])?, eps: F::from_f64(eps) })
    }

    pub(crate) fn forward(&self, x: &[F], numerics: Numerics) -> Vec<F> {
        let scale = inverse_rms(x, self.eps);
        self.weight.iter().zip(x).map(|(&w, &x)| numerics.bf16(w * (x * scale))).collect()
    }
}

/// `rsqrt(mean(x^2) + eps)`.
pub(crate) fn inverse_rms<F: Real>(x: &[F], eps: F) -> F {
    (dot(x, x) / F::from_f64(x.len() as f64) + eps).rsqrt()
}
