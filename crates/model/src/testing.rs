//! What tests of operations have in common.

use burn::{
    backend::{Flex, NdArray},
    tensor::{DType, Tensor, TensorData, TensorMetadata as _, backend::Backend, ops::FloatTensor},
};
use dsv41_ops::{CustomOp, CustomOps, from_primitive};

/// Values from -1 to 1 that repeat nothing obvious, in f64.
pub(crate) fn numbers(shape: &[usize], salt: f64) -> TensorData {
    let values: Vec<f64> = (0..shape.iter().product()).map(|index: usize| (1.7 * index as f64 + salt).sin()).collect();
    TensorData::new(values, shape.to_vec())
}

/// Asserts that an operation gives the same on flex, where it may have kernels, as composed on ndarray, that its
/// gradients do, and that they are those of finite differences. All in f64.
pub(crate) fn check_op<O: CustomOp<N>, const N: usize>(op: &O, inputs: [TensorData; N]) {
    check(op, inputs, N);
}

/// [`check_op`] of an operation whose first input alone takes a gradient.
pub(crate) fn check_op_of_first<O: CustomOp<N>, const N: usize>(op: &O, inputs: [TensorData; N]) {
    check(op, inputs, 1);
}

/// [`check_op`] of an operation that passes no gradient.
pub(crate) fn check_op_of_none<O: CustomOp<N>, const N: usize>(op: &O, inputs: [TensorData; N]) {
    check(op, inputs, 0);
}

fn check<O: CustomOp<N>, const N: usize>(op: &O, inputs: [TensorData; N], differentiable: usize) {
    let forward = |inputs: &[TensorData; N]| values::<Flex>(op.forward::<Flex>(tensors::<Flex, N>(inputs)));
    let composed = op.forward::<NdArray<f64>>(tensors::<NdArray<f64>, N>(&inputs));
    let shape = composed.shape().to_vec();
    let result = forward(&inputs);
    assert_close(&result, &values::<NdArray<f64>>(composed), 1e-12, "result");

    let upstream = numbers(&shape, 0.5);
    let gradients = backward::<Flex, O, N>(op, &inputs, &upstream);
    for (place, (found, expected)) in
        gradients.iter().zip(backward::<NdArray<f64>, O, N>(op, &inputs, &upstream)).enumerate()
    {
        assert_close(found, &expected, 1e-12, &format!("gradient of input {place}"));
    }

    let upstream: Vec<f64> = upstream.iter().collect();
    let objective = |inputs: &[TensorData; N]| -> f64 {
        forward(inputs).iter().zip(&upstream).map(|(result, upstream)| result * upstream).sum()
    };
    const STEP: f64 = 1e-5;
    for (place, gradient) in gradients.iter().enumerate().take(differentiable) {
        for (element, &found) in gradient.iter().enumerate() {
            let moved = |by: f64| {
                let mut inputs = inputs.clone();
                let values = inputs[place].iter::<f64>().enumerate();
                let values = values.map(|(at, value)| if at == element { value + by } else { value });
                inputs[place] = TensorData::new(values.collect::<Vec<f64>>(), inputs[place].shape.clone());
                objective(&inputs)
            };
            let expected = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
            let tolerance = 1e-8 * expected.abs().max(1.0);
            assert!(
                (found - expected).abs() <= tolerance,
                "input {place}, element {element}: {found:e}, by differences {expected:e}"
            );
        }
    }
}

fn tensors<B: Backend, const N: usize>(data: &[TensorData; N]) -> [FloatTensor<B>; N] {
    data.each_ref().map(tensor::<B>)
}

fn tensor<B: Backend>(data: &TensorData) -> FloatTensor<B> {
    let tensor = B::float_from_data(data.clone(), &Default::default());
    assert_eq!(tensor.dtype(), DType::F64);
    tensor
}

fn backward<B: CustomOps, O: CustomOp<N>, const N: usize>(
    op: &O,
    inputs: &[TensorData; N],
    upstream: &TensorData,
) -> Vec<Vec<f64>> {
    let gradients = op.backward::<B>(tensors::<B, N>(inputs), tensor::<B>(upstream), [true; N]);
    let zeros = |input: &TensorData| vec![0.0; input.num_elements()];
    gradients
        .into_iter()
        .zip(inputs)
        .map(|(gradient, input)| gradient.map_or_else(|| zeros(input), values::<B>))
        .collect()
}

fn values<B: Backend>(tensor: FloatTensor<B>) -> Vec<f64> {
    let length = tensor.shape().num_elements();
    let flat = B::float_reshape(tensor, [length].into());
    let flat: Tensor<B, 1> = from_primitive(flat);
    flat.into_data().iter().collect()
}

fn assert_close(found: &[f64], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (place, (found, expected)) in found.iter().zip(expected).enumerate() {
        let bound = tolerance * expected.abs().max(1.0);
        assert!((found - expected).abs() <= bound, "{what}[{place}]: {found:e}, expected {expected:e}");
    }
}
