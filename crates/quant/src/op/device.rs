//! Packed bytes on a device and their dequantisation there, in plain tensor arithmetic.
//!
//! Every step is exact: codes and scales are small integers, f16 scales are a significand times a power of two, and
//! products follow the order of [`crate::dequantise`].

use std::ops::Range;

use burn::tensor::{ElementConversion as _, Int, Tensor, TensorData, backend::Backend};

use crate::{GgmlType, PackedMatrix};

const BYTES_IN_WORD: usize = 4;

/// Values of a K-quant's block.
const SUPER_BLOCK: usize = 256;

/// As [`super::words_on_device`].
pub(super) fn upload<B: Backend>(bytes: &[u8], device: &B::Device) -> Tensor<B, 1, Int> {
    let words: Vec<i32> = bytes
        .chunks(BYTES_IN_WORD)
        .map(|chunk| {
            let mut word = [0; BYTES_IN_WORD];
            word[..chunk.len()].copy_from_slice(chunk);
            i32::from_le_bytes(word)
        })
        .collect();
    let count = words.len();
    Tensor::from_data(TensorData::new(words, [count]), device)
}

/// Some rows, `[rows, columns]`. The first has to begin at a whole word.
pub(super) fn dequantise_rows<B: Backend>(
    matrix: &PackedMatrix,
    words: Tensor<B, 1, Int>,
    rows: Range<usize>,
) -> Tensor<B, 2> {
    let (start, end) = (rows.start * matrix.row_bytes(), rows.end * matrix.row_bytes());
    let first = start / BYTES_IN_WORD;
    let words = words.narrow(0, first, end.div_ceil(BYTES_IN_WORD) - first);
    let ty = matrix.ty();
    let blocks = bytes_of(words).narrow(0, 0, end - start).reshape([-1, ty.block_bytes() as i32]);
    let values = match ty {
        GgmlType::F32 => f32_values(blocks),
        GgmlType::F16 => float(half(&blocks, 0), F16),
        GgmlType::Bf16 => float(half(&blocks, 0), BF16),
        GgmlType::Q4_0 => q4_0(blocks),
        GgmlType::Q8_0 => q8_0(blocks),
        GgmlType::Q2K => q2_k(blocks),
        GgmlType::Q3K => q3_k(blocks),
        GgmlType::Q4K => q4_k(blocks),
        GgmlType::Q5K => q5_k(blocks),
        GgmlType::Q6K => q6_k(blocks),
        GgmlType::Mxfp4 => mxfp4(blocks),
    };
    values.reshape([rows.len(), matrix.columns()])
}

/// Bytes of words, each as an integer from 0 to 255.
fn bytes_of<B: Backend>(words: Tensor<B, 1, Int>) -> Tensor<B, 1, Int> {
    let bytes = (0..BYTES_IN_WORD as i32).map(|byte| bits(words.clone(), 8 * byte, 255)).collect();
    Tensor::stack::<2>(bytes, 1).flatten(0, 1)
}

/// `(x >> shift) & mask`
fn bits<B: Backend, const D: usize>(x: Tensor<B, D, Int>, shift: i32, mask: i32) -> Tensor<B, D, Int> {
    let shifted = if shift == 0 { x } else { x.bitwise_right_shift_scalar(shift.elem()) };
    shifted.bitwise_and_scalar(mask.elem())
}

/// `x << shift`
fn shifted_left<B: Backend, const D: usize>(x: Tensor<B, D, Int>, shift: i32) -> Tensor<B, D, Int> {
    x.bitwise_left_shift_scalar(shift.elem())
}

/// Some bytes of every block, `[blocks, count]`.
fn field<B: Backend>(blocks: &Tensor<B, 2, Int>, start: usize, count: usize) -> Tensor<B, 2, Int> {
    blocks.clone().narrow(1, start, count)
}

/// The 16-bit integer at `start` of every block, `[blocks, 1]`.
fn half<B: Backend>(blocks: &Tensor<B, 2, Int>, start: usize) -> Tensor<B, 2, Int> {
    field(blocks, start, 1).bitwise_or(shifted_left(field(blocks, start + 1, 1), 8))
}

/// A byte as a two's complement number.
fn signed<B: Backend, const D: usize>(byte: Tensor<B, D, Int>) -> Tensor<B, D> {
    let negative = bits(byte.clone(), 7, 1).float();
    byte.float() - negative.mul_scalar(256.0)
}

/// A binary floating-point format of 16 bits.
#[derive(Clone, Copy)]
struct Format {
    mantissa: i32,
    exponent: i32,
}

