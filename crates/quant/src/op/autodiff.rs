use burn::{
    backend::{
        Autodiff,
        autodiff::{
            checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
            grads::Gradients,
            ops::{Backward, Ops, OpsKind, unary},
        },
    },
    tensor::ops::FloatTensor,
};

use super::{PackedOperand, PackedOps};

impl<B: PackedOps, C: CheckpointStrategy> PackedOps for Autodiff<B, C> {
    const WORDS_ON_DEVICE: bool = B::WORDS_ON_DEVICE;

    /// The product, tracked: its backward pass is the transposed product. The weight takes no gradient.
    fn packed_product(x: FloatTensor<Self>, weight: &PackedOperand<Self>) -> FloatTensor<Self> {
        let weight = inner::<B, C>(weight);
        let product = B::packed_product(x.primitive, &weight);
        match PackedProduct.prepare::<C>([x.node]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish(weight, product),
            OpsKind::UnTracked(prep) => prep.finish(product),
        }
    }

    /// The transposed product, tracked: its backward pass is the product.
    fn packed_product_transposed(y: FloatTensor<Self>, weight: &PackedOperand<Self>) -> FloatTensor<Self> {
        let weight = inner::<B, C>(weight);
        let product = B::packed_product_transposed(y.primitive, &weight);
        match PackedProductTransposed.prepare::<C>([y.node]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish(weight, product),
            OpsKind::UnTracked(prep) => prep.finish(product),
        }
    }
}

/// The operand without autodiff, whose integers are the inner backend's own.
fn inner<B: PackedOps, C: CheckpointStrategy>(weight: &PackedOperand<Autodiff<B, C>>) -> PackedOperand<B> {
    PackedOperand { matrix: weight.matrix.clone(), words: weight.words.clone(), activations: weight.activations }
}

#[derive(Debug)]
struct PackedProduct;

impl<B: PackedOps> Backward<B, 1> for PackedProduct {
    type State = PackedOperand<B>;

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        unary::<B, _>(ops.parents, ops.node, grads, |grad| B::packed_product_transposed(grad, &ops.state));
    }
}

#[derive(Debug)]
struct PackedProductTransposed;

impl<B: PackedOps> Backward<B, 1> for PackedProductTransposed {
    type State = PackedOperand<B>;

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        unary::<B, _>(ops.parents, ops.node, grads, |grad| B::packed_product(grad, &ops.state));
    }
}
