//! The formats of 32 values under one scale, eight blocks at once.

use super::k_quants::{four_bits, symmetric};
use super::{Coded, LANES, Lanes, Scales, part};

/// Values of a block, which are what activations of 8 bits share a scale for too.
const SMALL_BLOCK: usize = 32;

/// Blocks of 256 values.
const BLOCKS: usize = super::BLOCK / SMALL_BLOCK;

/// Groups of the quarters where 16 codes lie above the next 16.
const IN_NIBBLES: [[u8; 4]; 4] = [[0, 2, 4, 6], [1, 3, 5, 7], [8, 10, 12, 14], [9, 11, 13, 15]];

/// Groups of quarters in the order of the row.
const IN_ORDER: [[u8; 4]; 4] = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]];

/// Eight signed bits.
pub(in crate::kernel) struct Q8_0;

impl Q8_0 {
    const BYTES: usize = 34;
}

impl Coded for Q8_0 {
    type Bytes = [u8; BLOCKS * Self::BYTES];

    const GROUPS: [[u8; 4]; 4] = IN_ORDER;
    const WIDE_CODES: bool = true;
    const ACTIVATION_GROUP: usize = SMALL_BLOCK;

    #[inline(always)]
    fn codes<L: Lanes>(lanes: L, bytes: &Self::Bytes) -> [L::Bytes; 4] {
        // Two's complement plus 128, as unsigned.
        let sign = lanes.splat_byte(0x80);
        let mut quarters = [sign; 4];
        for (quarter, codes) in quarters.iter_mut().enumerate() {
            let at = 2 * quarter * Self::BYTES + 2;
            *codes = lanes.xor(lanes.join(part(bytes, at), part(bytes, at + Self::BYTES)), sign);
        }
        quarters
    }

    #[inline(always)]
    fn scales<L: Lanes>(lanes: L, bytes: &Self::Bytes) -> Scales<L> {
        plain(lanes, f16_scales(lanes, bytes, Self::BYTES), 128.0)
    }
}

/// Four bits, stored plus eight.
pub(in crate::kernel) struct Q4_0;

impl Q4_0 {
    const BYTES: usize = 18;
}

impl Coded for Q4_0 {
    type Bytes = [u8; BLOCKS * Self::BYTES];

    const GROUPS: [[u8; 4]; 4] = IN_NIBBLES;
    const ACTIVATION_GROUP: usize = SMALL_BLOCK;

    #[inline(always)]
    fn codes<L: Lanes>(lanes: L, bytes: &Self::Bytes) -> [L::Bytes; 4] {
        four_bits(lanes, nibbles(lanes, bytes, Self::BYTES, 2))
    }

    #[inline(always)]
    fn scales<L: Lanes>(lanes: L, bytes: &Self::Bytes) -> Scales<L> {
        plain(lanes, f16_scales(lanes, bytes, Self::BYTES), 8.0)
    }
}

/// e2m1 under an e8m0 scale.
pub(in crate::kernel) struct Mxfp4;

impl Mxfp4 {
    const BYTES: usize = 17;

    /// Twice the values of the sixteen codes, plus 12.
    const DOUBLED: [u8; LANES] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];
}

impl Coded for Mxfp4 {
    type Bytes = [u8; BLOCKS * Self::BYTES];

    const GROUPS: [[u8; 4]; 4] = IN_NIBBLES;
    const ACTIVATION_GROUP: usize = SMALL_BLOCK;

    #[inline(always)]
    fn codes<L: Lanes>(lanes: L, bytes: &Self::Bytes) -> [L::Bytes; 4] {
        let mut codes = four_bits(lanes, nibbles(lanes, bytes, Self::BYTES, 1));
        for codes in &mut codes {
            *codes = lanes.look_up(&Self::DOUBLED, *codes);
        }
        codes
    }

    #[inline(always)]
    fn scales<L: Lanes>(lanes: L, bytes: &Self::Bytes) -> Scales<L> {
        let mut steps = [0.0; LANES];
        for (pair, block) in steps.as_chunks_mut::<2>().0.iter_mut().zip(bytes.chunks_exact(Self::BYTES)) {
            *pair = [crate::format::mxfp4::half_scale(block[0]); 2];
        }
        plain(lanes, lanes.load(&steps), 12.0)
    }
}

/// Scales without scales of their own, of codes that are stored plus `bias`.
#[inline(always)]
fn plain<L: Lanes>(lanes: L, units: L::F32s, bias: f32) -> Scales<L> {
    symmetric(lanes, units, lanes.load_i32(&[1; LANES]), bias)
}

/// The sixteen bytes from `at` of each block, four blocks in each of two.
#[inline(always)]
fn nibbles<L: Lanes>(lanes: L, bytes: &[u8], block_bytes: usize, at: usize) -> [L::Bytes; 2] {
    let mut blocks = [&[0; LANES]; BLOCKS];
    for (index, block) in blocks.iter_mut().enumerate() {
        *block = part(bytes, index * block_bytes + at);
    }
    let [a, b, c, d, e, f, g, h] = blocks;
    [lanes.join4([a, b, c, d]), lanes.join4([e, f, g, h])]
}

/// The f16 that each block begins with, for its two groups.
#[inline(always)]
fn f16_scales<L: Lanes>(lanes: L, bytes: &[u8], block_bytes: usize) -> L::F32s {
    let mut halves = [0; 2 * LANES];
    for (pair, block) in halves.as_chunks_mut::<4>().0.iter_mut().zip(bytes.chunks_exact(block_bytes)) {
        *pair = [block[0], block[1], block[0], block[1]];
    }
    lanes.widen_f16(&halves)
}
