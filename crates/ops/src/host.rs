//! Kernels for backends whose tensors lie in host memory.
//!
//! On such a backend a composed operation writes every intermediate result to memory and walks broadcast operands
//! element by element; a kernel reads each operand once. Operations keep their composed form for all other backends, and
//! tests hold one against the other.

use std::fmt::Debug;
use std::iter::Sum;

use burn::tensor::Element;
use num_traits::{Float, FloatConst};

use crate::CustomOp;

/// Numbers that kernels compute with: f32 and f64.
pub trait HostFloat: Float + FloatConst + Sum + Default + Debug + Element + Send + Sync {
    /// The nearest number of this type.
    fn of(value: f64) -> Self;
}

impl HostFloat for f32 {
    fn of(value: f64) -> Self {
        value as f32
    }
}

impl HostFloat for f64 {
    fn of(value: f64) -> Self {
        value
    }
}

/// A tensor that is read: its axes, and its values row-major.
#[derive(Debug, Clone, Copy)]
pub struct View<'a, T> {
    /// Axes.
    pub dims: &'a [usize],
    /// Values.
    pub values: &'a [T],
}

/// A tensor that was made: its axes, and its values row-major.
#[derive(Debug, Clone, PartialEq)]
pub struct Values<T> {
    /// Axes.
    pub dims: Vec<usize>,
    /// Values.
    pub values: Vec<T>,
}

impl<T: HostFloat> Values<T> {
    /// Zeros in the axes of another tensor.
    pub fn zeros_like(view: View<'_, T>) -> Self {
        Self { dims: view.dims.to_vec(), values: vec![T::zero(); view.values.len()] }
    }
}

/// An operation that has kernels. As [`CustomOp`] otherwise.
pub trait HostOp<const N: usize>: CustomOp<N> + Sync {
    /// The result, or none where the kernels do not cover what is asked.
    fn forward_on_host<T: HostFloat>(&self, inputs: [View<'_, T>; N]) -> Option<Values<T>>;

    /// The gradients of the inputs that are wanted. Asked only where [`Self::forward_on_host`] gives a result.
    fn backward_on_host<T: HostFloat>(
        &self,
        inputs: [View<'_, T>; N],
        gradient: View<'_, T>,
        wanted: [bool; N],
    ) -> Option<[Option<Values<T>>; N]>;
}

/// Computes an expression by code for the widest registers that the processor has. Functions that it calls are part of that
/// code where they are `#[inline(always)]`. Results do not depend on the width, since nothing is contracted.
#[macro_export]
macro_rules! vectorised {
    ($kernel:expr) => {
        $crate::host::dispatch(
            #[inline(always)]
            || $kernel,
        )
    };
}

/// What [`vectorised!`] calls.
#[doc(hidden)]
#[inline]
pub fn dispatch<R>(kernel: impl FnOnce() -> R) -> R {
    pulp::Arch::new().dispatch(kernel)
}

/// The sum of the products of two rows, in a fixed order that lets the compiler use wide registers.
#[inline(always)]
pub fn dot<T: HostFloat>(a: &[T], b: &[T]) -> T {
    const LANES: usize = 16;
    let (a, a_rest) = a.as_chunks::<LANES>();
    let (b, b_rest) = b.as_chunks::<LANES>();
    let mut sums = [T::zero(); LANES];
    for (a, b) in a.iter().zip(b) {
        for lane in 0..LANES {
            sums[lane] = sums[lane] + a[lane] * b[lane];
        }
    }
    let rest: T = a_rest.iter().zip(b_rest).map(|(&a, &b)| a * b).sum();
    // By halves: one after the other, each addition would wait for the last.
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for lane in 0..width {
            sums[lane] = sums[lane] + sums[lane + width];
        }
    }
    sums[0] + rest
}

/// Adds a multiple of a row to another.
#[inline(always)]
pub fn add_scaled<T: HostFloat>(sum: &mut [T], factor: T, row: &[T]) {
    for (sum, &value) in sum.iter_mut().zip(row) {
        *sum = *sum + factor * value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_rows_of_every_length_are_summed() {
        for length in [0, 1, 15, 16, 17, 40] {
            let a: Vec<f64> = (0..length).map(f64::from).collect();
            let b: Vec<f64> = (0..length).map(|i| f64::from(i % 3) - 1.0).collect();
            let expected: f64 = a.iter().zip(&b).map(|(a, b)| a * b).sum();
            assert_eq!(dot(&a, &b), expected);
            let mut sum = a.clone();
            add_scaled(&mut sum, 2.0, &b);
            assert!(sum.iter().zip(a.iter().zip(&b)).all(|(sum, (a, b))| *sum == a + 2.0 * b));
        }
    }
}
