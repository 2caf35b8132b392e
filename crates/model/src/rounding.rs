//! Exact roundings to bfloat16, e4m3 and e2m1 in plain tensor arithmetic, for tensors of f32 or f64.
//!
//! Casts are not used: some backends have no narrow types and others round them wrongly. Every operation here is one
//! correctly rounded elementwise operation, so results agree bit for bit on every backend that does not contract
//! separate operations into a fused multiply-add.

use burn::tensor::{DType, Tensor, backend::Backend};

/// A narrow binary floating-point format.
#[derive(Debug, Clone, Copy)]
struct Format {
    /// Stored bits of the significand, without the implied one.
    mantissa: i32,
    /// Smallest exponent of a normal number; below it the spacing stays the same.
    min_exponent: i32,
}

const BF16: Format = Format { mantissa: 7, min_exponent: -126 };
const E4M3: Format = Format { mantissa: 3, min_exponent: -6 };
const E2M1: Format = Format { mantissa: 1, min_exponent: 0 };
/// Powers of two alone, for scales.
const POWER_OF_TWO: Format = Format { mantissa: 0, min_exponent: -126 };

const E4M3_MAX: f64 = 448.0;
const E2M1_MAX: f64 = 6.0;

/// Width of the groups that share a power-of-two scale.
pub const POW2_GROUP: usize = 32;
/// Width of the groups that share an e4m3 scale.
pub const E4M3_GROUP: usize = 16;

/// Rounds to the nearest bfloat16, ties to even; infinities and NaN stay, large values become infinite (in f32).
pub fn bf16<B: Backend, const D: usize>(x: Tensor<B, D>) -> Tensor<B, D> {
    if x.dtype() == DType::BF16 {
        return x;
    }
    // Splitting multiplies by 2^16 + 1: where that could overflow, values are scaled first. Infinities are clamped and
    // overflow again when scaled back.
    let scale = 2f64.powi(-32);
    let huge = x.clone().abs().greater_equal_elem(2f64.powi(110));
    let scaled = x.clone().clamp(-f64::from(f32::MAX), f64::from(f32::MAX)).mul_scalar(scale);
    let scaled = nearest(scaled, BF16).mul_scalar(scale.recip());
    nearest(x, BF16).mask_where(huge, scaled)
}

/// fp8 round trip over groups of 32 of the last axis: absolute maximum floored at 1e-4, scale `2^ceil(log2(amax/448))`,
/// e4m3, times the scale.
///
/// # Panics
/// When the last axis is not a multiple of 32.
pub fn fp8_round_trip<B: Backend, const D: usize>(x: Tensor<B, D>) -> Tensor<B, D> {
    by_groups(x, POW2_GROUP, |groups| {
        let amax = groups.clone().abs().max_dim(1).clamp_min(1e-4);
        // The reciprocal in the tensor's own precision: of 448 and of 6 either one takes `max * 2^k` to exactly `2^k`.
        let scale = power_of_two_above(amax.mul_scalar(1.0 / E4M3_MAX));
        let scaled = (groups / scale.clone()).clamp(-E4M3_MAX, E4M3_MAX);
        nearest(scaled, E4M3) * scale
    })
}

/// fp4 round trip over groups of 32 of the last axis: absolute maximum floored at 6*2^-126, scale
/// `2^ceil(log2(amax/6))`, e2m1, times the scale.
///
/// # Panics
/// When the last axis is not a multiple of 32.
pub fn fp4_round_trip_pow2<B: Backend, const D: usize>(x: Tensor<B, D>) -> Tensor<B, D> {
    by_groups(x, POW2_GROUP, |groups| {
        let amax = groups.clone().abs().max_dim(1).clamp_min(6.0 * 2f64.powi(-126));
        let scale = power_of_two_above(amax.mul_scalar(1.0 / E2M1_MAX));
        e2m1(groups / scale.clone()) * scale
    })
}

/// fp4 round trip over groups of 16 of the last axis: absolute maximum floored at 6*2^-9, scale `e4m3(amax/6)`, e2m1,
/// times the scale.
///
/// # Panics
/// When the last axis is not a multiple of 16.
pub fn fp4_round_trip_e4m3<B: Backend, const D: usize>(x: Tensor<B, D>) -> Tensor<B, D> {
    by_groups(x, E4M3_GROUP, |groups| {
        let amax = groups.clone().abs().max_dim(1).clamp_min(6.0 * 2f64.powi(-9));
        let scale = nearest(amax.div_scalar(6.0).clamp_max(E4M3_MAX), E4M3);
        e2m1(groups / scale.clone()) * scale
    })
}

/// Clamps to 6 and rounds to {0, .5, 1, 1.5, 2, 3, 4, 6}, ties to the even code; zeros keep the sign of what they were.
fn e2m1<B: Backend, const D: usize>(x: Tensor<B, D>) -> Tensor<B, D> {
    let magnitude = nearest(x.clone().abs().clamp_max(E2M1_MAX), E2M1);
    magnitude * x.sign()
}

/// The smallest power of two that is at least `x > 0`.
///
/// Callers multiply by the reciprocal of the format's largest value in the tensor's own precision, which in f32 is what the
/// kernels do: a rounded-to-f32 reciprocal would double the scale of exact maxima in f64.
fn power_of_two_above<B: Backend, const D: usize>(x: Tensor<B, D>) -> Tensor<B, D> {
    let power = nearest(x.clone(), POWER_OF_TWO);
    let too_small = power.clone().lower(x);
    power.clone().mask_where(too_small, power.mul_scalar(2.0))
}

/// Rounds to the nearest number of `format`, ties to even, without regard to its largest number.
///
/// Normal numbers go through Veltkamp's splitting, `c = (2^s + 1) x; c - (c - x)`; the others through the sum with a
/// number so large that its own spacing is the format's.
fn nearest<B: Backend, const D: usize>(x: Tensor<B, D>, format: Format) -> Tensor<B, D> {
    let precision = match x.dtype() {
        DType::F64 => 53,
        _ => 24,
    };
    let split = x.clone().mul_scalar(2f64.powi(precision - format.mantissa - 1) + 1.0);
    let normal = split.clone() - (split - x.clone());

    let below = x.clone().abs().lower_elem(2f64.powi(format.min_exponent));
    let spacing = format.min_exponent - format.mantissa;
    let aligner = 1.5 * 2f64.powi(precision - 1 + spacing);
    let subnormal = x.add_scalar(aligner).sub_scalar(aligner);
    normal.mask_where(below, subnormal)
}

fn by_groups<B: Backend, const D: usize>(
    x: Tensor<B, D>,
    width: usize,
    f: impl FnOnce(Tensor<B, 2>) -> Tensor<B, 2>,
) -> Tensor<B, D> {
    let shape = x.dims();
    assert!(shape[D - 1].is_multiple_of(width), "the last axis of {shape:?} is not a multiple of {width}");
    let groups = x.reshape([-1, width as i32]);
    f(groups).reshape(shape)
}
