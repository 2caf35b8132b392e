//! What training minimises besides the head's loss, and what it counts on the way, as an objective of a model's calls.

mod error;
mod report;
mod settings;

use std::collections::{BTreeMap, BTreeSet};

use burn::tensor::{Tensor, TensorData};
use dsv41::{Indexing, Objective, Routing};
use dsv41_ops::{CustomOps, constant};

use crate::{
    losses::{IndexerLoss, LossError, Sequences, balance_loss, router_entropy, router_z_loss},
    router_bias::RouterLoad,
};
pub use error::ObjectiveError;
pub use report::ObjectiveReport;
pub use settings::ObjectiveSettings;

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
    /// Layers whose engram tables are trained by rows.
    tables: BTreeSet<usize>,
    /// What was looked up in them in the graph that is not differentiated yet.
    looked_up: Vec<(usize, Vec<i64>, Tensor<B, 2>)>,
    row_gradients: Vec<LookUpGradients>,
    fault: Option<ObjectiveError>,
}

/// The gradients of a layer's look-ups in its engram table.
#[derive(Debug, Clone, PartialEq)]
pub struct LookUpGradients {
    /// The layer.
    pub layer: usize,
    /// Rows that were looked up, in any order and as often as they were.
    pub rows: Vec<i64>,
    /// `[rows, width]`
    pub gradients: TensorData,
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
            tables: BTreeSet::new(),
            looked_up: Vec::new(),
            row_gradients: Vec::new(),
            fault: None,
        })
    }

    /// The same, with gradients of the rows that these layers look up in their engram tables.
    pub fn with_tables(self, layers: BTreeSet<usize>) -> Self {
        Self { tables: layers, ..self }
    }

    /// The gradients of table rows since they were last taken.
    pub fn take_row_gradients(&mut self) -> Vec<LookUpGradients> {
        std::mem::take(&mut self.row_gradients)
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

    fn engram_rows(&mut self, layer: usize, rows: &[i64], values: Tensor<B, 2>) -> Tensor<B, 2> {
        if !self.tables.contains(&layer) {
            return values;
        }
        let leaf = values.require_grad();
        self.looked_up.push((layer, rows.to_vec(), leaf.clone()));
        leaf
    }

    fn backward(&mut self, gradient: &dyn Fn(&Tensor<B, 2>) -> Option<TensorData>) {
        for (layer, rows, leaf) in self.looked_up.drain(..) {
            if let Some(gradients) = gradient(&leaf) {
                self.row_gradients.push(LookUpGradients { layer, rows, gradients });
            }
        }
    }

    fn take_loss(&mut self) -> Option<Tensor<B, 1>> {
        self.terms.take()
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
