//! Low-rank additions to matrices, which train while the matrix itself stays as it is.

use burn::{
    module::{Module, Param},
    tensor::{Tensor, TensorData, backend::Backend},
};

use crate::parameters::{Layout, Parameter};

/// `x W + scale * (x A) B`, the second term: a matrix of rank r added to that of a linear layer
/// ([LoRA](https://arxiv.org/abs/2106.09685), where `scale = alpha / r`).
#[derive(Module, Debug)]
pub struct LowRank<B: Backend> {
    /// `[in, r]`
    pub a: Param<Tensor<B, 2>>,
    /// `[r, out]`, zero in an adapter that has not learnt yet.
    pub b: Param<Tensor<B, 2>>,
    #[module(skip)]
    scale: f64,
    #[module(skip)]
    dropout: Option<Dropout>,
}

/// Which inputs of an adapter are left out of one step.
///
/// The choice follows from the seed, the adapter and the element's place alone, so that computing a layer again chooses
/// alike.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dropout {
    /// Share of the inputs left out; the others are raised by `1 / (1 - p)`.
    pub probability: f64,
    /// Another one for every step.
    pub seed: u64,
}

impl<B: Backend> LowRank<B> {
    /// An adapter of `a` (`[in, r]`) and `b` (`[r, out]`) for the linear layer called `linear`, which requires gradients.
    ///
    /// # Panics
    /// When their ranks differ.
    pub fn new(linear: &str, a: Tensor<B, 2>, b: Tensor<B, 2>, scale: f64) -> Self {
        assert_eq!(a.dims()[1], b.dims()[0], "an adapter's two matrices have one rank");
        let [of_a, of_b] = parameters_of(linear, a.dims(), b.dims());
        Self {
            a: Param::initialized(of_a.id, a.require_grad()),
            b: Param::initialized(of_b.id, b.require_grad()),
            scale,
            dropout: None,
        }
    }

    /// Makes room for another adapter of the same linear layer: stops training, and goes by ids of its place among those
    /// retired, because the names' own ids are those of the adapter that trains.
    pub(crate) fn retire(self, linear: &str, place: usize) -> Self {
        let Self { a, b, scale, dropout: _ } = self.no_grad();
        let [of_a, of_b] = parameters_of(&format!("{linear}.{place}"), a.dims(), b.dims());
        Self { a: Param::initialized(of_a.id, a.val()), b: Param::initialized(of_b.id, b.val()), scale, dropout: None }
    }

    /// What is known of the adapter's parameters, `LINEAR.lora_a` and `LINEAR.lora_b`. Files hold them as `[r, in]` and
    /// `[out, r]`.
    pub fn parameters(&self, linear: &str) -> [Parameter; 2] {
        parameters_of(linear, self.a.dims(), self.b.dims())
    }

    /// `[in, out]`
    pub fn dims(&self) -> [usize; 2] {
        [self.a.dims()[0], self.b.dims()[1]]
    }

    /// What the product is multiplied by.
    pub fn scale(&self) -> f64 {
        self.scale
    }

    /// Sets which inputs are left out from now on; `None` for none.
    pub fn set_dropout(&mut self, dropout: Option<Dropout>) {
        self.dropout = dropout.filter(|dropout| dropout.probability > 0.0);
    }

    /// `scale * (x A) B`: `[n, in]` to `[n, out]`.
    pub fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        let x = match self.dropout {
            Some(dropout) => x.clone() * dropout.mask(self.a.id.val(), &x),
            None => x,
        };
        x.matmul(self.a.val()).matmul(self.b.val()).mul_scalar(self.scale)
    }

    /// The matrix that is added, `[in, out]`.
    pub fn matrix(&self) -> Tensor<B, 2> {
        self.a.val().matmul(self.b.val()).mul_scalar(self.scale)
    }
}

fn parameters_of(linear: &str, a: [usize; 2], b: [usize; 2]) -> [Parameter; 2] {
    [("lora_a", a), ("lora_b", b)]
        .map(|(part, dims)| Parameter::new(format!("{linear}.{part}"), &dims, Layout::Transposed))
}

impl Dropout {
    /// 0 or `1 / (1 - p)` for every element of `like`.
    fn mask<B: Backend>(self, adapter: u64, like: &Tensor<B, 2>) -> Tensor<B, 2> {
        let [rows, width] = like.dims();
        let threshold = (self.probability * 2f64.powi(64)) as u64;
        let kept = (1.0 / (1.0 - self.probability)) as f32;
        let seed = splitmix(self.seed ^ adapter);
        let values = (0..(rows * width) as u64)
            .map(|index| if splitmix(seed ^ index.wrapping_mul(GOLDEN_RATIO)) < threshold { 0.0 } else { kept })
            .collect();
        Tensor::from_data(TensorData::new(values, [rows, width]), (&like.device(), like.dtype()))
    }
}

const GOLDEN_RATIO: u64 = 0x9E37_79B9_7F4A_7C15;

/// The finaliser of splitmix64: every bit of the result depends on every bit of `x`.
fn splitmix(x: u64) -> u64 {
    let x = x.wrapping_add(GOLDEN_RATIO);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use burn::backend::Flex;

    use super::*;

    fn adapter() -> LowRank<Flex> {
        let device = Default::default();
        let a = Tensor::from_data([[1.0], [2.0]], &device);
        let b = Tensor::from_data([[3.0, -1.0]], &device);
        LowRank::new("head", a, b, 0.5)
    }

    #[test]
    fn the_addition_is_the_product_with_its_matrix() {
        let x = Tensor::<Flex, 2>::from_data([[1.0, 10.0], [0.0, -1.0]], &Default::default());
        let expected = TensorData::from([[31.5_f32, -10.5], [-3.0, 1.0]]);
        assert_eq!(adapter().forward(x.clone()).into_data(), expected);
        assert_eq!(x.matmul(adapter().matrix()).into_data(), expected);
    }

    #[test]
    fn dropout_leaves_out_its_share_and_keeps_the_mean() {
        let mut adapter = adapter();
        let x = Tensor::<Flex, 2>::ones([10_000, 2], &Default::default());
        let whole = adapter.forward(x.clone()).mean().into_scalar();
        let with = |adapter: &mut LowRank<Flex>, seed| {
            adapter.set_dropout(Some(Dropout { probability: 0.25, seed }));
            adapter.forward(x.clone())
        };
        let first = with(&mut adapter, 1);
        assert!((first.clone().mean().into_scalar() / whole - 1.0).abs() < 0.05);
        assert_eq!(with(&mut adapter, 1).into_data(), first.clone().into_data());
        assert_ne!(with(&mut adapter, 2).into_data(), first.into_data());
        adapter.set_dropout(Some(Dropout { probability: 0.0, seed: 1 }));
        assert_eq!(adapter.forward(x.clone()).mean().into_scalar(), whole);
    }
}
