//! The trainer: however a step is computed it is the same step, and a checkpoint goes on bit for bit.

use std::num::NonZeroUsize;

use burn::{
    backend::{Autodiff, Flex, NdArray},
    module::Module as _,
    tensor::{DType, TensorData, backend::AutodiffBackend},
};
use dsv41::{LoadOptions, ModelBackend, Transformer, parameters};
use dsv41_config::Config;
use dsv41_train::{
    InitialWeights,
    data::{Batch, BatchLayout, BatchStream, Manner, TaskExamples, alignment, tasks},
    optimiser::{GroupSettings, OptimiserSettings},
    trainer::{Recompute, Rounding, TrainError, Trainer, TrainerSettings},
};

use crate::common::config;

type Cpu = Autodiff<Flex>;

fn trainer<B>(settings: &TrainerSettings, dtype: DType) -> Trainer<B>
where
    B: ModelBackend + AutodiffBackend,
    B::InnerBackend: ModelBackend,
{
    let config = nano();
    let options = LoadOptions { dtype, ..LoadOptions::default() };
    let weights = InitialWeights::new(&config, 3);
    let model = Transformer::<B>::load(&config, &weights, None, &Default::default(), options).unwrap();
    Trainer::new(model, settings.clone()).unwrap()
}

fn nano() -> Config {
    config("nano.json")
}

fn settings() -> TrainerSettings {
    let mut optimiser = OptimiserSettings::uniform(GroupSettings::adamw(3e-3).with_weight_decay(0.01));
    optimiser.clip_norm = Some(1.0);
    optimiser.matrices.algorithm = GroupSettings::muon(3e-3).algorithm;
    TrainerSettings { optimiser, ..TrainerSettings::default() }
}

/// Batches of the arithmetic task, several examples in a row.
fn batches(rows: usize, count: usize) -> Vec<Batch> {
    let config = nano();
    let task = tasks::by_name("arithmetic").unwrap();
    let examples = TaskExamples::new(task, tasks::Split::Training, 5, 1000, config.vocab_size).unwrap();
    let layout = BatchLayout {
        rows,
        length: 64,
        alignment: alignment(&config),
        manner: Manner::Packed { look_ahead: 8 },
        padding: 0,
    };
    BatchStream::new(examples, layout, 5).unwrap().take(count).collect::<Result<_, _>>().unwrap()
}

/// Trains on each of the batches in turn: the losses.
fn train<B>(mut trainer: Trainer<B>, batches: &[Batch]) -> (Trainer<B>, Vec<f64>)
where
    B: ModelBackend + AutodiffBackend,
    B::InnerBackend: ModelBackend,
{
    let mut losses = Vec::new();
    for batch in batches {
        let gradients = trainer.gradients(std::slice::from_ref(batch)).unwrap();
        losses.push(gradients.totals.mean());
        trainer = trainer.step(gradients).unwrap().0;
    }
    (trainer, losses)
}

fn values<B: ModelBackend + AutodiffBackend>(model: &Transformer<B>) -> Vec<(String, TensorData)> {
    let mut values = Vec::new();
    parameters::visit_values(model, model.parameters(), |parameter, data| {
        values.push((parameter.name.clone(), data));
    });
    values
}

#[test]
fn a_checkpoint_goes_on_bit_for_bit() {
    fn check<B>()
    where
        B: ModelBackend + AutodiffBackend,
        B::InnerBackend: ModelBackend,
    {
        let batches = batches(2, 6);
        let (straight, losses) = train(trainer::<B>(&settings(), DType::F32), &batches);

        let folder = tempfile::tempdir().unwrap();
        let (half, mut resumed_losses) = train(trainer::<B>(&settings(), DType::F32), &batches[..3]);
        half.save(folder.path()).unwrap();
        drop(half);
        let resumed = trainer::<B>(&settings(), DType::F32).restore(folder.path()).unwrap();
        assert_eq!(resumed.steps(), 3);
        let (resumed, rest) = train(resumed, &batches[3..]);
        resumed_losses.extend(rest);
        assert_eq!(resumed_losses, losses);
        assert_eq!(values(resumed.model()), values(straight.model()));
    }
    check::<Cpu>();
    check::<Autodiff<NdArray<f32>>>();
}

#[test]
fn training_lowers_the_loss() {
    let batches = vec![batches(2, 1).remove(0); 12];
    let (_, losses) = train(trainer::<Cpu>(&settings(), DType::F32), &batches);
    assert!(losses[11] < 0.6 * losses[0], "{losses:?}");
}

#[test]
fn micro_batches_make_the_step_of_the_whole_batch_and_blocks_that_of_the_whole_graph() {
    let whole = batches(4, 1);
    let [batch] = &whole[..] else { unreachable!("one was asked for") };
    let parts: Vec<Batch> = batch_by_rows(batch);
    let off = dsv41_train::objective::ObjectiveSettings::OFF;
    let settings = |recompute| TrainerSettings { recompute, objective: off, ..settings() };
    let stepped = |recompute, batches: &[Batch]| {
        let trainer = trainer::<Cpu>(&settings(recompute), DType::F64);
        let gradients = trainer.gradients(batches).unwrap();
        let loss = gradients.totals.mean();
        (loss, values(trainer.step(gradients).unwrap().0.model()))
    };
    let expected = stepped(Recompute::None, &whole);
    for found in [stepped(Recompute::None, &parts), stepped(Recompute::Blocks, &whole)] {
        assert!((found.0 - expected.0).abs() < 1e-12 * expected.0, "{} {}", found.0, expected.0);
        for ((name, found), (_, expected)) in found.1.iter().zip(&expected.1) {
            for (found, expected) in found.iter::<f64>().zip(expected.iter::<f64>()) {
                assert!((found - expected).abs() <= 1e-6, "{name}: {found}, expected {expected}");
            }
        }
    }
}

