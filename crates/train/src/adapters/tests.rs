//! Adapters on a small model, to a folder and back.

use std::fs;
use std::path::Path;

use burn::{
    backend::{Autodiff, NdArray},
    module::{AutodiffModule as _, Param},
    optim::GradientsParams,
    tensor::{DType, Tensor, TensorData, backend::Backend},
};
use dsv41::{
    BlockCall, Call, LinearWeight, ModelBackend, ModelError, Numerics, Objective, Selections, Transformer, parameters,
};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

use super::{
    AdapterError, AdapterFile, AdapterSettings, Base, insert, load, save, set_dropout,
    testing::{TrainBackend, base, config, model, packed_model},
};
use crate::optimiser::{GroupSettings, GroupedOptimiser, NamedParameter, OptimiserSettings};

type Model = Transformer<TrainBackend>;

fn settings(targets: &[&str], seed: u64) -> AdapterSettings {
    let targets = targets.iter().copied().map(String::from).collect();
    AdapterSettings { rank: 4, targets, seed, ..AdapterSettings::default() }
}

fn tokens() -> [Vec<u32>; 2] {
    [(0..14).map(|i| i * 5 % 64).collect(), (0..14).map(|i| (i * i + 1) % 64).collect()]
}

fn logits(model: &Model) -> Tensor<TrainBackend, 3> {
    model.forward(&tokens(), None, Call::default()).unwrap().logits
}

fn data(model: &Model) -> TensorData {
    logits(model).into_data()
}

