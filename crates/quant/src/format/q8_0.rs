//! Q8_0: 32 values of eight signed bits after one f16 scale.

use super::f16_at;
use crate::search::{Span, block};

/// Bytes of a block.
pub(crate) const BYTES: usize = 34;

/// Values of a block.
pub(crate) const LEN: usize = 32;

/// Without -128, whose magnitude products of bytes need not hold.
const CODES: Span = Span::new(-127, 127);

/// The values of a block.
pub(crate) fn dequantise_block(block: &[u8; BYTES], out: &mut [f32; LEN]) {
    let scale = f16_at(block, 0).to_f32();
    for (out, &code) in out.iter_mut().zip(&block[2..]) {
        *out = scale * f32::from(code.cast_signed());
    }
}

/// The block nearest to some values.
pub(crate) fn quantise_block(values: &[f32; LEN], weights: &[f32; LEN]) -> [u8; BYTES] {
    let (scale, codes) = block::nearest(CODES, values, weights);
    let mut block = [0; BYTES];
    block[..2].copy_from_slice(&scale.to_le_bytes());
    block[2..].copy_from_slice(&codes.map(i8::cast_unsigned));
    block
}
