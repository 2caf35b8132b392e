//! Gradients of the whole model against finite differences, in f64.

use std::collections::BTreeMap;

use crate::common::{NamedWeights, config, tokens};
use burn::{
    backend::{Autodiff, NdArray},
    module::{Module as _, ModuleVisitor, Param},
    tensor::{DType, Tensor, backend::AutodiffBackend},
};
use dsv41::{Call, LoadOptions, ModelBackend, ModelError, Numerics, Selections, Transformer, WeightSource};
use dsv41_config::Config;

type Inner = NdArray<f64>;
type B = Autodiff<Inner>;

/// The part of a weight's name that all layers share: `attn.wq_a.weight`, `ffn.experts.w1.weight`, ...
fn kind(name: &str) -> String {
    name.split('.').filter(|part| *part != "layers" && part.parse::<usize>().is_err()).collect::<Vec<_>>().join(".")
}

/// Weights moved by `step` along a direction, where their kind is the one meant.
struct Moved<'a> {
    kind: &'a str,
    step: f64,
}

/// A direction of the same magnitude as the weights themselves.
fn direction(name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
    NamedWeights.weight(&format!("{name}/direction.embed"), shape)
}

impl WeightSource for Moved<'_> {
    fn weight(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        // Steps far below f32's resolution would be lost in a weight, so weights are moved on a coarse grid on which
        // both sides are exact.
        let grid = |x: f32| (f64::from(x) * 64.0).round() / 64.0;
        let mut values = NamedWeights.weight(name, shape)?;
        let moved = kind(name) == self.kind;
        for (value, along) in values.iter_mut().zip(direction(name, shape)?) {
            *value = (grid(*value) + if moved { self.step * grid(along) } else { 0.0 }) as f32;
        }
        Ok(values)
    }
}

/// The direction itself as a model, zero in other kinds.
struct Direction<'a>(&'a str);

impl WeightSource for Direction<'_> {
    fn weight(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        let along = Moved { kind: self.0, step: 1.0 }.weight(name, shape)?;
        let at = Moved { kind: self.0, step: 0.0 }.weight(name, shape)?;
        Ok(along.iter().zip(at).map(|(along, at)| along - at).collect())
    }
}

fn load<X: ModelBackend>(config: &Config, source: &dyn WeightSource) -> Transformer<X> {
    Transformer::load(
        config,
        source,
        None,
        &Default::default(),
        LoadOptions { dtype: DType::F64, ..LoadOptions::default() },
    )
    .expect("weights for every name")
}

/// A scalar that weighs every logit differently.
fn loss<X: ModelBackend>(model: &Transformer<X>, ids: &[Vec<u32>], selections: &Selections) -> Tensor<X, 1> {
    let call = Call { numerics: Numerics::Full, selections: Some(selections), ..Call::default() };
    let logits = model.forward(ids, None, call).expect("a valid call").logits;
    let [batch, seq, vocab] = logits.dims();
    let weights = Tensor::<X, 1, burn::tensor::Int>::arange(0..(batch * seq * vocab) as i64, &logits.device());
    let weights = weights.float().cast(DType::F64).mul_scalar(0.7).sin().reshape([batch, seq, vocab]);
    (logits.clone() * weights + logits.square().mul_scalar(0.1)).mean()
}

/// Parameters' values in visiting order.
#[derive(Default)]
struct Values(Vec<Vec<f64>>);

impl ModuleVisitor<Inner> for Values {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<Inner, D>>) {
        self.0.push(param.val().into_data().iter().collect());
    }
}

/// Gradients in the same order, none where none flows.
struct Gradients<'a> {
    of: &'a <B as AutodiffBackend>::Gradients,
    found: Vec<Option<Vec<f64>>>,
}

impl ModuleVisitor<B> for Gradients<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        self.found.push(param.val().grad(self.of).map(|gradient| gradient.into_data().iter().collect()));
    }
}

#[test]
fn every_kind_of_parameter_has_the_gradient_of_finite_differences() {
    // Long enough for full windows and selections; no activation reaches the release's SwiGLU limit, whose kinks finite
    // differences cannot see past.
    let config = config("tiny.json");
    let ids = tokens(2, 14, config.vocab_size);
    let nowhere = Moved { kind: "", step: 0.0 };
    let model: Transformer<B> = load(&config, &nowhere);
    let selections = model.forward(&ids, None, Call::default()).expect("a valid call").selections;
    let gradients = loss(&model, &ids, &selections).backward();
    let mut found = Gradients { of: &gradients, found: Vec::new() };
    model.visit(&mut found);

    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for tensor in config.tensors() {
        *kinds.entry(kind(&tensor.name)).or_default() += 1;
    }
    for kind in kinds.keys() {
        let mut along = Values::default();
        load::<Inner>(&config, &Direction(kind)).visit(&mut along);
        let pairs = || found.found.iter().zip(&along.0);
        let slope: f64 =
            pairs().filter_map(|(g, v)| Some(g.as_ref()?.iter().zip(v).map(|(g, v)| g * v).sum::<f64>())).sum();

        let step = 2f64.powi(-14);
        let at = |step: f64| {
            let moved: Transformer<Inner> = load(&config, &Moved { kind, step });
            loss(&moved, &ids, &selections).into_scalar()
        };
        // Richardson extrapolation of central differences.
        let central = |step: f64| (at(step) - at(-step)) / (2.0 * step);
        let want = (4.0 * central(step / 2.0) - central(step)) / 3.0;
        if takes_no_gradient(kind) {
            assert_eq!(slope, 0.0, "{kind}");
            assert!(want.abs() < 1e-12, "{kind} moves the loss by {want}");
        } else {
            assert!((slope - want).abs() <= 1e-6 * want.abs().max(1e-5), "{kind}: {slope:e}, expected {want:e}");
        }
    }
}

/// Selections are choices: what only decides them has no gradient.
fn takes_no_gradient(kind: &str) -> bool {
    kind == "ffn.gate.bias" || kind.starts_with("attn.indexer.")
}
