//! Low-rank adapters ([LoRA](https://arxiv.org/abs/2106.09685), [QLoRA](https://arxiv.org/abs/2305.14314)): small matrices
//! that train beside a model that stays as it is, packed or not.
//!
//! [`insert`] freezes a model and adds adapters to the linear layers that [`AdapterSettings`] name; [`save`] writes them to
//! a folder; [`AdapterFile`] opens that folder, and [`load`] puts what it holds onto a model of the same [`Base`]. Adapters
//! stack: each one inserted or loaded adds to those before, and the last one trains. Whoever wants the sum as one matrix
//! asks [`AdapterFile::factors`].
//!
//! ```no_run
//! # use dsv41::{ModelBackend, Transformer};
//! # use dsv41_train::adapters::{self, AdapterError, AdapterFile, AdapterSettings, Base};
//! # fn example<B: ModelBackend>(model: &mut Transformer<B>, base: Base) -> Result<(), AdapterError> {
//! let settings = AdapterSettings { rank: 8, ..AdapterSettings::default() };
//! adapters::insert(model, &settings)?;
//! // ... train the parameters that `model.parameters()` lists now ...
//! adapters::save("adapter".as_ref(), model, &settings, &base)?;
//! adapters::load(model, &AdapterFile::open("adapter".as_ref())?, &base, 0.5)?;
//! # Ok(()) }
//! ```

mod config_file;
mod error;
mod factors;
mod file;
mod insert;
mod save;
mod settings;
mod targets;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use config_file::Base;
pub use error::AdapterError;
pub use factors::Factors;
pub use file::AdapterFile;
pub use insert::{Inserted, insert, load, set_dropout};
pub use save::save;
pub use settings::AdapterSettings;
