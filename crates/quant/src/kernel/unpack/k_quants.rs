//! The formats of 256 values with scales of scales.

use super::{BLOCK, Coded, LANES, Lanes, Scales, part};

/// Groups of the quarters where codes `32 * j` to `32 * j + 31` of both halves of a block lie above each other.
const IN_EIGHTHS: [[u8; 4]; 4] = [[0, 1, 8, 9], [2, 3, 10, 11], [4, 5, 12, 13], [6, 7, 14, 15]];

/// Groups of the quarters where every 32 codes lie above the next 32.
const IN_NIBBLES: [[u8; 4]; 4] = [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]];

/// Two bits, with a 4-bit scale and minimum for each 16.
pub(in crate::kernel) struct Q2K;

impl Coded for Q2K {
    type Bytes = [u8; 84];

    const GROUPS: [[u8; 4]; 4] = IN_EIGHTHS;
    const ACTIVATION_GROUP: usize = BLOCK;

    #[inline(always)]
    fn codes<L: Lanes>(lanes: L, bytes: &[u8; 84]) -> [L::Bytes; 4] {
        two_bits(lanes, lanes.load_bytes(part(bytes, 16)))
    }

    #[inline(always)]
    fn scales<L: Lanes>(lanes: L, bytes: &[u8; 84]) -> Scales<L> {
        let both = lanes.widen_u8(part(bytes, 0));
        Scales {
            units: f16_at(lanes, bytes, 80),
            factors: lanes.and_i32(both, 15),
            minima: scaled(lanes, lanes.shift_right_i32(both, 4), f16_at(lanes, bytes, 82)),
        }
    }
}

/// Three bits stored plus four, with a 6-bit scale stored plus 32 for each 16.
pub(in crate::kernel) struct Q3K;

impl Coded for Q3K {
    type Bytes = [u8; 110];

    const GROUPS: [[u8; 4]; 4] = IN_EIGHTHS;
    const ACTIVATION_GROUP: usize = BLOCK;

    #[inline(always)]
    fn codes<L: Lanes>(lanes: L, bytes: &[u8; 110]) -> [L::Bytes; 4] {
        let high = part(bytes, 0);
        let high = lanes.shift_right_high(lanes.join(high, high), 4);
        let low = two_bits(lanes, lanes.load_bytes(part(bytes, 32)));
        let high = [lanes.shift_left(high, 2), lanes.shift_left(high, 1), high, lanes.shift_right(high, 1)];
        with_high_bits(lanes, low, high, 4)
    }

    #[inline(always)]
    fn scales<L: Lanes>(lanes: L, bytes: &[u8; 110]) -> Scales<L> {
        const NIBBLES: u64 = 0x0f0f_0f0f_0f0f_0f0f;
        const PAIRS: u64 = 0x0303_0303_0303_0303;

        let low = u64::from_le_bytes(*part(bytes, 96));
        let high = u64::from(u32::from_le_bytes(*part(bytes, 104)));
        // The high bits of the second four groups lie above those of the first, and so on.
        let first = low & NIBBLES | ((high | high << 30) & PAIRS) << 4;
        let last = low >> 4 & NIBBLES | ((high >> 4 | high << 26) & PAIRS) << 4;
        let scales = lanes.widen_u8(&pulp::cast([first.to_le(), last.to_le()]));
        let scales = lanes.add_i32(scales, lanes.load_i32(&[-32; LANES]));
        symmetric(lanes, f16_at(lanes, bytes, 108), scales, 4.0)
    }
}

/// Four bits, with a 6-bit scale and minimum for each 32.
pub(in crate::kernel) struct Q4K;

impl Coded for Q4K {
    type Bytes = [u8; 144];

    const GROUPS: [[u8; 4]; 4] = IN_NIBBLES;
    const ACTIVATION_GROUP: usize = BLOCK;

    #[inline(always)]
    fn codes<L: Lanes>(lanes: L, bytes: &[u8; 144]) -> [L::Bytes; 4] {
        four_bits(lanes, [lanes.load_bytes(part(bytes, 16)), lanes.load_bytes(part(bytes, 80))])
    }

    #[inline(always)]
    fn scales<L: Lanes>(lanes: L, bytes: &[u8; 144]) -> Scales<L> {
        six_bit_scales(lanes, part(bytes, 0))
    }
}

/// Five bits, scaled as [`Q4K`].
pub(in crate::kernel) struct Q5K;

impl Coded for Q5K {
    type Bytes = [u8; 176];

    const GROUPS: [[u8; 4]; 4] = IN_NIBBLES;
    const ACTIVATION_GROUP: usize = BLOCK;

    #[inline(always)]
    fn codes<L: Lanes>(lanes: L, bytes: &[u8; 176]) -> [L::Bytes; 4] {
        let high = part(bytes, 16);
        let high = lanes.shift_right_high(lanes.join(high, high), 2);
        let low = four_bits(lanes, [lanes.load_bytes(part(bytes, 48)), lanes.load_bytes(part(bytes, 112))]);
        let high = [lanes.shift_left(high, 4), lanes.shift_left(high, 3), high, lanes.shift_right(high, 1)];
        with_high_bits(lanes, low, high, 16)
    }

