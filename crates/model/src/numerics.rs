//! Where the graph rounds.
//!
//! Modules call these methods at every point where the released kernels round; the policy decides what happens there.

use burn::tensor::{Tensor, backend::Backend};

use crate::rounding;

/// How a call computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Numerics {
    /// As DeepSeek's kernels: bf16 after every step, fp8 and fp4 round trips, block-wise softmax. No gradient passes.
    Reference,
    /// No rounding anywhere: what trains, and what other GGUF runtimes compute.
    #[default]
    Full,
    /// Forward as [`Numerics::Reference`], gradients straight through every rounding (quantisation-aware training).
    Qat,
}

impl Numerics {
    /// Whether results are those of the released kernels.
    pub fn rounds(self) -> bool {
        self != Self::Full
    }

    /// Rounds to bfloat16.
    pub fn bf16<B: Backend, const D: usize>(self, x: Tensor<B, D>) -> Tensor<B, D> {
        self.through(x, rounding::bf16)
    }

    /// The fp8 round trip of window keys and of the inputs of fp8 and fp4 linear layers: e4m3 in groups of 32 of the
    /// last axis with power-of-two scales.
    pub fn fp8<B: Backend, const D: usize>(self, x: Tensor<B, D>) -> Tensor<B, D> {
        self.through(x, rounding::fp8_round_trip)
    }

    /// The round trip of index queries and keys: e2m1 in groups of 32 with power-of-two scales.
    pub fn index_fp4<B: Backend, const D: usize>(self, x: Tensor<B, D>) -> Tensor<B, D> {
        self.through(x, rounding::fp4_round_trip_pow2)
    }

    /// The round trip of compressed latents: e2m1 in groups of 16 with e4m3 scales.
    pub fn latent_fp4<B: Backend, const D: usize>(self, x: Tensor<B, D>) -> Tensor<B, D> {
        self.through(x, rounding::fp4_round_trip_e4m3)
    }

    fn through<B: Backend, const D: usize>(
        self,
        x: Tensor<B, D>,
        round: impl FnOnce(Tensor<B, D>) -> Tensor<B, D>,
    ) -> Tensor<B, D> {
        match self {
            Self::Full => x,
            Self::Reference => round(x.detach()),
            Self::Qat => {
                let constant = x.clone().detach();
                // `x + (rounded - x)` is exact: the two are within a factor of two of each other, or one is zero.
                x + (round(constant.clone()) - constant)
            }
        }
    }
}
