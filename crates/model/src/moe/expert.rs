use burn::{
    module::Module,
    tensor::{Tensor, backend::Backend},
};
use dsv41_config::Config;

use crate::{
    ModelBackend, ModelError, Numerics,
    activation::silu,
    linear::{Linear, LinearInput},
    weights::Loader,
};

/// A SwiGLU network with clamped branches.
#[derive(Module, Debug)]
pub struct Expert<B: Backend> {
    /// Gate, `[D, I]`.
    pub w1: Linear<B>,
    /// Down, `[I, D]`.
    pub w2: Linear<B>,
    /// Up, `[D, I]`.
    pub w3: Linear<B>,
    #[module(skip)]
    limit: f64,
}

impl<B: ModelBackend> Expert<B> {
    pub(crate) fn load(from: &Loader<'_, B>, config: &Config, input: LinearInput) -> Result<Self, ModelError> {
        let (dim, inter) = (config.dim, config.moe_inter_dim);
        Ok(Self {
            w1: Linear::load(from, "w1", [dim, inter], input)?,
            w2: Linear::load(from, "w2", [inter, dim], input)?,
            w3: Linear::load(from, "w3", [dim, inter], input)?,
            limit: config.swiglu_limit,
        })
    }

    /// `w2(weight * silu(min(w1 x, limit)) * clamp(w3 x, -limit, limit))`: `[n, D]` to the same. `weight` is `[n, 1]`,
    /// absent for a shared expert.
    pub fn forward(&self, x: Tensor<B, 2>, weight: Option<Tensor<B, 2>>, numerics: Numerics) -> Tensor<B, 2> {
        let mut gate = self.w1.forward(x.clone(), numerics);
        let mut up = self.w3.forward(x, numerics);
        if self.limit > 0.0 {
            gate = gate.clamp_max(self.limit);
            up = up.clamp(-self.limit, self.limit);
        }
        let mut hidden = silu(gate) * up;
        if let Some(weight) = weight {
            hidden = hidden * weight;
        }
        self.w2.forward(numerics.bf16(hidden), numerics)
    }
}
