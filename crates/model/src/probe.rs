//! Looking into a call, and changing the stream under way.

use burn::tensor::{Tensor, TensorData, backend::Backend};

/// A point at which a layer takes up the residual stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamPoint {
    /// Before the layer's engram.
    Engram,
    /// Before the layer's block.
    Block,
}

/// An observer of a call. Every method has a default, so that a probe implements what it is about.
pub trait Probe<B: Backend> {
    /// Sees a named result of `layer`, or of the whole model. Names follow the released code; the crate's documentation
    /// lists them.
    fn record(&mut self, layer: Option<usize>, name: &'static str, data: TensorData) {
        let _ = (layer, name, data);
    }

    /// May replace the residual stream `[B, S, C, D]` and the collapse weights `[B, S, C]` at `point` of `layer`.
    fn stream(
        &mut self,
        layer: usize,
        point: StreamPoint,
        h: Tensor<B, 4>,
        pre_mix: Tensor<B, 3>,
    ) -> (Tensor<B, 4>, Tensor<B, 3>) {
        let _ = (layer, point);
        (h, pre_mix)
    }
}
