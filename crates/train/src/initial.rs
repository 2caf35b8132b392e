//! Weights to begin training with.

use dsv41::{ModelError, WeightSource};
use dsv41_config::Config;
use rand::Rng as _;
use rand_distr::StandardNormal;

use crate::data::random::{Purpose, generator};

/// How far a hyper-connection's data-dependent part reaches at first, as in
/// [mHC](https://arxiv.org/abs/2512.24880), table 5.
const MIX_SCALE: f32 = 0.01;
/// The logit by which a residual copy prefers itself in the first `comb`: each keeps 95% of itself with four copies.
const OWN_COPY: f32 = 4.0;
/// Rows of engram tables begin small, so that n-grams that were never seen add next to nothing.
const ENGRAM_ROW: f32 = 0.02;

/// Random weights for a model that is trained from scratch.
///
/// Matrices are normal with the deviation `inputs^-0.5`, so that they keep the size of what goes through; those that
/// write to the residual stream (`wo_b`, `w2`) are smaller by `(2 * layers)^0.5`, as in
/// [GPT-2](https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf).
/// Norms and the engrams' gate weights are one, sinks and router biases zero. Hyper-connections begin as a plain
/// residual connection: sublayers read the mean of the copies and are added to each.
///
/// Every weight follows from the seed and its own name alone: neither the device nor what else the model has matters.
#[derive(Debug, Clone)]
pub struct InitialWeights {
    seed: u64,
    copies: usize,
    layers: usize,
}

impl InitialWeights {
    /// Weights for models of this shape.
    pub fn new(config: &Config, seed: u64) -> Self {
        Self { seed, copies: config.hc_mult, layers: config.n_layers }
    }

    fn normal(&self, name: &str, count: usize, deviation: f32) -> Vec<f32> {
        // FNV-1a of the name.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let random = generator(Purpose::Weight, [self.seed, hash, 0]);
        random.sample_iter::<f32, _>(StandardNormal).map(|value| value * deviation).take(count).collect()
    }

    /// `base` of a mixer: the logits of `pre`, then of `post`, then of `comb`, row by row.
    fn mix_base(&self) -> Vec<f32> {
        let copies = self.copies;
        // sigmoid(-ln(copies - 1)) is 1 / copies; of one copy there is all, as far as a sigmoid gives it.
        let pre = if copies == 1 { OWN_COPY } else { -((copies - 1) as f32).ln() };
        // Twice sigmoid(0) is 1.
        let post = 0.0;
        let comb = (0..copies * copies).map(|place| if place % (copies + 1) == 0 { OWN_COPY } else { 0.0 });
        std::iter::repeat_n(pre, copies).chain(std::iter::repeat_n(post, copies)).chain(comb).collect()
    }
}

impl WeightSource for InitialWeights {
    fn weight(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        let count = shape.iter().product();
        let last = name.strip_suffix(".weight").unwrap_or(name);
        let last = last.rsplit('.').next().unwrap_or(last);
        Ok(match (last, shape) {
            ("hc_attn_base" | "hc_ffn_base", _) => self.mix_base(),
            ("hc_attn_scale" | "hc_ffn_scale", _) => vec![MIX_SCALE; count],
            ("attn_sink" | "bias", _) => vec![0.0; count],
            ("embed", _) if name.contains(".engram.") => self.normal(name, count, ENGRAM_ROW),
            ("embed", _) => self.normal(name, count, 1.0),
            // Norms, and the engrams' q_weight and k_weight, of which some are two-dimensional.
            ("q_weight" | "k_weight", _) | (_, [_]) => vec![1.0; count],
            ("wo_b" | "w2", &[.., inputs]) => self.normal(name, count, ((inputs * 2 * self.layers) as f32).powf(-0.5)),
            (_, &[.., inputs]) => self.normal(name, count, (inputs as f32).powf(-0.5)),
            (_, []) => vec![0.0; count],
        })
    }
}

#[cfg(test)]
mod tests {
    use burn::{
        backend::Flex,
        tensor::{DType, Tensor},
    };
    use dsv41::{Call, LoadOptions, Transformer};

    use super::*;

    fn nano() -> Config {
        Config::from_json("nano.json", include_str!("../../../configs/nano.json")).unwrap()
    }

    #[test]
    fn weights_follow_from_seed_and_name() {
        let weights = |seed, name| InitialWeights::new(&nano(), seed).weight(name, &[64, 96]).unwrap();
        let name = "layers.0.attn.wq_a.weight";
        assert_eq!(weights(1, name), weights(1, name));
        assert_ne!(weights(1, name), weights(2, name));
        assert_ne!(weights(1, name), weights(1, "layers.1.attn.wq_a.weight"));
        let squares: f32 = weights(1, name).iter().map(|value| value * value).sum();
        // The sum of 6144 squares of mean 1/96: five standard deviations.
        assert!((squares / 64.0 - 1.0).abs() < 0.1, "{squares}");
    }

    #[test]
    fn a_model_begins_without_an_opinion() {
        let config = nano();
        let device = Default::default();
        let model =
            Transformer::<Flex>::load(&config, &InitialWeights::new(&config, 7), None, &device, LoadOptions::default())
                .unwrap();
        let tokens: Vec<u32> = (0..64).map(|i| i * 37 % 256).collect();
        let logits = model.forward(&[tokens], None, Call::default()).unwrap().logits;
        let entropy: Tensor<Flex, 1> = {
            let log = burn::tensor::activation::log_softmax(logits.cast(DType::F32), 2);
            (log.clone().exp() * log).sum_dim(2).neg().mean()
        };
        let found: f32 = entropy.into_scalar();
        // Logits of deviation 1 cost half a nat.
        assert!((found - 256f32.ln()).abs() < 0.7, "{found}, an even guess has {}", 256f32.ln());
    }
}
