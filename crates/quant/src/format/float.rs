//! Plain floats as blocks of one value.

use half::{bf16, f16};

/// The value of a 32-bit float.
pub(crate) fn dequantise_f32(block: &[u8; 4], out: &mut [f32; 1]) {
    *out = [f32::from_le_bytes(*block)];
}

/// The value of a binary16.
pub(crate) fn dequantise_f16(block: &[u8; 2], out: &mut [f32; 1]) {
    *out = [f16::from_le_bytes(*block).to_f32()];
}

/// The value of a bfloat16.
pub(crate) fn dequantise_bf16(block: &[u8; 2], out: &mut [f32; 1]) {
    *out = [bf16::from_le_bytes(*block).to_f32()];
}

/// A 32-bit float.
pub(crate) fn quantise_f32([value]: &[f32; 1]) -> [u8; 4] {
    value.to_le_bytes()
}

/// The nearest binary16, ties to even.
pub(crate) fn quantise_f16([value]: &[f32; 1]) -> [u8; 2] {
    f16::from_f32(*value).to_le_bytes()
}

/// The nearest bfloat16, ties to even.
pub(crate) fn quantise_bf16([value]: &[f32; 1]) -> [u8; 2] {
    bf16::from_f32(*value).to_le_bytes()
}
