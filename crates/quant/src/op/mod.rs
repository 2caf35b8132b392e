//! The packed product as an operation of Burn backends.
//!
//! [`PackedOps`] extends a backend. Its default dequantises a few rows at a time and multiplies them as ordinary tensors;
//! CPU backends multiply straight from the packed rows ([`crate::kernel`]); CubeCL backends keep the packed bytes on the
//! device and dequantise there. Under autodiff the product passes a gradient to its input by the transposed product.

mod autodiff;
mod device;
#[cfg(any(feature = "ndarray", feature = "flex"))]
mod host;
mod tiled;

pub use tiled::{product as tiled_product, product_transposed as tiled_product_transposed};

use burn::tensor::{
    Int, Tensor, TensorPrimitive,
    backend::Backend,
    ops::{FloatTensor, IntTensor},
};

use crate::{PackedMatrix, kernel::Activations};

/// A packed matrix `[out, in]` as an operand: where its bytes are, and how activations enter the product.
#[derive(Debug, Clone)]
pub struct PackedOperand<B: Backend> {
    /// The matrix on the host.
    pub matrix: PackedMatrix,
    /// Its bytes on the device, four to an integer, little endian, the last one filled with zeros; absent where the
    /// product reads them on the host.
    pub words: Option<IntTensor<B>>,
    /// How activations enter the product, where the backend has the choice.
    pub activations: Activations,
}

/// What packed matrices need of a backend.
pub trait PackedOps: Backend {
    /// Whether operands are to have their bytes on the device.
    const WORDS_ON_DEVICE: bool = false;

    /// `x W^T`: `[n, in]` to `[n, out]`.
    fn packed_product(x: FloatTensor<Self>, weight: &PackedOperand<Self>) -> FloatTensor<Self> {
        tiled::product::<Self>(x, weight)
    }

    /// `y W`: `[n, out]` to `[n, in]`, which takes gradients of the product to its input.
    fn packed_product_transposed(y: FloatTensor<Self>, weight: &PackedOperand<Self>) -> FloatTensor<Self> {
        tiled::product_transposed::<Self>(y, weight)
    }
}

/// `x W^T` of tensors: `[n, in]` to `[n, out]`.
///
/// # Panics
/// When `x` has another width than the matrix.
pub fn packed_product<B: PackedOps>(x: Tensor<B, 2>, weight: &PackedOperand<B>) -> Tensor<B, 2> {
    let [_, width] = x.dims();
    assert_eq!(width, weight.matrix.columns(), "{:?} times vectors of {width}", weight.matrix);
    from_primitive(B::packed_product(x.into_primitive().tensor(), weight))
}

/// Puts the bytes of a matrix on a device, as [`PackedOperand::words`] has them.
pub fn words_on_device<B: Backend>(matrix: &PackedMatrix, device: &B::Device) -> Tensor<B, 1, Int> {
    device::upload(matrix.bytes(), device)
}

fn from_primitive<B: Backend, const D: usize>(primitive: FloatTensor<B>) -> Tensor<B, D> {
    Tensor::from_primitive(TensorPrimitive::Float(primitive))
}

#[cfg(any(feature = "cuda", feature = "wgpu"))]
impl<R, F, I, BT> PackedOps for burn_cubecl::CubeBackend<R, F, I, BT>
where
    R: burn_cubecl::CubeRuntime,
    F: burn_cubecl::FloatElement,
    I: burn_cubecl::IntElement,
    BT: burn_cubecl::BoolElement,
    Self: Backend,
{
    const WORDS_ON_DEVICE: bool = true;
}
