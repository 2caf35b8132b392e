//! A model on a device chosen at run time, behind one object-safe interface.
//!
//! Everything generic over the backend is instantiated here, once for each device compiled in; programs that use a
//! [`Runner`] need not be generic, and need not compile the model again.

use burn::tensor::{DType, Tensor, TensorData, backend::Backend};
use dsv41::{
    Cache, Call, LoadOptions, LogitsOf, ModelBackend, ModelError, Numerics, Probe, Selections, StreamPoint, Switches,
    Transformer, WeightSource,
};
use dsv41_config::Config;
use dsv41_quant::kernel::Activations;
use dsv41_train::adapters::AdapterError;

use crate::{
    adapters::Adapters,
    device::{DeviceError, DeviceName, DeviceTask, Precision},
};

/// Why a model cannot be put on a device.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The device cannot be used.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The model cannot be built.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// An adapter does not fit the model.
    #[error(transparent)]
    Adapter(#[from] AdapterError),
}

/// A model and the sequences it has under way.
pub trait Runner {
    /// The model's configuration.
    fn config(&self) -> &Config;

    /// Starts `batch` sequences anew, each of at most `capacity` tokens, of which up to `rollback` can be taken back.
    ///
    /// # Errors
    /// As [`Cache::new`].
    fn begin(&mut self, batch: usize, capacity: usize, rollback: usize) -> Result<(), ModelError>;

    /// Tokens of each sequence so far.
    fn position(&self) -> usize;

    /// Takes back all but the first `len` tokens of each sequence.
    ///
    /// # Errors
    /// As [`Cache::truncate`].
    fn truncate(&mut self, len: usize) -> Result<(), ModelError>;

    /// Runs the next tokens, one row a sequence: `[B, S, vocab]` logits.
    ///
    /// # Errors
    /// As [`Transformer::forward`].
    fn forward(&mut self, tokens: &[Vec<u32>], call: HostCall<'_>) -> Result<HostOutput, ModelError>;
}

/// How to make a call: [`Call`] without a backend.
#[derive(Default)]
pub struct HostCall<'a> {
    /// Where to round.
    pub numerics: Numerics,
    /// Quirks of the released code to reproduce.
    pub switches: Switches,
    /// Choices to force.
    pub selections: Option<&'a Selections>,
    /// Where logits are wanted.
    pub logits: LogitsOf,
    /// An observer.
    pub probe: Option<&'a mut dyn HostProbe>,
}

/// What a call gives: [`dsv41::Output`] on the host.
#[derive(Debug, Clone)]
pub struct HostOutput {
    /// `[B, S, vocab]`
    pub logits: TensorData,
    /// What each layer's own scores chose.
    pub selections: Selections,
}

/// An observer of a call that sees numbers instead of tensors: [`Probe`] without a backend.
pub trait HostProbe {
    /// Sees a named result of `layer`, or of the whole model.
    fn record(&mut self, layer: Option<usize>, name: &'static str, data: TensorData);

    /// What `layer`'s `engram_in`, `h_in` or `pre_mix_in` is to be instead of what it is.
    fn replacement(&mut self, layer: usize, name: &'static str) -> Option<Vec<f64>>;
}

/// How to put a model on a device.
#[derive(Debug, Clone, Default)]
pub struct RunnerOptions {
    /// Width of parameters and results.
    pub precision: Precision,
    /// How activations enter products with packed matrices, where the device has the choice.
    pub activations: Activations,
    /// Each token's id in the engram's compressed vocabulary; the identity where absent.
    pub token_map: Option<Vec<u32>>,
    /// What is added to its matrices.
    pub adapters: Option<Adapters>,
}

/// Puts the model of `config` on `device` with `weights`.
///
/// # Errors
/// When the device cannot be used, the model cannot be built or an adapter does not fit it.
pub fn load(
    device: DeviceName,
    config: &Config,
    weights: &dyn WeightSource,
    options: RunnerOptions,
) -> Result<Box<dyn Runner>, LoadError> {
    device.dispatch(options.precision, Load { config, weights, options })?
}

struct Load<'a> {
    config: &'a Config,
    weights: &'a dyn WeightSource,
    options: RunnerOptions,
}

impl DeviceTask for Load<'_> {
    type Output = Result<Box<dyn Runner>, LoadError>;

    fn run<B: ModelBackend>(self, device: B::Device, dtype: DType) -> Self::Output {
        let RunnerOptions { activations, token_map, adapters, .. } = self.options;
        let options = LoadOptions { dtype, activations };
        let mut model = Transformer::<B>::load(self.config, self.weights, token_map, &device, options)?;
        if let Some(adapters) = adapters {
            adapters.load(&mut model)?;
        }
        let cache = Cache::new(self.config, 1, 0, 0)?;
        Ok(Box::new(DeviceRunner { model, cache }))
    }
}

struct DeviceRunner<B: Backend> {
    model: Transformer<B>,
    cache: Cache<B>,
}

impl<B: ModelBackend> Runner for DeviceRunner<B> {
    fn config(&self) -> &Config {
        self.model.config()
    }

    fn begin(&mut self, batch: usize, capacity: usize, rollback: usize) -> Result<(), ModelError> {
        self.cache = Cache::new(self.model.config(), batch, capacity, rollback)?;
        Ok(())
    }

    fn position(&self) -> usize {
        self.cache.len()
    }

    fn truncate(&mut self, len: usize) -> Result<(), ModelError> {
        self.cache.truncate(len)
    }

    fn forward(&mut self, tokens: &[Vec<u32>], call: HostCall<'_>) -> Result<HostOutput, ModelError> {
        let HostCall { numerics, switches, selections, logits, probe } = call;
        let mut on_host = probe.map(OnHost);
        let probe = on_host.as_mut().map(|probe| probe as &mut dyn Probe<B>);
        let call = Call { numerics, switches, selections, logits, probe, ..Call::default() };
        let output = self.model.forward(tokens, Some(&mut self.cache), call)?;
        Ok(HostOutput { logits: output.logits.into_data(), selections: output.selections })
    }
}

/// A host probe as the model takes it.
struct OnHost<'a>(&'a mut dyn HostProbe);

impl OnHost<'_> {
    fn replaced<B: Backend, const D: usize>(
        &mut self,
        layer: usize,
        name: &'static str,
        own: Tensor<B, D>,
    ) -> Tensor<B, D> {
        match self.0.replacement(layer, name) {
            Some(values) => Tensor::from_data(TensorData::new(values, own.dims()), (&own.device(), own.dtype())),
            None => own,
        }
    }
}

impl<B: Backend> Probe<B> for OnHost<'_> {
    fn record(&mut self, layer: Option<usize>, name: &'static str, data: TensorData) {
        self.0.record(layer, name, data);
    }

    fn stream(
        &mut self,
        layer: usize,
        point: StreamPoint,
        h: Tensor<B, 4>,
        pre_mix: Tensor<B, 3>,
    ) -> (Tensor<B, 4>, Tensor<B, 3>) {
        match point {
            StreamPoint::Engram => (self.replaced(layer, "engram_in", h), pre_mix),
            StreamPoint::Block => (self.replaced(layer, "h_in", h), self.replaced(layer, "pre_mix_in", pre_mix)),
        }
    }
}
