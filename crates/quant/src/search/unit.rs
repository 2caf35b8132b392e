//! Rounding to the f16 units of blocks.

use half::f16;

/// The nearest finite f16.
pub(super) fn nearest(value: f32) -> f16 {
    f16::from_f32(value.clamp(f16::MIN.to_f32(), f16::MAX.to_f32()))
}

/// The nearest finite f16 that is not smaller in magnitude, if there is one: integers under it reach as far as under the
/// exact unit, which matters where f16 is subnormal and its neighbours lie far apart.
pub(super) fn reaching(value: f32) -> f16 {
    let unit = nearest(value);
    if unit.to_f32().abs() < value.abs() { larger(unit) } else { unit }
}

/// The next finite f16 away from zero.
pub(super) fn larger(unit: f16) -> f16 {
    if unit.to_bits() & 0x7fff < f16::MAX.to_bits() { f16::from_bits(unit.to_bits() + 1) } else { unit }
}

/// The next f16 towards zero.
pub(super) fn smaller(unit: f16) -> f16 {
    if unit.to_bits() & 0x7fff > 0 { f16::from_bits(unit.to_bits() - 1) } else { unit }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_stay_finite_and_reach_as_far_as_asked() {
        assert_eq!(nearest(1e9), f16::MAX);
        assert_eq!(nearest(-1e9), f16::MIN);
        assert_eq!(reaching(1e9), f16::MAX);
        assert_eq!(larger(f16::MIN), f16::MIN);
        assert_eq!(smaller(f16::NEG_ZERO), f16::NEG_ZERO);
        let smallest = f16::from_bits(1);
        // A third of the smallest: the nearest is nothing, and under nothing no value is reached.
        let third = smallest.to_f32() / 3.0;
        assert_eq!((nearest(third), reaching(third), reaching(-third)), (f16::ZERO, smallest, -smallest));
        assert_eq!((reaching(0.0), reaching(1.0)), (f16::ZERO, f16::ONE));
        assert_eq!((smaller(larger(f16::ONE)), larger(f16::ONE).to_f32()), (f16::ONE, 1.0 + 1.0 / 1024.0));
    }
}
