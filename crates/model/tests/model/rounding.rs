//! Roundings against bit-level ones, on every backend compiled, plain and under autodiff.

use burn::{
    backend::{Autodiff, Flex, NdArray},
    tensor::{DType, Tensor, TensorData, backend::Backend},
};
use dsv41::{Numerics, rounding};
use dsv41_golden::rounding as host;

/// Every pattern of the upper 16 bits with lower halves around the ties, positive and negative; NaN left out.
fn bf16_candidates() -> Vec<f32> {
    let lower = [0, 1, 0x7fff, 0x8000, 0x8001, 0x8007, 0xffff_u32];
    (0..=u32::from(u16::MAX))
        .flat_map(|upper| lower.map(|lower| f32::from_bits(upper << 16 | lower)))
        .filter(|x| !x.is_nan())
        .collect()
}

fn apply<B: Backend>(values: &[f32], round: impl FnOnce(Tensor<B, 2>) -> Tensor<B, 2>) -> Vec<f32> {
    let data = TensorData::new(values.to_vec(), [values.len() / 32, 32]);
    round(Tensor::from_data(data, (&B::Device::default(), DType::F32))).into_data().to_vec().expect("f32 data")
}

fn assert_same(got: &[f32], want: &[f32], of: &[f32]) {
    for ((got, want), x) in got.iter().zip(want).zip(of) {
        assert!(got == want, "{x:e} ({:#010x}) became {got:e}, expected {want:e}", x.to_bits());
    }
}

fn bf16_is_exact<B: Backend>() {
    let mut values = bf16_candidates();
    values.resize(values.len().next_multiple_of(32), 0.0);
    let want: Vec<f32> = values.iter().map(|&x| host::bf16(x)).collect();
    assert_same(&apply::<B>(&values, rounding::bf16), &want, &values);
}

#[test]
fn bf16_is_exact_on_every_backend() {
    bf16_is_exact::<NdArray>();
    bf16_is_exact::<Flex>();
    bf16_is_exact::<Autodiff<Flex>>();
}

/// The round trips in scalar arithmetic, after the bit rules: scales by exponent bits, elements divided by them.
mod scalar {
    use super::host;

    pub(super) fn power_of_two_above(x: f32) -> f32 {
        let bits = x.to_bits();
        let exponent = (bits >> 23) + u32::from(bits & 0x7f_ffff != 0);
        f32::from_bits(exponent << 23)
    }

    pub(super) fn e2m1(x: f32) -> f32 {
        const CODES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        let magnitude = x.abs().min(6.0);
        let (_, code) = CODES
            .iter()
            .enumerate()
            .map(|(index, code)| ((magnitude - code).abs(), index))
            .min_by(|a, b| a.0.total_cmp(&b.0).then((a.1 % 2).cmp(&(b.1 % 2))))
            .expect("eight codes");
        CODES[code].copysign(x)
    }

    fn groups(x: &[f32], width: usize, floor: f32, f: impl Fn(f32, f32) -> f32) -> Vec<f32> {
        x.chunks(width)
            .flat_map(|group| {
                let amax = group.iter().fold(floor, |amax, x| amax.max(x.abs()));
                group.iter().map(|&x| f(x, amax)).collect::<Vec<_>>()
            })
            .collect()
    }

    pub(super) fn fp8(x: &[f32]) -> Vec<f32> {
        groups(x, 32, 1e-4, |x, amax| {
            let scale = power_of_two_above(amax * (1.0 / 448.0));
            host::e4m3((x / scale).clamp(-448.0, 448.0)) * scale
        })
    }

    pub(super) fn fp4_pow2(x: &[f32]) -> Vec<f32> {
        groups(x, 32, 6.0 * 2f32.powi(-126), |x, amax| {
            let scale = power_of_two_above(amax * (1.0 / 6.0));
            e2m1(x / scale) * scale
        })
    }

    pub(super) fn fp4_e4m3(x: &[f32]) -> Vec<f32> {
        groups(x, 16, 6.0 * 2f32.powi(-9), |x, amax| {
            let scale = host::e4m3((amax / 6.0).min(448.0));
            e2m1(x / scale) * scale
        })
    }
}

