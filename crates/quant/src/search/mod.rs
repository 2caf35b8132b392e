//! The search for the integers and scales whose values come closest to given ones.
//!
//! Closeness is the sum of squared errors, each times its value's weight. It has no closed form, because the nearest
//! codes depend on the scale and the best scale on the codes. [`samples`] answers the two halves, the nearest codes under
//! a line and the best line through codes; [`free`] alternates between them without regard to how a line is stored.
//! [`block`] (one f16 scale) and [`super_block`] (integer scales and minima under f16 units) start from there and choose
//! among what can be stored by its true error.

pub(crate) mod block;
mod free;
mod grid;
mod samples;
pub(crate) mod super_block;
mod unit;

pub(crate) use grid::{Grid, Span};
