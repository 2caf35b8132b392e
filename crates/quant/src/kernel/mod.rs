//! Products with packed matrices, made from their packed rows.
//!
//! Every product exists once, in terms of `lanes` and of a `unpack::Format`, and is compiled for each instruction set
//! and each format. With few vectors (`vector`) the weights never leave the registers that they are unpacked into; with
//! many (`batch`) and for gradients (`transposed`) a tile of them is, and is used from the cache.

mod batch;
mod exact;
mod int8;
mod lanes;
mod panel;
mod rows;
mod simd;
mod transposed;
mod unpack;
mod vector;

pub use simd::Simd;

use exact::Exact;
use int8::Int8;

use crate::{GgmlType, PackedMatrix};

/// How activations enter a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Activations {
    /// As they are.
    #[default]
    F32,
    /// Rounded to 8 bits as ggml does: nearest, under one scale for each 256 values, or for each 32 where the weights
    /// come in blocks of 32. Scales stay f32.
    ///
    /// Matrices of plain floats are multiplied as under [`Activations::F32`].
    Int8,
}

/// Numbers of vectors from which tiles of unpacked weights pay.
const MANY: usize = 16;

/// `out[n, rows] = x[n, columns] W^T`, on the threads of the current rayon pool.
///
/// Each output is a sum in f32 of the products of a row's exact values, as [`dequantise`](crate::dequantise) gives them,
/// and the activations, in an order that depends on the instruction set and on `n`, not on the number of threads.
///
/// # Panics
/// When `x` does not divide into vectors of as many values as the matrix has columns, or `out` does not have a value for
/// each of its rows for each of these vectors.
pub fn multiply(weight: &PackedMatrix, x: &[f32], out: &mut [f32], activations: Activations) {
    multiply_with(Simd::best(), weight, x, out, activations);
}

/// [`multiply`] with a certain instruction set, or with the portable one where the machine lacks it.
///
/// # Panics
/// As [`multiply`].
pub fn multiply_with(simd: Simd, weight: &PackedMatrix, x: &[f32], out: &mut [f32], activations: Activations) {
    if !check_lengths(x.len(), weight.columns(), out.len(), weight.rows()) {
        return out.fill(0.0);
    }
    match (activations, weight.ty()) {
        (Activations::F32, _) | (Activations::Int8, GgmlType::F32 | GgmlType::F16 | GgmlType::Bf16) => {
            multiply_exact(simd, weight, x, out);
        }
        (Activations::Int8, GgmlType::Q4_0) => vector::multiply::<Int8<unpack::Q4_0>>(simd, weight, x, out),
        (Activations::Int8, GgmlType::Q8_0) => vector::multiply::<Int8<unpack::Q8_0>>(simd, weight, x, out),
        (Activations::Int8, GgmlType::Q2K) => vector::multiply::<Int8<unpack::Q2K>>(simd, weight, x, out),
        (Activations::Int8, GgmlType::Q3K) => vector::multiply::<Int8<unpack::Q3K>>(simd, weight, x, out),
        (Activations::Int8, GgmlType::Q4K) => vector::multiply::<Int8<unpack::Q4K>>(simd, weight, x, out),
        (Activations::Int8, GgmlType::Q5K) => vector::multiply::<Int8<unpack::Q5K>>(simd, weight, x, out),
        (Activations::Int8, GgmlType::Q6K) => vector::multiply::<Int8<unpack::Q6K>>(simd, weight, x, out),
        (Activations::Int8, GgmlType::Mxfp4) => vector::multiply::<Int8<unpack::Mxfp4>>(simd, weight, x, out),
    }
}

/// `out[n, columns] = x[n, rows] W`, the gradient of the input, on the threads of the current rayon pool.
///
/// # Panics
/// When `x` does not divide into vectors of as many values as the matrix has rows, or `out` does not have a value for
/// each of its columns for each of these vectors.
pub fn multiply_transposed(weight: &PackedMatrix, x: &[f32], out: &mut [f32]) {
    multiply_transposed_with(Simd::best(), weight, x, out);
}

/// [`multiply_transposed`] with a certain instruction set, or with the portable one where the machine lacks it.
///
/// # Panics
/// As [`multiply_transposed`].
pub fn multiply_transposed_with(simd: Simd, weight: &PackedMatrix, x: &[f32], out: &mut [f32]) {
    if !check_lengths(x.len(), weight.rows(), out.len(), weight.columns()) {
        return out.fill(0.0);
    }
    for_format!(weight.ty(), F => transposed::multiply::<F>(simd, weight, x, out));
}

fn multiply_exact(simd: Simd, weight: &PackedMatrix, x: &[f32], out: &mut [f32]) {
    let n = x.len() / weight.columns();
    let tiled = n - n % MANY;
    let (tiled_x, x) = x.split_at(tiled * weight.columns());
    let (tiled_out, out) = out.split_at_mut(tiled * weight.rows());
    for_format!(weight.ty(), F => {
        batch::multiply::<F>(simd, weight, tiled_x, tiled_out);
        vector::multiply::<Exact<F>>(simd, weight, x, out);
    });
}

/// Whether there is anything to sum up.
///
/// # Panics
/// When the lengths do not fit the matrix.
fn check_lengths(x: usize, inputs: usize, out: usize, outputs: usize) -> bool {
    if inputs == 0 || outputs == 0 {
        assert!(x == 0 || inputs > 0, "{x} values for a matrix that takes none");
        assert!(out == 0 || outputs > 0, "{out} results of a matrix that gives none");
        return false;
    }
    assert!(x.is_multiple_of(inputs), "{x} values are no whole number of vectors of {inputs}");
    assert_eq!(out, x / inputs * outputs, "results of {outputs} for each of {} vectors", x / inputs);
    true
}

/// Evaluates an expression with a type of that name for the format.
macro_rules! for_format {
    ($ty:expr, $format:ident => $body:expr) => {
        match $ty {
            GgmlType::F32 => for_format!(@ $format, F32Values, $body),
            GgmlType::F16 => for_format!(@ $format, F16Values, $body),
            GgmlType::Bf16 => for_format!(@ $format, Bf16Values, $body),
            GgmlType::Q4_0 => for_format!(@ $format, Q4_0, $body),
            GgmlType::Q8_0 => for_format!(@ $format, Q8_0, $body),
            GgmlType::Q2K => for_format!(@ $format, Q2K, $body),
            GgmlType::Q3K => for_format!(@ $format, Q3K, $body),
            GgmlType::Q4K => for_format!(@ $format, Q4K, $body),
            GgmlType::Q5K => for_format!(@ $format, Q5K, $body),
            GgmlType::Q6K => for_format!(@ $format, Q6K, $body),
            GgmlType::Mxfp4 => for_format!(@ $format, Mxfp4, $body),
        }
    };
    (@ $format:ident, $type:ident, $body:expr) => {{
        type $format = unpack::$type;
        $body
    }};
}
use for_format;