fn largest_difference(a: &TensorData, b: &TensorData) -> f32 {
    a.iter::<f32>().zip(b.iter::<f32>()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// Some steps of what trains, towards smaller logits.
fn trained(mut model: Model, steps: u64) -> Model {
    let parameters = model.parameters().iter().map(|parameter| NamedParameter {
        id: parameter.id,
        name: parameter.name.clone(),
        dims: parameter.dims.clone(),
    });
    let settings = OptimiserSettings::uniform(GroupSettings::adamw(1e-2));
    let mut optimiser = GroupedOptimiser::new(settings, parameters.collect::<Vec<_>>()).unwrap();
    for step in 0..steps {
        let gradients = GradientsParams::from_grads(logits(&model).square().mean().backward(), &model);
        model = optimiser.step(model, gradients, step).unwrap();
    }
    model
}

#[test]
fn a_new_adapter_changes_nothing_and_trains_alone() {
    let mut model = model();
    let before = data(&model);
    let settings = AdapterSettings { rank: 4, ..AdapterSettings::default() };
    let inserted = insert(&mut model, &settings).unwrap();
    assert_eq!(data(&model), before);
    assert_eq!(inserted.linears.len(), 7 * 6);
    assert_eq!(model.parameters().len(), 2 * 7 * 6);
    let gradients = GradientsParams::from_grads(logits(&model).square().mean().backward(), &model);
    assert_eq!(gradients.len(), 2 * 7 * 6, "the tables, mixers and norms of the base take no gradient");

    let shared = &model.layers[3].block.ffn.shared_experts.w1;
    let adapter = &shared.adapters[0];
    assert_eq!((adapter.scale(), adapter.a.dims()[1]), (8.0, 4));
}

#[test]
fn training_lowers_the_loss_through_adapters_alone() {
    let mut model = model();
    let base_logits = data(&model);
    insert(&mut model, &settings(&["attn.*", "experts.*.w2", "engram.wkv"], 1)).unwrap();
    let loss = |model: &Model| logits(model).square().mean().into_scalar();
    let before = loss(&model);
    let mut model = trained(model, 4);
    assert!(loss(&model) < 0.9 * before, "{} after {before}", loss(&model));
    for linear in model.linears_mut() {
        linear.adapters.clear();
    }
    assert_eq!(data(&model), base_logits, "the base has changed");
}

#[test]
fn what_was_saved_comes_back_bit_by_bit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("adapter");
    let settings = settings(&["attn.wq_b", "w2"], 2);
    let mut tuned = model();
    insert(&mut tuned, &settings).unwrap();
    let tuned = trained(tuned, 2);
    for _ in 0..2 {
        save(&path, &tuned, &settings, &base()).unwrap();
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
    let file = AdapterFile::open(&path).unwrap();
    assert_eq!((file.settings(), file.base()), (&settings, &base()));
    let mut again = model();
    load(&mut again, &file, &base(), 1.0).unwrap();
    assert_eq!(data(&again), data(&tuned));
    // It goes on as if it had never been away.
    assert_eq!(data(&trained(again, 1)), data(&trained(tuned, 1)));
}

#[test]
fn adapters_stack_each_with_its_strength_and_the_last_one_trains() {
    let folder = tempfile::tempdir().unwrap();
    let paths = ["first", "second"].map(|name| folder.path().join(name));
    let targets: [&[&str]; 2] = [&["attn.wq_a", "attn.wkv"], &["attn.wkv", "shared_experts.w1"]];
    for (seed, (path, targets)) in (0..).zip(paths.iter().zip(targets)) {
        let settings = settings(targets, seed);
        let mut model = model();
        insert(&mut model, &settings).unwrap();
        save(path, &trained(model, 3), &settings, &base()).unwrap();
    }
    let files = paths.each_ref().map(|path| AdapterFile::open(path).unwrap());
    let stacked = |order: [usize; 2]| {
        let mut model = model();
        for place in order {
            load(&mut model, &files[place], &base(), [0.5, -2.0][place]).unwrap();
        }
        model
    };
    let model_of_both = stacked([0, 1]);
    let both = data(&model_of_both);
    assert!(largest_difference(&both, &data(&stacked([1, 0]))) < 1e-5, "their order does not matter");
    assert!(largest_difference(&both, &data(&model())) > 1e-3);

    // The same matrices, added up into the weights.
    let mut merged = model();
    for (file, strength) in files.iter().zip([0.5, -2.0]) {
        for (name, factors) in file.factors(&config(), &base()).unwrap() {
            let linear = merged.linears_mut().into_iter().find(|linear| linear.name() == name).unwrap();
            let LinearWeight::Float(weight) = &mut linear.weight else { panic!("{name} is packed") };
            let mut stored: Vec<f32> = weight.val().transpose().into_data().to_vec().unwrap();
            factors.add_rows(0, strength * file.settings().scale(), &mut stored);
            let [inputs, outputs] = weight.dims();
            let stored =
                Tensor::<TrainBackend, 2>::from_data(TensorData::new(stored, [outputs, inputs]), &weight.device());
            *weight = Param::initialized(weight.id, stored.transpose());
        }
    }
    assert!(largest_difference(&both, &data(&merged)) < 1e-4);

    // The first adapter is part of the base now.
    let names: Vec<&str> = model_of_both.parameters().iter().map(|parameter| parameter.name.as_str()).collect();
    assert_eq!(names.len(), 2 * 2 * 6);
    let second = |model: &Model| {
        let adapters = &model.layers[0].block.attn.wkv.adapters;
        [0, 1].map(|place| adapters[place].b.val().into_data())
    };
    let before = second(&model_of_both);
    let after = second(&trained(model_of_both, 1));
    assert!(before[0] == after[0] && before[1] != after[1]);
}

#[test]
fn dropout_is_on_while_it_is_set() {
    let mut model = model();
    insert(&mut model, &settings(&["attn.wq_b"], 1)).unwrap();
    let mut model = trained(model, 2);
    let whole = data(&model);
    let with = |model: &mut Model, dropout| {
        set_dropout(model, dropout);
        data(model)
    };
    let first = with(&mut model, Some((0.5, 1)));
    assert_ne!(first, whole);
    assert_ne!(with(&mut model, Some((0.5, 2))), first);
    assert_eq!(with(&mut model, Some((0.5, 1))), first);
    assert_eq!(with(&mut model, None), whole);
}

/// Everything that could train, so that gradients pass every kind of packed matrix.
fn everywhere() -> AdapterSettings {
    settings(&["attn.*", "compressor.*", "engram.wkv", "experts.*.*", "shared_experts.*"], 5)
}

/// Numbers of both signs, all over an adapter's factor.
fn pattern<B: Backend>(like: &Tensor<B, 2>, scale: f64) -> Tensor<B, 2> {
    let values = (0..like.dims().iter().product()).map(|i: usize| ((i * 31 % 17) as f64 - 8.0) / 8.0 * scale);
    Tensor::from_data(TensorData::new(values.collect(), like.dims()), (&like.device(), like.dtype()))
}

/// A scalar that depends on every logit, with selections as given.
fn waves<B: ModelBackend>(model: &Transformer<B>, selections: &Selections) -> Tensor<B, 1> {
    let call = Call { numerics: Numerics::Full, selections: Some(selections), ..Call::default() };
    let logits = model.forward(&tokens(), None, call).unwrap().logits;
    (logits.clone() * logits.clone().mul_scalar(3.0).sin() + logits.square()).mean()
}

#[test]
fn gradients_through_packed_matrices_are_finite_differences() {
    type Inner = NdArray<f64>;
    let mut model = packed_model::<Autodiff<Inner>>(DType::F64);
    insert(&mut model, &everywhere()).unwrap();
    // B is zero at first, where A has no gradient.
    for adapter in model.linears_mut().into_iter().flat_map(|linear| &mut linear.adapters) {
        let b = pattern(&adapter.b.val().inner(), 0.05);
        adapter.b = Param::initialized(adapter.b.id, Tensor::from_inner(b).require_grad());
    }
    let call = Call { numerics: Numerics::Full, ..Call::default() };
    let selections = model.forward(&tokens(), None, call).unwrap().selections;
    let gradients = GradientsParams::from_grads(waves(&model, &selections).backward(), &model);

    let at = |linear: usize, factor: usize, step: f64| {
        let mut moved = model.valid();
        let adapter = &mut moved.linears_mut().swap_remove(linear).adapters[0];
        let param = if factor == 0 { &mut adapter.a } else { &mut adapter.b };
        *param = Param::initialized(param.id, param.val() + pattern(&param.val(), step));
        waves(&moved, &selections).into_scalar()
    };
    for name in ["layers.0.attn.wq_a", "layers.1.engram.wkv", "layers.2.attn.wo_b", "layers.4.ffn.shared_experts.w2"] {
        let place = model.linears().iter().position(|linear| linear.name() == name).unwrap();
        let linear = model.linears()[place];
        assert!(matches!(linear.weight, LinearWeight::Packed(_)), "{name}");
        for (factor, param) in [&linear.adapters[0].a, &linear.adapters[0].b].into_iter().enumerate() {
            let gradient = gradients.get::<Inner, 2>(param.id).unwrap();
            let found = (gradient * pattern(&param.val().inner(), 1.0)).sum().into_scalar();
            let step = 1e-5;
            let expected = (at(place, factor, step) - at(place, factor, -step)) / (2.0 * step);
            assert!(found.abs() > 1e-6, "{name}: {found}");
            assert!((found - expected).abs() <= 1e-6 * found.abs(), "{name}, {factor}: {found}, expected {expected}");
        }
    }
}

#[test]
fn gradients_by_block_are_those_of_the_whole() {
    struct NoObjective;
    impl<B: Backend> Objective<B> for NoObjective {}

    let mut model = packed_model::<TrainBackend>(DType::F32);
    insert(&mut model, &everywhere()).unwrap();
    let model = trained(model, 1);
    let whole = GradientsParams::from_grads(logits(&model).square().mean().backward(), &model);
    let loss = |x| Ok::<_, ModelError>(model.head.forward_unrounded(x, Numerics::Full).square().mean());
    let call = BlockCall { numerics: Numerics::Full, ..BlockCall::default() };
    let by_block = model.gradients_by_block(&tokens(), call, &mut NoObjective, loss).unwrap();
    let values = |gradients: &GradientsParams| {
        let mut values = Vec::new();
        parameters::visit_gradients(&model, model.parameters(), gradients, |parameter, gradient| {
            values.push((parameter.name.clone(), gradient.map(|gradient| gradient.to_vec::<f32>().unwrap())));
        });
        values
    };
    for ((name, whole), (_, by_block)) in values(&whole).into_iter().zip(values(&by_block)) {
        let (Some(whole), Some(by_block)) = (whole, by_block) else { panic!("{name} has no gradient") };
        let largest = whole.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
        for (whole, by_block) in whole.iter().zip(&by_block) {
            assert!((whole - by_block).abs() <= 1e-4 * largest, "{name}: {whole} and {by_block} of {largest}");
        }
    }
}

/// A saved adapter whose files are changed.
struct Saved(tempfile::TempDir);

impl Saved {
    fn new() -> Self {
        let saved = Self(tempfile::tempdir().unwrap());
        let settings = settings(&["attn.wq_a"], 1);
        let mut model = model();
        insert(&mut model, &settings).unwrap();
        save(&saved.path(), &model, &settings, &base()).unwrap();
        saved
    }

    fn path(&self) -> std::path::PathBuf {
        self.0.path().join("adapter")
    }

    /// Writes the tensors again, one of them changed.
    fn with(self, change: impl Fn(&str, TensorView<'_>) -> Option<(String, Dtype, Vec<usize>)>) -> String {
        let file = self.path().join("adapter_model.safetensors");
        let bytes = fs::read(&file).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let changed = tensors.iter().filter_map(|(name, view)| {
            let (name, dtype, shape) = change(name, view)?;
            let zeros: &[u8] = vec![0; shape.iter().product::<usize>() * dtype.bitsize() / 8].leak();
            Some((name, TensorView::new(dtype, shape, zeros).unwrap()))
        });
        fs::write(&file, safetensors::serialize(changed.collect::<Vec<_>>(), None).unwrap()).unwrap();
        self.message("adapter_model.safetensors")
    }

    /// What loading complains of, behind the file's name.
    fn message(&self, file: &str) -> String {
        let error = AdapterFile::open(&self.path()).and_then(|file| load(&mut model(), &file, &base(), 1.0));
        let message = error.unwrap_err().to_string();
        message.strip_prefix(&format!("{}: ", self.path().join(file).display())).unwrap().to_owned()
    }
}

#[test]
fn files_that_do_not_fit_are_told_with_tensor_and_shapes() {
    const TENSOR: &str = "base_model.model.layers.2.attn.wq_a.lora_A.weight";
    let as_it_is = |name: &str, view: &TensorView<'_>| (name.to_owned(), view.dtype(), view.shape().to_vec());
    let missing = Saved::new().with(|name, view| (name != TENSOR).then(|| as_it_is(name, &view)));
    assert_eq!(missing, format!("tensor `{TENSOR}` is missing, expected one of shape [4, 64]"));
    let shape = Saved::new().with(|name, view| match name == TENSOR {
        true => Some((name.to_owned(), view.dtype(), vec![8, 64])),
        false => Some(as_it_is(name, &view)),
    });
    assert_eq!(shape, format!("tensor `{TENSOR}` has shape [8, 64], expected [4, 64]"));
    let dtype = Saved::new().with(|name, view| Some((name.to_owned(), Dtype::BF16, view.shape().to_vec())));
    assert!(dtype.ends_with(" has type BF16, expected F32"), "{dtype}");

    let foreign = Saved::new();
    let config = foreign.path().join("adapter_config.json");
    let text = fs::read_to_string(&config).unwrap().replace("\"attn.wq_a\"", "\"layers.2.attn.wq_a\"");
    fs::write(&config, text).unwrap();
    let message = foreign.message("adapter_model.safetensors");
    let expected = " belongs to none of the 1 linear layers that the adapter's targets match";
    assert!(message.starts_with("tensor `base_model.model.layers.") && message.ends_with(expected), "{message}");
}

#[test]
fn a_wrong_rank_is_told() {
    let saved = Saved::new();
    let config = saved.path().join("adapter_config.json");
    fs::write(&config, fs::read_to_string(&config).unwrap().replace("\"r\": 4", "\"r\": 5")).unwrap();
    let expected = "tensor `base_model.model.layers.0.attn.wq_a.lora_A.weight` has shape [4, 64], expected [5, 64]";
    assert_eq!(saved.message("adapter_model.safetensors"), expected);
}

#[test]
fn an_adapter_of_another_base_is_refused() {
    let saved = Saved::new();
    let file = AdapterFile::open(&saved.path()).unwrap();
    let other = Base { name: "other.gguf".to_owned(), fingerprint: "4567".to_owned() };
    let error = load(&mut model(), &file, &other, 1.0).unwrap_err().to_string();
    let expected =
        "adapter_config.json: the adapter was made for `tiny` (base 0123), expected base 4567 of `other.gguf`";
    assert!(error.ends_with(expected), "{error}");
    let error = load(&mut model(), &file, &base(), f64::INFINITY).unwrap_err();
    assert_eq!(error.to_string(), "an adapter's strength is inf, expected a finite number");
}

#[test]
fn only_adapters_are_replaced_and_only_what_the_settings_say_is_saved() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("notes.txt"), "dear").unwrap();
    let made = settings(&["attn.wq_a"], 1);
    let mut model = model();
    insert(&mut model, &made).unwrap();
    let saved = |path: &Path, settings: &AdapterSettings| save(path, &model, settings, &base());
    assert!(matches!(saved(folder.path(), &made), Err(AdapterError::NoAdapter { .. })));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);

    let path = folder.path().join("adapter");
    let error = saved(&path, &AdapterSettings { rank: 8, ..made.clone() }).unwrap_err().to_string();
    let expected = "linear layer `layers.0.attn.wq_a` has an adapter of rank 4 with scale 8, expected an adapter of rank \
                    8 with scale 4";
    assert_eq!(error, expected);
    let error = saved(&path, &settings(&["attn.wkv"], 1)).unwrap_err().to_string();
    assert!(error.starts_with("linear layer `layers.0.attn.wkv` has no adapter, expected "), "{error}");
    assert!(!path.exists());
}
