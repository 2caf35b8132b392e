use std::arch::x86_64::{__m256, __m256i, _mm256_cvtph_ps};

use pulp::cast;

use super::{LANES, Lanes, STEPS};

pulp::simd_type! {
    /// AVX2 with fused multiply-add and half floats.
    pub(in crate::kernel) struct Avx2 {
        sse: "sse",
        sse2: "sse2",
        sse3: "sse3",
        ssse3: "ssse3",
        sse4_1: "sse4.1",
        sse4_2: "sse4.2",
        avx: "avx",
        avx2: "avx2",
        bmi1: "bmi1",
        bmi2: "bmi2",
        fma: "fma",
        f16c: "f16c",
        lzcnt: "lzcnt",
        popcnt: "popcnt",
    }
}

/// A register for each half of the lanes.
type Pair<T> = [T; 2];

impl Avx2 {
    /// The lanes of either half that `from` names: the half that its first index is in, and indices within it.
    #[inline(always)]
    fn index(self, from: &[u32; LANES]) -> [(usize, __m256i); 2] {
        let halves: [[u32; LANES / 2]; 2] = cast(*from);
        // The permutation itself looks at the low three bits alone.
        [(halves[0][0] as usize / 8, cast(halves[0])), (halves[1][0] as usize / 8, cast(halves[1]))]
    }

    /// The exact sums of four products of values and codes, which are below 128 or have no bit but the highest.
    #[inline(always)]
    fn dot_narrow(self, codes: Pair<__m256i>, values: Pair<__m256i>) -> Pair<__m256i> {
        let ones = self.avx._mm256_set1_epi16(1);
        // Two products reach 2 * 127 * 128, which fits an i16.
        [
            self.avx2._mm256_madd_epi16(self.avx2._mm256_maddubs_epi16(codes[0], values[0]), ones),
            self.avx2._mm256_madd_epi16(self.avx2._mm256_maddubs_epi16(codes[1], values[1]), ones),
        ]
    }
}

impl Lanes for Avx2 {
    type F32s = Pair<__m256>;
    type I32s = Pair<__m256i>;
    type Bytes = Pair<__m256i>;

    const WIDE_PANELS: bool = false;

    #[inline(always)]
    fn splat(self, value: f32) -> Pair<__m256> {
        [self.avx._mm256_set1_ps(value); 2]
    }

    #[inline(always)]
    fn splat_f16(self, bits: u16) -> Pair<__m256> {
        // SAFETY: the token proves that the machine has F16C.
        [unsafe { _mm256_cvtph_ps(self.sse2._mm_set1_epi16(bits.cast_signed())) }; 2]
    }

    #[inline(always)]
    fn load(self, values: &[f32; LANES]) -> Pair<__m256> {
        cast(*values)
    }

    #[inline(always)]
    fn store(self, values: Pair<__m256>) -> [f32; LANES] {
        cast(values)
    }

    #[inline(always)]
    fn add(self, a: Pair<__m256>, b: Pair<__m256>) -> Pair<__m256> {
        [self.avx._mm256_add_ps(a[0], b[0]), self.avx._mm256_add_ps(a[1], b[1])]
    }

    #[inline(always)]
    fn mul(self, a: Pair<__m256>, b: Pair<__m256>) -> Pair<__m256> {
        [self.avx._mm256_mul_ps(a[0], b[0]), self.avx._mm256_mul_ps(a[1], b[1])]
    }

    #[inline(always)]
    fn mul_add(self, a: Pair<__m256>, b: Pair<__m256>, c: Pair<__m256>) -> Pair<__m256> {
        [self.fma._mm256_fmadd_ps(a[0], b[0], c[0]), self.fma._mm256_fmadd_ps(a[1], b[1], c[1])]
    }

    #[inline(always)]
    fn mul_sub(self, a: Pair<__m256>, b: Pair<__m256>, c: Pair<__m256>) -> Pair<__m256> {
        [self.fma._mm256_fmsub_ps(a[0], b[0], c[0]), self.fma._mm256_fmsub_ps(a[1], b[1], c[1])]
    }

