//! Q3_K: 256 values of three bits, a 6-bit scale for each 16.
//!
//! | bytes | hold |
//! |---|---|
//! | 0..32 | high bits of the codes |
//! | 32..96 | low two bits of the codes |
//! | 96..104 | low four bits of the scales |
//! | 104..108 | high two bits of the scales |
//! | 108..110 | f16 unit of the scales |
//!
//! Codes are stored plus four, scales plus 32.

use half::f16;

use super::f16_at;
use super::fields::Fields;
use super::super_block::{LEN, SuperBlock};
use crate::search::{Grid, Span, super_block};

/// Bytes of a block.
pub(crate) const BYTES: usize = 110;

const CODE_BIAS: i8 = 4;
const SCALE_BIAS: i8 = 32;
const GRID: Grid = Grid { codes: Span::new(-4, 3), scales: Span::new(-32, 31), minima: Span::ZERO };

type HighBits = Fields<1, 32>;
type LowBits = Fields<2, 32>;
type LowScales = Fields<4, 8>;
type HighScales = Fields<2, 4>;

/// The parts of a block.
pub(crate) fn unpack(block: &[u8; BYTES]) -> SuperBlock<16> {
    let mut codes = [0; LEN];
    LowBits::unpack::<0>(&block[32..96], &mut codes);
    HighBits::unpack::<2>(&block[..32], &mut codes);
    let mut scales = [0; 16];
    LowScales::unpack::<0>(&block[96..104], &mut scales);
    HighScales::unpack::<4>(&block[104..108], &mut scales);
    SuperBlock {
        scale: f16_at(block, 108),
        minimum: f16::ZERO,
        scales: scales.map(|scale| scale.cast_signed() - SCALE_BIAS),
        minima: [0; 16],
        codes: codes.map(|code| code.cast_signed() - CODE_BIAS),
    }
}

/// The inverse of [`unpack`], for parts in the ranges of the format.
pub(crate) fn pack(parts: &SuperBlock<16>) -> [u8; BYTES] {
    let codes = parts.codes.map(|code| (code + CODE_BIAS).cast_unsigned());
    let scales = parts.scales.map(|scale| (scale + SCALE_BIAS).cast_unsigned());
    let mut block = [0; BYTES];
    HighBits::pack::<2>(&codes, &mut block[..32]);
    LowBits::pack::<0>(&codes, &mut block[32..96]);
    LowScales::pack::<0>(&scales, &mut block[96..104]);
    HighScales::pack::<4>(&scales, &mut block[104..108]);
    block[108..].copy_from_slice(&parts.scale.to_le_bytes());
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
