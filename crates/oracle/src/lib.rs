//! The text graph of DeepSeek-V4.1 in plain scalar Rust: slow, obvious and exact.
//!
//! ```text
//! transformer   embedding, layers, head
//!   block       one layer and its residual stream
//!     engram, hyper_connection, moe
//!     attention
//!       stream (compressor, index keys), indexer, sparse_attention, rope
//! cache         what a sequence leaves behind       call, capture   what goes in, what comes out
//! quantise, linear, norm, selection                 the arithmetic that these share
//! ```
//!
//! The equations are those of DeepSeek's released `inference/model.py` and `kernel.py` (DeepSeek-V4.1-Flash). With
//! [`Numerics::Reference`] every rounding to bf16, fp8 and fp4 stands where it stands there, and what is left to choose is
//! the order of sums: here always one term after the other, in f32 (linears with fp8 or fp4 weights: first within each
//! 32 inputs, then over those). Against goldens of the released code, every layer given exactly the golden's input, that
//! leaves no difference at all in most tensors and at most 1.2 bf16 steps of a tensor's largest value in the worst; what
//! the scores choose is the same everywhere. [`Numerics::Full`] rounds nowhere: in f64 it gives the logits of the
//! released code computed in f64 to the f32 precision in which those are kept. Transcendental functions are crate
//! `libm`'s, so a run's bits are the same on every machine.
//!
//! A result depends on its sequence up to its position and on nothing else: not on how the sequence was cut into calls,
//! nor on its neighbours in a batch, bit for bit.

mod attention;
mod block;
mod cache;
mod call;
mod capture;
mod compressor;
mod engram;
mod error;
mod hyper_connection;
mod indexer;
mod linear;
mod load;
mod moe;
mod norm;
mod numerics;
mod quantise;
mod real;
mod rope;
mod rows;
mod selection;
mod sparse_attention;
mod stream;
mod transformer;

pub use cache::Cache;
pub use call::{Call, Output};
pub use dsv41_golden::ProbsDtype;
pub use engram::hash_ids;
pub use error::OracleError;
pub use numerics::{Numerics, Switches};
pub use real::Real;
pub use transformer::Oracle;
