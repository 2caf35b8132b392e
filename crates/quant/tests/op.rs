//! The packed product as an operation of backends, against dequantise-then-matmul.

use burn::{
    backend::{
        Autodiff, Flex, NdArray,
        autodiff::checkpoint::strategy::{BalancedCheckpointing, CheckpointStrategy, NoCheckpointing},
    },
    tensor::{DType, Int, Tensor, TensorData, TensorPrimitive, backend::Backend},
};
use bytes::Bytes;
use dsv41_quant::{
    GgmlType, PackedMatrix,
    kernel::Activations,
    op::{PackedOperand, PackedOps, packed_product, words_on_device},
};

const ROWS: usize = 21;
const COLUMNS: usize = 512;
const BATCH: usize = 5;

/// Numbers from -1 to 1 that repeat nothing obvious.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(count).collect()
}

/// A matrix of `ty` whose codes and scales are any that the format has, but whose floating-point scales are moderate.
fn matrix(ty: GgmlType) -> PackedMatrix {
    let values = numbers(ROWS * COLUMNS, 7);
    match ty {
        // Bytes at random would make numbers that are not finite.
        GgmlType::F32 => {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            PackedMatrix::new(ty, [ROWS, COLUMNS], Bytes::from(bytes)).expect("bytes of the shape")
        }
        _ => {
            let bytes = ROWS * ty.row_bytes(COLUMNS).expect("whole blocks");
            let mut bytes: Vec<u8> = numbers(bytes, 11).iter().map(|x| ((x + 1.0) * 127.9) as u8).collect();
            for block in bytes.chunks_exact_mut(ty.block_bytes()) {
                moderate_scales(ty, block);
            }
            PackedMatrix::new(ty, [ROWS, COLUMNS], Bytes::from(bytes)).expect("bytes of the shape")
        }
    }
}

/// Sets the exponents of a block's floating-point numbers to small ones, and keeps their other bits.
fn moderate_scales(ty: GgmlType, block: &mut [u8]) {
    let halves: &[usize] = match ty {
        GgmlType::F16 | GgmlType::Q4_0 | GgmlType::Q8_0 => &[0],
        GgmlType::Q4K | GgmlType::Q5K => &[0, 2],
        GgmlType::Q2K => &[80, 82],
        GgmlType::Q3K => &[108],
        GgmlType::Q6K => &[208],
        GgmlType::Bf16 => {
            block[1] = block[1] & 0x80 | 0x3f;
            &[]
        }
        GgmlType::Mxfp4 => {
            block[0] = 120 + block[0] % 10;
            &[]
        }
        GgmlType::F32 => &[],
    };
    for &at in halves {
        block[at + 1] = block[at + 1] & 0x83 | 0x24;
    }
}

fn tensor<B: Backend>(values: Vec<f32>, shape: [usize; 2], dtype: DType) -> Tensor<B, 2> {
    Tensor::from_data(TensorData::new(values, shape), (&B::Device::default(), dtype))
}

fn operand<B: PackedOps>(matrix: PackedMatrix, on_device: bool) -> PackedOperand<B> {
    let words: Option<Tensor<B, 1, Int>> = on_device.then(|| words_on_device(&matrix, &B::Device::default()));
    PackedOperand { matrix, words: words.map(Tensor::into_primitive), activations: Activations::F32 }
}

/// `x W^T` of dequantised values in f64, and the sum of the terms' magnitudes, which bounds what rounding can do.
fn expected(x: &[f32], matrix: &PackedMatrix) -> Vec<(f64, f64)> {
    let values = matrix.dequantise();
    let terms = |x: &[f32], w: &[f32]| x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).collect::<Vec<_>>();
    x.chunks_exact(COLUMNS)
        .flat_map(|x| values.chunks_exact(COLUMNS).map(move |w| terms(x, w)))
        .map(|terms| (terms.iter().sum(), terms.iter().map(|term| term.abs()).sum()))
        .collect()
}

