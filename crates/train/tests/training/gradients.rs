//! Gradients of the objective's losses through whole models, in f64.

use std::collections::HashMap;

use burn::{
    backend::{Autodiff, Flex},
    module::{Module, ModuleMapper, Param, ParamId},
    optim::GradientsParams,
    tensor::{DType, Tensor, TensorData, backend::Backend},
};
use dsv41::{ModelBackend, Objective as _, Selections, Transformer, WeightSource as _};
use dsv41_train::objective::ObjectiveSettings;

use crate::{
    common::NamedWeights,
    setup::{Named, Setup, by_name, value},
};

type Inner = Flex;
type B = Autodiff<Inner>;

const ROUTERS: ObjectiveSettings = ObjectiveSettings { balance: 0.7, router_z: 0.3, ..ObjectiveSettings::OFF };
const INDEXERS: ObjectiveSettings = ObjectiveSettings { indexer: 0.6, ..ObjectiveSettings::OFF };

/// Moves parameters along a direction that follows from their names.
struct Move {
    names: HashMap<ParamId, String>,
    step: f64,
}

/// As large as the weight itself, in the axes it has in memory.
fn direction(name: &str, dims: &[usize]) -> Vec<f32> {
    NamedWeights.weight(&format!("{name}/direction.embed"), dims).expect("a weight for every name")
}

impl<B: Backend> ModuleMapper<B> for Move {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let Some(name) = self.names.get(&param.id) else { return param };
        param.map(|tensor| {
            let along = TensorData::new(direction(name, &tensor.dims()), tensor.dims());
            let along = Tensor::from_data(along, (&tensor.device(), DType::F64));
            tensor + along.mul_scalar(self.step)
        })
    }
}

/// The gradients of an objective's losses alone, all selections given.
fn gradients(setup: &Setup, settings: ObjectiveSettings, selections: &Selections) -> Named {
    let model = setup.model::<B>();
    let mut objective = setup.objective(settings, 0.5);
    setup.forward(&model, Some(selections), &mut objective);
    let loss = objective.take_loss().expect("losses of every layer");
    by_name(&model, &GradientsParams::from_grads(loss.backward(), &model))
}

/// Compares the slope of an objective's losses along a direction of the parameters that are `meant` with finite
/// differences of about a step.
fn compare(setup: &Setup, settings: ObjectiveSettings, step: f64, meant: impl Fn(&str) -> bool) {
    let model = setup.model::<Inner>();
    let selections = setup.selections(&model);
    let parameters: Vec<_> = model.parameters().iter().filter(|parameter| meant(&parameter.name)).cloned().collect();
    assert!(!parameters.is_empty());

    let of: HashMap<_, _> = gradients(setup, settings, &selections).into_iter().collect();
    let mut slope = 0.0;
    for parameter in &parameters {
        let Some(gradient) = &of[&parameter.name] else { continue };
        // Gradients come in the layout of files, the direction in that of memory.
        let along = Tensor::<Inner, 1>::from_floats(
            direction(&parameter.name, &parameter.dims).as_slice(),
            &Default::default(),
        );
        let along: Vec<f64> = match parameter.dims[..] {
            [one, two] => parameter.to_stored(along.reshape([one, two])).iter().collect(),
            [one, two, three] => parameter.to_stored(along.reshape([one, two, three])).iter().collect(),
            _ => parameter.to_stored(along).iter().collect(),
        };
        slope += gradient.iter().zip(&along).map(|(gradient, along)| gradient * along).sum::<f64>();
    }

    let at = |step: f64| {
        let names = parameters.iter().map(|parameter| (parameter.id, parameter.name.clone())).collect();
        let moved = setup.model::<Inner>().map(&mut Move { names, step });
        objective_loss(setup, settings, &moved, &selections)
    };
    // Richardson extrapolation of central differences.
    let central = |step: f64| (at(step) - at(-step)) / (2.0 * step);
    let expected = (4.0 * central(step / 2.0) - central(step)) / 3.0;
    assert!((slope - expected).abs() <= 1e-7 * expected.abs(), "{slope:e}, expected {expected:e}");
}

