use std::arch::x86_64::{__m512, __m512i, _mm512_dpbusd_epi32, _mm512_dpwssd_epi32};

use pulp::cast;

use super::{LANES, Lanes, STEPS};

pulp::simd_type! {
    /// AVX-512 as servers have it since 2019: the foundation, bytes and words, doublewords, and VNNI.
    pub(in crate::kernel) struct Avx512 {
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
        avx512f: "avx512f",
        avx512bw: "avx512bw",
        avx512dq: "avx512dq",
        avx512vl: "avx512vl",
        avx512vnni: "avx512vnni",
    }
}

impl Avx512 {
    #[inline(always)]
    fn index(self, from: &[u32; LANES]) -> __m512i {
        cast(*from)
    }
}

impl Lanes for Avx512 {
    type F32s = __m512;
    type I32s = __m512i;
    type Bytes = __m512i;

    const WIDE_PANELS: bool = true;

    #[inline(always)]
    fn splat(self, value: f32) -> __m512 {
        self.avx512f._mm512_set1_ps(value)
    }

    #[inline(always)]
    fn splat_f16(self, bits: u16) -> __m512 {
        self.avx512f._mm512_cvtph_ps(self.avx._mm256_set1_epi16(bits.cast_signed()))
    }

    #[inline(always)]
    fn load(self, values: &[f32; LANES]) -> __m512 {
        cast(*values)
    }

    #[inline(always)]
    fn store(self, values: __m512) -> [f32; LANES] {
        cast(values)
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        self.avx512f._mm512_add_ps(a, b)
    }

    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        self.avx512f._mm512_mul_ps(a, b)
    }

    #[inline(always)]
    fn mul_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        self.avx512f._mm512_fmadd_ps(a, b, c)
    }

    #[inline(always)]
    fn mul_sub(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        self.avx512f._mm512_fmsub_ps(a, b, c)
    }

    #[inline(always)]
    fn permute(self, values: __m512, from: &[u32; LANES]) -> __m512 {
        self.avx512f._mm512_permutexvar_ps(self.index(from), values)
    }

    #[inline(always)]
    fn widen_f16(self, values: &[u8; 2 * LANES]) -> __m512 {
        self.avx512f._mm512_cvtph_ps(cast(*values))
    }

    #[inline(always)]
    fn widen_bf16(self, values: &[u8; 2 * LANES]) -> __m512 {
        cast(self.avx512f._mm512_slli_epi32::<16>(self.avx512f._mm512_cvtepu16_epi32(cast(*values))))
    }

    #[inline(always)]
    fn load_i32(self, values: &[i32; LANES]) -> __m512i {
        cast(*values)
    }

    #[inline(always)]
    fn widen_u8(self, values: &[u8; LANES]) -> __m512i {
        self.avx512f._mm512_cvtepu8_epi32(cast(*values))
    }

    #[inline(always)]
    fn add_i32(self, a: __m512i, b: __m512i) -> __m512i {
        self.avx512f._mm512_add_epi32(a, b)
    }

    #[inline(always)]
    fn and_i32(self, a: __m512i, b: i32) -> __m512i {
        self.avx512f._mm512_and_si512(a, self.avx512f._mm512_set1_epi32(b))
    }

    #[inline(always)]
    fn shift_right_i32(self, a: __m512i, bits: i32) -> __m512i {
        self.avx512f._mm512_srl_epi32(a, self.sse2._mm_cvtsi32_si128(bits))
    }

    #[inline(always)]
    fn mul_add_i16(self, a: __m512i, b: __m512i, c: __m512i) -> __m512i {
        // SAFETY: the token proves that the machine has AVX-512 F and VNNI.
        unsafe { _mm512_dpwssd_epi32(c, a, b) }
    }

    #[inline(always)]
    fn permute_i32(self, values: __m512i, from: &[u32; LANES]) -> __m512i {
        self.avx512f._mm512_permutexvar_epi32(self.index(from), values)
    }

    #[inline(always)]
    fn to_f32(self, values: __m512i) -> __m512 {
        self.avx512f._mm512_cvtepi32_ps(values)
    }

    #[inline(always)]
    fn splat_byte(self, value: u8) -> __m512i {
        self.avx512f._mm512_set1_epi8(value.cast_signed())
    }

    #[inline(always)]
    fn load_bytes(self, bytes: &[u8; 4 * LANES]) -> __m512i {
        cast(*bytes)
    }

    #[inline(always)]
    fn join(self, low: &[u8; 2 * LANES], high: &[u8; 2 * LANES]) -> __m512i {
        let low = self.avx512f._mm512_castsi256_si512(cast(*low));
        self.avx512f._mm512_inserti64x4::<1>(low, cast(*high))
    }

    #[inline(always)]
    fn join4(self, [a, b, c, d]: [&[u8; LANES]; 4]) -> __m512i {
        let first = self.avx512f._mm512_castsi128_si512(cast(*a));
        let two = self.avx512f._mm512_inserti32x4::<1>(first, cast(*b));
        let three = self.avx512f._mm512_inserti32x4::<2>(two, cast(*c));
        self.avx512f._mm512_inserti32x4::<3>(three, cast(*d))
    }

    #[inline(always)]
    fn and(self, a: __m512i, b: __m512i) -> __m512i {
        self.avx512f._mm512_and_si512(a, b)
    }

    #[inline(always)]
    fn or(self, a: __m512i, b: __m512i) -> __m512i {
        self.avx512f._mm512_or_si512(a, b)
    }

    #[inline(always)]
    fn xor(self, a: __m512i, b: __m512i) -> __m512i {
        self.avx512f._mm512_xor_si512(a, b)
    }

    #[inline(always)]
    fn shift_left(self, bytes: __m512i, bits: i32) -> __m512i {
        self.avx512bw._mm512_sll_epi16(bytes, self.sse2._mm_cvtsi32_si128(bits))
    }

    #[inline(always)]
    fn shift_right(self, bytes: __m512i, bits: i32) -> __m512i {
        self.avx512bw._mm512_srl_epi16(bytes, self.sse2._mm_cvtsi32_si128(bits))
    }

    #[inline(always)]
    fn shift_right_high(self, bytes: __m512i, bits: i32) -> __m512i {
        let mut counts = [0_u16; 2 * LANES];
        counts[LANES..].fill(bits as u16);
        self.avx512bw._mm512_srlv_epi16(bytes, cast(counts))
    }

    #[inline(always)]
    fn look_up(self, table: &[u8; LANES], bytes: __m512i) -> __m512i {
        self.avx512bw._mm512_shuffle_epi8(self.avx512f._mm512_broadcast_i32x4(cast(*table)), bytes)
    }

    #[inline(always)]
    fn to_f32_by_step(self, bytes: __m512i) -> [__m512; 4] {
        let mut steps = [self.avx512f._mm512_set1_ps(0.0); 4];
        for (values, step) in steps.iter_mut().zip(STEPS) {
            *values = self.avx512f._mm512_cvtepi32_ps(self.avx512bw._mm512_shuffle_epi8(bytes, cast(step)));
        }
        steps
    }

    #[inline(always)]
    fn dot(self, codes: __m512i, values: &[i8; 4 * LANES], _: bool) -> __m512i {
        let zero = self.avx512f._mm512_set1_epi32(0);
        // SAFETY: the token proves that the machine has AVX-512 F and VNNI.
        unsafe { _mm512_dpbusd_epi32(zero, codes, cast(*values)) }
    }
}
