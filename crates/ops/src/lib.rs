//! Operations with backward passes of their own, for code that is generic over Burn's backends.
//!
//! Automatic differentiation keeps every intermediate result of a composed operation. Two ways around that, for code that
//! knows a bound `B: CustomOps` and no backend by name:
//!
//! - [`CustomOp`]: the backward pass is written by hand and makes what it needs anew from the inputs;
//! - [`with_gradients`]: the gradients are at hand together with the value, as in a loss that is taken chunk by chunk.
//!
//! A [`HostOp`] has kernels besides, for backends whose tensors lie in host memory.

mod autodiff;
mod backends;
#[cfg(feature = "flex")]
mod flex;
pub mod host;
mod op;

pub use host::HostOp;
pub use op::{CustomOp, CustomOps, constant, custom, from_primitive, into_primitive, is_tracked, with_gradients};
