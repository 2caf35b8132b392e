//! Numbers and comparisons for tests of losses.

use burn::{
    backend::{Autodiff, Flex},
    tensor::{DType, Tensor, TensorData, backend::Backend},
};

/// Numbers from -1 to 1 that f32 holds and that repeat nothing obvious.
pub(crate) fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(count).collect()
}

pub(crate) fn assert_close(found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let bound = tolerance * expected.abs().max(1.0);
        assert!((found - expected).abs() <= bound, "{index}: {found}, expected {expected} within {bound:e}");
    }
}

/// A tensor in f64.
pub(crate) fn tensor<B: Backend, const D: usize>(values: &[f64], shape: [usize; D]) -> Tensor<B, D> {
    Tensor::from_data(TensorData::new(values.to_vec(), shape), (&B::Device::default(), DType::F64))
}

pub(crate) fn values<B: Backend, const D: usize>(tensor: &Tensor<B, D>) -> Vec<f64> {
    tensor.to_data().iter::<f64>().collect()
}

/// Asserts that the gradient of a loss is that of finite differences, element by element, in f64.
pub(crate) fn assert_gradient<const D: usize>(
    at: &[f64],
    shape: [usize; D],
    loss: impl Fn(Tensor<Autodiff<Flex>, D>) -> Tensor<Autodiff<Flex>, 1>,
) {
    let x = tensor::<Autodiff<Flex>, D>(at, shape).require_grad();
    let gradients = loss(x.clone()).backward();
    let found = values(&x.grad(&gradients).expect("the input is tracked"));
    assert!(found.iter().any(|&gradient| gradient != 0.0), "nothing depends on the input");

    let step = 1e-5;
    let expected: Vec<f64> = (0..at.len())
        .map(|index| {
            let value = |step: f64| {
                let mut moved = at.to_vec();
                moved[index] += step;
                values(&loss(tensor(&moved, shape)))[0]
            };
            (value(step) - value(-step)) / (2.0 * step)
        })
        .collect();
    assert_close(&found, &expected, 1e-9);
}
