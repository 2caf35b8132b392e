use burn::{
    module::{Module, Param},
    tensor::{Tensor, backend::Backend},
};

use crate::{ModelError, Numerics, weights::Loader};

/// What a linear layer does to its input before multiplying, by how the release stores its weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinearInput {
    /// Taken as it is.
    Plain,
    /// Through the fp8 round trip, as the kernels of fp8 and fp4 weights do.
    Fp8,
}

/// `y = x W`, without a bias.
#[derive(Module, Debug)]
pub struct Linear<B: Backend> {
    /// `[in, out]`, so that the product needs no transpose.
    pub weight: Param<Tensor<B, 2>>,
    #[module(skip)]
    input: LinearInput,
}

impl<B: Backend> Linear<B> {
    /// Loads `NAME.weight`, stored as `[out, in]`.
    pub(crate) fn load(
        from: &Loader<'_, B>,
        name: &str,
        [d_input, d_output]: [usize; 2],
        input: LinearInput,
    ) -> Result<Self, ModelError> {
        Ok(Self { weight: from.transposed(&format!("{name}.weight"), [d_output, d_input])?, input })
    }

    /// `[.., in]` to `[.., out]`, rounded to bf16: what every linear layer of the release does.
    pub fn forward<const D: usize>(&self, x: Tensor<B, D>, numerics: Numerics) -> Tensor<B, D> {
        numerics.bf16(self.forward_unrounded(x, numerics))
    }

    /// `[.., in]` to `[.., out]` as summed, for the layers whose results stay in f32.
    pub fn forward_unrounded<const D: usize>(&self, x: Tensor<B, D>, numerics: Numerics) -> Tensor<B, D> {
        let mut shape = x.dims();
        let [d_input, d_output] = self.weight.dims();
        let x = match self.input {
            LinearInput::Plain => x,
            LinearInput::Fp8 => numerics.fp8(x),
        };
        shape[D - 1] = d_output;
        x.reshape([-1, d_input as i32]).matmul(self.weight.val()).reshape(shape)
    }
}