const F16: Format = Format { mantissa: 10, exponent: 5 };
const BF16: Format = Format { mantissa: 7, exponent: 8 };

/// The numbers that bits stand for; infinities and NaN, which weights do not have, come out as large numbers.
fn float<B: Backend>(word: Tensor<B, 2, Int>, Format { mantissa, exponent }: Format) -> Tensor<B, 2> {
    let bias = (1 << (exponent - 1)) - 1;
    let sign = bits(word.clone(), mantissa + exponent, 1).float().mul_scalar(-2.0).add_scalar(1.0);
    let exponents = bits(word.clone(), mantissa, (1 << exponent) - 1);
    let normal = exponents.clone().clamp(0, 1).float();
    let significand = bits(word, 0, (1 << mantissa) - 1).float() + normal.mul_scalar(2f64.powi(mantissa));
    sign * scaled_by_power(significand, exponents.clamp_min(1), bias + mantissa)
}

/// `x * 2^(exponent - bias)`, where the exponents are from 0 to 255. In two steps, each within f32's own powers.
fn scaled_by_power<B: Backend>(x: Tensor<B, 2>, exponent: Tensor<B, 2, Int>, bias: i32) -> Tensor<B, 2> {
    let device = x.device();
    let [rows, columns] = exponent.dims();
    let exponent: Tensor<B, 1, Int> = exponent.flatten(0, 1);
    let power = |halves: fn(i32) -> i32| {
        let powers: Vec<f32> = (0..256).map(|exponent| 2f32.powi(halves(exponent - bias))).collect();
        let powers = Tensor::<B, 1>::from_data(TensorData::new(powers, [256]), &device);
        powers.select(0, exponent.clone()).reshape([rows, columns])
    };
    x * power(|e| e.div_euclid(2)) * power(|e| e - e.div_euclid(2))
}

fn f32_values<B: Backend>(blocks: Tensor<B, 2, Int>) -> Tensor<B, 2> {
    let (low, high) = (half(&blocks, 0), half(&blocks, 2));
    let sign = bits(high.clone(), 15, 1).float().mul_scalar(-2.0).add_scalar(1.0);
    let exponents = bits(high.clone(), 7, 255);
    let normal = exponents.clone().clamp(0, 1);
    let significand = bits(high, 0, 127).add(shifted_left(normal, 7)).float().mul_scalar(65536.0) + low.float();
    sign * scaled_by_power(significand, exponents.clamp_min(1), 127 + 23)
}

/// Low nibbles, then high ones: `[blocks, 16]` to `[blocks, 32]`.
fn nibbles<B: Backend>(bytes: Tensor<B, 2, Int>) -> Tensor<B, 2, Int> {
    Tensor::cat(vec![bits(bytes.clone(), 0, 15), bits(bytes, 4, 15)], 1)
}

fn q4_0<B: Backend>(blocks: Tensor<B, 2, Int>) -> Tensor<B, 2> {
    nibbles(field(&blocks, 2, 16)).float().sub_scalar(8.0) * float(half(&blocks, 0), F16)
}

fn q8_0<B: Backend>(blocks: Tensor<B, 2, Int>) -> Tensor<B, 2> {
    signed(field(&blocks, 2, 32)) * float(half(&blocks, 0), F16)
}

fn mxfp4<B: Backend>(blocks: Tensor<B, 2, Int>) -> Tensor<B, 2> {
    let codes = nibbles(field(&blocks, 1, 16));
    let [rows, columns] = codes.dims();
    let doubled = [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, -0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0_f32];
    let table = Tensor::<B, 1>::from_floats(doubled, &blocks.device());
    let values = table.select(0, codes.flatten(0, 1)).reshape([rows, columns]);
    let exponent = field(&blocks, 0, 1).repeat_dim(1, columns);
    scaled_by_power(values, exponent, 128)
}

/// Codes of two bits at `start`, `[blocks, 2, 4, 32]`: 32 bytes hold four planes.
fn two_bit_planes<B: Backend>(blocks: &Tensor<B, 2, Int>, start: usize) -> Tensor<B, 4, Int> {
    let bytes = field(blocks, start, 64).reshape([-1, 2, 32]);
    Tensor::stack((0..4).map(|plane| bits(bytes.clone(), 2 * plane, 3)).collect(), 2)
}

/// `[blocks, 16]` scales over `[blocks, 256]` values.
fn by_sixteens<B: Backend>(scales: Tensor<B, 2>, values: Tensor<B, 4>) -> Tensor<B, 2> {
    let values = values.reshape([-1, 16, 16]);
    (values * scales.unsqueeze_dim::<3>(2)).reshape([-1, SUPER_BLOCK as i32])
}

