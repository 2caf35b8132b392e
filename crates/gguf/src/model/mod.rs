//! What a DeepSeek-V4.1 model is in a file: names, metadata, and the tensors that the graph asks for.

mod convert;
mod describe;
mod error;
mod file;
mod fingerprint;
mod importance;
mod layout;
mod names;
mod plan;
mod record;
mod release;
mod sizes;
mod store;
#[cfg(test)]
mod testing;

pub use convert::{Fallback, Progress, Quantisation, Step, Summary, Unweighted, convert};
pub use describe::{Description, describe};
pub use error::ModelError;
pub use file::{EngramRows, ModelFile};
pub use importance::Importance;
pub use layout::{LaidTensor, Layout};
pub use names::GgufName;
pub use plan::{OwnTypes, TypePlan, Types, UnknownPlan, fitting};
pub use record::metadata_of;
pub use release::ReleaseDir;
pub use sizes::PartSize;
pub use store::TensorStore;