    #[inline(always)]
    fn permute(self, values: Pair<__m256>, from: &[u32; LANES]) -> Pair<__m256> {
        let [(low, low_from), (high, high_from)] = self.index(from);
        [
            self.avx2._mm256_permutevar8x32_ps(values[low], low_from),
            self.avx2._mm256_permutevar8x32_ps(values[high], high_from),
        ]
    }

    #[inline(always)]
    fn widen_f16(self, values: &[u8; 2 * LANES]) -> Pair<__m256> {
        let [low, high]: [[u8; LANES]; 2] = cast(*values);
        // SAFETY: the token proves that the machine has F16C.
        unsafe { [_mm256_cvtph_ps(cast(low)), _mm256_cvtph_ps(cast(high))] }
    }

    #[inline(always)]
    fn widen_bf16(self, values: &[u8; 2 * LANES]) -> Pair<__m256> {
        let [low, high]: [[u8; LANES]; 2] = cast(*values);
        [
            cast(self.avx2._mm256_slli_epi32::<16>(self.avx2._mm256_cvtepu16_epi32(cast(low)))),
            cast(self.avx2._mm256_slli_epi32::<16>(self.avx2._mm256_cvtepu16_epi32(cast(high)))),
        ]
    }

    #[inline(always)]
    fn load_i32(self, values: &[i32; LANES]) -> Pair<__m256i> {
        cast(*values)
    }

    #[inline(always)]
    fn widen_u8(self, values: &[u8; LANES]) -> Pair<__m256i> {
        let [low, high]: [u64; 2] = cast(*values);
        [self.avx2._mm256_cvtepu8_epi32(cast([low, 0])), self.avx2._mm256_cvtepu8_epi32(cast([high, 0]))]
    }

    #[inline(always)]
    fn add_i32(self, a: Pair<__m256i>, b: Pair<__m256i>) -> Pair<__m256i> {
        [self.avx2._mm256_add_epi32(a[0], b[0]), self.avx2._mm256_add_epi32(a[1], b[1])]
    }

    #[inline(always)]
    fn and_i32(self, a: Pair<__m256i>, b: i32) -> Pair<__m256i> {
        self.and(a, [self.avx._mm256_set1_epi32(b); 2])
    }

    #[inline(always)]
    fn shift_right_i32(self, a: Pair<__m256i>, bits: i32) -> Pair<__m256i> {
        let bits = self.sse2._mm_cvtsi32_si128(bits);
        [self.avx2._mm256_srl_epi32(a[0], bits), self.avx2._mm256_srl_epi32(a[1], bits)]
    }

    #[inline(always)]
    fn mul_add_i16(self, a: Pair<__m256i>, b: Pair<__m256i>, c: Pair<__m256i>) -> Pair<__m256i> {
        self.add_i32([self.avx2._mm256_madd_epi16(a[0], b[0]), self.avx2._mm256_madd_epi16(a[1], b[1])], c)
    }

    #[inline(always)]
    fn permute_i32(self, values: Pair<__m256i>, from: &[u32; LANES]) -> Pair<__m256i> {
        let [(low, low_from), (high, high_from)] = self.index(from);
        [
            self.avx2._mm256_permutevar8x32_epi32(values[low], low_from),
            self.avx2._mm256_permutevar8x32_epi32(values[high], high_from),
        ]
    }

    #[inline(always)]
    fn to_f32(self, values: Pair<__m256i>) -> Pair<__m256> {
        [self.avx._mm256_cvtepi32_ps(values[0]), self.avx._mm256_cvtepi32_ps(values[1])]
    }

    #[inline(always)]
    fn splat_byte(self, value: u8) -> Pair<__m256i> {
        [self.avx._mm256_set1_epi8(value.cast_signed()); 2]
    }

    #[inline(always)]
    fn load_bytes(self, bytes: &[u8; 4 * LANES]) -> Pair<__m256i> {
        cast(*bytes)
    }

