//! Backends without gradients for which the defaults do.

#[cfg(any(feature = "ndarray", feature = "cuda", feature = "wgpu"))]
use crate::CustomOps;

#[cfg(feature = "ndarray")]
impl CustomOps for burn::backend::NdArray<f32> {}
#[cfg(feature = "ndarray")]
impl CustomOps for burn::backend::NdArray<f64> {}

#[cfg(any(feature = "cuda", feature = "wgpu"))]
impl<R, F, I, BT> CustomOps for burn_cubecl::CubeBackend<R, F, I, BT>
where
    R: burn_cubecl::CubeRuntime,
    F: burn_cubecl::FloatElement,
    I: burn_cubecl::IntElement,
    BT: burn_cubecl::BoolElement,
    Self: burn::tensor::backend::Backend,
{
}
