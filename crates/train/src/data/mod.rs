//! What a model is trained on: examples, from a file or from a task that the program makes itself, and batches of them.
//!
//! [`Examples`] gives examples by number: [`JsonLines`] reads them from a file, [`TaskExamples`] makes them. A
//! [`BatchStream`] shuffles them anew each epoch, puts them into batches by a [`BatchLayout`], and has a state from
//! which it goes on exactly where it was.

mod error;
mod example;
mod jsonl;
mod pack;
pub(crate) mod random;
mod shuffle;
mod stream;
pub mod tasks;
#[cfg(test)]
mod testing;

pub use error::DataError;
pub use example::{Example, Examples};
pub use jsonl::{Contents, JsonLines, LineOptions, LongLines, Reason, Rejection, Rejections};
pub use pack::{Batch, BatchCounts, BatchLayout, Manner, Packer, alignment};
pub use shuffle::Shuffle;
pub use stream::{BatchStream, StreamState};
pub use tasks::{Task, TaskExamples};
