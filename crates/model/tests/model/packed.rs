//! Models whose matrices stay packed, against the same models with their matrices dequantised.

use std::sync::Arc;

use crate::common::{NamedWeights, config, tokens};
use burn::{
    backend::{Autodiff, Flex, NdArray},
    tensor::DType,
};
use dsv41::{Cache, Call, LoadOptions, LogitsOf, ModelBackend, ModelError, RowSource, Transformer, WeightSource};
use dsv41_config::Config;
use dsv41_quant::{GgmlType, PackedMatrix};

/// Weights made from names, quantised where their rows divide into blocks of 32: given packed, or widened again.
struct Quantised {
    keep_packed: bool,
}

impl Quantised {
    fn matrix(&self, name: &str, shape: &[usize]) -> Result<Option<PackedMatrix>, ModelError> {
        let [rows, columns] = *shape else { return Ok(None) };
        // The mixers are parameters in every file.
        if !columns.is_multiple_of(GgmlType::Q8_0.block_len()) || name.contains("hc_") || name.contains("_weight") {
            return Ok(None);
        }
        let values = NamedWeights.weight(name, shape)?;
        let ty = if columns.is_multiple_of(64) { GgmlType::Q8_0 } else { GgmlType::F16 };
        Ok(Some(PackedMatrix::quantise(ty, &values, [rows, columns], None).expect("finite values in whole blocks")))
    }
}

impl WeightSource for Quantised {
    fn weight(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        match self.matrix(name, shape)? {
            Some(matrix) => Ok(matrix.dequantise()),
            None => NamedWeights.weight(name, shape),
        }
    }

    fn packed(&self, name: &str, shape: [usize; 2]) -> Result<Option<PackedMatrix>, ModelError> {
        if self.keep_packed { self.matrix(name, &shape) } else { Ok(None) }
    }

    fn rows(&self, name: &str, shape: [usize; 2]) -> Result<Option<Arc<dyn RowSource>>, ModelError> {
        Ok(self.packed(name, shape)?.map(|matrix| Arc::new(matrix) as Arc<dyn RowSource>))
    }
}

fn load<B: ModelBackend>(config: &Config, keep_packed: bool, dtype: DType) -> Transformer<B> {
    let options = LoadOptions { dtype, ..LoadOptions::default() };
    Transformer::load(config, &Quantised { keep_packed }, None, &B::Device::default(), options).expect("all weights")
}

fn logits<B: ModelBackend>(model: &Transformer<B>, tokens: &[Vec<u32>]) -> Vec<f64> {
    model.forward(tokens, None, Call::default()).expect("a valid call").logits.into_data().iter().collect()
}

/// Prefill of a batch, in f32 by the kernels and in f64 by tiles.
fn packed_is_dequantised<B: ModelBackend>(dtype: DType, tolerance: f64) {
    let config = config("tiny.json");
    let ids = tokens(2, 29, config.vocab_size);
    let packed = logits(&load::<B>(&config, true, dtype), &ids);
    let dense = logits(&load::<B>(&config, false, dtype), &ids);
    let largest = dense.iter().fold(0.0_f64, |largest, x| largest.max(x.abs()));
    for (index, (packed, dense)) in packed.iter().zip(&dense).enumerate() {
        assert!((packed - dense).abs() <= tolerance * largest, "logit {index} is {packed}, expected {dense}");
    }
}

#[test]
fn packed_models_compute_what_dequantised_ones_do() {
    packed_is_dequantised::<Flex>(DType::F32, 1e-5);
    packed_is_dequantised::<NdArray<f32>>(DType::F32, 1e-5);
    packed_is_dequantised::<Flex>(DType::F64, 1e-12);
    packed_is_dequantised::<NdArray<f64>>(DType::F64, 1e-12);
}

#[test]
fn gradients_pass_through_packed_models() {
    type B = Autodiff<NdArray<f64>>;
    let config = config("tiny.json");
    let ids = tokens(1, 20, config.vocab_size);
    let gradients = |keep_packed| {
        let model = load::<B>(&config, keep_packed, DType::F64);
        let loss = model.forward(&ids, None, Call::default()).expect("a valid call").logits.square().mean();
        let mut gradients = loss.backward();
        // The first layer's mixer is as far from the loss as a parameter can be.
        let mixer = model.layers[0].block.hc_attn.function.grad_remove(&mut gradients);
        mixer.expect("the mixer takes a gradient").into_data().iter::<f64>().collect::<Vec<_>>()
    };
    let (packed, dense) = (gradients(true), gradients(false));
    let largest = dense.iter().fold(0.0_f64, |largest, g| largest.max(g.abs()));
    assert!(largest > 0.0);
    for (packed, dense) in packed.iter().zip(&dense) {
        assert!((packed - dense).abs() <= 1e-9 * largest, "{packed}, expected {dense}");
    }
}

#[test]
fn the_last_logits_are_those_of_the_last_position() {
    let config = config("tiny.json");
    let model = load::<Flex>(&config, true, DType::F32);
    let ids = tokens(2, 17, config.vocab_size);
    let run = |which| {
        let mut cache = Cache::new(&config, 2, 32, 0).expect("fits the context");
        let call = Call { logits: which, ..Call::default() };
        model.forward(&ids, Some(&mut cache), call).expect("a valid call").logits
    };
    let last = run(LogitsOf::Last);
    assert_eq!(last.dims(), [2, 1, config.vocab_size]);
    let difference = (run(LogitsOf::Every).narrow(1, 16, 1) - last).abs().max().into_scalar();
    assert!(difference <= 1e-5, "{difference}");
}
