//! Training of DeepSeek-V4.1: losses, adapters, optimiser groups, data, run directories, and the trainer that brings them
//! together.

pub mod adapters;
pub mod data;
mod initial;
pub mod losses;
pub mod objective;
pub mod optimiser;
pub mod router_bias;
pub mod run;
pub mod tables;
pub mod trainer;
mod weights;

pub use initial::InitialWeights;
pub use weights::{restore_trained, save_trained};
