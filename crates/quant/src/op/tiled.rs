//! Dequantise some rows, multiply, go on: for backends and precisions without a kernel.

use std::ops::Range;

use burn::tensor::{DType, Tensor, TensorData, backend::Backend, ops::FloatTensor};

use super::{PackedOperand, device, from_primitive};

/// Values that are dequantised at a time.
const TILE_ELEMENTS: usize = 1 << 22;

/// As [`super::PackedOps::packed_product`], on any backend.
pub fn product<B: Backend>(x: FloatTensor<B>, weight: &PackedOperand<B>) -> FloatTensor<B> {
    let x: Tensor<B, 2> = from_primitive(x);
    let parts = tiles(weight).map(|rows| x.clone().matmul(tile(weight, rows, &x).transpose())).collect::<Vec<_>>();
    let product = match parts.is_empty() {
        true => Tensor::zeros([x.dims()[0], 0], (&x.device(), x.dtype())),
        false => Tensor::cat(parts, 1),
    };
    product.into_primitive().tensor()
}

/// As [`super::PackedOps::packed_product_transposed`], on any backend.
pub fn product_transposed<B: Backend>(y: FloatTensor<B>, weight: &PackedOperand<B>) -> FloatTensor<B> {
    let y: Tensor<B, 2> = from_primitive(y);
    let [n, _] = y.dims();
    let none = Tensor::zeros([n, weight.matrix.columns()], (&y.device(), y.dtype()));
    let product = tiles(weight).fold(none, |sum, rows| {
        let part = y.clone().narrow(1, rows.start, rows.len());
        sum + part.matmul(tile(weight, rows, &y))
    });
    product.into_primitive().tensor()
}

/// Ranges of rows that take about [`TILE_ELEMENTS`]. Each but the last is a multiple of four rows, so that each begins
/// at a whole word of the bytes on a device.
fn tiles<B: Backend>(weight: &PackedOperand<B>) -> impl Iterator<Item = Range<usize>> {
    let rows = weight.matrix.rows();
    let step = (TILE_ELEMENTS / weight.matrix.columns().max(1)).max(1).next_multiple_of(4);
    (0..rows).step_by(step).map(move |start| start..(start + step).min(rows))
}

/// Some rows in the precision and on the device of `like`.
fn tile<B: Backend>(weight: &PackedOperand<B>, rows: Range<usize>, like: &Tensor<B, 2>) -> Tensor<B, 2> {
    match &weight.words {
        Some(words) => {
            let words = Tensor::from_primitive(words.clone());
            device::dequantise_rows(&weight.matrix, words, rows).cast(like.dtype())
        }
        None => {
            let part = weight.matrix.slice_rows(rows);
            let data = TensorData::new(part.dequantise(), [part.rows(), part.columns()]);
            let tile = Tensor::from_data(data, (&like.device(), DType::F32));
            if like.dtype() == DType::F32 { tile } else { tile.cast(like.dtype()) }
        }
    }
}
