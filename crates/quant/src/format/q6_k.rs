//! Q6_K: 256 values of six bits, an 8-bit scale for each 16.
//!
//! | bytes | hold |
//! |---|---|
//! | 0..128 | low four bits of the codes |
//! | 128..192 | high two bits of the codes |
//! | 192..208 | scales, signed |
//! | 208..210 | f16 unit of the scales |
//!
//! Codes are stored plus 32.

use half::f16;

use super::fields::Fields;
use super::super_block::{LEN, SuperBlock};
use super::{bytes_at, f16_at};
use crate::search::{Grid, Span, super_block};

/// Bytes of a block.
pub(crate) const BYTES: usize = 210;

const CODE_BIAS: i8 = 32;
const GRID: Grid = Grid { codes: Span::new(-32, 31), scales: Span::new(-128, 127), minima: Span::ZERO };

type LowBits = Fields<4, 64>;
type HighBits = Fields<2, 32>;

/// The parts of a block.
pub(crate) fn unpack(block: &[u8; BYTES]) -> SuperBlock<16> {
    let mut codes = [0; LEN];
    LowBits::unpack::<0>(&block[..128], &mut codes);
    HighBits::unpack::<4>(&block[128..192], &mut codes);
    SuperBlock {
        scale: f16_at(block, 208),
        minimum: f16::ZERO,
        scales: bytes_at(block, 192).map(u8::cast_signed),
        minima: [0; 16],
        codes: codes.map(|code| code.cast_signed() - CODE_BIAS),
    }
}

/// The inverse of [`unpack`], for parts in the ranges of the format.
pub(crate) fn pack(parts: &SuperBlock<16>) -> [u8; BYTES] {
    let codes = parts.codes.map(|code| (code + CODE_BIAS).cast_unsigned());
    let mut block = [0; BYTES];
    LowBits::pack::<0>(&codes, &mut block[..128]);
    HighBits::pack::<4>(&codes, &mut block[128..192]);
    block[192..208].copy_from_slice(&parts.scales.map(i8::cast_unsigned));
    block[208..].copy_from_slice(&parts.scale.to_le_bytes());
    block
}

/// The values of a block.
pub(crate) fn dequantise_block(block: &[u8; BYTES], out: &mut [f32; LEN]) {
    unpack(block).dequantise(out);
}

/// The block nearest to some values.
pub(crate) fn quantise_block(values: &[f32; LEN], weights: &[f32; LEN]) -> [u8; BYTES] {
    pack(&super_block::nearest(&GRID, values, weights))
}
