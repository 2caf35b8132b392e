//! CPU backends: straight from the packed rows where numbers are f32, in tiles otherwise.

use burn::tensor::{DType, TensorData, TensorMetadata, backend::Backend, ops::FloatTensor};

use super::{PackedOperand, PackedOps, tiled};
use crate::{PackedMatrix, kernel};

macro_rules! multiply_on_host {
    ($backend:ty) => {
        impl PackedOps for $backend {
            fn packed_product(x: FloatTensor<Self>, weight: &PackedOperand<Self>) -> FloatTensor<Self> {
                product::<Self>(x, weight)
            }

            fn packed_product_transposed(y: FloatTensor<Self>, weight: &PackedOperand<Self>) -> FloatTensor<Self> {
                product_transposed::<Self>(y, weight)
            }
        }
    };
}

#[cfg(feature = "ndarray")]
multiply_on_host!(burn::backend::NdArray<f32>);
#[cfg(feature = "ndarray")]
multiply_on_host!(burn::backend::NdArray<f64>);
#[cfg(feature = "flex")]
multiply_on_host!(burn::backend::Flex);

fn product<B: Backend>(x: FloatTensor<B>, weight: &PackedOperand<B>) -> FloatTensor<B> {
    if x.dtype() != DType::F32 {
        return tiled::product::<B>(x, weight);
    }
    on_host::<B>(x, weight.matrix.rows(), &weight.matrix, |matrix, x, out| {
        kernel::multiply(matrix, x, out, weight.activations);
    })
}

fn product_transposed<B: Backend>(y: FloatTensor<B>, weight: &PackedOperand<B>) -> FloatTensor<B> {
    if y.dtype() != DType::F32 {
        return tiled::product_transposed::<B>(y, weight);
    }
    on_host::<B>(y, weight.matrix.columns(), &weight.matrix, kernel::multiply_transposed)
}

/// Runs a kernel on the tensor's numbers: `[n, _]` to `[n, width]`.
fn on_host<B: Backend>(
    x: FloatTensor<B>,
    width: usize,
    matrix: &PackedMatrix,
    kernel: impl FnOnce(&PackedMatrix, &[f32], &mut [f32]),
) -> FloatTensor<B> {
    let device = B::float_device(&x);
    let n = x.shape()[0];
    // A CPU backend's data are there already, and f32 was checked.
    let data = burn::tensor::try_read_sync(B::float_into_data(x)).and_then(Result::ok).expect("numbers on the host");
    let x = data.as_slice::<f32>().expect("f32 numbers");
    let mut out = vec![0.0; n * width];
    kernel(matrix, x, &mut out);
    B::float_from_data(TensorData::new(out, [n, width]), &device)
}
