//! Exact conversions to the storage formats, one value at a time.
//!
//! Each function rounds as torch casts float32 to the named dtype and widens the result again, so that a caller sees
//! the value a tensor of that dtype would hold. Values that already fit come back unchanged.

use half::bf16 as Bf16;

/// The values of the eight non-negative e2m1 codes; codes 8 to 15 are their negatives.
pub const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// The largest finite `float8_e4m3fn`.
pub const E4M3_MAX: f32 = 448.0;

/// Rounds to `bfloat16`: nearest, ties to even; subnormals, infinities and NaN are kept.
pub fn bf16(value: f32) -> f32 {
    Bf16::from_f32(value).to_f32()
}

/// Rounds to `float8_e4m3fn`: nearest, ties to even, subnormals down to 2^-9 kept.
///
/// The format has no infinity and, as torch casts, nothing saturates: what would round beyond [`E4M3_MAX`] (a magnitude
/// above 464, infinity, NaN) becomes NaN. Quantisers clamp before they cast.
pub fn e4m3(value: f32) -> f32 {
    const MANTISSA_BITS: i32 = 3;
    const LOWEST_EXPONENT: i32 = -6;

    // Largest value that still rounds to E4M3_MAX: the tie with the unrepresentable 480 goes to the even 448.
    if value.is_nan() || value.abs() > 464.0 {
        return f32::NAN;
    }
    let exponent = ((value.abs().to_bits() >> 23) as i32 - 127).max(LOWEST_EXPONENT);
    let step = exp2(exponent - MANTISSA_BITS);
    // Both steps are exact: the quotient only moves the exponent, and the product has at most four significant bits.
    (value / step).round_ties_even() * step
}

/// Rounds to `float8_e8m0fnu`, a bare power of two from 2^-127 to 2^127: the sign is dropped, halfway (a mantissa of
/// 1.5) goes up, and zero, which the format lacks, becomes 2^-127. What would exceed 2^127, infinity and NaN are NaN.
pub fn e8m0(value: f32) -> f32 {
    const HALF: u32 = 0x40_0000;

    let magnitude = value.to_bits() & 0x7fff_ffff;
    let (exponent, mantissa) = (magnitude >> 23, magnitude & 0x7f_ffff);
    // A subnormal has no implied leading one: its code 0 counts as even, so its halfway goes down.
    let up = if exponent == 0 { mantissa > HALF } else { mantissa >= HALF };
    match exponent + u32::from(up) {
        code @ 0..=254 => exp2(code as i32 - 127),
        _ => f32::NAN,
    }
}

/// The value of the e2m1 code in the low four bits of `code`: bit 3 is the sign, zero has one too.
pub fn e2m1(code: u8) -> f32 {
    let magnitude = E2M1[usize::from(code & 7)];
    if code & 8 == 0 { magnitude } else { -magnitude }
}

/// The two e2m1 values of a packed byte: the low nibble is the even element.
pub fn e2m1x2(byte: u8) -> [f32; 2] {
    [e2m1(byte), e2m1(byte >> 4)]
}

/// `2^exponent`, exact for every power of two that f32 holds, subnormal ones (down to 2^-149) included.
pub(crate) fn exp2(exponent: i32) -> f32 {
    match exponent {
        -126..=127 => f32::from_bits(((exponent + 127) as u32) << 23),
        -149..=-127 => f32::from_bits(1 << (exponent + 149)),
        ..-149 => 0.0,
        128.. => f32::INFINITY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Round to nearest even by integer arithmetic on the bits, written independently of crate `half`.
    fn bf16_by_bits(value: f32) -> f32 {
        let bits = value.to_bits();
        f32::from_bits(((u64::from(bits) + 0x7fff + u64::from((bits >> 16) & 1)) as u32) & 0xffff_0000)
    }

    #[test]
    fn bf16_rounds_to_nearest_even() {
        let ties =
            [(0x3f80_8000, 0x3f80_0000), (0x3f81_8000, 0x3f82_0000), (0x0000_8000, 0), (0x0001_8000, 0x0002_0000)];
        for (bits, rounded) in ties {
            assert_eq!(bf16(f32::from_bits(bits)).to_bits(), rounded);
        }
        for high in (0..0x7f80_0000_u32).step_by(0x1_0000) {
            for low in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                for sign in [0, 0x8000_0000] {
                    let value = f32::from_bits(high | low | sign);
                    assert_eq!(bf16(value).to_bits(), bf16_by_bits(value).to_bits(), "{value:e}");
                }
            }
        }
        assert_eq!(bf16(f32::MAX), f32::INFINITY);
        assert_eq!(bf16(f32::NEG_INFINITY), f32::NEG_INFINITY);
        assert!(bf16(f32::NAN).is_nan());
    }

    /// The finite non-negative e4m3 values in order, from the format's definition.
    fn e4m3_values() -> Vec<f32> {
        (0_u8..=0x7e)
            .map(|code| {
                let (exponent, mantissa) = (i32::from(code >> 3), f32::from(code & 7));
                if exponent == 0 { mantissa / 8.0 * exp2(-6) } else { (1.0 + mantissa / 8.0) * exp2(exponent - 7) }
            })
            .collect()
    }

    #[test]
    fn e4m3_keeps_its_values_and_rounds_between_them_to_even() {
        let values = e4m3_values();
        assert_eq!(values.last(), Some(&E4M3_MAX));
        for (code, pair) in values.windows(2).enumerate() {
            let [low, high] = [pair[0], pair[1]];
            let middle = (low + high) / 2.0;
            let even = if code % 2 == 0 { low } else { high };
            for (value, rounded) in
                [(low, low), (high, high), (middle, even), (middle.next_down(), low), (middle.next_up(), high)]
            {
                assert_eq!(e4m3(value), rounded, "{value:e}");
                assert_eq!(e4m3(-value).to_bits(), (-rounded).to_bits(), "{value:e}");
            }
        }
    }

    #[test]
    fn e4m3_beyond_its_range_is_nan() {
        assert_eq!(e4m3(464.0), E4M3_MAX);
        for value in [464.0_f32.next_up(), 480.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            assert!(e4m3(value).is_nan(), "{value}");
        }
    }

    #[test]
    fn e8m0_rounds_the_mantissa() {
        let cases = [
            (1.0, 1.0),
            (1.499_999_9, 1.0),
            (1.5, 2.0),
            (1.75, 2.0),
            (-0.75, 1.0),
            (0.7, 0.5),
            (0.0, exp2(-127)),
            (f32::from_bits(0x40_0000), exp2(-127)),
            (f32::from_bits(0x40_0001), exp2(-126)),
        ];
        for (value, rounded) in cases {
            assert_eq!(e8m0(value), rounded, "{value:e}");
        }
        for value in [1.5 * exp2(127), f32::INFINITY, f32::NAN] {
            assert!(e8m0(value).is_nan(), "{value:e}");
        }
    }

    #[test]
    fn e2m1_unpacks_the_low_nibble_first() {
        assert_eq!(e2m1x2(0x7a), [-1.0, 6.0]);
        assert_eq!(e2m1(8).to_bits(), (-0.0_f32).to_bits());
    }
}
