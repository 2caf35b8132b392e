//! The oracle against DeepSeek's own outputs, and against itself under every way of calling it.

mod calls;
mod engram_hash;
mod errors;
mod full;
mod goldens;
mod support;
