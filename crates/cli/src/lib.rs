//! What the `dsv41` command is made of, for other programs of the workspace.

pub mod device;
pub mod inspect;
pub mod message;
pub mod runner;
pub mod weights;
