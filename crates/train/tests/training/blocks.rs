//! One layer at a time and all layers in one graph give the same, and count the same.

use burn::{
    backend::{Autodiff, Flex, autodiff::checkpoint::strategy::BalancedCheckpointing},
    optim::GradientsParams,
    tensor::backend::AutodiffBackend,
};
use dsv41::{BlockCall, ModelBackend, ModelError, Objective as _, Transformer};
use dsv41_train::{
    losses::Sequences,
    objective::{ObjectiveReport, ObjectiveSettings},
};

use crate::{
    common::tokens,
    setup::{Named, Setup, by_name},
};

const ALL: ObjectiveSettings = ObjectiveSettings { balance: 0.7, router_z: 0.3, indexer: 0.6, router_bias_rate: 0.0 };

fn whole<B: ModelBackend + AutodiffBackend>(setup: &Setup, scale: f64) -> (Named, ObjectiveReport) {
    let model: Transformer<B> = setup.model();
    let mut objective = setup.objective(ALL, scale);
    let x = setup.forward(&model, None, &mut objective);
    let loss = x.square().mean().mul_scalar(scale) + objective.take_loss().expect("losses of every layer");
    let gradients = GradientsParams::from_grads(loss.backward(), &model);
    (by_name(&model, &gradients), objective.finish().expect("one call"))
}

fn by_block<B>(setup: &Setup, scale: f64) -> (Named, ObjectiveReport)
where
    B: ModelBackend + AutodiffBackend,
    B::InnerBackend: ModelBackend,
{
    let model: Transformer<B> = setup.model();
    let mut objective = setup.objective(ALL, scale);
    let call = BlockCall { documents: Some(&setup.batch.documents), ..BlockCall::default() };
    let gradients = model
        .gradients_by_block::<ModelError>(&setup.batch.tokens, call, &mut objective, |x| {
            Ok(x.square().mean().mul_scalar(scale))
        })
        .expect("a valid call");
    (by_name(&model, &gradients), objective.finish().expect("one call"))
}

fn assert_same(found: &Named, expected: &Named) {
    assert_eq!(found.len(), expected.len());
    for ((name, found), (_, expected)) in found.iter().zip(expected) {
        let (Some(found), Some(expected)) = (found, expected) else {
            assert_eq!(found.is_some(), expected.is_some(), "{name}");
            continue;
        };
        let largest = expected.iter().fold(0.0_f64, |largest, value| largest.max(value.abs()));
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() <= 1e-10 * largest, "{name}: {found:e}, expected {expected:e}");
        }
    }
}

fn assert_reports(found: &ObjectiveReport, expected: &ObjectiveReport) {
    let close = |found: f64, expected: f64| (found - expected).abs() <= 1e-12 * expected.abs();
    assert!(found.losses.keys().eq(expected.losses.keys()));
    assert!(found.losses.keys().eq(["balance", "indexer", "router_z"]));
    for (name, expected) in &expected.losses {
        assert!(close(found.losses[name], *expected), "{name}: {}, expected {expected}", found.losses[name]);
    }
    assert!(found.loads.keys().eq(expected.loads.keys()));
    for (layer, expected) in &expected.loads {
        assert_eq!(found.loads[layer].tokens, expected.tokens, "layer {layer}");
        assert!(close(found.loads[layer].entropy, expected.entropy), "layer {layer}");
    }
}

#[test]
fn gradients_and_counts_block_by_block_are_those_of_one_graph() {
    let setup = Setup::packed();
    let (whole_gradients, whole_report) = whole::<Autodiff<Flex>>(&setup, 0.5);
    let (gradients, report) = by_block::<Autodiff<Flex>>(&setup, 0.5);
    assert_same(&gradients, &whole_gradients);
    assert_reports(&report, &whole_report);
    let (gradients, report) = whole::<Autodiff<Flex, BalancedCheckpointing>>(&setup, 0.5);
    assert_same(&gradients, &whole_gradients);
    assert_reports(&report, &whole_report);
}

#[test]
fn loads_are_the_tokens_that_went_to_each_expert() {
    let setup = Setup::packed();
    let selections = setup.selections(&setup.model::<Flex>());
    let (_, report) = by_block::<Autodiff<Flex>>(&setup, 1.0);
    assert_eq!(report.loads.len(), setup.config.n_layers);
    for (layer, load) in &report.loads {
        let experts = selections.layers[layer].experts.as_ref().expect("every layer has experts");
        let mut expected = vec![0; setup.config.n_routed_experts];
        for (choices, counts) in experts.chunks(setup.config.n_activated_experts).zip(setup.counts()) {
            choices.iter().for_each(|&expert| expected[expert as usize] += u64::from(counts));
        }
        assert_eq!(load.tokens, expected, "layer {layer}");
        let uniform = (setup.config.n_routed_experts as f64).ln();
        assert!(load.entropy > 0.5 * uniform && load.entropy < uniform, "layer {layer}: {}", load.entropy);
    }
}

/// Two micro-batches of one row each against one batch of both rows.
#[test]
fn micro_batches_sum_to_their_batch() {
    let both = {
        let mut setup = Setup::packed();
        setup.batch.documents = vec![vec![0]; 2];
        setup.batch.lengths = vec![vec![36]; 2];
        setup
    };
    let row = |row: usize| {
        let mut setup = Setup::packed();
        setup.batch.tokens = vec![tokens(2, 40, setup.config.vocab_size).swap_remove(row)];
        setup.batch.documents = vec![vec![0]];
        setup.batch.lengths = vec![vec![36]];
        setup
    };
    let (expected, expected_report) = whole::<Autodiff<Flex>>(&both, 1.0);
    let (mut gradients, mut report) = whole::<Autodiff<Flex>>(&row(0), 0.5);
    let (second, second_report) = by_block::<Autodiff<Flex>>(&row(1), 0.5);
    for ((name, sum), (_, second)) in gradients.iter_mut().zip(&second) {
        // An expert that a row has no token for has no gradient from it.
        match (sum.as_mut(), second) {
            (Some(sum), Some(second)) => sum.iter_mut().zip(second).for_each(|(sum, second)| *sum += second),
            (None, Some(second)) => *sum = Some(second.clone()),
            (Some(_), None) => assert!(name.contains("ffn.experts."), "{name}"),
            (None, None) => {}
        }
    }
    report.merge(second_report);
    let no_gradient = |gradients: &mut Named| gradients.retain(|(_, gradient)| gradient.is_some());
    no_gradient(&mut gradients);
    let mut expected = expected;
    no_gradient(&mut expected);
    assert_same(&gradients, &expected);
    assert_reports(&report, &expected_report);
}

#[test]
fn a_batch_that_is_described_wrongly_is_told_in_the_end() {
    let setup = Setup::packed();
    let model: Transformer<Flex> = setup.model();
    let mut objective =
        dsv41_train::objective::TrainingObjective::new(&ALL, Sequences::of_rows(2, 39), 1.0).expect("valid settings");
    setup.forward(&model, None, &mut objective);
    let error = objective.finish().expect_err("another number of tokens");
    assert_eq!(error.to_string(), "layer 0: the call has 80 tokens, the batch is described with 78, padding included");
}

#[test]
fn an_objective_is_for_one_call() {
    let setup = Setup::packed();
    let model: Transformer<Flex> = setup.model();
    let mut objective = setup.objective(ALL, 1.0);
    setup.forward(&model, None, &mut objective);
    setup.forward(&model, None, &mut objective);
    let error = objective.finish().expect_err("two calls");
    assert_eq!(error.to_string(), "layer 0 was seen twice, expected one call for each objective");
}
