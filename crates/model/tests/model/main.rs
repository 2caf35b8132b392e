//! The model as a whole, in one binary: generic code is compiled once for each backend.

mod cache;
mod common;
mod documents;
mod gradients;
mod packed;
mod rounding;
