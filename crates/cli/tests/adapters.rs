//! Adapters on packed files: training, `dsv41 generate --adapter` and `dsv41 export`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use burn::{
    backend::{Autodiff, Flex},
    optim::GradientsParams,
};
use dsv41::{Call, LoadOptions, Numerics, Transformer};
use dsv41_cli::model_source::{ModelSource, SourceOptions};
use dsv41_gguf::{ModelFile, TensorStore as _};
use dsv41_quant::GgmlType;
use dsv41_train::{
    adapters::{self, AdapterFile, AdapterSettings},
    losses::CrossEntropy,
    optimiser::{GroupSettings, GroupedOptimiser, NamedParameter, OptimiserSettings},
};
use sha2::{Digest as _, Sha256};

type TrainBackend = Autodiff<Flex>;
type Model = Transformer<TrainBackend>;

fn dsv41(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_dsv41")).args(arguments).output().expect("the command runs")
}

fn succeeds(arguments: &[&str]) -> String {
    let output = dsv41(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The last line on standard error of a command that fails.
fn complaint(arguments: &[&str]) -> String {
    let output = dsv41(arguments);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or_default().to_owned()
}

fn checksum(path: &Path) -> String {
    format!("{:x}", Sha256::digest(std::fs::read(path).expect("a file")))
}

/// A folder with a made model, and what is made of it.
struct Workshop(tempfile::TempDir);

impl Workshop {
    /// Packs `config` in `types`.
    fn new(config: &str, types: &str) -> Self {
        let workshop = Self(tempfile::tempdir().expect("a folder"));
        let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs").join(config);
        let config = config.to_str().expect("a path of UTF-8");
        succeeds(&["make-tiny", "--config", config, "--out", &workshop.at("base.gguf"), "--types", types]);
        workshop
    }

    fn at(&self, name: &str) -> String {
        self.0.path().join(name).to_str().expect("a path of UTF-8").to_owned()
    }

    /// Trains an adapter of the base, and gives its folder.
    fn train(&self, name: &str, settings: &AdapterSettings) -> String {
        let folder = self.at(name);
        let source = open(&self.at("base.gguf"));
        let trained = Trained::new(&source, settings, &TEXT.map(ids), 6);
        assert!(trained.losses.is_sorted_by(|before, after| before > after), "{:?}", trained.losses);
        adapters::save(Path::new(&folder), &trained.model, settings, &source.base().expect("a base")).expect("saved");
        folder
    }

    /// The logits of a prompt.
    fn logits(&self, model: &str, adapters: &[&str]) -> Vec<f32> {
        let path = self.at("logits.f32");
        let prompt = ids(TEXT[0]).iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let mut arguments =
            vec!["generate", "--model", model, "--ids", &prompt, "--max-tokens", "0", "--logits", &path];
        arguments.extend(adapters.iter().flat_map(|adapter| ["--adapter", adapter]));
        succeeds(&arguments);
        let bytes = std::fs::read(path).expect("a file of logits");
        bytes.as_chunks().0.iter().map(|&value| f32::from_le_bytes(value)).collect()
    }
}

const TEXT: [&str; 3] = ["the cat sat on the mat", "a dog ate all my words", "we saw it at the door."];

/// Bytes are the tokens of the made models.
fn ids(line: &str) -> Vec<u32> {
    line.bytes().map(u32::from).collect()
}

fn open(model: &str) -> ModelSource {
    ModelSource::open(Some(Path::new(model)), &SourceOptions::default()).expect("a model")
}

fn load(source: &ModelSource) -> Model {
    let map = source.token_map().map(<[u32]>::to_vec);
    Transformer::load(source.config(), source.weights(), map, &Default::default(), LoadOptions::default())
        .expect("a whole model")
}

fn settings(rank: usize, targets: &[&str]) -> AdapterSettings {
    let targets = targets.iter().copied().map(String::from).collect();
    AdapterSettings { rank, alpha: 2.0 * rank as f64, targets, ..AdapterSettings::default() }
}

/// A model with an adapter that has learnt some lines.
struct Trained {
    model: Model,
    /// Before the first step and after each.
    losses: Vec<f64>,
}

impl Trained {
    fn new(source: &ModelSource, settings: &AdapterSettings, lines: &[Vec<u32>], steps: u64) -> Self {
        let mut model = load(source);
        adapters::insert(&mut model, settings).expect("targets of the model");
        let parameters = model.parameters().iter().map(|parameter| NamedParameter {
            id: parameter.id,
            name: parameter.name.clone(),
            dims: parameter.dims.clone(),
        });
        let optimiser = OptimiserSettings::uniform(GroupSettings::adamw(5e-3));
        let mut optimiser = GroupedOptimiser::new(optimiser, parameters).expect("parameters with groups");
        let mut losses = Vec::new();
        for step in 0..steps {
            adapters::set_dropout(&mut model, Some((settings.dropout, step)));
            let (loss, gradients) = loss(&model, lines);
            losses.push(loss);
            model = optimiser.step(model, gradients, step).expect("gradients of the adapters");
        }
        adapters::set_dropout(&mut model, None);
        losses.push(loss(&model, lines).0);
        Self { model, losses }
    }
}

/// The mean cross entropy of every next token, and its gradients.
fn loss(model: &Model, lines: &[Vec<u32>]) -> (f64, GradientsParams) {
    let targets: Vec<Option<u32>> =
        lines.iter().flat_map(|row| row[1..].iter().copied().map(Some).chain([None])).collect();
    let call = Call { numerics: Numerics::Full, ..Call::default() };
    let x = model.forward_states(lines, None, call).expect("a valid call").x;
    let [batch, seq, dim] = x.dims();
    let loss = CrossEntropy::default().forward(x.reshape([batch * seq, dim]), &model.head.weight, &targets);
    let loss = loss.expect("a target for each position");
    let mean = loss.totals.nats / loss.totals.targets as f64;
    (mean, GradientsParams::from_grads(loss.value.backward(), model))
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn an_adapter_learns_on_a_packed_file_and_is_exported() {
    let workshop = Workshop::new("nano.json", "q4_0");
    let base = workshop.at("base.gguf");
    let before = checksum(Path::new(&base));
    let settings = settings(8, &["attn.wq_a", "attn.wo_b", "shared_experts.*", "experts.*.w2"]);
    let adapter = workshop.train("adapter", &settings);
    let with_adapter = workshop.logits(&base, &[&adapter]);
    assert!(largest_difference(&with_adapter, &workshop.logits(&base, &[])) > 0.1, "it has learnt nothing");

    // As floats, base and adapter together are exactly their sum.
    let floats = workshop.at("floats.gguf");
    let report = succeeds(&["export", "--model", &base, "--adapter", &adapter, "--out", &floats, "--types", "f32"]);
    assert!(report.contains("read back and found as written"), "{report}");
    assert_sum(&base, &adapter, &floats);
    let difference = largest_difference(&with_adapter, &workshop.logits(&floats, &[]));
    assert!(difference <= 1e-4, "{difference}");

    // In the base's own types, only what changed is converted.
    let packed = workshop.at("packed.gguf");
    let report = succeeds(&["export", "--model", &base, "--adapter", &adapter, "--out", &packed]);
    let (written, original) = (model_file(&packed), model_file(&base));
    for tensor in original.tensors() {
        let ty = original.ty(&tensor.name).expect("a known type");
        assert_eq!(written.ty(&tensor.name).expect("a known type"), ty, "{}", tensor.name);
        let bytes = |file: &ModelFile| file.packed_rows(&tensor.name, 0..1, ty).expect("a row").expect("its own type");
        let linear = tensor.name.strip_suffix(".weight").unwrap_or_default();
        let is_adapted = ["attn.wq_a", "attn.wo_b", ".w2"].iter().any(|end| linear.ends_with(end))
            || linear.contains("shared_experts");
        assert_eq!(bytes(&written) != bytes(&original), is_adapted, "{}", tensor.name);
    }
    let shared = original.tensors().iter().filter(|tensor| tensor.name.contains(".shared_experts."));
    let names: Vec<&str> = shared.map(|tensor| tensor.name.as_str()).collect();
    let of = [&base, &floats, &packed].map(|path| values(&model_file(path), &names));
    let percent = |part: &[f32], than: &[f32], whole: &[f32]| {
        let square = |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x).powi(2)).sum::<f64>();
        let differences = square(&mut part.iter().zip(than).map(|(a, b)| a - b));
        100.0 * (differences / square(&mut whole.iter().copied())).sqrt()
    };
    let [base_values, sums, rounded] = &of;
    let line = report.lines().find(|line| line.trim_start().starts_with("shared experts")).expect("a line of the part");
    let cells: Vec<&str> = line.split_whitespace().collect();
    let change = format!("{:.3}%", percent(sums, base_values, base_values));
    let error = format!("{:.3}%", percent(rounded, sums, sums));
    // 4-bit values round to themselves.
    assert_eq!(cells[2..], ["q4_0", "18", &change, &error, "0.000%"], "{report}");
    assert!(largest_difference(&with_adapter, &workshop.logits(&packed, &[])) > 1e-4, "4 bits round");
    assert_eq!(checksum(Path::new(&base)), before);
}

/// All values of some tensors.
fn values(file: &ModelFile, names: &[&str]) -> Vec<f32> {
    let tensors = file.tensors().iter().filter(|tensor| names.contains(&tensor.name.as_str()));
    tensors.flat_map(|tensor| file.values(&tensor.name, &tensor.shape).expect("values")).collect()
}

fn model_file(path: &str) -> ModelFile {
    ModelFile::open(Path::new(path)).expect("a model")
}

/// Every tensor of `floats` is the base's with the adapter's product added in one rounding.
fn assert_sum(base: &str, adapter: &str, floats: &str) {
    let source = open(base);
    let adapter = AdapterFile::open(Path::new(adapter)).expect("an adapter");
    let factors = adapter.factors(source.config(), &source.base().expect("a base")).expect("the base's adapter");
    let (base, floats) = (model_file(base), model_file(floats));
    for tensor in base.tensors() {
        assert_eq!(floats.ty(&tensor.name).expect("a known type"), GgmlType::F32);
        let values = |file: &ModelFile| file.values(&tensor.name, &tensor.shape).expect("values");
        let (base, sum) = (values(&base), values(&floats));
        let Some(factors) = tensor.name.strip_suffix(".weight").and_then(|linear| factors.get(linear)) else {
            assert_eq!(base, sum, "{}", tensor.name);
            continue;
        };
        let [_, inputs] = factors.shape;
        for (index, (base, sum)) in base.into_iter().zip(sum).enumerate() {
            let (row, column) = (index / inputs, index % inputs);
            let product = (0..factors.rank)
                .map(|k| f64::from(factors.b[row * factors.rank + k]) * f64::from(factors.a[k * inputs + column]));
            let exact = f64::from(base) + adapter.settings().scale() * product.sum::<f64>();
            let rounding = f64::from(f32::EPSILON) * exact.abs();
            assert!((f64::from(sum) - exact).abs() <= rounding, "{}[{index}]: {sum}, {exact}", tensor.name);
        }
    }
}

#[test]
fn stacked_adapters_are_their_sum() {
    let workshop = Workshop::new("nano.json", "q8_0");
    let base = workshop.at("base.gguf");
    let first = workshop.train("first", &settings(4, &["attn.wkv", "attn.wo_b"]));
    let second = workshop.train("second", &settings(8, &["attn.wo_b", "shared_experts.w2"])) + "=-0.5";
    let both = workshop.logits(&base, &[&first, &second]);
    let swapped = workshop.logits(&base, &[&second, &first]);
    assert!(largest_difference(&both, &swapped) <= 1e-4);
    assert!(largest_difference(&both, &workshop.logits(&base, &[&first])) > 1e-2);

    let sum = workshop.at("sum.gguf");
    let arguments = ["export", "--model", &base, "--adapter", &first, "--adapter", &second, "--out", &sum];
    succeeds(&[&arguments[..], &["--types", "f32"]].concat());
    let difference = largest_difference(&both, &workshop.logits(&sum, &[]));
    assert!(difference <= 1e-4, "{difference}");
    let none = workshop.logits(&base, &[&format!("{first}=0")]);
    assert_eq!(none, workshop.logits(&base, &[]));
}

#[test]
fn what_does_not_fit_is_told_on_one_line() {
    let workshop = Workshop::new("nano.json", "q8_0");
    let base = workshop.at("base.gguf");
    let before = checksum(Path::new(&base));
    let adapter = workshop.train("adapter", &settings(4, &["attn.wq_b"]));
    let export = |model: &str, out: &str| complaint(&["export", "--model", model, "--adapter", &adapter, "--out", out]);

    // Merged, it is another model, to which its adapter does not belong.
    let merged = workshop.at("merged.gguf");
    succeeds(&["export", "--model", &base, "--adapter", &adapter, "--out", &merged]);
    let expected = format!("error: {adapter}/adapter_config.json: the adapter was made for `{base}` (base ");
    assert!(export(&merged, &workshop.at("out.gguf")).starts_with(&expected));
    let complaint_of_generate = complaint(&["generate", "--model", &merged, "--ids", "1", "--adapter", &adapter]);
    assert!(complaint_of_generate.starts_with(&expected), "{complaint_of_generate}");

    assert_eq!(export(&base, &base), format!("error: {base}: is read, and cannot be written over"));
    assert_eq!(checksum(Path::new(&base)), before);
    let absent = complaint(&["generate", "--model", &base, "--ids", "1", "--adapter", "nowhere"]);
    assert!(absent.starts_with("error: nowhere/adapter_config.json: cannot be read: "), "{absent}");
}

/// Of a peer's file, quantised to 2 and 3 bits.
#[test]
fn adapters_learn_lines_by_heart_on_the_handed_file() {
    let Some(shared) = std::env::var_os("DSV41_SHARED") else {
        eprintln!("skipped: DSV41_SHARED is not set, which says where the handed GGUF file is");
        return;
    };
    let path: PathBuf = Path::new(&shared).join("gguf/tiny-q2_k.gguf");
    let before = checksum(&path);
    let source = open(path.to_str().expect("a path of UTF-8"));
    let lines: [Vec<u32>; 2] = [(0..24).map(|i| i * 37 % 320).collect(), (0..24).map(|i| (i * i + 5) % 320).collect()];
    let trained = Trained::new(&source, &AdapterSettings { rank: 8, ..AdapterSettings::default() }, &lines, 12);
    assert!(trained.losses[0] > 5.0 && trained.losses[12] < 0.1, "{:?}", trained.losses);
    assert_eq!(checksum(&path), before);
}