/// Groups of 32 over many magnitudes, with exact ties, zeros, constant groups and powers of two among them.
fn groups() -> Vec<f32> {
    let mut state = 7u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    let mut values = Vec::new();
    for exponent in -30..12 {
        let magnitude = 2f32.powi(exponent);
        values.extend((0..320).map(|_| random() * magnitude));
        values.extend((0..32).map(|i| (i as f32 - 16.0) * 0.25 * magnitude));
        values.extend([6.0 * magnitude; 32]);
        values.extend((0..32).map(|i| if i == 5 { 448.0 * magnitude } else { i as f32 * magnitude }));
        values.extend((0..32).map(|i| (i as f32 * 17.0 + 0.5) * magnitude));
    }
    values.extend([0.0; 64]);
    values
}

fn round_trips_are_exact<B: Backend>() {
    let values = groups();
    assert_same(&apply::<B>(&values, rounding::fp8_round_trip), &scalar::fp8(&values), &values);
    assert_same(&apply::<B>(&values, rounding::fp4_round_trip_pow2), &scalar::fp4_pow2(&values), &values);
    assert_same(&apply::<B>(&values, rounding::fp4_round_trip_e4m3), &scalar::fp4_e4m3(&values), &values);
}

#[test]
fn round_trips_are_exact_on_every_backend() {
    round_trips_are_exact::<NdArray>();
    round_trips_are_exact::<Flex>();
    round_trips_are_exact::<Autodiff<Flex>>();
}

#[test]
fn scales_are_exact_for_every_significand() {
    // One group for each of 2^16 maxima with consecutive significands near a power of two, and spread over the rest.
    let maxima = (0..1u32 << 15).chain((0..1 << 15).map(|i| (i << 8) | 0x55));
    let values: Vec<f32> = maxima
        .flat_map(|significand| {
            let amax = f32::from_bits(127 << 23 | significand);
            let mut group = [0.3; 32];
            group[0] = amax;
            group
        })
        .collect();
    assert_same(&apply::<Flex>(&values, rounding::fp8_round_trip), &scalar::fp8(&values), &values);
    assert_same(&apply::<Flex>(&values, rounding::fp4_round_trip_pow2), &scalar::fp4_pow2(&values), &values);
}

#[test]
fn f64_tensors_round_to_the_same_numbers() {
    let values: Vec<f32> = bf16_candidates().into_iter().filter(|x| x.is_normal() && x.abs() < 1e38).collect();
    let data = TensorData::new(values.clone(), [values.len()]);
    let x = Tensor::<NdArray<f64>, 1>::from_data(data, (&Default::default(), DType::F64));
    let got: Vec<f64> = rounding::bf16(x).into_data().to_vec().expect("f64 data");
    for (got, x) in got.iter().zip(&values) {
        assert_eq!(*got, f64::from(host::bf16(*x)), "{x:e}");
    }
}

#[test]
fn qat_rounds_forward_and_passes_gradients_straight_through() {
    type B = Autodiff<Flex>;
    let values = groups();
    let data = TensorData::new(values.clone(), [values.len() / 32, 32]);
    let x = Tensor::<B, 2>::from_data(data, &Default::default()).require_grad();
    type Policy = fn(Numerics, Tensor<B, 2>) -> Tensor<B, 2>;
    for policy in [Numerics::bf16 as Policy, Numerics::fp8, Numerics::index_fp4, Numerics::latent_fp4] {
        let qat = policy(Numerics::Qat, x.clone());
        let reference = policy(Numerics::Reference, x.clone());
        qat.clone().into_data().assert_eq(&reference.into_data(), true);

        let weights = x.clone().detach().mul_scalar(3.0).add_scalar(1.0);
        let gradients = (qat * weights.clone()).sum().backward();
        x.grad(&gradients).expect("a gradient").into_data().assert_eq(&weights.into_data(), true);
    }
}
