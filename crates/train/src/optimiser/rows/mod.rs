//! AdamW for tables of which a step touches few rows, on the host: tables and moments may be larger than memory.
//!
//! [`RowGradients`] adds the gradients of rows that were looked up, [`RowAdamW`] updates each of these rows once. A
//! [`RowStore`] holds the table, another one the moments, in memory or in mapped files; a model reads the table through
//! a clone of [`SharedRows`].
//!
//! # Files, crashes and resuming
//!
//! Rows are changed in place, so a process that is killed in the middle of a step leaves a table of which some rows
//! have taken it and some have not. That table is not for use. What makes it good again is [`Originals`]: before a row
//! is changed for the first time since the table was made, its values are appended there and are on disk. Together with
//! a checkpoint, which holds the values and moments of all rows that had been touched, every state that was stored can
//! be had back exactly: [`RowAdamW::restore`] first puts all touched rows back as they were at the beginning, then
//! those of the checkpoint as they were then. So a resumed run always restores a checkpoint, or
//! [rewinds](RowAdamW::rewind) if there is none; and a checkpoint can be applied to any other copy of the untrained
//! table.

mod adamw;
mod checkpoint;
mod gradients;
mod originals;
mod shared;
mod store;
mod touched;

pub use adamw::RowAdamW;
pub use gradients::RowGradients;
pub use originals::Originals;
pub use shared::SharedRows;
pub use store::{MappedRows, MemoryRows, RowStore};
pub use touched::TouchedRows;
