//! What the kernels need of an instruction set: sixteen lanes of 32 bits, and the 64 bytes they are made of.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

#[cfg(target_arch = "x86_64")]
pub(super) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(super) use avx512::Avx512;
pub(super) use portable::Portable;

/// Lanes of a vector.
pub(super) const LANES: usize = 16;

/// Values at the start of a cache line, so that no vector of them lies in two.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
pub(super) struct Aligned<T>(pub(super) T);

/// For each step, the byte indices that make a number of byte `step` of every four, for shuffles within 16 bytes that
/// zero what is marked.
#[cfg(target_arch = "x86_64")]
const STEPS: [[u8; 4 * LANES]; 4] = {
    const ZERO: u8 = 0x80;
    let mut steps = [[ZERO; 4 * LANES]; 4];
    let mut step = 0;
    while step < steps.len() {
        let mut at = 0;
        while at < steps[step].len() {
            steps[step][at] = (at % LANES + step) as u8;
            at += 4;
        }
        step += 1;
    }
    steps
};

/// An instruction set, proven present by holding its token.
///
/// Every method is one or a few instructions, and is only that when it is inlined into code that was compiled for the
/// set: kernels run inside [`Simd::run`](super::Simd::run), and they and all they call are `#[inline(always)]`.
pub(super) trait Lanes: Copy + Send + Sync {
    /// Sixteen f32.
    type F32s: Copy;
    /// Sixteen i32, which wrap.
    type I32s: Copy;
    /// 64 bytes: four a lane.
    type Bytes: Copy;

    /// Vectors that a micro-kernel may keep beside each other for each of its six rows without running out of registers.
    const WIDE_PANELS: bool;

    fn splat(self, value: f32) -> Self::F32s;
    /// A binary16, widened.
    fn splat_f16(self, bits: u16) -> Self::F32s;
    fn load(self, values: &[f32; LANES]) -> Self::F32s;
    fn store(self, values: Self::F32s) -> [f32; LANES];
    fn add(self, a: Self::F32s, b: Self::F32s) -> Self::F32s;
    fn mul(self, a: Self::F32s, b: Self::F32s) -> Self::F32s;
    /// `a * b + c`, rounded once where the set can.
    fn mul_add(self, a: Self::F32s, b: Self::F32s, c: Self::F32s) -> Self::F32s;
    /// `a * b - c`, rounded once where the set can.
    fn mul_sub(self, a: Self::F32s, b: Self::F32s, c: Self::F32s) -> Self::F32s;
    /// Lane `i` is lane `from[i]`. Both the first eight and the last eight of `from` stay within one half of the lanes.
    fn permute(self, values: Self::F32s, from: &[u32; LANES]) -> Self::F32s;
    /// Two little-endian bytes of binary16 a lane, widened.
    fn widen_f16(self, values: &[u8; 2 * LANES]) -> Self::F32s;
    /// Two little-endian bytes of bfloat16 a lane, widened.
    fn widen_bf16(self, values: &[u8; 2 * LANES]) -> Self::F32s;

    fn load_i32(self, values: &[i32; LANES]) -> Self::I32s;
    fn widen_u8(self, values: &[u8; LANES]) -> Self::I32s;
    fn add_i32(self, a: Self::I32s, b: Self::I32s) -> Self::I32s;
    fn and_i32(self, a: Self::I32s, b: i32) -> Self::I32s;
    fn shift_right_i32(self, a: Self::I32s, bits: i32) -> Self::I32s;
    /// `a * b + c` of lanes that fit 16 bits; the high 16 bits of `b` are to be zero, whatever its sign.
    fn mul_add_i16(self, a: Self::I32s, b: Self::I32s, c: Self::I32s) -> Self::I32s;
    /// As [`permute`](Self::permute).
    fn permute_i32(self, values: Self::I32s, from: &[u32; LANES]) -> Self::I32s;
    /// The nearest floats.
    fn to_f32(self, values: Self::I32s) -> Self::F32s;

    fn splat_byte(self, value: u8) -> Self::Bytes;
    fn load_bytes(self, bytes: &[u8; 4 * LANES]) -> Self::Bytes;
    /// Two halves, one after the other.
    fn join(self, low: &[u8; 2 * LANES], high: &[u8; 2 * LANES]) -> Self::Bytes;
    /// Four quarters, one after the other.
    fn join4(self, quarters: [&[u8; LANES]; 4]) -> Self::Bytes;
    fn and(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    fn or(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    fn xor(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// Each pair of bytes shifted as one little-endian number: what crosses from one byte to the other is to be masked.
    fn shift_left(self, bytes: Self::Bytes, bits: i32) -> Self::Bytes;
    /// As [`shift_left`](Self::shift_left).
    fn shift_right(self, bytes: Self::Bytes, bits: i32) -> Self::Bytes;
    /// [`shift_right`](Self::shift_right) of the last 32 bytes; the first stay.
    fn shift_right_high(self, bytes: Self::Bytes, bits: i32) -> Self::Bytes;
    /// `table[byte]` for bytes below 16.
    fn look_up(self, table: &[u8; LANES], bytes: Self::Bytes) -> Self::Bytes;
    /// Byte `4 * i + step` of each lane `i`, for the four steps.
    fn to_f32_by_step(self, bytes: Self::Bytes) -> [Self::F32s; 4];
    /// Lane `i` is the exact sum of the products of `codes` and `values` in its four bytes. Unless `wide`, codes are
    /// below 128.
    fn dot(self, codes: Self::Bytes, values: &[i8; 4 * LANES], wide: bool) -> Self::I32s;

    /// The sum of the lanes, in an order that is the same for every set.
    #[inline(always)]
    fn sum(self, values: Self::F32s) -> f32 {
        let mut lanes = self.store(values);
        let mut width = LANES / 2;
        while width > 0 {
            for i in 0..width {
                lanes[i] += lanes[i + width];
            }
            width /= 2;
        }
        lanes[0]
    }
}
