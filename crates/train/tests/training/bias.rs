//! The update of router biases.

use std::collections::BTreeMap;

use burn::{
    backend::{Autodiff, Flex},
    module::ParamId,
};
use dsv41::{ModelBackend, Transformer};
use dsv41_train::{
    objective::{ObjectiveReport, ObjectiveSettings},
    router_bias::{self, RouterBiasError, RouterLoad},
};

use crate::setup::Setup;

type B = Autodiff<Flex>;

fn biases<B: ModelBackend>(model: &Transformer<B>) -> Vec<(ParamId, Vec<f64>)> {
    let bias = |layer: &dsv41::Layer<B>| {
        let bias = &layer.block.ffn.router.bias;
        (bias.id, bias.val().to_data().iter::<f64>().collect())
    };
    model.layers.iter().map(bias).collect()
}

fn load(tokens: &[u64]) -> RouterLoad {
    RouterLoad { tokens: tokens.to_vec(), entropy: 1.0 }
}

#[test]
fn biases_move_against_the_load_by_one_rate() {
    let mut model: Transformer<B> = Setup::packed().model();
    let before = biases(&model);
    // Means of 5, and of 10/4, which no load is.
    let loads = BTreeMap::from([(1, load(&[9, 5, 5, 1])), (4, load(&[2, 3, 0, 5]))]);
    router_bias::update(&mut model, &loads, 0.25).expect("loads of this model");
    let directions = [[0.0; 4], [-1.0, 0.0, 0.0, 1.0], [0.0; 4], [0.0; 4], [1.0, -1.0, 1.0, -1.0], [0.0; 4]];
    for (((id, before), (id_after, after)), directions) in before.iter().zip(biases(&model)).zip(directions) {
        assert_eq!(*id, id_after);
        let expected: Vec<f64> = before.iter().zip(directions).map(|(bias, sign)| bias + 0.25 * sign).collect();
        assert_eq!(after, expected);
    }
    for layer in &model.layers {
        assert!(layer.block.ffn.router.bias.val().is_require_grad(), "as it was loaded");
    }
}

#[test]
fn loads_of_another_model_are_refused_and_nothing_changes() {
    let mut model: Transformer<B> = Setup::packed().model();
    let before = biases(&model);
    for (layer, tokens, said) in [
        (6, &[1, 2, 3, 4][..], "a router load of layer 6: the model has 6 layers"),
        (5, &[1, 2, 3], "a router load of 3 experts in layer 5, expected 4"),
    ] {
        let loads = BTreeMap::from([(0, load(&[4, 3, 2, 1])), (layer, load(tokens))]);
        let error: RouterBiasError = router_bias::update(&mut model, &loads, 0.25).expect_err("refused");
        assert_eq!(error.to_string(), said);
    }
    assert_eq!(biases(&model), before);
}

/// What the update is for.
#[test]
fn updates_even_the_load_out() {
    let setup = Setup::packed();
    let mut model: Transformer<Flex> = setup.model();
    let mut report = || -> ObjectiveReport {
        let mut objective = setup.objective(ObjectiveSettings::OFF, 1.0);
        setup.forward(&model, None, &mut objective);
        let report = objective.finish().expect("one call");
        router_bias::update(&mut model, &report.loads, 0.01).expect("loads of this model");
        report
    };
    let busiest = |report: &ObjectiveReport| {
        let loads = report.routers().iter().map(|router| router.max_load).collect::<Vec<_>>();
        loads.iter().sum::<f64>() / loads.len() as f64
    };
    let reports: Vec<ObjectiveReport> = (0..40).map(|_| report()).collect();
    let (first, last) = (busiest(&reports[0]), busiest(&reports[39]));
    assert!(reports[0].losses.is_empty(), "every loss is off");
    assert!(last < 1.0 + 0.25 * (first - 1.0), "{first} at first, {last} in the end");
}
