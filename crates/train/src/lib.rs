//! Training of DeepSeek-V4.1: losses, optimiser groups, data and run directories.

pub mod data;
pub mod losses;
pub mod optimiser;
pub mod run;
