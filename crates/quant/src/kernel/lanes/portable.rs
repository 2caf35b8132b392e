use std::array;

use half::{bf16, f16};
use pulp::cast;

use super::{LANES, Lanes};

/// Plain loops, for the compiler to make of what the target has.
#[derive(Debug, Clone, Copy)]
pub(in crate::kernel) struct Portable;

/// `f` of the lanes of `a` and `b`.
#[inline(always)]
fn zip<A: Copy, B: Copy, C, const N: usize>(a: [A; N], b: [B; N], f: impl Fn(A, B) -> C) -> [C; N] {
    array::from_fn(|i| f(a[i], b[i]))
}

impl Lanes for Portable {
    type F32s = [f32; LANES];
    type I32s = [i32; LANES];
    type Bytes = [u8; 4 * LANES];

    const WIDE_PANELS: bool = false;

    #[inline(always)]
    fn splat(self, value: f32) -> [f32; LANES] {
        [value; LANES]
    }

    #[inline(always)]
    fn splat_f16(self, bits: u16) -> [f32; LANES] {
        [f16::from_bits(bits).to_f32(); LANES]
    }

    #[inline(always)]
    fn load(self, values: &[f32; LANES]) -> [f32; LANES] {
        *values
    }

    #[inline(always)]
    fn store(self, values: [f32; LANES]) -> [f32; LANES] {
        values
    }

    #[inline(always)]
    fn add(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        zip(a, b, |a, b| a + b)
    }

    #[inline(always)]
    fn mul(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        zip(a, b, |a, b| a * b)
    }

    #[inline(always)]
    fn mul_add(self, a: [f32; LANES], b: [f32; LANES], c: [f32; LANES]) -> [f32; LANES] {
        // `f32::mul_add` would be a call where the target has no such instruction.
        self.add(self.mul(a, b), c)
    }

    #[inline(always)]
    fn mul_sub(self, a: [f32; LANES], b: [f32; LANES], c: [f32; LANES]) -> [f32; LANES] {
        zip(self.mul(a, b), c, |product, c| product - c)
    }

    #[inline(always)]
    fn permute(self, values: [f32; LANES], from: &[u32; LANES]) -> [f32; LANES] {
        from.map(|lane| values[lane as usize % LANES])
    }

    #[inline(always)]
    fn widen_f16(self, values: &[u8; 2 * LANES]) -> [f32; LANES] {
        cast::<_, [[u8; 2]; LANES]>(*values).map(|value| f16::from_le_bytes(value).to_f32())
    }

    #[inline(always)]
    fn widen_bf16(self, values: &[u8; 2 * LANES]) -> [f32; LANES] {
        cast::<_, [[u8; 2]; LANES]>(*values).map(|value| bf16::from_le_bytes(value).to_f32())
    }

    #[inline(always)]
    fn load_i32(self, values: &[i32; LANES]) -> [i32; LANES] {
        *values
    }

    #[inline(always)]
    fn widen_u8(self, values: &[u8; LANES]) -> [i32; LANES] {
        values.map(i32::from)
    }

    #[inline(always)]
    fn add_i32(self, a: [i32; LANES], b: [i32; LANES]) -> [i32; LANES] {
        zip(a, b, i32::wrapping_add)
    }

    #[inline(always)]
    fn and_i32(self, a: [i32; LANES], b: i32) -> [i32; LANES] {
        a.map(|a| a & b)
    }

    #[inline(always)]
    fn shift_right_i32(self, a: [i32; LANES], bits: i32) -> [i32; LANES] {
        a.map(|a| (a.cast_unsigned() >> bits).cast_signed())
    }

    #[inline(always)]
    fn mul_add_i16(self, a: [i32; LANES], b: [i32; LANES], c: [i32; LANES]) -> [i32; LANES] {
        self.add_i32(zip(a, b, |a, b| i32::from(a as i16) * i32::from(b as i16)), c)
    }

    #[inline(always)]
    fn permute_i32(self, values: [i32; LANES], from: &[u32; LANES]) -> [i32; LANES] {
        from.map(|lane| values[lane as usize % LANES])
    }

    #[inline(always)]
    fn to_f32(self, values: [i32; LANES]) -> [f32; LANES] {
        values.map(|value| value as f32)
    }

    #[inline(always)]
    fn splat_byte(self, value: u8) -> [u8; 4 * LANES] {
        [value; 4 * LANES]
    }

    #[inline(always)]
    fn load_bytes(self, bytes: &[u8; 4 * LANES]) -> [u8; 4 * LANES] {
        *bytes
    }

    #[inline(always)]
    fn join(self, low: &[u8; 2 * LANES], high: &[u8; 2 * LANES]) -> [u8; 4 * LANES] {
        cast([*low, *high])
    }

    #[inline(always)]
    fn join4(self, quarters: [&[u8; LANES]; 4]) -> [u8; 4 * LANES] {
        cast(quarters.map(|quarter| *quarter))
    }

    #[inline(always)]
    fn and(self, a: [u8; 4 * LANES], b: [u8; 4 * LANES]) -> [u8; 4 * LANES] {
        zip(a, b, |a, b| a & b)
    }

    #[inline(always)]
    fn or(self, a: [u8; 4 * LANES], b: [u8; 4 * LANES]) -> [u8; 4 * LANES] {
        zip(a, b, |a, b| a | b)
    }

    #[inline(always)]
    fn xor(self, a: [u8; 4 * LANES], b: [u8; 4 * LANES]) -> [u8; 4 * LANES] {
        zip(a, b, |a, b| a ^ b)
    }

    #[inline(always)]
    fn shift_left(self, bytes: [u8; 4 * LANES], bits: i32) -> [u8; 4 * LANES] {
        bytes.map(|byte| byte << bits)
    }

    #[inline(always)]
    fn shift_right(self, bytes: [u8; 4 * LANES], bits: i32) -> [u8; 4 * LANES] {
        bytes.map(|byte| byte >> bits)
    }

    #[inline(always)]
    fn shift_right_high(self, bytes: [u8; 4 * LANES], bits: i32) -> [u8; 4 * LANES] {
        array::from_fn(|i| if i < 2 * LANES { bytes[i] } else { bytes[i] >> bits })
    }

    #[inline(always)]
    fn look_up(self, table: &[u8; LANES], bytes: [u8; 4 * LANES]) -> [u8; 4 * LANES] {
        bytes.map(|byte| table[usize::from(byte) % LANES])
    }

    #[inline(always)]
    fn to_f32_by_step(self, bytes: [u8; 4 * LANES]) -> [[f32; LANES]; 4] {
        array::from_fn(|step| array::from_fn(|lane| f32::from(bytes[4 * lane + step])))
    }

    #[inline(always)]
    fn dot(self, codes: [u8; 4 * LANES], values: &[i8; 4 * LANES], _: bool) -> [i32; LANES] {
        let product = |i: usize| i32::from(codes[i]) * i32::from(values[i]);
        array::from_fn(|lane| (4 * lane..4 * lane + 4).map(product).sum())
    }
}
