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
    /// The nearest f32.
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

    fn to_f32(self) -> f32 {
        self as f32
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
