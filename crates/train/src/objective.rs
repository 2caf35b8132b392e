//! What training minimises besides the head's loss, and what it counts on the way, as an objective of a model's calls.

use std::collections::BTreeMap;

use burn::tensor::Tensor;
use dsv41::{Indexing, Objective, Routing};
use dsv41_ops::{CustomOps, constant};
use serde::{Deserialize, Serialize};

use crate::{
    losses::{IndexerLoss, LossError, Sequences, balance_loss, router_entropy, router_z_loss},
    router_bias::RouterLoad,
    run::RouterMetrics,
};

/// Weights of the losses that come in addition to the head's, each a sum over the layers that have it; 0 turns one off.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ObjectiveSettings {
    /// Of [`balance_loss`].
    pub balance: f64,
    /// Of [`router_z_loss`].
    pub router_z: f64,
    /// Of [`IndexerLoss`].
    pub indexer: f64,
    /// How far a step of the optimiser moves the bias of an expert, see
    /// [`router_bias::update`](crate::router_bias::update); 0 leaves biases as they are.
    pub router_bias_rate: f64,
}

impl Default for ObjectiveSettings {
    /// As DeepSeek trained: balance 1e-4 and biases by 1e-3 ([V3](https://arxiv.org/abs/2412.19437), 4.2), no z-loss, and
    /// indexers that follow the attention ([V3.2](https://arxiv.org/abs/2512.02556), 2.1.1).
    fn default() -> Self {
        Self { balance: 1e-4, router_z: 0.0, indexer: 1.0, router_bias_rate: 1e-3 }
    }
}

impl ObjectiveSettings {
    /// The head's loss alone.
    pub const OFF: Self = Self { balance: 0.0, router_z: 0.0, indexer: 0.0, router_bias_rate: 0.0 };

    /// Checks every number.
    ///
    /// # Errors
    /// [`ObjectiveError::Setting`] for the first that is out of its range.
    pub fn validate(&self) -> Result<(), ObjectiveError> {
        let Self { balance, router_z, indexer, router_bias_rate } = *self;
        let settings = [
            ("balance", balance),
            ("router_z", router_z),
            ("indexer", indexer),
            ("router_bias_rate", router_bias_rate),
        ];
        match settings.into_iter().find(|(_, value)| !(*value >= 0.0 && value.is_finite())) {
            Some((key, found)) => Err(ObjectiveError::Setting { key, found }),
            None => Ok(()),
        }
    }
}

/// Why an objective cannot be made or has nothing to say.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ObjectiveError {
    /// A setting out of its range.
    #[error("setting objective.{key} is {found}, expected a number not below 0")]
    Setting {
        /// Its name.
        key: &'static str,
        /// Its value.
        found: f64,
    },
    /// A share of a step that is none.
    #[error("the share of a micro-batch is {found}, expected a number not below 0")]
    Scale {
        /// The share.
        found: f64,
    },
    /// A layer cannot be taken account of.
    #[error("layer {layer}: {source}")]
    Layer {
        /// The layer.
        layer: usize,
        /// Why.
        source: LossError,
    },
    /// An objective took part in more than one call.
    #[error("layer {layer} was seen twice, expected one call for each objective")]
    SeenTwice {
        /// The layer.
        layer: usize,
    },
    /// Results cannot be read from their device.
    #[error("losses cannot be read from their device: {0}")]
    Device(String),
}

/// The losses of a model's layers, for one call on one micro-batch.
///
/// As [`dsv41::Call::objective`] it sees every layer, and gives the weighted losses as terms of the call's loss: those of
/// all layers at once, or, where blocks are computed again for the backward pass, of one after the other. It sees each
/// layer once in both, so nothing counts twice. [`Self::finish`] says what there was.
#[derive(Debug)]
pub struct TrainingObjective<B: CustomOps> {
    settings: ObjectiveSettings,
    sequences: Sequences,
    scale: f64,
    /// Weighted losses since they were last taken.
    terms: Option<Tensor<B, 1>>,
    /// Unweighted losses by name, then by layer.
    losses: BTreeMap<&'static str, BTreeMap<usize, Tensor<B, 1>>>,
    /// Tokens of each expert and the entropy, by layer.
    loads: BTreeMap<usize, (Vec<u64>, Tensor<B, 1>)>,
    fault: Option<ObjectiveError>,
}

/// What there was in a micro-batch, or in several.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ObjectiveReport {
    /// Losses by name, unweighted: the mean over layers, times the share of the micro-batch. Those that are off are
    /// absent.
    pub losses: BTreeMap<String, f64>,
    /// What routers did, by layer.
    pub loads: BTreeMap<usize, RouterLoad>,
}

const BALANCE: &str = "balance";
const ROUTER_Z: &str = "router_z";
const INDEXER: &str = "indexer";