    #[inline(always)]
    fn scales<L: Lanes>(lanes: L, bytes: &[u8; 176]) -> Scales<L> {
        six_bit_scales(lanes, part(bytes, 0))
    }
}

/// Six bits stored plus 32, with an 8-bit scale for each 16.
pub(in crate::kernel) struct Q6K;

impl Coded for Q6K {
    type Bytes = [u8; 210];

    const GROUPS: [[u8; 4]; 4] = IN_EIGHTHS;
    const ACTIVATION_GROUP: usize = BLOCK;

    #[inline(always)]
    fn codes<L: Lanes>(lanes: L, bytes: &[u8; 210]) -> [L::Bytes; 4] {
        let even = lanes.join(part(bytes, 0), part(bytes, 64));
        let odd = lanes.join(part(bytes, 32), part(bytes, 96));
        let high = lanes.load_bytes(part(bytes, 128));
        let [first, third, second, fourth] = four_bits(lanes, [even, odd]);
        let high = [lanes.shift_left(high, 4), lanes.shift_left(high, 2), high, lanes.shift_right(high, 2)];
        with_high_bits(lanes, [first, second, third, fourth], high, 0x30)
    }

    #[inline(always)]
    fn scales<L: Lanes>(lanes: L, bytes: &[u8; 210]) -> Scales<L> {
        // Two's complement plus 128, as unsigned.
        let scales = part::<LANES>(bytes, 192).map(
            #[inline(always)]
            |scale| scale ^ 0x80,
        );
        let scales = lanes.add_i32(lanes.widen_u8(&scales), lanes.load_i32(&[-128; LANES]));
        symmetric(lanes, f16_at(lanes, bytes, 208), scales, 32.0)
    }
}

/// The four fields of two bits of each byte.
#[inline(always)]
fn two_bits<L: Lanes>(lanes: L, bytes: L::Bytes) -> [L::Bytes; 4] {
    let mask = lanes.splat_byte(3);
    [
        lanes.and(bytes, mask),
        lanes.and(lanes.shift_right(bytes, 2), mask),
        lanes.and(lanes.shift_right(bytes, 4), mask),
        lanes.and(lanes.shift_right(bytes, 6), mask),
    ]
}

/// The nibbles of both, low ones first.
#[inline(always)]
pub(super) fn four_bits<L: Lanes>(lanes: L, [first, last]: [L::Bytes; 2]) -> [L::Bytes; 4] {
    let mask = lanes.splat_byte(15);
    [
        lanes.and(first, mask),
        lanes.and(lanes.shift_right(first, 4), mask),
        lanes.and(last, mask),
        lanes.and(lanes.shift_right(last, 4), mask),
    ]
}

/// Codes with the bits of `high` that `mask` names.
#[inline(always)]
fn with_high_bits<L: Lanes>(lanes: L, mut low: [L::Bytes; 4], high: [L::Bytes; 4], mask: u8) -> [L::Bytes; 4] {
    let mask = lanes.splat_byte(mask);
    for quarter in 0..4 {
        low[quarter] = lanes.or(low[quarter], lanes.and(high[quarter], mask));
    }
    low
}

/// The scales of codes that are stored plus `bias`.
#[inline(always)]
pub(super) fn symmetric<L: Lanes>(lanes: L, units: L::F32s, factors: L::I32s, bias: f32) -> Scales<L> {
    Scales { units, factors, minima: lanes.mul(scaled(lanes, factors, units), lanes.splat(bias)) }
}

/// Two f16 units, then eight scales and eight minima of six bits in twelve bytes, each for two groups.
#[inline(always)]
fn six_bit_scales<L: Lanes>(lanes: L, bytes: &[u8; 16]) -> Scales<L> {
    const SIXES: u32 = 0x3f3f_3f3f;
    const NIBBLES: u32 = 0x0f0f_0f0f;
    const PAIRS: u32 = 0x0303_0303;

    let [_, scale, minimum, low]: [u32; 4] = pulp::cast(*bytes);
    let (scale, minimum, low) = (u32::from_le(scale), u32::from_le(minimum), u32::from_le(low));
    let steps = [scale & SIXES, low & NIBBLES | (scale >> 6 & PAIRS) << 4];
    let minima = [minimum & SIXES, low >> 4 & NIBBLES | (minimum >> 6 & PAIRS) << 4];
    Scales {
        units: f16_at(lanes, bytes, 0),
        factors: for_pairs(lanes, steps),
        minima: scaled(lanes, for_pairs(lanes, minima), f16_at(lanes, bytes, 2)),
    }
}

/// Eight bytes for sixteen lanes, each for two.
#[inline(always)]
fn for_pairs<L: Lanes>(lanes: L, bytes: [u32; 2]) -> L::I32s {
    const TWICE: [u32; LANES] = [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7];

    let bytes = lanes.widen_u8(&pulp::cast([bytes.map(u32::to_le), [0; 2]]));
    lanes.permute_i32(bytes, &TWICE)
}

#[inline(always)]
fn scaled<L: Lanes>(lanes: L, values: L::I32s, unit: L::F32s) -> L::F32s {
    lanes.mul(lanes.to_f32(values), unit)
}

#[inline(always)]
fn f16_at<L: Lanes>(lanes: L, bytes: &[u8], at: usize) -> L::F32s {
    lanes.splat_f16(u16::from_le_bytes(*part(bytes, at)))
}
