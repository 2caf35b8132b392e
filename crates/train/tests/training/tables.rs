//! Engram tables that are trained by rows: as tensors are trained, and over checkpoints.

use std::path::Path;

use burn::{
    backend::{Autodiff, Flex},
    tensor::DType,
};
use dsv41::{LoadOptions, Transformer, WeightSource as _, parameters};
use dsv41_config::Config;
use dsv41_train::{
    InitialWeights,
    data::{Batch, BatchLayout, BatchStream, Manner, TaskExamples, alignment, tasks},
    optimiser::{GroupSettings, OptimiserSettings, ParameterGroup},
    tables::{EngramTables, TableStorage},
    trainer::{Recompute, Trainer, TrainerSettings},
};

use crate::common::config;

type Cpu = Autodiff<Flex>;

fn nano() -> Config {
    config("nano.json")
}

fn settings(recompute: Recompute) -> TrainerSettings {
    let mut optimiser = OptimiserSettings::uniform(GroupSettings::adamw(3e-3));
    // What clips the gradients of the other parameters clips those of rows.
    optimiser.clip_norm = Some(0.1);
    TrainerSettings { optimiser, recompute, ..TrainerSettings::default() }
}

fn batches(count: usize) -> Vec<Batch> {
    let config = nano();
    let task = tasks::by_name("arithmetic").unwrap();
    let examples = TaskExamples::new(task, tasks::Split::Training, 5, 1000, config.vocab_size).unwrap();
    let layout = BatchLayout {
        rows: 2,
        length: 64,
        alignment: alignment(&config),
        manner: Manner::Packed { look_ahead: 8 },
        padding: 0,
    };
    BatchStream::new(examples, layout, 5).unwrap().take(count).collect::<Result<_, _>>().unwrap()
}

/// A trainer whose engram tables are in a folder, in memory, or in tensors.
fn trainer(storage: TableStorage, folder: &Path, recompute: Recompute) -> Trainer<Cpu> {
    let (config, settings) = (nano(), settings(recompute));
    let weights = InitialWeights::new(&config, 3);
    let engram = &settings.optimiser.engram;
    let tables = match storage {
        TableStorage::Tensor => EngramTables::default(),
        TableStorage::Memory => EngramTables::in_memory(&config, &weights, engram).unwrap(),
        TableStorage::File => EngramTables::in_folder(&config, &weights, engram, folder).unwrap(),
    };
    let options = LoadOptions { dtype: DType::F64, ..LoadOptions::default() };
    let model = Transformer::load(&config, &tables.over(&weights), None, &Default::default(), options).unwrap();
    Trainer::with_tables(model, tables, settings).unwrap()
}

fn train(mut trainer: Trainer<Cpu>, batches: &[Batch]) -> (Trainer<Cpu>, Vec<f64>) {
    let mut losses = Vec::new();
    for batch in batches {
        let gradients = trainer.gradients(std::slice::from_ref(batch)).unwrap();
        losses.push(gradients.totals.mean());
        trainer = trainer.step(gradients).unwrap().0;
    }
    (trainer, losses)
}

/// All values of all engram tables.
fn tables(trainer: &Trainer<Cpu>) -> Vec<Vec<f32>> {
    let from_tensors = {
        let mut tables = Vec::new();
        let model = trainer.model();
        parameters::visit_values(model, model.parameters(), |parameter, data| {
            if parameter.name.ends_with("engram.embed.weight") {
                tables.push(data.iter().collect());
            }
        });
        tables
    };
    let by_rows = trainer.tables().sources().map(|(_, table)| {
        let [rows, width] = table.shape();
        let mut values = vec![0.0; rows * width];
        table.read(&(0..rows as i64).collect::<Vec<_>>(), &mut values).unwrap();
        values
    });
    by_rows.chain(from_tensors).collect()
}

#[test]
fn rows_on_the_host_are_trained_as_those_of_a_tensor() {
    // The same batch again and again touches the same rows, so that none has moments that fade.
    let again = vec![batches(1).remove(0); 4];
    let folder = tempfile::tempdir().unwrap();
    let (dense, losses) = train(trainer(TableStorage::Tensor, folder.path(), Recompute::None), &again);
    let untrained = tables(&trainer(TableStorage::Memory, folder.path(), Recompute::None));
    for (storage, recompute) in [
        (TableStorage::Memory, Recompute::None),
        (TableStorage::Memory, Recompute::Blocks),
        (TableStorage::File, Recompute::None),
    ] {
        let begun = trainer(storage, folder.path(), recompute);
        assert_eq!(begun.trained(), dense.trained());
        assert!(begun.groups().contains(&ParameterGroup::Engram));
        let (by_rows, found) = train(begun, &again);
        for (found, expected) in found.iter().zip(&losses) {
            assert!((found - expected).abs() < 1e-6 * expected, "{storage:?}: {found}, expected {expected}");
        }
        let (found, expected) = (tables(&by_rows), tables(&dense));
        assert_eq!(found.len(), nano().engram_layer_ids.len());
        for ((found, expected), untrained) in found.iter().zip(&expected).zip(&untrained) {
            let moved = found.iter().zip(untrained).filter(|(a, b)| a != b).count();
            assert!(moved > 0 && moved < found.len() / 2, "{moved} of {} values moved", found.len());
            for (found, expected) in found.iter().zip(expected) {
                assert!((found - expected).abs() < 2e-6, "{storage:?}: {found}, expected {expected}");
            }
        }
    }
}

#[test]
fn a_checkpoint_goes_on_bit_for_bit_wherever_tables_are() {
    let batches = batches(6);
    let straight = tempfile::tempdir().unwrap();
    let (straight, losses) = train(trainer(TableStorage::Memory, straight.path(), Recompute::None), &batches);
    for storage in [TableStorage::Memory, TableStorage::File] {
        let [folder, checkpoint] = [(), ()].map(|()| tempfile::tempdir().unwrap());
        let (half, mut found) = train(trainer(storage, folder.path(), Recompute::None), &batches[..3]);
        half.save(checkpoint.path()).unwrap();
        // Steps after the checkpoint are lost with the process, but not in the files of tables.
        drop(train(half, &batches[3..5]));
        let resumed = trainer(storage, folder.path(), Recompute::None).restore(checkpoint.path()).unwrap();
        let (resumed, rest) = train(resumed, &batches[3..]);
        found.extend(rest);
        assert_eq!(found, losses, "{storage:?}");
        assert_eq!(tables(&resumed), tables(&straight), "{storage:?}");
    }
}

#[test]
fn a_run_without_a_checkpoint_begins_with_untrained_files() {
    let folder = tempfile::tempdir().unwrap();
    let begun = trainer(TableStorage::File, folder.path(), Recompute::None);
    let untrained = tables(&begun);
    let (trained, _) = train(begun, &batches(2));
    assert_ne!(tables(&trained), untrained);
    drop(trained);
    assert_eq!(tables(&trainer(TableStorage::File, folder.path(), Recompute::None)), untrained);
    let weights = InitialWeights::new(&nano(), 3);
    let name = format!("layers.{}.engram.embed.weight", nano().engram_layer_ids[0]);
    let shape = [nano().engram_num_embeddings[0] as usize, nano().engram_head_dim];
    assert_eq!(weights.weight(&name, &shape).unwrap(), untrained[0]);
}