fn q2_k<B: Backend>(blocks: Tensor<B, 2, Int>) -> Tensor<B, 2> {
    let scales = field(&blocks, 0, 16);
    let scale = bits(scales.clone(), 0, 15).float() * float(half(&blocks, 80), F16);
    let minimum = bits(scales, 4, 15).float() * float(half(&blocks, 82), F16);
    let values = by_sixteens(scale, two_bit_planes(&blocks, 16).float()).reshape([-1, 16, 16]);
    (values - minimum.unsqueeze_dim::<3>(2)).reshape([-1, SUPER_BLOCK as i32])
}

fn q3_k<B: Backend>(blocks: Tensor<B, 2, Int>) -> Tensor<B, 2> {
    let high_bytes = field(&blocks, 0, 32);
    let high = Tensor::stack::<3>((0..8).map(|bit| bits(high_bytes.clone(), bit, 1)).collect(), 1);
    let high = high.reshape([-1, 2, 4, 32]).float();
    let codes = two_bit_planes(&blocks, 32).float() + high.sub_scalar(1.0).mul_scalar(4.0);

    let packed = field(&blocks, 96, 8);
    let low = Tensor::cat(vec![bits(packed.clone(), 0, 15), bits(packed, 4, 15)], 1);
    let top = field(&blocks, 104, 4);
    let top = Tensor::cat((0..4).map(|k| bits(top.clone(), 2 * k, 3)).collect(), 1);
    let scale = low.add(shifted_left(top, 4)).float().sub_scalar(32.0) * float(half(&blocks, 108), F16);
    by_sixteens(scale, codes)
}

/// The 6-bit scales and minima of Q4_K and Q5_K, `[blocks, 8, 1]` each, times their super-block's.
fn scales_and_minima<B: Backend>(blocks: &Tensor<B, 2, Int>) -> (Tensor<B, 3>, Tensor<B, 3>) {
    let group = |start: usize| field(blocks, 4 + start, 4);
    let tops = |x: Tensor<B, 2, Int>| shifted_left(bits(x, 6, 3), 4);
    let scale = Tensor::cat(vec![bits(group(0), 0, 63), bits(group(8), 0, 15).add(tops(group(0)))], 1);
    let minimum = Tensor::cat(vec![bits(group(4), 0, 63), bits(group(8), 4, 15).add(tops(group(4)))], 1);
    let times = |x: Tensor<B, 2, Int>, at: usize| (x.float() * float(half(blocks, at), F16)).unsqueeze_dim::<3>(2);
    (times(scale, 0), times(minimum, 2))
}

/// Nibbles at `start` as eight runs of 32: low nibbles of 32 bytes, then high ones.
fn four_bit_planes<B: Backend>(blocks: &Tensor<B, 2, Int>, start: usize) -> Tensor<B, 3, Int> {
    let bytes = field(blocks, start, 128).reshape([-1, 4, 32]);
    Tensor::stack::<4>(vec![bits(bytes.clone(), 0, 15), bits(bytes, 4, 15)], 2).reshape([-1, 8, 32])
}

fn q4_k<B: Backend>(blocks: Tensor<B, 2, Int>) -> Tensor<B, 2> {
    let (scale, minimum) = scales_and_minima(&blocks);
    (four_bit_planes(&blocks, 16).float() * scale - minimum).reshape([-1, SUPER_BLOCK as i32])
}

fn q5_k<B: Backend>(blocks: Tensor<B, 2, Int>) -> Tensor<B, 2> {
    let (scale, minimum) = scales_and_minima(&blocks);
    let fifth = field(&blocks, 16, 32);
    let fifth = Tensor::stack::<3>((0..8).map(|bit| bits(fifth.clone(), bit, 1)).collect(), 1);
    let codes = four_bit_planes(&blocks, 48).add(shifted_left(fifth, 4));
    (codes.float() * scale - minimum).reshape([-1, SUPER_BLOCK as i32])
}

fn q6_k<B: Backend>(blocks: Tensor<B, 2, Int>) -> Tensor<B, 2> {
    // 64 bytes hold two runs of 32 in their low nibbles and two in their high ones.
    let low = field(&blocks, 0, 128).reshape([-1, 2, 1, 64]);
    let low = Tensor::cat(vec![bits(low.clone(), 0, 15), bits(low, 4, 15)], 2).reshape([-1, 2, 4, 32]);
    let codes = low.add(shifted_left(two_bit_planes(&blocks, 128), 4)).float().sub_scalar(32.0);
    let scale = signed(field(&blocks, 192, 16)) * float(half(&blocks, 208), F16);
    by_sixteens(scale, codes)
}
