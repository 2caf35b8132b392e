//! What the `dsv41` command is made of, for other programs of the workspace.

pub mod adapters;
pub mod bench;
pub mod convert;
pub mod device;
pub mod export;
pub mod generate;
pub mod inspect;
mod interrupt;
pub mod memory;
pub mod message;
pub mod model_source;
mod numerics;
pub mod progress;
pub mod runner;
pub mod storage;
mod table;
mod threads;
pub mod train;
pub mod weights;
