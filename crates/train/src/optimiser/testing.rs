//! A module with a parameter of several groups, for tests.

use burn::{
    backend::{Autodiff, Flex},
    module::{Module, Param, ParamId},
    optim::GradientsParams,
    tensor::{DType, Tensor, TensorData, backend::Backend},
};

use super::NamedParameter;

pub(super) type TrainBackend = Autodiff<Flex>;

#[derive(Module, Debug)]
pub(super) struct Toy<B: Backend> {
    pub(super) embed: Param<Tensor<B, 2>>,
    pub(super) wq_a: Param<Tensor<B, 2>>,
    pub(super) wo_a: Param<Tensor<B, 3>>,
    pub(super) norm: Param<Tensor<B, 1>>,
    pub(super) gate_bias: Param<Tensor<B, 1>>,
}

/// Name, and axes of the parameter with the id of its place.
const PARAMETERS: [(&str, &[usize]); 5] = [
    ("embed.weight", &[3, 2]),
    ("layers.0.attn.wq_a.weight", &[2, 4]),
    ("layers.0.attn.wo_a.weight", &[2, 3, 2]),
    ("norm.weight", &[2]),
    ("layers.0.ffn.gate.bias", &[3]),
];

/// Place of the router's bias, which takes no gradient.
pub(super) const GATE_BIAS: usize = 4;

pub(super) fn id(place: usize) -> ParamId {
    ParamId::from(place as u64)
}

pub(super) fn parameters() -> Vec<NamedParameter> {
    let named = |(place, (name, dims)): (usize, &(&str, &[usize]))| NamedParameter {
        id: id(place),
        name: (*name).to_owned(),
        dims: dims.to_vec(),
    };
    PARAMETERS.iter().enumerate().map(named).collect()
}

/// Values between -1 and 1 of a parameter's axes, another for every seed.
fn tensor<B: Backend, const D: usize>(place: usize, seed: usize, dtype: DType) -> Tensor<B, D> {
    let dims = PARAMETERS[place].1;
    let values: Vec<_> = (0..dims.iter().product())
        .map(|i| (1.0 + 0.7 * (i * i) as f64 + 1.3 * (place + 5 * seed) as f64).sin())
        .collect();
    Tensor::from_data(TensorData::new(values, dims.to_vec()), (&Default::default(), dtype))
}

fn param<B: Backend, const D: usize>(place: usize, dtype: DType) -> Param<Tensor<B, D>> {
    Param::initialized(id(place), tensor::<B, D>(place, 0, dtype)).set_require_grad(place != GATE_BIAS)
}

pub(super) fn toy(dtype: DType) -> Toy<TrainBackend> {
    Toy {
        embed: param(0, dtype),
        wq_a: param(1, dtype),
        wo_a: param(2, dtype),
        norm: param(3, dtype),
        gate_bias: param(GATE_BIAS, dtype),
    }
}

/// A gradient for every parameter but the router's bias.
pub(super) fn gradients(seed: usize, dtype: DType) -> GradientsParams {
    let mut gradients = GradientsParams::new();
    gradients.register::<Flex, 2>(id(0), tensor(0, seed, dtype));
    gradients.register::<Flex, 2>(id(1), tensor(1, seed, dtype));
    gradients.register::<Flex, 3>(id(2), tensor(2, seed, dtype));
    gradients.register::<Flex, 1>(id(3), tensor(3, seed, dtype));
    gradients
}

/// The values of every parameter, by place.
pub(super) fn values(toy: &Toy<TrainBackend>) -> [TensorData; 5] {
    [
        toy.embed.val().into_data(),
        toy.wq_a.val().into_data(),
        toy.wo_a.val().into_data(),
        toy.norm.val().into_data(),
        toy.gate_bias.val().into_data(),
    ]
}
