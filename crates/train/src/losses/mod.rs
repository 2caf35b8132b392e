//! What training minimises.

mod cross_entropy;
mod error;

pub use cross_entropy::{CrossEntropy, Loss, Totals};
pub use error::LossError;
