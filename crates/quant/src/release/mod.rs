//! Matrices as the released checkpoint holds them: small floats under shared powers of two.

mod codes;
mod error;
mod matrix;

pub use error::ReleaseError;
pub use matrix::{ReleaseFormat, ReleaseMatrix};
