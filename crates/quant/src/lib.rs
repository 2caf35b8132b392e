//! Quantised block formats: the types of GGUF files and of the released checkpoint.
//!
//! [`GgmlType`] names a format, [`dequantise`] and [`quantise`] convert rows, and a [`PackedMatrix`] is a matrix as its
//! file holds it.

mod dequantise;
mod error;
mod format;
mod ggml_type;
pub mod kernel;
#[cfg(feature = "burn")]
pub mod op;
mod packed;
mod quantise;
pub mod release;
mod search;

pub use dequantise::dequantise;
pub use error::QuantError;
pub use ggml_type::GgmlType;
pub use packed::PackedMatrix;
pub use quantise::quantise;
