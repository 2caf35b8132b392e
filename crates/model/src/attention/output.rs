use burn::{
    module::Module,
    tensor::{Tensor, backend::Backend},
};
use dsv41_config::Config;

use crate::{
    ModelBackend, ModelError, Numerics,
    linear::{GroupedWeight, Linear, LinearInput},
    weights::Loader,
};

/// The output projection in two steps: each group of heads to a low rank, all groups to D.
#[derive(Module, Debug)]
pub struct OutputProjection<B: Backend> {
    /// Each group of heads to its rank, `H/groups*d` to `o_lora_rank`.
    pub wo_a: GroupedWeight<B>,
    /// `[groups * o_lora_rank, D]`
    pub wo_b: Linear<B>,
    #[module(skip)]
    groups: usize,
}

impl<B: ModelBackend> OutputProjection<B> {
    /// Loads from an attention's loader.
    pub(crate) fn load(from: &Loader<'_, B>, config: &Config, quantised: LinearInput) -> Result<Self, ModelError> {
        let (groups, rank) = (config.o_groups, config.o_lora_rank);
        let group_width = config.n_heads / groups * config.head_dim;
        Ok(Self {
            wo_a: from.grouped_linear("wo_a.weight", [groups, rank, group_width])?,
            wo_b: Linear::load(from, "wo_b", [groups * rank, config.dim], quantised)?,
            groups,
        })
    }

    /// `[B, S, H, d]` to `[B, S, D]`.
    pub fn forward(&self, heads: Tensor<B, 4>, numerics: Numerics) -> Tensor<B, 3> {
        let [batch, seq, count, head_dim] = heads.dims();
        let grouped = heads.reshape([batch * seq, self.groups, count / self.groups * head_dim]);
        let low_rank = numerics.bf16(self.wo_a.product(grouped));
        let joined = low_rank.reshape([batch as i32, seq as i32, -1]);
        self.wo_b.forward(joined, numerics)
    }
}
