//! The flex backend, whose tensors are host memory.

use burn::{
    backend::Flex,
    tensor::{DType, TensorData, ops::FloatTensor},
};

use crate::{
    CustomOps, HostOp,
    host::{HostFloat, Values, View},
};

impl CustomOps for Flex {
    fn host_forward<O: HostOp<N>, const N: usize>(
        op: &O,
        inputs: &[FloatTensor<Self>; N],
    ) -> Option<FloatTensor<Self>> {
        match common_type(inputs.iter())? {
            DType::F32 => forward::<f32, O, N>(op, inputs),
            DType::F64 => forward::<f64, O, N>(op, inputs),
            _ => None,
        }
    }

    fn host_backward<O: HostOp<N>, const N: usize>(
        op: &O,
        inputs: &[FloatTensor<Self>; N],
        gradient: &FloatTensor<Self>,
        wanted: [bool; N],
    ) -> Option<[Option<FloatTensor<Self>>; N]> {
        match common_type(inputs.iter().chain([gradient]))? {
            DType::F32 => backward::<f32, O, N>(op, inputs, gradient, wanted),
            DType::F64 => backward::<f64, O, N>(op, inputs, gradient, wanted),
            _ => None,
        }
    }
}

/// The type that all of them have.
fn common_type<'a>(mut tensors: impl Iterator<Item = &'a FloatTensor<Flex>>) -> Option<DType> {
    let first = tensors.next()?.dtype();
    tensors.all(|tensor| tensor.dtype() == first).then_some(first)
}

fn forward<T: HostFloat + bytemuck::Pod, O: HostOp<N>, const N: usize>(
    op: &O,
    inputs: &[FloatTensor<Flex>; N],
) -> Option<FloatTensor<Flex>> {
    let inputs = inputs.each_ref().map(FloatTensor::<Flex>::to_contiguous);
    op.forward_on_host(inputs.each_ref().map(view::<T>)).map(tensor)
}

fn backward<T: HostFloat + bytemuck::Pod, O: HostOp<N>, const N: usize>(
    op: &O,
    inputs: &[FloatTensor<Flex>; N],
    gradient: &FloatTensor<Flex>,
    wanted: [bool; N],
) -> Option<[Option<FloatTensor<Flex>>; N]> {
    let inputs = inputs.each_ref().map(FloatTensor::<Flex>::to_contiguous);
    let gradient = gradient.to_contiguous();
    let gradients = op.backward_on_host(inputs.each_ref().map(view::<T>), view(&gradient), wanted)?;
    Some(gradients.map(|gradient| gradient.map(tensor)))
}

/// Reads a contiguous tensor in place.
fn view<T: HostFloat + bytemuck::Pod>(tensor: &FloatTensor<Flex>) -> View<'_, T> {
    let layout = tensor.layout();
    let start = layout.start_offset();
    View { dims: layout.shape(), values: &tensor.storage::<T>()[start..start + layout.num_elements()] }
}

fn tensor<T: HostFloat>(values: Values<T>) -> FloatTensor<Flex> {
    FloatTensor::<Flex>::from_data(TensorData::new(values.values, values.dims))
}
