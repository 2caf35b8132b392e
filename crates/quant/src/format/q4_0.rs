//! Q4_0: 32 values of four bits, stored plus eight, after one f16 scale.

use super::f16_at;
use super::fields::Fields;
use crate::search::{Span, block};

/// Bytes of a block.
pub(crate) const BYTES: usize = 18;

/// Values of a block.
pub(crate) const LEN: usize = 32;

const CODE_BIAS: i8 = 8;
const CODES: Span = Span::new(-8, 7);

type Codes = Fields<4, 16>;

/// The values of a block.
pub(crate) fn dequantise_block(block: &[u8; BYTES], out: &mut [f32; LEN]) {
    let scale = f16_at(block, 0).to_f32();
    let mut codes = [0; LEN];
    Codes::unpack::<0>(&block[2..], &mut codes);
    *out = codes.map(|code| scale * f32::from(code.cast_signed() - CODE_BIAS));
}

/// The block nearest to some values.
pub(crate) fn quantise_block(values: &[f32; LEN], weights: &[f32; LEN]) -> [u8; BYTES] {
    let (scale, codes) = block::nearest(CODES, values, weights);
    let mut block = [0; BYTES];
    block[..2].copy_from_slice(&scale.to_le_bytes());
    Codes::pack::<0>(&codes.map(|code| (code + CODE_BIAS).cast_unsigned()), &mut block[2..]);
    block
}
