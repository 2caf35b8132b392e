//! The quantisers' round trips on one group of values: quantised and widened again. Elements are divided by the scale,
//! never multiplied by its reciprocal.

use dsv41_golden::rounding::{E2M1, E4M3_MAX, bf16, e4m3};

/// Elements that share a scale in [`fp8`].
pub(crate) const FP8_GROUP: usize = 32;
/// Elements that share a scale in [`index_fp4`].
pub(crate) const INDEX_FP4_GROUP: usize = 32;
/// Elements that share a scale in [`latent_fp4`].
pub(crate) const LATENT_FP4_GROUP: usize = 16;

const E2M1_MAX: f32 = 6.0;
/// `2^-126`, the smallest normal number.
const SMALLEST_NORMAL: f32 = f32::MIN_POSITIVE;
/// `2^-9`, the smallest e4m3 number.
const SMALLEST_E4M3: f32 = 1.0 / 512.0;

/// e4m3 with a power-of-two scale.
pub(crate) fn fp8(group: &mut [f32]) {
    let scale = power_of_two_at_least(amax(group).max(1e-4) * (1.0 / E4M3_MAX));
    for value in group {
        *value = bf16(e4m3((*value / scale).clamp(-E4M3_MAX, E4M3_MAX)) * scale);
    }
}

/// e2m1 with a power-of-two scale.
pub(crate) fn index_fp4(group: &mut [f32]) {
    let scale = power_of_two_at_least(amax(group).max(E2M1_MAX * SMALLEST_NORMAL) * (1.0 / E2M1_MAX));
    for value in group {
        *value = bf16(e2m1(*value / scale) * scale);
    }
}

/// e2m1 with an e4m3 scale, which may round below `amax / 6`: the largest elements then saturate.
pub(crate) fn latent_fp4(group: &mut [f32]) {
    let scale = e4m3((amax(group).max(E2M1_MAX * SMALLEST_E4M3) / E2M1_MAX).min(E4M3_MAX));
    for value in group {
        *value = bf16(e2m1(*value / scale) * scale);
    }
}

fn amax(group: &[f32]) -> f32 {
    group.iter().fold(0.0, |amax, value| value.abs().max(amax))
}

/// `2^ceil(log2(value))` of a normal number, read off its bits: logarithms in floating point round.
fn power_of_two_at_least(value: f32) -> f32 {
    const MANTISSA_BITS: u32 = 23;
    const MANTISSA: u32 = (1 << MANTISSA_BITS) - 1;

    let bits = value.to_bits();
    let exponent = (bits >> MANTISSA_BITS) + u32::from(bits & MANTISSA != 0);
    f32::from_bits(exponent << MANTISSA_BITS)
}

/// To the nearest e2m1 value, ties to the even code, saturating at 6; the sign of zero is kept.
fn e2m1(value: f32) -> f32 {
    let magnitude = value.abs();
    let code = E2M1
        .windows(2)
        .enumerate()
        .filter(|(code, pair)| {
            let middle = (pair[0] + pair[1]) / 2.0;
            // The tie above an even code stays there; the tie above an odd code goes up.
            if code % 2 == 0 { magnitude > middle } else { magnitude >= middle }
        })
        .count();
    E2M1[code].copysign(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e2m1_ties_go_to_the_even_code() {
        let cases = [
            (0.25, 0.0),
            (0.75, 1.0),
            (1.25, 1.0),
            (1.75, 2.0),
            (2.5, 2.0),
            (3.5, 4.0),
            (5.0, 4.0),
            (5.1, 6.0),
            (9.0, 6.0),
        ];
        for (value, expected) in cases {
            assert_eq!(e2m1(value), expected, "{value}");
            assert_eq!(e2m1(-value).to_bits(), (-expected).to_bits(), "-{value}");
        }
    }

    #[test]
    fn powers_of_two_round_up_exactly() {
        for (value, expected) in [(1.0, 1.0), (1.0f32.next_up(), 2.0), (1.0f32.next_down(), 1.0), (0.3, 0.5)] {
            assert_eq!(power_of_two_at_least(value), expected, "{value}");
        }
    }

    #[test]
    fn scales_fit_the_largest_element() {
        // 448 needs scale 1, one step more needs scale 2; 6 * 2^k likewise.
        let mut group = [448.0, 17.0];
        fp8(&mut group);
        assert_eq!(group, [448.0, 16.0], "17 is a tie between 16 and 18");
        let mut group = [470.0, 19.0];
        fp8(&mut group);
        assert_eq!(group, [480.0, 20.0], "scale 2: 235 to 240, the tie 9.5 to 10");
        let mut group = [6.0, 0.75, -0.2];
        index_fp4(&mut group);
        assert_eq!(group, [6.0, 1.0, -0.0]);
        let mut group = [6.03125, 1.5];
        index_fp4(&mut group);
        assert_eq!(group, [6.0, 2.0], "scale 2: 3.01 to 3, the tie 0.75 to 1");
    }

    #[test]
    fn floors_keep_tiny_groups_finite() {
        // 1e-4 / 448 needs scale 2^-22: a value of 2^-32 is half of e4m3's smallest step there and ties to zero.
        let mut group = [2.0f32.powi(-32), 3.0 * 2.0f32.powi(-32), 0.0, -0.0];
        fp8(&mut group);
        assert_eq!(group.map(f32::to_bits), [0.0, 2.0f32.powi(-30), 0.0, -0.0].map(f32::to_bits));

        let mut group = [SMALLEST_NORMAL / 2.0, SMALLEST_NORMAL, -0.0];
        index_fp4(&mut group);
        assert_eq!(group.map(f32::to_bits), [SMALLEST_NORMAL / 2.0, SMALLEST_NORMAL, -0.0].map(f32::to_bits));

        let mut group = [SMALLEST_E4M3 * 0.75, SMALLEST_E4M3 * 0.25];
        latent_fp4(&mut group);
        assert_eq!(group, [SMALLEST_E4M3, 0.0]);
    }

    #[test]
    fn latent_scales_round_to_e4m3_and_saturate() {
        // 6.25 / 6 = 1.0417 rounds down to 1: the largest element saturates at 6.
        let mut group = [6.25, 5.0];
        latent_fp4(&mut group);
        assert_eq!(group, [6.0, 4.0]);
        // 6.5 / 6 = 1.083 rounds up to 1.125.
        let mut group = [6.5, -1.125];
        latent_fp4(&mut group);
        assert_eq!(group, [6.75, -1.125]);
    }
}