impl<B: CustomOps> TrainingObjective<B> {
    /// For a call on the batch that `sequences` describes.
    ///
    /// `scale` is the share of the batch in its step: with shares that sum to 1, the losses of a step's micro-batches sum
    /// to a mean.
    ///
    /// # Errors
    /// When a setting is out of its range, or the share is.
    pub fn new(settings: &ObjectiveSettings, sequences: Sequences, scale: f64) -> Result<Self, ObjectiveError> {
        settings.validate()?;
        if !(scale >= 0.0 && scale.is_finite()) {
            return Err(ObjectiveError::Scale { found: scale });
        }
        Ok(Self {
            settings: *settings,
            sequences,
            scale,
            terms: None,
            losses: BTreeMap::new(),
            loads: BTreeMap::new(),
            fault: None,
        })
    }

    /// What the call came to. All numbers are read from the device here, at once.
    ///
    /// # Errors
    /// When the call had more or fewer tokens than the batch, there was more than one, or the device fails.
    pub fn finish(self) -> Result<ObjectiveReport, ObjectiveError> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let (counts, entropies): (Vec<_>, Vec<_>) =
            self.loads.into_iter().map(|(layer, (tokens, entropy))| ((layer, tokens), entropy)).unzip();
        let losses = self.losses.values().flat_map(|by_layer| by_layer.values().cloned());
        let mut numbers = read(entropies.into_iter().chain(losses).collect())?.into_iter();

        let mut next = || numbers.next().expect("every tensor has one number");
        let loads = counts.into_iter().map(|(layer, tokens)| (layer, RouterLoad { tokens, entropy: next() })).collect();
        let mut mean = |layers: usize| (0..layers).map(|_| next()).sum::<f64>() / layers as f64;
        let losses = self
            .losses
            .iter()
            .map(|(name, by_layer)| ((*name).to_owned(), self.scale * mean(by_layer.len())))
            .collect();
        Ok(ObjectiveReport { losses, loads })
    }

    /// Adds a loss of a layer, where its weight is not 0.
    fn add(
        &mut self,
        name: &'static str,
        weight: f64,
        layer: usize,
        loss: impl FnOnce(&Sequences) -> Result<Tensor<B, 1>, LossError>,
    ) {
        if weight == 0.0 {
            return;
        }
        match loss(&self.sequences) {
            Ok(loss) => {
                if self.losses.entry(name).or_default().insert(layer, constant(loss.clone())).is_some() {
                    self.refuse(ObjectiveError::SeenTwice { layer });
                }
                let term = loss.mul_scalar(weight * self.scale);
                self.terms = Some(match self.terms.take() {
                    Some(terms) => terms + term,
                    None => term,
                });
            }
            Err(source) => self.refuse(ObjectiveError::Layer { layer, source }),
        }
    }

    /// Calls go on, and what was wrong first is said in the end.
    fn refuse(&mut self, fault: ObjectiveError) {
        self.fault.get_or_insert(fault);
    }
}

impl<B: CustomOps> Objective<B> for TrainingObjective<B> {
    fn routing(&mut self, layer: usize, routing: Routing<'_, B>) {
        let Routing { logits, scores, choices } = routing;
        let experts = scores.dims()[1];
        match router_entropy(scores.clone(), &self.sequences) {
            Ok(entropy) => {
                let tokens = RouterLoad::count(choices, experts, &self.sequences);
                if self.loads.insert(layer, (tokens, entropy)).is_some() {
                    self.refuse(ObjectiveError::SeenTwice { layer });
                }
            }
            Err(source) => self.refuse(ObjectiveError::Layer { layer, source }),
        }
        let ObjectiveSettings { balance, router_z, .. } = self.settings;
        self.add(BALANCE, balance, layer, |sequences| balance_loss(scores, choices, sequences));
        self.add(ROUTER_Z, router_z, layer, |sequences| router_z_loss(logits, sequences));
    }

    fn wants_indexing(&self) -> bool {
        self.settings.indexer > 0.0
    }

    fn indexing(&mut self, layer: usize, indexing: Indexing<'_, B>) {
        let loss = IndexerLoss::default();
        self.add(INDEXER, self.settings.indexer, layer, |sequences| loss.forward(indexing, sequences));
    }

    fn take_loss(&mut self) -> Option<Tensor<B, 1>> {
        self.terms.take()
    }
}

impl ObjectiveReport {
    /// Adds what there was in another micro-batch of the same step.
    pub fn merge(&mut self, other: Self) {
        for (name, loss) in other.losses {
            *self.losses.entry(name).or_default() += loss;
        }
        for (layer, load) in other.loads {
            self.loads.entry(layer).or_default().merge(&load);
        }
    }

    /// What a report says of routers.
    pub fn routers(&self) -> Vec<RouterMetrics> {
        self.loads.iter().map(|(&layer, load)| load.metrics(layer)).collect()
    }
}

/// The numbers of tensors of one element.
fn read<B: CustomOps>(tensors: Vec<Tensor<B, 1>>) -> Result<Vec<f64>, ObjectiveError> {
    if tensors.is_empty() {
        return Ok(Vec::new());
    }
    let numbers = Tensor::cat(tensors, 0).try_into_data();
    Ok(numbers.map_err(|error| ObjectiveError::Device(error.to_string()))?.iter::<f64>().collect())
}
