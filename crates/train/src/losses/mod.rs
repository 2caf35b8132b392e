//! What training minimises: the cross entropy of a head, and losses of what layers do on the way there.

mod balance;
mod cross_entropy;
mod error;
mod indexer;
mod router_distribution;
mod router_z;
mod sequences;
#[cfg(test)]
mod testing;

pub use balance::balance_loss;
pub use cross_entropy::{CrossEntropy, Loss, Totals};
pub use error::LossError;
pub use indexer::IndexerLoss;
pub use router_distribution::router_entropy;
pub use router_z::router_z_loss;
pub use sequences::Sequences;
