//! Q4_K: 256 values of four bits, a 6-bit scale and minimum for each 32.
//!
//! | bytes | hold |
//! |---|---|
//! | 0..2 | f16 unit of the scales |
//! | 2..4 | f16 unit of the minima |
//! | 4..16 | scales and minima, see [`six_bit`] |
//! | 16..144 | codes |

use super::fields::Fields;
use super::super_block::{LEN, SuperBlock};
use super::{bytes_at, f16_at, six_bit};
use crate::search::{Grid, Span, super_block};

/// Bytes of a block.
pub(crate) const BYTES: usize = 144;

const GRID: Grid = Grid { codes: Span::new(0, 15), scales: Span::new(0, 63), minima: Span::new(0, 63) };

type Codes = Fields<4, 32>;

/// The parts of a block.
pub(crate) fn unpack(block: &[u8; BYTES]) -> SuperBlock<8> {
    let mut codes = [0; LEN];
    Codes::unpack::<0>(&block[16..], &mut codes);
    let (scales, minima) = six_bit::unpack(&bytes_at(block, 4));
    SuperBlock { scale: f16_at(block, 0), minimum: f16_at(block, 2), scales, minima, codes: codes.map(u8::cast_signed) }
}

/// The inverse of [`unpack`], for parts in the ranges of the format.
pub(crate) fn pack(parts: &SuperBlock<8>) -> [u8; BYTES] {
    let mut block = [0; BYTES];
    block[..2].copy_from_slice(&parts.scale.to_le_bytes());
    block[2..4].copy_from_slice(&parts.minimum.to_le_bytes());
    block[4..16].copy_from_slice(&six_bit::pack(&parts.scales, &parts.minima));
    Codes::pack::<0>(&parts.codes.map(i8::cast_unsigned), &mut block[16..]);
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