fn assert_product(found: &TensorData, expected: &[(f64, f64)], epsilon: f64, what: &str) {
    assert_eq!(found.num_elements(), expected.len(), "{what}");
    for (index, (found, (value, magnitude))) in found.iter::<f64>().zip(expected).enumerate() {
        let bound = 32.0 * epsilon * magnitude;
        assert!(
            (found - value).abs() <= bound,
            "{what}: element {index} is {found}, expected {value} within {bound:e}"
        );
    }
}

/// On the host and through device words, the product of every format is that of the dequantised matrix.
fn every_format<B: PackedOps>(dtype: DType, epsilon: f64) {
    for ty in GgmlType::ALL {
        let matrix = matrix(ty);
        let x = numbers(BATCH * COLUMNS, 3);
        let expected = expected(&x, &matrix);
        let x = tensor::<B>(x, [BATCH, COLUMNS], dtype);
        let product = packed_product(x.clone(), &operand(matrix.clone(), false));
        assert_eq!(product.dtype(), dtype);
        assert_product(&product.into_data(), &expected, epsilon, &format!("{ty}"));
    }
}

#[test]
fn flex_multiplies_every_format() {
    every_format::<Flex>(DType::F32, f64::from(f32::EPSILON));
    every_format::<Flex>(DType::F64, f64::EPSILON);
}

#[test]
fn ndarray_multiplies_every_format() {
    every_format::<NdArray<f32>>(DType::F32, f64::from(f32::EPSILON));
    every_format::<NdArray<f64>>(DType::F64, f64::EPSILON);
}

/// A backend's default: what GPUs run.
#[test]
fn words_on_a_device_dequantise_to_the_same_values() {
    for ty in GgmlType::ALL {
        let matrix = matrix(ty);
        // The identity, transposed: the product is the matrix itself.
        let identity = Tensor::<Flex, 2>::eye(ROWS, &Default::default());
        let operand = operand::<Flex>(matrix.clone(), true);
        let identity = match identity.into_primitive() {
            TensorPrimitive::Float(identity) => identity,
            TensorPrimitive::QFloat(_) => unreachable!("an identity is not quantised"),
        };
        let found = dsv41_quant::op::tiled_product_transposed::<Flex>(identity, &operand);
        let found = Tensor::<Flex, 2>::from_primitive(TensorPrimitive::Float(found)).into_data();
        let expected = matrix.dequantise();
        for (index, (found, expected)) in found.iter::<f32>().zip(&expected).enumerate() {
            assert_eq!(found, *expected, "{ty}: element {index}");
        }
    }
}

/// The input's gradient is the dense product's, also where cheap results are made again in the backward pass.
fn gradient<C: CheckpointStrategy>() {
    type B<C> = Autodiff<Flex, C>;
    for ty in GgmlType::ALL {
        let matrix = matrix(ty);
        let x = tensor::<B<C>>(numbers(BATCH * COLUMNS, 3), [BATCH, COLUMNS], DType::F32).require_grad();
        let weights = tensor::<B<C>>(numbers(BATCH * ROWS, 5), [BATCH, ROWS], DType::F32);
        // A cheap operation before and after, which checkpointing runs again.
        let loss = |product: Tensor<B<C>, 2>| (product.tanh() * weights.clone()).sum();
        let grad = |loss: Tensor<B<C>, 1>| x.grad(&loss.backward()).expect("the input is tracked").into_data();

        let packed = grad(loss(packed_product(x.clone().mul_scalar(0.01), &operand(matrix.clone(), false))));
        let dense = tensor::<B<C>>(matrix.dequantise(), [ROWS, COLUMNS], DType::F32);
        let dense = grad(loss(x.clone().mul_scalar(0.01).matmul(dense.transpose())));
        let largest = dense.iter::<f32>().fold(0.0_f32, |largest, g| largest.max(g.abs()));
        assert!(largest > 0.0, "{ty}");
        for (index, (packed, dense)) in packed.iter::<f32>().zip(dense.iter::<f32>()).enumerate() {
            assert!((packed - dense).abs() <= 1e-5 * largest, "{ty}: element {index} is {packed}, expected {dense}");
        }
    }
}

#[test]
fn the_input_takes_the_gradient_of_the_dense_product() {
    gradient::<NoCheckpointing>();
}

#[test]
fn the_input_takes_its_gradient_under_checkpointing() {
    gradient::<BalancedCheckpointing>();
}
