use std::fmt::Debug;

use burn::tensor::{Tensor, TensorPrimitive, backend::Backend, ops::FloatTensor};

use crate::HostOp;

/// An operation on `N` float tensors whose backward pass is its own.
///
/// The value holds whatever else the operation depends on, such as indices, on the host. Both passes are given tensors
/// of a backend without the graph that the operation becomes a node of.
pub trait CustomOp<const N: usize>: Debug + Send + 'static {
    /// The result.
    fn forward<B: CustomOps>(&self, inputs: [FloatTensor<B>; N]) -> FloatTensor<B>;

    /// The gradients of the inputs, in their shapes, given that of the result.
    ///
    /// `wanted` says which inputs are tracked; the gradients of others are dropped. `None` is a gradient of zeros.
    fn backward<B: CustomOps>(
        &self,
        inputs: [FloatTensor<B>; N],
        gradient: FloatTensor<B>,
        wanted: [bool; N],
    ) -> [Option<FloatTensor<B>>; N];
}

/// What custom operations need of a backend. The defaults are those of a backend without gradients.
pub trait CustomOps: Backend {
    /// As [`custom`].
    fn custom<O: CustomOp<N>, const N: usize>(op: O, inputs: [FloatTensor<Self>; N]) -> FloatTensor<Self> {
        op.forward::<Self>(inputs)
    }

    /// The result of an operation's kernels, where tensors lie in host memory and the kernels cover what is asked.
    fn host_forward<O: HostOp<N>, const N: usize>(_: &O, _: &[FloatTensor<Self>; N]) -> Option<FloatTensor<Self>> {
        None
    }

    /// The gradients of the inputs by an operation's kernels, as [`CustomOp::backward`] gives them, where
    /// [`Self::host_forward`] would give a result.
    fn host_backward<O: HostOp<N>, const N: usize>(
        _: &O,
        _: &[FloatTensor<Self>; N],
        _: &FloatTensor<Self>,
        _: [bool; N],
    ) -> Option<[Option<FloatTensor<Self>>; N]> {
        None
    }

    /// As [`is_tracked`].
    fn is_tracked(_: &FloatTensor<Self>) -> bool {
        false
    }

    /// As [`with_gradients`].
    fn with_gradients<const N: usize>(
        value: FloatTensor<Self>,
        _: [(FloatTensor<Self>, Option<FloatTensor<Self>>); N],
    ) -> FloatTensor<Self> {
        value
    }
}

/// Runs an operation. Under autodiff the inputs are kept for the backward pass, and nothing else is.
pub fn custom<B: CustomOps, O: CustomOp<N>, const N: usize, const D: usize>(
    op: O,
    inputs: [FloatTensor<B>; N],
) -> Tensor<B, D> {
    from_primitive(B::custom(op, inputs))
}

/// The tensor outside of every graph.
///
/// Not [`Tensor::detach`], which makes of a leaf that requires a gradient another such leaf, so that everything computed
/// from it is tracked and kept.
pub fn constant<B: Backend, const D: usize>(x: Tensor<B, D>) -> Tensor<B, D> {
    x.set_require_grad(false)
}

/// Whether a backward pass would reach the tensor.
pub fn is_tracked<B: CustomOps, const D: usize>(x: &Tensor<B, D>) -> bool {
    B::is_tracked(&into_primitive(x.clone()))
}

/// A value of one element that was computed together with its gradients: each input with the gradient of the value with
/// respect to it, in its shape. A backward pass multiplies them by the gradient of the value; `None` is a gradient of
/// zeros.
///
/// The value and the gradients are constants, computed from the inputs as constants ([`constant`]). Without autodiff this is the value.
pub fn with_gradients<B: CustomOps, const N: usize>(
    value: Tensor<B, 1>,
    inputs: [(FloatTensor<B>, Option<FloatTensor<B>>); N],
) -> Tensor<B, 1> {
    from_primitive(B::with_gradients(into_primitive(value), inputs))
}

/// The tensor that an operation's input or result is.
pub fn from_primitive<B: Backend, const D: usize>(primitive: FloatTensor<B>) -> Tensor<B, D> {
    Tensor::from_primitive(TensorPrimitive::Float(primitive))
}

/// The tensor as an operation's input or result.
pub fn into_primitive<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> FloatTensor<B> {
    tensor.into_primitive().tensor()
}
