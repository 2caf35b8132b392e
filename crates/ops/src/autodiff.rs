use burn::{
    backend::{
        Autodiff,
        autodiff::{
            NodeId,
            checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
            grads::Gradients,
            ops::{Backward, Ops, OpsKind},
        },
    },
    tensor::{DType, Shape, TensorMetadata, backend::Backend, ops::FloatTensor},
};

use crate::{CustomOp, CustomOps};

impl<B: CustomOps, C: CheckpointStrategy> CustomOps for Autodiff<B, C> {
    /// The result, tracked. Inputs are kept as checkpoints, so that cheap ones can be made again instead.
    fn custom<O: CustomOp<N>, const N: usize>(op: O, inputs: [FloatTensor<Self>; N]) -> FloatTensor<Self> {
        let output = op.forward::<B>(inputs.each_ref().map(|input| input.primitive.clone()));
        let nodes = inputs.each_ref().map(|input| input.node.clone());
        match Custom(op).prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(mut prep) => {
                let inputs = inputs.each_ref().map(|input| prep.checkpoint(input));
                prep.finish(inputs, output)
            }
            OpsKind::UnTracked(prep) => prep.finish(output),
        }
    }

    fn is_tracked(x: &FloatTensor<Self>) -> bool {
        x.is_tracked()
    }

    fn with_gradients<const N: usize>(
        value: FloatTensor<Self>,
        inputs: [(FloatTensor<Self>, Option<FloatTensor<Self>>); N],
    ) -> FloatTensor<Self> {
        let nodes = inputs.each_ref().map(|(input, _)| input.node.clone());
        match WithGradients.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(prep) => {
                let gradients = inputs.map(|(input, gradient)| match gradient {
                    _ if !input.is_tracked() => None,
                    Some(gradient) => Some(gradient.primitive),
                    None => Some(Zeros::<B>::like(&input.primitive).tensor()),
                });
                prep.finish(gradients, value.primitive)
            }
            OpsKind::UnTracked(prep) => prep.finish(value.primitive),
        }
    }
}

#[derive(Debug)]
struct Custom<O>(O);

impl<B: CustomOps, O: CustomOp<N>, const N: usize> Backward<B, N> for Custom<O> {
    type State = [NodeId; N];

    fn backward(self, ops: Ops<Self::State, N>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let inputs = ops.state.map(|id| checkpointer.retrieve_node_output::<FloatTensor<B>>(id));
        let zeros = inputs.each_ref().map(Zeros::<B>::like);
        let wanted = ops.parents.each_ref().map(Option::is_some);
        let gradients = self.0.backward::<B>(inputs, grads.consume::<B>(&ops.node), wanted);
        for ((parent, gradient), zeros) in ops.parents.into_iter().zip(gradients).zip(zeros) {
            // The step of a tracked parent expects a gradient, so that zeros have to be given too.
            if let Some(parent) = parent {
                grads.register::<B>(parent.id, gradient.unwrap_or_else(|| zeros.tensor()));
            }
        }
    }
}

#[derive(Debug)]
struct WithGradients;

impl<B: Backend, const N: usize> Backward<B, N> for WithGradients {
    type State = [Option<FloatTensor<B>>; N];

    fn backward(self, ops: Ops<Self::State, N>, grads: &mut Gradients, _: &mut Checkpointer) {
        let upstream = grads.consume::<B>(&ops.node);
        for (parent, gradient) in ops.parents.into_iter().zip(ops.state) {
            if let (Some(parent), Some(gradient)) = (parent, gradient) {
                let ones = Shape::from(vec![1; gradient.rank()]);
                let upstream = B::float_reshape(upstream.clone(), ones);
                grads.register::<B>(parent.id, B::float_mul(gradient, upstream));
            }
        }
    }
}

/// A tensor of zeros that is not made yet.
struct Zeros<B: Backend> {
    shape: Shape,
    device: B::Device,
    dtype: DType,
}

impl<B: Backend> Zeros<B> {
    fn like(x: &FloatTensor<B>) -> Self {
        Self { shape: x.shape(), device: B::float_device(x), dtype: x.dtype() }
    }

    fn tensor(self) -> FloatTensor<B> {
        B::float_zeros(self.shape, &self.device, self.dtype.into())
    }
}
