//! Activations in the precision of their tensor, with torch's own formulas.
//!
//! The framework's default sigmoid goes through f32 even for f64 tensors and through a logarithm; these do neither.

use burn::tensor::{Tensor, backend::Backend};

/// Below this, `e^-x` would overflow f32 (and make the gradient NaN) where the result is zero anyway.
const LOWEST: f64 = -80.0;
/// Above this, torch's softplus returns its argument.
const SOFTPLUS_THRESHOLD: f64 = 20.0;

/// `1 / (1 + e^-x)`
pub fn sigmoid<B: Backend, const D: usize>(x: Tensor<B, D>) -> Tensor<B, D> {
    one_plus_exp_minus(x).recip()
}

/// `x / (1 + e^-x)`
pub fn silu<B: Backend, const D: usize>(x: Tensor<B, D>) -> Tensor<B, D> {
    x.clone() / one_plus_exp_minus(x)
}

/// `ln(1 + e^x)` without overflow, and `x` itself above torch's threshold.
pub fn softplus<B: Backend, const D: usize>(x: Tensor<B, D>) -> Tensor<B, D> {
    let linear = x.clone().greater_elem(SOFTPLUS_THRESHOLD);
    let magnitude = x.clone().abs();
    // `max(x, 0)` by way of the magnitude: its slope at 0 is then one half, as softplus's is.
    let positive = (x.clone() + magnitude.clone()).mul_scalar(0.5);
    let soft = positive + magnitude.neg().exp().log1p();
    soft.mask_where(linear, x)
}

fn one_plus_exp_minus<B: Backend, const D: usize>(x: Tensor<B, D>) -> Tensor<B, D> {
    x.clamp_min(LOWEST).neg().exp().add_scalar(1.0)
}

#[cfg(test)]
mod tests {
    use burn::{
        backend::{Autodiff, NdArray},
        tensor::{DType, TensorData},
    };

    use super::*;

    type B = Autodiff<NdArray<f64>>;

    const POINTS: [f64; 8] = [-200.0, -30.0, -1.5, 0.0, 0.75, 19.9, 20.1, 200.0];

    fn check(f: impl Fn(Tensor<B, 1>) -> Tensor<B, 1>, want: impl Fn(f64) -> f64, slope: impl Fn(f64) -> f64) {
        let x = Tensor::<B, 1>::from_data(TensorData::from(POINTS), (&Default::default(), DType::F64)).require_grad();
        let y = f(x.clone());
        let gradients = y.clone().sum().backward();
        let y: Vec<f64> = y.into_data().to_vec().expect("f64 data");
        let dy: Vec<f64> = x.grad(&gradients).expect("a gradient").into_data().to_vec().expect("f64 data");
        for ((x, y), dy) in POINTS.into_iter().zip(y).zip(dy) {
            assert!((y - want(x)).abs() <= 1e-14 * want(x).abs().max(1e-20), "f({x}) = {y}, expected {}", want(x));
            assert!(
                (dy - slope(x)).abs() <= 1e-8 * slope(x).abs() + f64::EPSILON,
                "f'({x}) = {dy}, expected {}",
                slope(x)
            );
        }
    }

    #[test]
    fn values_and_slopes_are_exact_in_f64_and_finite_far_out() {
        let s = |x: f64| 1.0 / (1.0 + (-x).exp());
        check(sigmoid, |x| if x < LOWEST { s(LOWEST) } else { s(x) }, |x| if x < LOWEST { 0.0 } else { s(x) * s(-x) });
        check(
            silu,
            |x| if x < LOWEST { x * s(LOWEST) } else { x * s(x) },
            |x| if x < LOWEST { s(LOWEST) } else { s(x) * (1.0 + x * s(-x)) },
        );
        check(softplus, |x| if x > 20.0 { x } else { x.exp().ln_1p() }, |x| if x > 20.0 { 1.0 } else { s(x) });
    }
}
