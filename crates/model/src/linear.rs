use burn::{
    module::{Module, Param},
    tensor::{Int, Tensor, backend::Backend},
};
use dsv41_ops::{from_primitive, into_primitive};
use dsv41_quant::{
    PackedMatrix,
    kernel::Activations,
    op::{PackedOperand, PackedOps, packed_product, words_on_device},
};

use crate::{ModelBackend, ModelError, Numerics, adapter::LowRank, weights::Loader};

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
    /// `[in, out]`
    pub weight: LinearWeight<B>,
    /// What is added to the matrix, none by default.
    pub adapters: Vec<LowRank<B>>,
    #[module(skip)]
    name: String,
    #[module(skip)]
    input: LinearInput,
}

impl<B: ModelBackend> Linear<B> {
    /// Loads `NAME.weight`, stored as `[out, in]`.
    pub(crate) fn load(
        from: &Loader<'_, B>,
        name: &str,
        [d_input, d_output]: [usize; 2],
        input: LinearInput,
    ) -> Result<Self, ModelError> {
        Ok(Self {
            weight: from.linear(&format!("{name}.weight"), [d_output, d_input])?,
            adapters: Vec::new(),
            name: from.full_name(name),
            input,
        })
    }

    /// The reference's name without `.weight`, `layers.0.attn.wq_a`.
    pub fn name(&self) -> &str {
        &self.name
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
        let x = x.reshape([-1, d_input as i32]);
        let product = self.weight.product(x.clone());
        self.adapters.iter().fold(product, |sum, adapter| sum + adapter.forward(x.clone())).reshape(shape)
    }
}

/// The matrix of a linear layer: a parameter, or packed as its file holds it.
#[derive(Module, Debug)]
pub enum LinearWeight<B: Backend> {
    /// `[in, out]`, so that the product needs no transpose.
    Float(Param<Tensor<B, 2>>),
    /// Takes no gradient, but passes one to its input.
    Packed(PackedWeight<B>),
}

impl<B: Backend> LinearWeight<B> {
    /// `[in, out]`
    pub fn dims(&self) -> [usize; 2] {
        match self {
            Self::Float(weight) => weight.dims(),
            Self::Packed(weight) => [weight.matrix.columns(), weight.matrix.rows()],
        }
    }
}

impl<B: ModelBackend> LinearWeight<B> {
    /// `x W`: `[n, in]` to `[n, out]`.
    pub fn product(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        match self {
            Self::Float(weight) => x.matmul(weight.val()),
            Self::Packed(weight) => weight.product(x),
        }
    }
}

/// One matrix for each group of the input.
#[derive(Module, Debug)]
pub enum GroupedWeight<B: Backend> {
    /// `[groups, in, out]`
    Float(Param<Tensor<B, 3>>),
    /// A matrix for each group.
    Packed(Vec<PackedWeight<B>>),
}

impl<B: ModelBackend> GroupedWeight<B> {
    /// Each group times its own matrix: `[n, groups, in]` to `[n, groups, out]`.
    pub fn product(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        match self {
            Self::Float(weight) => x.swap_dims(0, 1).matmul(weight.val()).swap_dims(0, 1),
            Self::Packed(weights) => {
                let group = |index| x.clone().narrow(1, index, 1).squeeze_dim::<2>(1);
                let products = weights.iter().enumerate().map(|(index, weight)| weight.product(group(index)));
                Tensor::stack(products.collect(), 1)
            }
        }
    }
}

/// A matrix that stays packed.
#[derive(Module, Debug)]
pub struct PackedWeight<B: Backend> {
    /// Its bytes on the device, where the backend wants them there.
    words: Option<Tensor<B, 1, Int>>,
    #[module(skip)]
    matrix: PackedMatrix,
    #[module(skip)]
    activations: Activations,
}

impl<B: Backend> PackedWeight<B> {
    /// The matrix `[out, in]`.
    pub fn matrix(&self) -> &PackedMatrix {
        &self.matrix
    }
}

impl<B: PackedOps> PackedWeight<B> {
    /// Takes the matrix `[out, in]`, and puts its bytes on `device` where the backend wants them there.
    pub fn new(matrix: PackedMatrix, activations: Activations, device: &B::Device) -> Self {
        let words = B::WORDS_ON_DEVICE.then(|| words_on_device(&matrix, device));
        Self { words, matrix, activations }
    }

    /// `x W`: `[n, in]` to `[n, out]`.
    pub fn product(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        packed_product(x, &self.operand())
    }

    /// `y W^T`: `[n, out]` to `[n, in]`, which takes gradients of the product to its input.
    pub fn product_transposed(&self, y: Tensor<B, 2>) -> Tensor<B, 2> {
        from_primitive(B::packed_product_transposed(into_primitive(y), &self.operand()))
    }

    fn operand(&self) -> PackedOperand<B> {
        PackedOperand {
            matrix: self.matrix.clone(),
            words: self.words.clone().map(Tensor::into_primitive),
            activations: self.activations,
        }
    }
}