fn objective_loss<X: ModelBackend>(
    setup: &Setup,
    settings: ObjectiveSettings,
    model: &Transformer<X>,
    selections: &Selections,
) -> f64 {
    let mut objective = setup.objective(settings, 0.5);
    setup.forward(model, Some(selections), &mut objective);
    value(&objective.take_loss().expect("losses of every layer"))
}

/// The router's own weight, and everything before it, by way of its input.
///
/// Steps are small because an engram's gate takes the root of a product that is close to zero for some token.
#[test]
fn losses_of_routers_have_the_gradients_of_finite_differences() {
    let setup = Setup::packed();
    compare(&setup, ROUTERS, 2f64.powi(-14), |name| name.ends_with("ffn.gate.weight"));
    compare(&setup, ROUTERS, 2f64.powi(-20), |_| true);
}

#[test]
fn losses_of_indexers_have_the_gradients_of_finite_differences() {
    let setup = Setup::packed();
    for part in ["wq_b.weight", "weights_proj.weight", "wk.weight", "k_norm.weight"] {
        compare(&setup, INDEXERS, 2f64.powi(-14), |name| name.contains("attn.indexer.") && name.ends_with(part));
    }
}

#[test]
fn losses_of_indexers_reach_indexers_and_nothing_else() {
    let setup = Setup::packed();
    let selections = setup.selections(&setup.model::<Inner>());
    let mut reached = Vec::new();
    for (name, gradient) in gradients(&setup, INDEXERS, &selections) {
        let moves = gradient.is_some_and(|gradient| gradient.iter().any(|&gradient| gradient != 0.0));
        assert_eq!(moves, name.contains(".attn.indexer."), "{name}");
        reached.extend(moves.then_some(name));
    }
    reached.sort();
    // Layer 5 scores the keys that layer 4 makes.
    let expected = [
        (2, vec!["k_norm", "weights_proj", "wk", "wq_b"]),
        (4, vec!["k_norm", "weights_proj", "wk", "wq_b"]),
        (5, vec!["weights_proj", "wq_b"]),
    ];
    let expected: Vec<String> = expected
        .iter()
        .flat_map(|(layer, parts)| parts.iter().map(move |part| format!("layers.{layer}.attn.indexer.{part}.weight")))
        .collect();
    assert_eq!(reached, expected);
}

#[test]
fn losses_of_routers_leave_biases_and_indexers_alone() {
    let setup = Setup::packed();
    let selections = setup.selections(&setup.model::<Inner>());
    for (name, gradient) in gradients(&setup, ROUTERS, &selections) {
        if name.ends_with("ffn.gate.bias") || name.contains(".attn.indexer.") {
            assert_eq!(gradient, None, "{name}");
        }
        if name.ends_with("ffn.gate.weight") {
            assert!(gradient.is_some_and(|gradient| gradient.iter().any(|&gradient| gradient != 0.0)), "{name}");
        }
    }
}

/// What the loss is for: an indexer that is trained by it alone comes closer to the attention.
#[test]
fn steps_along_the_gradient_bring_an_indexer_closer_to_the_attention() {
    let setup = Setup::packed();
    let selections = setup.selections(&setup.model::<Inner>());
    let mut model = setup.model::<B>();
    let mut losses = Vec::new();
    for _ in 0..6 {
        let mut objective = setup.objective(INDEXERS, 1.0);
        setup.forward(&model, Some(&selections), &mut objective);
        let gradients = objective.take_loss().expect("losses of every layer").backward();
        let gradients = GradientsParams::from_grads(gradients, &model);
        losses.push(objective.finish().expect("one call").losses["indexer"]);
        model = burn::optim::Optimizer::step(&mut burn::optim::SgdConfig::new().init(), 0.2, model, gradients);
    }
    assert!(losses.is_sorted_by(|one, next| next < one), "{losses:?}");
}
