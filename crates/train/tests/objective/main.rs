//! The objective of training on whole models.

mod bias;
mod blocks;
#[path = "../../../model/tests/model/common/mod.rs"]
mod common;
mod gradients;
mod setup;
