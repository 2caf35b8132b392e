//! The shape of a DeepSeek-V4.1 text model: its keys, the rules they obey, and which layer reads from which.
//!
//! [`Config`] loads the reference's `config.json` keys and the Hugging Face names, [`Config::validate`] names the key,
//! the value and the rule of whatever is wrong, [`Topology`] answers for each layer what it owns and what it reads, and
//! [`engram::EngramConstants`] derives the primes, offsets and multipliers of the n-gram hash.

mod config;
mod counts;
pub mod engram;
mod error;
mod load;
mod tensors;
#[cfg(test)]
mod testing;
mod topology;
mod validate;

pub use config::{Config, ExpertStorage, ScoreFunc, Storage};
pub use counts::ParameterCounts;
pub use error::ConfigError;
pub use tensors::{Part, StoredDtype, StoredTensor, TensorSpec, TensorStorage};
pub use topology::{LayerTopology, Topology};
