//! MXFP4: 32 values of e2m1 after one e8m0 scale.

use super::fields::Fields;

/// Bytes of a block.
pub(crate) const BYTES: usize = 17;

/// Values of a block.
pub(crate) const LEN: usize = 32;

/// Twice the values of the sixteen e2m1 codes. The negative zero is a zero as every other, as in ggml.
const DOUBLED: [f32; 16] = [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0];

type Codes = Fields<4, 16>;

/// Half the scale of an e8m0 code: `2^(code - 128)`, for code 255 too, which the standard makes a NaN and ggml does not.
pub(crate) fn half_scale(code: u8) -> f32 {
    match code {
        // The two smallest are subnormal.
        0 | 1 => f32::from_bits(0x0020_0000 << code),
        code => f32::from_bits(u32::from(code - 1) << 23),
    }
}

/// The values of a block.
pub(crate) fn dequantise_block(block: &[u8; BYTES], out: &mut [f32; LEN]) {
    let half_scale = half_scale(block[0]);
    let mut codes = [0; LEN];
    Codes::unpack::<0>(&block[1..], &mut codes);
    *out = codes.map(|code| half_scale * DOUBLED[usize::from(code)]);
}

/// The block nearest to some values.
///
/// The scale puts the largest magnitude among the upper codes, or is one of the two neighbouring powers.
pub(crate) fn quantise_block(values: &[f32; LEN], weights: &[f32; LEN]) -> [u8; BYTES] {
    let largest = values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    // Of a double, because the exponent of a subnormal float is not in its bits; 2 is the exponent of the largest code.
    let exponent = (f64::from(largest).to_bits() >> 52) as i64 - 1023 - 2;
    let candidates = [exponent, exponent - 1, exponent + 1].map(|exponent| under_scale(exponent, values, weights));
    let nearest = candidates.iter().min_by(|(error, _), (other, _)| error.total_cmp(other));
    nearest.map_or([0; BYTES], |&(_, block)| block)
}

/// The block under the scale `2^exponent`, or the nearest that there is, with its sum of weighted squared errors.
fn under_scale(exponent: i64, values: &[f32; LEN], weights: &[f32; LEN]) -> (f64, [u8; BYTES]) {
    let scale = (exponent + 127).clamp(0, 254) as u8;
    // Doubles, because squares of floats may overflow.
    let half_scale = f64::from(half_scale(scale));
    let mut error = 0.0;
    let mut codes = [0; LEN];
    for ((code, &value), &weight) in codes.iter_mut().zip(values).zip(weights) {
        *code = nearest_code(f64::from(value) / half_scale);
        let off = f64::from(value) - half_scale * f64::from(DOUBLED[usize::from(*code)]);
        error += f64::from(weight) * off * off;
    }
    let mut block = [0; BYTES];
    block[0] = scale;
    Codes::pack::<0>(&codes, &mut block[1..]);
    (error, block)
}

/// The code whose doubled value is nearest.
fn nearest_code(doubled: f64) -> u8 {
    // Halfway between neighbours.
    const BOUNDS: [f64; 7] = [0.5, 1.5, 2.5, 3.5, 5.0, 7.0, 10.0];
    let magnitude = BOUNDS.iter().filter(|&&bound| doubled.abs() > bound).count() as u8;
    if doubled < 0.0 && magnitude > 0 { magnitude | 8 } else { magnitude }
}
