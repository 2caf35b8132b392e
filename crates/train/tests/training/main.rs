//! Training of whole models: its objective, and the trainer.

mod bias;
mod blocks;
#[path = "../../../model/tests/model/common/mod.rs"]
mod common;
mod gradients;
mod setup;
mod tables;
mod trainer;
