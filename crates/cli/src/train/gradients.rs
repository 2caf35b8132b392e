//! One batch's loss and gradients, and the losses around optimiser steps, on a device chosen at run time.
//!
//! As in [`crate::runner`], everything generic over the backend is instantiated here, so that programs need not.

use std::fmt;

use burn::{
    backend::{
        Autodiff,
        autodiff::checkpoint::strategy::{BalancedCheckpointing, CheckpointStrategy, NoCheckpointing},
    },
    optim::GradientsParams,
    tensor::{DType, Tensor, TensorData, backend::Backend},
};
use dsv41::{
    BlockCall, Call, LoadOptions, ModelBackend, ModelError, Numerics, Objective, Transformer, WeightSource, parameters,
};
use dsv41_config::Config;
use dsv41_train::{
    losses::{CrossEntropy, LossError, Totals},
    optimiser::{GroupedOptimiser, NamedParameter, OptimiserError, OptimiserSettings},
};

use crate::device::{DeviceError, DeviceName, DeviceTask, Precision};

/// Why there are no gradients.
#[derive(Debug, thiserror::Error)]
pub enum GradientsError {
    /// The device cannot be used.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The model cannot be built or called.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The loss cannot be taken.
    #[error(transparent)]
    Loss(#[from] LossError),
    /// The optimiser does not fit the model.
    #[error(transparent)]
    Optimiser(#[from] OptimiserError),
}

/// What the forward pass keeps for the backward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Checkpointing {
    /// Every result.
    #[default]
    None,
    /// Results that are dear to compute; cheap ones are computed again ([`BalancedCheckpointing`]).
    Balanced,
    /// Each layer's input; one layer at a time is computed again ([`Transformer::gradients_by_block`]).
    Blocks,
}

impl fmt::Display for Checkpointing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::None => "none",
            Self::Balanced => "balanced",
            Self::Blocks => "blocks",
        })
    }
}

/// What is to be computed.
#[derive(Clone)]
pub struct GradientsRequest<'a> {
    /// The model.
    pub config: &'a Config,
    /// Its weights.
    pub weights: &'a dyn WeightSource,
    /// Whole sequences of one length; every token but the first is a target.
    pub tokens: &'a [Vec<u32>],
    /// Where to round.
    pub numerics: Numerics,
    /// What is kept for the backward pass.
    pub checkpointing: Checkpointing,
    /// How to go on after the first gradients.
    pub settings: OptimiserSettings,
    /// For how many steps.
    pub steps: u64,
}

/// What came of it.
#[derive(Debug, Clone)]
pub struct GradientsResult {
    /// Mean cross entropy of every next token, in nats.
    pub loss: f64,
    /// `[B, S, vocab]`
    pub logits: TensorData,
    /// Each parameter's gradient under the reference's name and in the layout of its files; none where none flows.
    pub gradients: Vec<(String, Option<TensorData>)>,
    /// The loss before the first step and after each.
    pub losses: Vec<f64>,
}

/// Computes on `device`.
///
/// # Errors
/// When the device cannot be used, the model cannot be built or called, or the optimiser does not know a parameter.
pub fn gradients(
    device: DeviceName,
    precision: Precision,
    request: GradientsRequest<'_>,
) -> Result<GradientsResult, GradientsError> {
    device.dispatch(precision, request)?
}

impl DeviceTask for GradientsRequest<'_> {
    type Output = Result<GradientsResult, GradientsError>;

    fn run<B: ModelBackend>(self, device: B::Device, dtype: DType) -> Self::Output {
        match self.checkpointing {
            Checkpointing::None | Checkpointing::Blocks => run::<B, NoCheckpointing>(self, &device, dtype),
            Checkpointing::Balanced => run::<B, BalancedCheckpointing>(self, &device, dtype),
        }
    }
}

fn run<B: ModelBackend, C: CheckpointStrategy>(
    request: GradientsRequest<'_>,
    device: &B::Device,
    dtype: DType,
) -> Result<GradientsResult, GradientsError> {
    let options = LoadOptions { dtype, ..LoadOptions::default() };
    let mut model = Transformer::<Autodiff<B, C>>::load(request.config, request.weights, None, device, options)?;
    let call = Call { numerics: request.numerics, ..Call::default() };
    let logits = model.forward(request.tokens, None, call)?.logits.into_data();

    let named = model.parameters().iter().map(|parameter| NamedParameter {
        id: parameter.id,
        name: parameter.name.clone(),
        dims: parameter.dims.clone(),
    });
    let mut optimiser = GroupedOptimiser::<Autodiff<B, C>>::new(request.settings, named)?;
    let (loss, mut flowing) = backward(&model, &request)?;
    let mut gradients = Vec::new();
    parameters::visit_gradients(&model, model.parameters(), &flowing, |parameter, gradient| {
        gradients.push((parameter.name.clone(), gradient));
    });
    let mut losses = vec![loss];
    for step in 0..request.steps {
        model = optimiser.step(model, flowing, step)?;
        let (loss, next) = backward(&model, &request)?;
        losses.push(loss);
        flowing = next;
    }
    Ok(GradientsResult { loss, logits, gradients, losses })
}

/// The mean cross entropy of every next token, and its gradients.
fn backward<B: ModelBackend, C: CheckpointStrategy>(
    model: &Transformer<Autodiff<B, C>>,
    request: &GradientsRequest<'_>,
) -> Result<(f64, GradientsParams), GradientsError> {
    let targets: Vec<Option<u32>> =
        request.tokens.iter().flat_map(|row| row[1..].iter().copied().map(Some).chain([None])).collect();
    let mut totals = Totals::default();
    let mut loss = |x: Tensor<Autodiff<B, C>, 3>| -> Result<Tensor<Autodiff<B, C>, 1>, GradientsError> {
        let [batch, seq, dim] = x.dims();
        let loss = CrossEntropy::default().forward(x.reshape([batch * seq, dim]), &model.head.weight, &targets)?;
        totals = loss.totals;
        Ok(loss.value)
    };
    let numerics = request.numerics;
    let gradients = match request.checkpointing {
        Checkpointing::None | Checkpointing::Balanced => {
            let states = model.forward_states(request.tokens, None, Call { numerics, ..Call::default() })?;
            GradientsParams::from_grads(loss(states.x)?.backward(), model)
        }
        Checkpointing::Blocks => {
            let call = BlockCall { numerics, ..BlockCall::default() };
            model.gradients_by_block(request.tokens, call, &mut NoObjective, loss)?
        }
    };
    Ok((totals.nats / totals.targets.max(1) as f64, gradients))
}

/// Nothing but the loss.
struct NoObjective;

impl<B: Backend> Objective<B> for NoObjective {}
