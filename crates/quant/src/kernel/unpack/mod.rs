//! How each format's bytes become codes and weights, in the registers of any instruction set.
//!
//! All formats are seen as blocks of 256 values in four quarters of 64. A quarter's values are not neighbours in the row:
//! they are those whose codes lie beside each other in the block, so that unpacking is a shift and a mask of 64 bytes at
//! once. The activations are laid out to meet them, once for all rows; see [`Format::COLUMNS`].

mod floats;
mod k_quants;
mod small_blocks;

pub(super) use floats::{Bf16Values, F16Values, F32Values};
pub(super) use k_quants::{Q2K, Q3K, Q4K, Q5K, Q6K};
pub(super) use small_blocks::{Mxfp4, Q4_0, Q8_0};

use super::lanes::{LANES, Lanes};
use super::rows::ByteArray;

/// Values of a block.
pub(super) const BLOCK: usize = 256;

/// Values of a group, which have one scale.
pub(super) const GROUP: usize = 16;

/// A format, as its weights are needed.
pub(super) trait Format: 'static {
    /// The bytes of 256 values.
    type Bytes: ByteArray;

    /// What is unpacked at once.
    type Unpacked<L: Lanes>: Copy;

    /// The column of the value at each place, where place `64 * quarter + 16 * step + lane` is lane `lane` of the
    /// vector `step` of a quarter's four.
    const COLUMNS: [u8; BLOCK];

    /// What the weights of all quarters are made of.
    fn unpack<L: Lanes>(lanes: L, bytes: &Self::Bytes) -> Self::Unpacked<L>;

    /// The weights of a quarter: to the bit what dequantising gives.
    fn weights<L: Lanes>(lanes: L, bytes: &Self::Bytes, unpacked: &Self::Unpacked<L>, quarter: usize) -> [L::F32s; 4];
}

/// A format of codes under scales for each 16 values.
pub(super) trait Coded: 'static {
    /// The bytes of 256 values.
    type Bytes: ByteArray;

    /// The groups of 16 values that each quarter holds, 16 bytes each.
    const GROUPS: [[u8; 4]; 4];

    /// Whether codes reach 128.
    const WIDE_CODES: bool = false;

    /// Values for which activations of 8 bits share a scale.
    const ACTIVATION_GROUP: usize;

    /// The codes of the four quarters.
    fn codes<L: Lanes>(lanes: L, bytes: &Self::Bytes) -> [L::Bytes; 4];

    /// The scales of the sixteen groups.
    fn scales<L: Lanes>(lanes: L, bytes: &Self::Bytes) -> Scales<L>;
}

/// The scales of sixteen groups: weights are `unit * factor * code - minimum`.
///
/// The products and the minimum are exact, as their factors together have at most 24 significant bits. One rounding is
/// left, that of the difference, whether or not the instruction set fuses it with the product.
#[derive(Clone, Copy)]
pub(super) struct Scales<L: Lanes> {
    pub(super) units: L::F32s,
    pub(super) factors: L::I32s,
    pub(super) minima: L::F32s,
}

/// The group of each lane of each quarter.
pub(super) const fn lane_groups(groups: [[u8; 4]; 4]) -> [[u32; LANES]; 4] {
    let mut lanes = [[0; LANES]; 4];
    let mut place = 0;
    while place < 4 * LANES {
        let (quarter, lane) = (place / LANES, place % LANES);
        lanes[quarter][lane] = groups[quarter][lane / 4] as u32;
        place += 1;
    }
    lanes
}

/// The column of each byte of the four quarters.
const fn byte_columns(groups: [[u8; 4]; 4]) -> [u8; BLOCK] {
    let mut columns = [0; BLOCK];
    let mut at = 0;
    while at < BLOCK {
        columns[at] = groups[at / 64][at % 64 / 16] * 16 + (at % 16) as u8;
        at += 1;
    }
    columns
}

/// [`Format::COLUMNS`] where step `step` of lane `lane` is byte `4 * lane + step` of a quarter.
const fn place_columns(groups: [[u8; 4]; 4]) -> [u8; BLOCK] {
    let bytes = byte_columns(groups);
    let mut columns = [0; BLOCK];
    let mut place = 0;
    while place < BLOCK {
        let (quarter, step, lane) = (place / 64, place % 64 / LANES, place % LANES);
        columns[place] = bytes[64 * quarter + 4 * lane + step];
        place += 1;
    }
    columns
}

/// A block's codes, and the scales of its groups: weights are `step * code - minimum`.
pub(super) struct Unpacked<L: Lanes> {
    codes: [L::Bytes; 4],
    steps: L::F32s,
    minima: L::F32s,
}

impl<L: Lanes> Clone for Unpacked<L> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<L: Lanes> Copy for Unpacked<L> {}

impl<C: Coded> Format for C {
    type Bytes = C::Bytes;
    type Unpacked<L: Lanes> = Unpacked<L>;

    const COLUMNS: [u8; BLOCK] = place_columns(C::GROUPS);

    #[inline(always)]
    fn unpack<L: Lanes>(lanes: L, bytes: &C::Bytes) -> Unpacked<L> {
        let Scales { units, factors, minima } = C::scales(lanes, bytes);
        let steps = lanes.mul(lanes.to_f32(factors), units);
        Unpacked { codes: C::codes(lanes, bytes), steps, minima }
    }

    #[inline(always)]
    fn weights<L: Lanes>(lanes: L, _: &C::Bytes, unpacked: &Unpacked<L>, quarter: usize) -> [L::F32s; 4] {
        let from = &const { lane_groups(C::GROUPS) }[quarter];
        let steps = lanes.permute(unpacked.steps, from);
        let minima = lanes.permute(unpacked.minima, from);
        let mut weights = lanes.to_f32_by_step(unpacked.codes[quarter]);
        for weight in &mut weights {
            *weight = lanes.mul_sub(*weight, steps, minima);
        }
        weights
    }
}

/// The `N` bytes from `at`.
#[inline(always)]
fn part<const N: usize>(bytes: &[u8], at: usize) -> &[u8; N] {
    // Formats name places within their own blocks.
    bytes[at..].first_chunk().expect("a place within the block")
}
