//! The two precisions the oracle computes in, over crate `libm` alone so that results are equal on every machine.

use std::fmt::Debug;
use std::ops::{Add, AddAssign, Div, DivAssign, Mul, MulAssign, Neg, Sub};

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}

/// `f32` or `f64`: what the oracle computes in between two roundings.
pub trait Real:
    sealed::Sealed
    + Copy
    + Debug
    + Default
    + PartialEq
    + PartialOrd
    + Into<f64>
    + Neg<Output = Self>
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + AddAssign
    + MulAssign
    + DivAssign
    + Send
    + Sync
    + 'static
{
    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// Minus infinity.
    const NEG_INFINITY: Self;
    /// Infinity.
    const INFINITY: Self;

    /// The nearest value of this precision.
    fn from_f64(value: f64) -> Self;
    /// An f32 that every narrower format rounds to what it would round this value to.
    fn to_f32(self) -> f32;
    /// `e^self`.
    fn exp(self) -> Self;
    /// `ln(1 + self)`.
    fn ln_1p(self) -> Self;
    /// The square root.
    fn sqrt(self) -> Self;
    /// The magnitude.
    fn abs(self) -> Self;
    /// This magnitude with the sign of `sign`.
    fn copysign(self, sign: Self) -> Self;

    /// A stored f32, exactly.
    fn from_f32(value: f32) -> Self {
        Self::from_f64(f64::from(value))
    }

    /// `1 / sqrt(self)`, rounded twice as torch's `rsqrt` on a CPU.
    fn rsqrt(self) -> Self {
        Self::ONE / self.sqrt()
    }

    /// `1 / (1 + e^-self)`.
    fn sigmoid(self) -> Self {
        Self::ONE / (Self::ONE + (-self).exp())
    }

    /// The larger of the two; `other` where `self` is NaN.
    fn max(self, other: Self) -> Self {
        if self > other { self } else { other }
    }

    /// The smaller of the two; `other` where `self` is NaN.
    fn min(self, other: Self) -> Self {
        if self < other { self } else { other }
    }
}

impl Real for f32 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    const NEG_INFINITY: Self = f32::NEG_INFINITY;
    const INFINITY: Self = f32::INFINITY;

    fn from_f64(value: f64) -> Self {
        value as f32
    }

    fn to_f32(self) -> f32 {
        self
    }

    fn exp(self) -> Self {
        libm::expf(self)
    }

    fn ln_1p(self) -> Self {
        libm::log1pf(self)
    }

    fn sqrt(self) -> Self {
        libm::sqrtf(self)
    }

    fn abs(self) -> Self {
        libm::fabsf(self)
    }

    fn copysign(self, sign: Self) -> Self {
        libm::copysignf(self, sign)
    }
}

impl Real for f64 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    const NEG_INFINITY: Self = f64::NEG_INFINITY;
    const INFINITY: Self = f64::INFINITY;

    fn from_f64(value: f64) -> Self {
        value
    }

    /// Rounds to odd: between two f32 it takes the one whose last bit is set, so that no tie of a narrower format comes
    /// about by rounding.
    fn to_f32(self) -> f32 {
        let nearest = self as f32;
        let error = self - f64::from(nearest);
        if error == 0.0 || !nearest.is_finite() || nearest.to_bits() & 1 == 1 {
            return nearest;
        }
        if error > 0.0 { nearest.next_up() } else { nearest.next_down() }
    }

    fn exp(self) -> Self {
        libm::exp(self)
    }

    fn ln_1p(self) -> Self {
        libm::log1p(self)
    }

    fn sqrt(self) -> Self {
        libm::sqrt(self)
    }

    fn abs(self) -> Self {
        libm::fabs(self)
    }

    fn copysign(self, sign: Self) -> Self {
        libm::copysign(self, sign)
    }
}

#[cfg(test)]
mod tests {
    use dsv41_golden::rounding::bf16;

    use super::Real;

    #[test]
    fn an_f64_becomes_bf16_as_if_rounded_once() {
        let tie = 1.0 + 2f64.powi(-8);
        let bf16 = |value: f64| bf16(value.to_f32());
        assert_eq!(bf16(tie), 1.0, "to even");
        assert_eq!(bf16(tie + 2f64.powi(-40)), 1.0 + 2f32.powi(-7), "not a tie, though its nearest f32 is one");
        assert_eq!(bf16(-tie - 2f64.powi(-40)), -1.0 - 2f32.powi(-7));
        let odd_tie = 1.0 + 3.0 * 2f64.powi(-8);
        assert_eq!(bf16(odd_tie), 1.0 + 2f32.powi(-6), "to even");
        assert_eq!(bf16(odd_tie - 2f64.powi(-40)), 1.0 + 2f32.powi(-7));
        assert_eq!(
            [0.0, -0.0, 1e300, f64::NEG_INFINITY].map(bf16).map(f32::to_bits),
            [0.0f32.to_bits(), (-0.0f32).to_bits(), f32::INFINITY.to_bits(), f32::NEG_INFINITY.to_bits(),]
        );
    }
}
