//! Balancing of experts without a loss: after each step, the bias that a router chooses by moves against the load.

use std::{cmp::Ordering, collections::BTreeMap};

use burn::tensor::{Tensor, TensorData};
use dsv41::{ModelBackend, Transformer};
use dsv41_ops::constant;

use crate::{losses::Sequences, run::RouterMetrics};

/// What the router of one layer did with the tokens that count.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RouterLoad {
    /// Tokens that went to each expert.
    pub tokens: Vec<u64>,
    /// The entropy of the router's distribution over experts, in nats: mean over tokens.
    pub entropy: f64,
}

/// Why router biases cannot be updated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RouterBiasError {
    /// A load of a layer that does not exist.
    #[error("a router load of layer {layer}: the model has {layers} layers")]
    NoLayer {
        /// The layer.
        layer: usize,
        /// Layers of the model.
        layers: usize,
    },
    /// A load of more or fewer experts.
    #[error("a router load of {found} experts in layer {layer}, expected {expected}")]
    Experts {
        /// The layer.
        layer: usize,
        /// Experts of the load.
        found: usize,
        /// Experts of the layer.
        expected: usize,
    },
}

impl RouterLoad {
    /// The tokens of each of `experts`, given the experts that each token went to, `[N, K]`.
    pub(crate) fn count(choices: &[i64], experts: usize, sequences: &Sequences) -> Vec<u64> {
        let mut tokens = vec![0; experts];
        let activated = choices.len() / sequences.positions();
        for (choices, sequence) in choices.chunks_exact(activated).zip(sequences.of_tokens()) {
            if sequence.is_some() {
                choices.iter().for_each(|&expert| tokens[expert as usize] += 1);
            }
        }
        tokens
    }

    /// Adds the load of the same router in another micro-batch. The entropy stays a mean over tokens.
    pub fn merge(&mut self, other: &Self) {
        let [here, there] = [&self.tokens, &other.tokens].map(|tokens| tokens.iter().sum::<u64>() as f64);
        if here + there > 0.0 {
            self.entropy = (self.entropy * here + other.entropy * there) / (here + there);
        }
        self.tokens.resize(self.tokens.len().max(other.tokens.len()), 0);
        self.tokens.iter_mut().zip(&other.tokens).for_each(|(sum, tokens)| *sum += tokens);
    }

    /// What a report says of it.
    pub fn metrics(&self, layer: usize) -> RouterMetrics {
        RouterMetrics::from_counts(layer, &self.tokens, self.entropy)
    }

    /// By how many rates the bias of each expert moves: 1 below the mean load, -1 above, 0 at it.
    fn directions(&self) -> impl Iterator<Item = f64> {
        let total: u64 = self.tokens.iter().sum();
        // The mean is a fraction; times the number of experts, the comparison is one of integers.
        let experts = self.tokens.len() as u64;
        self.tokens.iter().map(move |tokens| match (tokens * experts).cmp(&total) {
            Ordering::Less => 1.0,
            Ordering::Equal => 0.0,
            Ordering::Greater => -1.0,
        })
    }
}

/// Moves the biases of routers against the loads of a step, `bias_i += rate * sign(mean load - load_i)`, given the loads
/// by layer. Layers without a load keep theirs.
///
/// From [auxiliary-loss-free load balancing](https://arxiv.org/abs/2408.15664), algorithm 1, with which
/// [DeepSeek-V3](https://arxiv.org/abs/2412.19437) was trained (2.1.2). The bias only decides where tokens go and has no
/// gradient, so this is all that changes it: once for each step of the optimiser, after it, by the loads of all of the
/// step's micro-batches together.
///
/// # Errors
/// When a load is of a layer that does not exist or has more or fewer experts than the layer. Nothing is changed then.
pub fn update<B: ModelBackend>(
    model: &mut Transformer<B>,
    loads: &BTreeMap<usize, RouterLoad>,
    rate: f64,
) -> Result<(), RouterBiasError> {
    let layers = model.layers.len();
    for (&layer, load) in loads {
        let router = model.layers.get(layer).map(|layer| &layer.block.ffn.router);
        let expected = router.ok_or(RouterBiasError::NoLayer { layer, layers })?.bias.dims()[0];
        let found = load.tokens.len();
        if found != expected {
            return Err(RouterBiasError::Experts { layer, found, expected });
        }
    }
    for (&layer, load) in loads {
        let bias = &mut model.layers[layer].block.ffn.router.bias;
        *bias = bias.clone().map(|bias| moved(bias, load, rate));
    }
    Ok(())
}

/// A parameter's new values, which are a leaf that requires a gradient where the old ones were.
fn moved<B: ModelBackend>(bias: Tensor<B, 1>, load: &RouterLoad, rate: f64) -> Tensor<B, 1> {
    let steps: Vec<f64> = load.directions().map(|direction| direction * rate).collect();
    let steps = TensorData::new(steps, [load.tokens.len()]);
    let steps = Tensor::from_data(steps, (&bias.device(), bias.dtype()));
    let requires_gradient = bias.is_require_grad();
    (constant(bias) + steps).set_require_grad(requires_gradient)
}
