//! Plain floats: the weights are the values, in their order.

use super::{BLOCK, Format, LANES, Lanes, part};

/// Columns in their order.
const IN_ORDER: [u8; BLOCK] = {
    let mut columns = [0; BLOCK];
    let mut column = 0;
    while column < BLOCK {
        columns[column] = column as u8;
        column += 1;
    }
    columns
};

/// F32.
pub(in crate::kernel) struct F32Values;

impl Format for F32Values {
    type Bytes = [u8; 4 * BLOCK];
    type Unpacked<L: Lanes> = ();

    const COLUMNS: [u8; BLOCK] = IN_ORDER;

    #[inline(always)]
    fn unpack<L: Lanes>(_: L, _: &[u8; 4 * BLOCK]) {}

    #[inline(always)]
    fn weights<L: Lanes>(lanes: L, bytes: &[u8; 4 * BLOCK], (): &(), quarter: usize) -> [L::F32s; 4] {
        let mut weights = [lanes.splat(0.0); 4];
        for (step, weight) in weights.iter_mut().enumerate() {
            let values: &[u8; 4 * LANES] = part(bytes, 4 * LANES * (4 * quarter + step));
            let mut floats = [0.0; LANES];
            for (float, value) in floats.iter_mut().zip(values.as_chunks().0) {
                *float = f32::from_le_bytes(*value);
            }
            *weight = lanes.load(&floats);
        }
        weights
    }
}

/// F16.
pub(in crate::kernel) struct F16Values;

impl Format for F16Values {
    type Bytes = [u8; 2 * BLOCK];
    type Unpacked<L: Lanes> = ();

    const COLUMNS: [u8; BLOCK] = IN_ORDER;

    #[inline(always)]
    fn unpack<L: Lanes>(_: L, _: &[u8; 2 * BLOCK]) {}

    #[inline(always)]
    fn weights<L: Lanes>(lanes: L, bytes: &[u8; 2 * BLOCK], (): &(), quarter: usize) -> [L::F32s; 4] {
        let mut weights = [lanes.splat(0.0); 4];
        for (step, weight) in weights.iter_mut().enumerate() {
            *weight = lanes.widen_f16(part(bytes, 2 * LANES * (4 * quarter + step)));
        }
        weights
    }
}

/// BF16.
pub(in crate::kernel) struct Bf16Values;

impl Format for Bf16Values {
    type Bytes = [u8; 2 * BLOCK];
    type Unpacked<L: Lanes> = ();

    const COLUMNS: [u8; BLOCK] = IN_ORDER;

    #[inline(always)]
    fn unpack<L: Lanes>(_: L, _: &[u8; 2 * BLOCK]) {}

    #[inline(always)]
    fn weights<L: Lanes>(lanes: L, bytes: &[u8; 2 * BLOCK], (): &(), quarter: usize) -> [L::F32s; 4] {
        let mut weights = [lanes.splat(0.0); 4];
        for (step, weight) in weights.iter_mut().enumerate() {
            *weight = lanes.widen_bf16(part(bytes, 2 * LANES * (4 * quarter + step)));
        }
        weights
    }
}