fn batch_by_rows(batch: &Batch) -> Vec<Batch> {
    let mut lines = batch.lines.iter().copied();
    (0..batch.tokens.len())
        .map(|row| Batch {
            tokens: vec![batch.tokens[row].clone()],
            documents: vec![batch.documents[row].clone()],
            lengths: vec![batch.lengths[row].clone()],
            targets: vec![batch.targets[row].clone()],
            lines: lines.by_ref().take(batch.lengths[row].len()).collect(),
        })
        .collect()
}

#[test]
fn micro_batches_at_once_are_those_one_after_the_other() {
    let whole = batches(5, 1);
    let parts = batch_by_rows(&whole[0]);
    let stepped = |parallel| {
        let settings = TrainerSettings { parallel: NonZeroUsize::new(parallel).unwrap(), ..settings() };
        let trainer = trainer::<Cpu>(&settings, DType::F32);
        let gradients = trainer.gradients(&parts).unwrap();
        let (totals, layers) = (gradients.totals, gradients.layers.clone());
        (totals.mean(), layers, values(trainer.step(gradients).unwrap().0.model()))
    };
    let expected = stepped(1);
    assert_eq!(stepped(2), expected);
    assert_eq!(stepped(16), expected);
}

#[test]
fn what_is_frozen_stays_as_it_is() {
    let trainer = trainer::<Cpu>(&settings(), DType::F32);
    let mut model = trainer.model().clone();
    let before = values(&model);
    model.layers = model.layers.no_grad();
    let frozen = Trainer::new(model, settings()).unwrap();
    assert!(frozen.trained() < trainer.trained());
    let (frozen, _) = train(frozen, &batches(2, 2));
    for ((name, before), (_, after)) in before.iter().zip(values(frozen.model())) {
        assert_eq!(*before == after, name.starts_with("layers."), "{name}");
    }
}

#[test]
fn quantisation_aware_training_rounds_forward_and_still_learns() {
    let batches = vec![batches(2, 1).remove(0); 8];
    let settings = TrainerSettings { rounding: Rounding::Qat, ..settings() };
    let (trainer, losses) = train(trainer::<Cpu>(&settings, DType::F32), &batches);
    assert!(losses[7] < 0.8 * losses[0], "{losses:?}");
    let evaluated = trainer.evaluate(&batches[0]).unwrap();
    assert_eq!(evaluated.predicted.len(), batches[0].tokens.len());
    assert!(evaluated.totals.mean() < losses[7]);
}

#[test]
fn a_loss_that_is_not_finite_names_the_lines_and_the_activations() {
    let trainer = trainer::<Cpu>(&settings(), DType::F32);
    let mut model = trainer.model().clone();
    let weight = &mut model.layers[2].block.attn_norm.weight;
    *weight = weight.clone().map(|weight| weight * f32::NAN);
    let broken = Trainer::new(model, settings()).unwrap();
    let batch = batches(1, 1);
    let error = broken.gradients(&batch).unwrap_err();
    let lines = &batch[0].lines;
    assert!(matches!(&error, TrainError::NonFiniteLoss(fault) if fault.lines == *lines && fault.step == 1), "{error}");
    let said = error.to_string();
    assert!(said.contains("the first that is not finite is L2.attn_in"), "{said}");
    assert!(said.starts_with(&format!("step 1: the loss is NaN, of lines {}, ", lines[0])), "{said}");
}

#[test]
fn a_batch_without_targets_is_named() {
    let trainer = trainer::<Cpu>(&settings(), DType::F32);
    let mut batch = batches(1, 1).remove(0);
    batch.targets.iter_mut().flatten().for_each(|target| *target = None);
    let error = trainer.gradients(&[batch]).unwrap_err();
    assert!(error.to_string().starts_with("step 1: no token of lines "), "{error}");
}

#[test]
fn a_checkpoint_of_another_model_or_other_settings_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    trainer::<Cpu>(&settings(), DType::F32).save(folder.path()).unwrap();

    let other = TrainerSettings { optimiser: OptimiserSettings::uniform(GroupSettings::adamw(1.0)), ..settings() };
    let error = trainer::<Cpu>(&other, DType::F32).restore(folder.path()).unwrap_err().to_string();
    assert!(error.contains("optimiser.safetensors: the state was made with clip_norm Some(1.0)"), "{error}");

    let config = Config { moe_inter_dim: 64, ..nano() };
    let weights = InitialWeights::new(&config, 3);
    let model = Transformer::<Cpu>::load(&config, &weights, None, &Default::default(), LoadOptions::default()).unwrap();
    let error = Trainer::new(model, settings()).unwrap().restore(folder.path()).unwrap_err().to_string();
    assert!(error.contains("optimiser.safetensors: the state of parameter `layers.0.ffn.experts.0.w1"), "{error}");
}

#[test]
fn evaluation_needs_no_graph_and_changes_nothing() {
    let trainer = trainer::<Cpu>(&settings(), DType::F32);
    let batch = batches(2, 1).remove(0);
    let before = values(trainer.model());
    let first = trainer.evaluate(&batch).unwrap();
    assert_eq!(first, trainer.evaluate(&batch).unwrap());
    assert_eq!(before, values(trainer.model()));
    let gradients = trainer.gradients(std::slice::from_ref(&batch)).unwrap();
    assert!((gradients.totals.mean() - first.totals.mean()).abs() < 1e-5);
}
