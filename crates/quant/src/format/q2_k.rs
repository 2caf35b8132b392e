//! Q2_K: 256 values of two bits, a 4-bit scale and minimum for each 16.
//!
//! | bytes | hold |
//! |---|---|
//! | 0..16 | scales in the low nibbles, minima in the high ones |
//! | 16..80 | codes |
//! | 80..82 | f16 unit of the scales |
//! | 82..84 | f16 unit of the minima |

use super::f16_at;
use super::fields::Fields;
use super::super_block::{LEN, SuperBlock};
use crate::search::{Grid, Span, super_block};

/// Bytes of a block.
pub(crate) const BYTES: usize = 84;

const GRID: Grid = Grid { codes: Span::new(0, 3), scales: Span::new(0, 15), minima: Span::new(0, 15) };

type Codes = Fields<2, 32>;

/// The parts of a block.
pub(crate) fn unpack(block: &[u8; BYTES]) -> SuperBlock<16> {
    let mut codes = [0; LEN];
    Codes::unpack::<0>(&block[16..80], &mut codes);
    SuperBlock {
        scale: f16_at(block, 80),
        minimum: f16_at(block, 82),
        scales: std::array::from_fn(|sub| (block[sub] & 15).cast_signed()),
        minima: std::array::from_fn(|sub| (block[sub] >> 4).cast_signed()),
        codes: codes.map(u8::cast_signed),
    }
}

/// The inverse of [`unpack`], for parts in the ranges of the format.
pub(crate) fn pack(parts: &SuperBlock<16>) -> [u8; BYTES] {
    let mut block = [0; BYTES];
    for (byte, (scale, minimum)) in block.iter_mut().zip(parts.scales.iter().zip(&parts.minima)) {
        *byte = (scale | minimum << 4).cast_unsigned();
    }
    Codes::pack::<0>(&parts.codes.map(i8::cast_unsigned), &mut block[16..80]);
    block[80..82].copy_from_slice(&parts.scale.to_le_bytes());
    block[82..84].copy_from_slice(&parts.minimum.to_le_bytes());
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
