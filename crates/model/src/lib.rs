//! DeepSeek-V4.1's text graph as Burn modules, generic over the backend.
//!
//! [`Transformer`] is the graph; [`Numerics`] says where it rounds; a [`Cache`] owns the state of a batch of sequences;
//! [`Selections`] are its discrete choices, which can be forced and taken out; a [`Probe`] looks into a call. No module
//! holds state besides its parameters, and nothing here names a backend.
//!
//! Axes in comments: B sequences, S tokens of a call, D `dim`, C copies of the stream, H heads, d `head_dim`,
//! T compressed positions, E experts.

pub mod activation;
mod adapter;
pub mod attention;
mod backend;
mod block;
mod cache;
mod candidates;
mod documents;
pub mod engram;
mod error;
pub mod generate;
pub mod hyper_connection;
mod linear;
#[cfg(test)]
mod module_gradients;
pub mod moe;
mod norm;
mod numerics;
mod objective;
pub mod parameters;
mod pass;
mod probe;
mod recompute;
pub mod rounding;
mod selections;
mod table;
#[cfg(test)]
mod testing;
pub mod topk;
mod transformer;
mod weights;

pub use adapter::{Dropout, LowRank};
pub use backend::ModelBackend;
pub use block::Block;
pub use cache::{Cache, DEFAULT_ROLLBACK};
pub use candidates::Candidates;
pub use error::ModelError;
pub use linear::{GroupedWeight, Linear, LinearInput, LinearWeight, PackedWeight};
pub use norm::RmsNorm;
pub use numerics::Numerics;
pub use objective::{Indexing, Objective, Routing};
pub use pass::{Call, LogitsOf, Switches};
pub use probe::{Probe, StreamPoint};
pub use recompute::BlockCall;
pub use selections::{LayerSelections, NONE, Selections};
pub use table::{RowSource, Rows, Table};
pub use transformer::{Layer, Output, States, Transformer};
pub use weights::{ExpertResidency, LoadOptions, Loader, WeightSource};
