//! `dsv41 inspect` as a user sees it: what it prints, and one clear line for whatever is wrong with a file.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn inspect(path: &Path, options: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_dsv41"))
        .arg("inspect")
        .arg(path)
        .args(options)
        // What a backtrace would need: none may show for all that.
        .env("RUST_BACKTRACE", "1")
        .output()
        .unwrap()
}

fn json_of(path: &Path) -> Value {
    let output = inspect(path, &["--json"]);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A folder of files made from those of the repository.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    }
}

fn read_json(path: &str) -> Value {
    serde_json::from_slice(&fs::read(repository(path)).unwrap()).unwrap()
}

/// The tiny configuration with one key changed.
fn config_with(key: &str, value: Value) -> String {
    let mut config = read_json("configs/tiny.json");
    config[key] = value;
    config.to_string()
}

/// Exit code 2, nothing on standard output, and one line that starts with the file's name and ends as given.
#[track_caller]
fn assert_refused(path: &Path, expected: &str) {
    let output = inspect(path, &[]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(errors, format!("error: {}: {expected}\n", path.display()));
}

#[test]
fn a_configuration_is_laid_out() {
    let output = inspect(&repository("configs/tiny.json"), &[]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    for line in [
        "  stream       6 layers of width 64, 4 residual copies, vocabulary of 64",
        "      5      1  of layer 4  own         of layer 4  -",
        "  routed experts          110,592   24.62%   216.0 KiB",
        "  total                   449,108  100.00%  1004.8 KiB",
        "  activated per token     355,220   79.09%",
    ] {
        assert!(text.lines().any(|found| found == line), "no `{line}` in\n{text}");
    }
}

#[test]
fn every_configuration_is_laid_out_for_machines() {
    for (name, total) in [("v4.1-flash", 748_494_684_784_u64), ("tiny", 449_108)] {
        let path = repository(&format!("configs/{name}.json"));
        let report = json_of(&path);
        assert_eq!(report["kind"], "config");
        assert_eq!(report["file"], path.display().to_string());
        assert_eq!(report["parameters"]["total"], total);
        let layers = report["layers"].as_array().unwrap();
        assert_eq!(report["config"]["n_layers"], layers.len());
    }
    for name in ["nano", "small", "mid"] {
        json_of(&repository(&format!("configs/{name}.json")));
    }
}

#[test]
fn hugging_face_names_give_the_same_model() {
    let mut config = read_json("configs/tiny.json");
    for (reference, hugging_face) in [("dim", "hidden_size"), ("n_layers", "num_hidden_layers")] {
        config[hugging_face] = config.as_object_mut().unwrap().remove(reference).unwrap();
    }
    let files = Files::new();
    let renamed = json_of(&files.write("config.json", json!({ "text_config": config }).to_string()));
    let original = json_of(&repository("configs/tiny.json"));
    for part in ["config", "layers", "parameters"] {
        assert_eq!(renamed[part], original[part]);
    }
}

#[test]
fn goldens_are_told_from_configurations() {
    let golden = json_of(&repository("goldens/tiny.json"));
    assert_eq!(golden["kind"], "golden");
    assert_eq!(golden["model"], {
        let mut model = json_of(&repository("configs/tiny.json"));
        model.as_object_mut().unwrap().retain(|key, _| key != "file" && key != "kind");
        model
    });
    assert_eq!(golden["weights"]["tensors"], 226);
    let prefill = &golden["regimes"][0];
    assert_eq!(prefill, &json!({ "regime": "prefill12", "start": 0, "tokens": 12, "captures": 149, "inputs": 27 }));
    let inputs = golden["inputs"].as_str().unwrap();
    assert!(inputs.ends_with("tiny.inputs.safetensors"), "{inputs}");

    let hashes = json_of(&repository("goldens/engram-hash.json"));
    assert_eq!(hashes["kind"], "engram-hash");
    assert_eq!(hashes["table_rows"], json!([384_006_168, 384_016_682]));
}

#[test]
fn a_golden_without_its_inputs_says_so() {
    let files = Files::new();
    let golden = files.write("alone.json", fs::read(repository("goldens/tiny.json")).unwrap());
    assert_eq!(json_of(&golden)["inputs"], Value::Null);
    let text = String::from_utf8(inspect(&golden, &[]).stdout).unwrap();
    assert!(text.contains("no alone.inputs.safetensors beside it"), "{text}");
}

#[test]
fn files_that_cannot_be_read() {
    let files = Files::new();
    assert_refused(&files.0.path().join("absent.json"), "cannot be read: No such file or directory (os error 2)");
    assert_refused(
        &files.write("binary.json", [0xff, 0xfe, 0x00]),
        "cannot be read: stream did not contain valid UTF-8",
    );
}

#[test]
fn texts_that_are_not_json() {
    let files = Files::new();
    let whole = read_json("configs/tiny.json").to_string();
    let cut = &whole[..whole.len() - 1];
    assert_refused(
        &files.write("config.json", cut),
        &format!("EOF while parsing an object at line 1 column {}", cut.len()),
    );
    assert_refused(
        &files.write("golden.json", format!("{{\"fixture\": {cut}")),
        &format!("not valid JSON: EOF while parsing an object at line 1 column {}", cut.len() + 12),
    );
    assert_refused(&files.write("list.json", "[1, 2]"), "expected a JSON object of configuration keys");
}

#[test]
fn configurations_of_wrong_types() {
    let files = Files::new();
    assert_refused(
        &files.write("config.json", config_with("dim", json!("wide"))),
        "key `dim`: invalid type: string \"wide\", expected usize",
    );
    assert_refused(
        &files.write("config.json", config_with("compress_ratios", json!([0, 1.5]))),
        "key `compress_ratios`: invalid type: floating point `1.5`, expected usize",
    );
    assert_refused(&files.write("config.json", "{}"), "key `n_layers` is missing");
}

#[test]
fn configurations_that_break_a_rule() {
    let files = Files::new();
    assert_refused(
        &files.write("config.json", config_with("index_topk", json!(0))),
        "key `index_topk` is 0: must be from 1 to 16777216",
    );
    assert_refused(
        &files.write("config.json", config_with("dim", json!(u64::MAX))),
        "key `dim` is 18446744073709551615: must be from 1 to 16777216",
    );
}

#[test]
fn goldens_that_cannot_be_used() {
    let files = Files::new();
    let whole = read_json("goldens/tiny.json");

    let mut golden = whole.clone();
    golden["fixture"]["n_heads"] = json!(3);
    assert_refused(
        &files.write("golden.json", golden.to_string()),
        "key `n_heads` is 3: must divide into o_groups = 2 groups of equal size",
    );

    let mut golden = whole.clone();
    golden.as_object_mut().unwrap().remove("decode13");
    assert_refused(&files.write("golden.json", golden.to_string()), "decode13: missing");

    let mut golden = whole.clone();
    golden["prefill12"]["embed"]["data"][0] = json!("NaN");
    let text = golden.to_string().replacen("\"NaN\"", "NaN", 1);
    assert_refused(&files.write("golden.json", text), "prefill12: embed: data[0] is not a finite float32");

    let mut golden = whole;
    golden["train"] = json!({});
    assert_refused(&files.write("golden.json", golden.to_string()), "gradient golden: not supported yet");
}

#[test]
fn inputs_of_another_golden() {
    let files = Files::new();
    files.write("golden.inputs.safetensors", "not a container");
    let golden = files.write("golden.json", fs::read(repository("goldens/tiny.json")).unwrap());
    let output = inspect(&golden, &[]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("golden.inputs.safetensors: not a valid safetensors file: "), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
}

/// As in `dsv41 inspect CONFIG | head -0`.
#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_dsv41"))
        .arg("inspect")
        .arg(repository("configs/v4.1-flash.json"))
        .arg("--json")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
}

#[test]
fn a_command_that_does_not_exist() {
    let output = Command::new(env!("CARGO_BIN_EXE_dsv41")).arg("guess").output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}