    #[inline(always)]
    fn join(self, low: &[u8; 2 * LANES], high: &[u8; 2 * LANES]) -> Pair<__m256i> {
        [cast(*low), cast(*high)]
    }

    #[inline(always)]
    fn join4(self, [a, b, c, d]: [&[u8; LANES]; 4]) -> Pair<__m256i> {
        let low = self.avx._mm256_castsi128_si256(cast(*a));
        let high = self.avx._mm256_castsi128_si256(cast(*c));
        [self.avx2._mm256_inserti128_si256::<1>(low, cast(*b)), self.avx2._mm256_inserti128_si256::<1>(high, cast(*d))]
    }

    #[inline(always)]
    fn and(self, a: Pair<__m256i>, b: Pair<__m256i>) -> Pair<__m256i> {
        [self.avx2._mm256_and_si256(a[0], b[0]), self.avx2._mm256_and_si256(a[1], b[1])]
    }

    #[inline(always)]
    fn or(self, a: Pair<__m256i>, b: Pair<__m256i>) -> Pair<__m256i> {
        [self.avx2._mm256_or_si256(a[0], b[0]), self.avx2._mm256_or_si256(a[1], b[1])]
    }

    #[inline(always)]
    fn xor(self, a: Pair<__m256i>, b: Pair<__m256i>) -> Pair<__m256i> {
        [self.avx2._mm256_xor_si256(a[0], b[0]), self.avx2._mm256_xor_si256(a[1], b[1])]
    }

    #[inline(always)]
    fn shift_left(self, bytes: Pair<__m256i>, bits: i32) -> Pair<__m256i> {
        let bits = self.sse2._mm_cvtsi32_si128(bits);
        [self.avx2._mm256_sll_epi16(bytes[0], bits), self.avx2._mm256_sll_epi16(bytes[1], bits)]
    }

    #[inline(always)]
    fn shift_right(self, bytes: Pair<__m256i>, bits: i32) -> Pair<__m256i> {
        let bits = self.sse2._mm_cvtsi32_si128(bits);
        [self.avx2._mm256_srl_epi16(bytes[0], bits), self.avx2._mm256_srl_epi16(bytes[1], bits)]
    }

    #[inline(always)]
    fn shift_right_high(self, bytes: Pair<__m256i>, bits: i32) -> Pair<__m256i> {
        [bytes[0], self.shift_right(bytes, bits)[1]]
    }

    #[inline(always)]
    fn look_up(self, table: &[u8; LANES], bytes: Pair<__m256i>) -> Pair<__m256i> {
        let table = self.avx2._mm256_broadcastsi128_si256(cast(*table));
        [self.avx2._mm256_shuffle_epi8(table, bytes[0]), self.avx2._mm256_shuffle_epi8(table, bytes[1])]
    }

    #[inline(always)]
    fn to_f32_by_step(self, bytes: Pair<__m256i>) -> [Pair<__m256>; 4] {
        let mut steps = [self.splat(0.0); 4];
        for (values, step) in steps.iter_mut().zip(STEPS) {
            // The indices repeat every 16 bytes.
            let [step, _]: Pair<__m256i> = cast(step);
            *values = self
                .to_f32([self.avx2._mm256_shuffle_epi8(bytes[0], step), self.avx2._mm256_shuffle_epi8(bytes[1], step)]);
        }
        steps
    }

    #[inline(always)]
    fn dot(self, codes: Pair<__m256i>, values: &[i8; 4 * LANES], wide: bool) -> Pair<__m256i> {
        let values: Pair<__m256i> = cast(*values);
        if wide {
            // Two products of the highest bit alone reach -2 * 128 * 128, which fits an i16 too.
            let low = self.dot_narrow(self.and(codes, self.splat_byte(0x7f)), values);
            let high = self.dot_narrow(self.and(codes, self.splat_byte(0x80)), values);
            self.add_i32(low, high)
        } else {
            self.dot_narrow(codes, values)
        }
    }
}
