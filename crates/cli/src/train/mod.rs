//! Training from the command line.

pub mod display;
pub mod gradients;
