//! DeepSeek-V4.1's text graph as Burn modules, generic over the backend.
//!
//! [`Transformer`] is the graph; [`Numerics`] says where it rounds; a [`Cache`] owns the state of a batch of sequences;
//! [`Selections`] are its discrete choices, which can be forced and taken out; a [`Probe`] looks into a call. No module
//! holds state besides its parameters, and nothing here names a backend.
//!
//! Axes in comments: B sequences, S tokens of a call, D `dim`, C copies of the stream, H heads, d `head_dim`,
//! T compressed positions, E experts.

pub mod activation;
pub mod attention;
mod block;
mod cache;
pub mod engram;
mod error;
pub mod hyper_connection;
mod linear;
pub mod moe;
mod norm;
mod numerics;
mod pass;
mod probe;
pub mod rounding;
mod selections;
pub mod topk;
mod transformer;
mod weights;

pub use block::Block;
pub use cache::{Cache, DEFAULT_ROLLBACK};
pub use error::ModelError;
pub use linear::{Linear, LinearInput};
pub use norm::RmsNorm;
pub use numerics::Numerics;
pub use pass::{Call, Switches};
pub use probe::{Probe, StreamPoint};
pub use selections::{LayerSelections, NONE, Selections};
pub use transformer::{Layer, Output, Transformer};
pub use weights::WeightSource;
