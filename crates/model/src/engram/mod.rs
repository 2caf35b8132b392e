//! Engram: table rows looked up by hashed n-grams, gated into every copy of the stream.

mod gate;
mod hash;

use burn::{
    module::{Module, Param},
    tensor::{Tensor, backend::Backend},
};
use dsv41_config::Config;
use dsv41_ops::{custom, into_primitive};

use self::gate::Gate;
pub use hash::NgramHasher;

use crate::{
    ModelBackend, ModelError, Numerics,
    linear::{Linear, LinearInput},
    pass::Pass,
    table::Table,
    weights::Loader,
};

/// The engram of one layer.
#[derive(Module, Debug)]
pub struct Engram<B: Backend> {
    /// Rows by n-gram hash.
    pub embed: Table<B>,
    /// Joined rows to C keys and one value, `[slots * width, (C+1)*D]`.
    pub wkv: Linear<B>,
    /// Norm weight of the stream, `[C, D]`.
    pub q_weight: Param<Tensor<B, 2>>,
    /// Norm weight of the keys, `[C, D]`.
    pub k_weight: Param<Tensor<B, 2>>,
    #[module(skip)]
    norm_eps: f64,
}

impl<B: ModelBackend> Engram<B> {
    /// Loads from a layer's loader the engram at place `slot`.
    ///
    /// # Errors
    /// When a weight is missing or has other axes.
    pub fn load(
        from: &Loader<'_, B>,
        config: &Config,
        slot: usize,
        quantised: LinearInput,
    ) -> Result<Self, ModelError> {
        let from = from.at("engram");
        let (copies, dim, width) = (config.hc_mult, config.dim, config.engram_head_dim);
        let slots = config.engram_max_ngram_size.saturating_sub(1) * config.engram_n_heads;
        let rows = config.engram_num_embeddings[slot] as usize;
        Ok(Self {
            embed: Table::load(&from, "embed", [rows, width])?,
            wkv: Linear::load(&from, "wkv", [slots * width, (copies + 1) * dim], quantised)?,
            q_weight: from.param("q_weight", [copies, dim])?,
            k_weight: from.param("k_weight", [copies, dim])?,
            norm_eps: config.norm_eps,
        })
    }

    /// Looks up `rows`, the table rows of every position, `[B, S, slots]`, and adds them to the stream: `[B, S, C, D]` to
    /// the same.
    ///
    /// # Errors
    /// When the table's rows cannot be read.
    pub(crate) fn forward(
        &self,
        h: Tensor<B, 4>,
        rows: &[i64],
        layer: usize,
        pass: &mut Pass<'_, B>,
    ) -> Result<Tensor<B, 4>, ModelError> {
        let numerics = pass.numerics;
        let [batch, seq, ..] = h.dims();
        let width = self.embed.width();
        let slots = rows.len() / (batch * seq);
        let mut looked_up = self.embed.look_up(rows, &pass.device, pass.dtype)?;
        if let Some(objective) = &mut pass.objective {
            looked_up = objective.engram_rows(layer, rows, looked_up);
        }
        let looked_up = looked_up.reshape([batch, seq, slots, width]);
        pass.record(layer, "engram_embed", &looked_up);

        let kv = self.wkv.forward(looked_up.reshape([batch, seq, slots * width]), numerics);
        pass.record(layer, "engram_kv", &kv);
        Ok(self.add(h, kv, numerics))
    }

    /// `h += gate * value` for every copy, rounded to bf16: the stream `[B, S, C, D]` and what `wkv` makes of the joined rows,
    /// `[B, S, (C+1)*D]`, C keys and then the value.
    ///
    /// The gate of a copy is `sigmoid(copysign(sqrt(|dot|), dot))` of the scaled product of its norm and its key's.
    pub fn add(&self, h: Tensor<B, 4>, kv: Tensor<B, 3>, numerics: Numerics) -> Tensor<B, 4> {
        let [batch, seq, copies, dim] = h.dims();
        let keys = kv.clone().narrow(2, 0, copies * dim).reshape([batch * seq, copies, dim]);
        let value = kv.narrow(2, copies * dim, dim).reshape([batch * seq, dim]);
        let inputs = [
            into_primitive::<B, 3>(h.reshape([batch * seq, copies, dim])),
            into_primitive(keys),
            into_primitive(value),
            into_primitive(self.q_weight.val() * self.k_weight.val()),
        ];
        let gated = custom::<B, _, 4, 3>(Gate { eps: self.norm_eps, order: numerics.into() }, inputs);
        numerics.bf16(gated.reshape([batch, seq, copies, dim]))
    }
}
