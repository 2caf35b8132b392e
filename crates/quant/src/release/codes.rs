//! Values of the codes of small floats.

/// The value of every e4m3 code: a sign, four bits of exponent and three of mantissa, without infinities; all ones is
/// NaN.
pub(super) const E4M3: [f32; 256] = {
    let mut values = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        values[code] = e4m3(code as u8);
        code += 1;
    }
    values
};

const fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (code >> 3 & 15, code & 7);
    let magnitude = match (exponent, mantissa) {
        (15, 7) => f32::NAN,
        // Subnormal: steps of 2^-9.
        (0, _) => mantissa as f32 / 512.0,
        _ => f32::from_bits((exponent as u32 + 127 - 7) << 23 | (mantissa as u32) << 20),
    };
    if code >> 7 == 0 { magnitude } else { -magnitude }
}

/// The values of the two e2m1 codes of every byte, that of the low nibble first.
pub(super) const E2M1_PAIR: [[f32; 2]; 256] = {
    let mut pairs = [[0.0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        pairs[byte] = [e2m1(byte as u8 & 15), e2m1(byte as u8 >> 4)];
        byte += 1;
    }
    pairs
};

const fn e2m1(code: u8) -> f32 {
    const MAGNITUDES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let magnitude = MAGNITUDES[(code & 7) as usize];
    if code & 8 == 0 { magnitude } else { -magnitude }
}

/// The value of an e8m0 code: `2^(code - 127)`, and NaN for 255.
pub(super) fn e8m0(code: u8) -> f32 {
    match code {
        // Subnormal.
        0 => f32::from_bits(1 << 22),
        255 => f32::NAN,
        code => f32::from_bits(u32::from(code) << 23),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_e4m3_code_has_its_value() {
        for code in 0..=u8::MAX {
            let value = E4M3[usize::from(code)];
            if code & 0x7f == 0x7f {
                assert!(value.is_nan());
                continue;
            }
            let sign = if code < 128 { 1.0 } else { -1.0 };
            let (exponent, mantissa) = (i32::from(code >> 3 & 15), f64::from(code & 7));
            let expected = match exponent {
                0 => sign * mantissa / 8.0 * 2_f64.powi(-6),
                _ => sign * (1.0 + mantissa / 8.0) * 2_f64.powi(exponent - 7),
            };
            assert_eq!(f64::from(value).to_bits(), expected.to_bits(), "code {code:#x}");
        }
        let by_hand =
            [(0x01, 0.001953125), (0x08, 0.015625), (0x38, 1.0), (0x3d, 1.625), (0x7e, 448.0), (0xfe, -448.0)];
        for (code, value) in by_hand {
            assert_eq!(E4M3[code], value);
        }
    }

    #[test]
    fn every_e8m0_code_is_a_power_of_two() {
        for code in 0..255 {
            assert_eq!(f64::from(e8m0(code)), 2_f64.powi(i32::from(code) - 127));
        }
        assert!(e8m0(255).is_nan());
    }

    #[test]
    fn every_e2m1_code_has_its_value_in_either_nibble() {
        let values = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0_f32];
        for (low, low_value) in values.iter().enumerate() {
            for (high, high_value) in values.iter().enumerate() {
                let pair = E2M1_PAIR[low | high << 4];
                assert_eq!(pair.map(f32::to_bits), [low_value.to_bits(), high_value.to_bits()]);
            }
        }
    }
}
