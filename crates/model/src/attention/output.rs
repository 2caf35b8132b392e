use burn::{
    module::{Module, Param},
    tensor::{Tensor, backend::Backend},
};
use dsv41_config::Config;

use crate::{
    ModelError, Numerics,
    linear::{Linear, LinearInput},
    weights::Loader,
};

/// The output projection in two steps: each group of heads to a low rank, all groups to D.
#[derive(Module, Debug)]
pub struct OutputProjection<B: Backend> {
    /// `[groups, H/groups*d, o_lora_rank]`
    pub wo_a: Param<Tensor<B, 3>>,
    /// `[groups * o_lora_rank, D]`
    pub wo_b: Linear<B>,
}

impl<B: Backend> OutputProjection<B> {
    /// Loads from an attention's loader.
    pub(crate) fn load(from: &Loader<'_, B>, config: &Config, quantised: LinearInput) -> Result<Self, ModelError> {
        let (groups, rank) = (config.o_groups, config.o_lora_rank);
        let group_width = config.n_heads / groups * config.head_dim;
        Ok(Self {
            wo_a: from.grouped_transposed("wo_a.weight", [groups, rank, group_width])?,
            wo_b: Linear::load(from, "wo_b", [groups * rank, config.dim], quantised)?,
        })
    }

    /// `[B, S, H, d]` to `[B, S, D]`.
    pub fn forward(&self, heads: Tensor<B, 4>, numerics: Numerics) -> Tensor<B, 3> {
        let [batch, seq, _, _] = heads.dims();
        let [groups, group_width, rank] = self.wo_a.dims();
        let grouped = heads.reshape([batch * seq, groups, group_width]).swap_dims(0, 1);
        let low_rank = numerics.bf16(grouped.matmul(self.wo_a.val()));
        let joined = low_rank.swap_dims(0, 1).reshape([batch, seq, groups * rank]);
        self.wo_b.forward(joined, numerics)
    }
}
