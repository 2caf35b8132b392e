//! `dsv41 bench` as a user runs it, on the smallest model.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// A device that every build of the tests has.
const DEVICE: &str = if cfg!(feature = "flex") { "flex" } else { "ndarray" };

fn bench(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_dsv41")).arg("bench").args(args).output().expect("the command runs")
}

/// What a command that succeeds prints.
fn printed(args: &[&str]) -> String {
    let output = bench(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// What a command that fails complains of.
fn complaint(args: &[&str]) -> String {
    let output = bench(args);
    assert_eq!(output.status.code(), Some(2), "{args:?}");
    String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or_default().to_owned()
}

fn path(folder: &Path, name: &str) -> String {
    folder.join(name).to_str().expect("a path of UTF-8").to_owned()
}

fn read(path: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn a_prompt_is_timed_compared_and_plotted() {
    let folder = tempfile::tempdir().unwrap();
    let [old, new, html] = ["old.json", "new.json", "plot.html"].map(|name| path(folder.path(), name));
    let usual = ["prefill", "--config", "tiny", "--device", DEVICE, "--repeats", "1", "--chunk", "8"];
    printed(&[&usual[..], &["--lengths", "8,16", "--json", &old]].concat());
    let text =
        printed(&[&usual[..], &["--lengths", "16,24", "--json", &new, "--compare", &old, "--plot", &html]].concat());

    assert!(text.contains("now / before"), "{text}");
    assert!(text.contains(&format!("only before: {DEVICE}, batch 1, length 8")), "{text}");
    assert!(text.contains(&format!("only now: {DEVICE}, batch 1, length 24")), "{text}");
    let report = read(&new);
    assert_eq!((&report["part"], &report["model"]["name"]), (&"prefill".into(), &"tiny".into()));
    let measurements = report["measurements"].as_array().unwrap();
    assert_eq!(measurements.len(), 2);
    for measurement in measurements {
        assert!(measurement["seconds"]["median"].as_f64().unwrap() > 0.0, "{measurement}");
        assert!(measurement["rates"]["tokens_per_second"].as_f64().unwrap() > 0.0, "{measurement}");
        assert!(measurement["rates"]["share_of_copy"].as_f64().unwrap() > 0.0, "{measurement}");
        assert!(measurement["work"]["operations"].as_u64().unwrap() > 0, "{measurement}");
        assert_eq!(measurement["agreement"]["largest_difference"], 0.0);
    }
    assert!(fs::read_to_string(&html).unwrap().contains("<svg"));
    // Nothing but what was asked for.
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
}

#[test]
fn devices_agree_and_those_that_are_missing_are_named() {
    let text = printed(&[
        "forward",
        "--config",
        "tiny",
        "--lengths",
        "12",
        "--batch",
        "2",
        "--repeats",
        "1",
        "--device",
        "flex,ndarray,cuda:77,wgpu:77",
    ]);
    for device in ["cuda:77", "wgpu:77"] {
        assert!(text.contains(&format!("skipped: device `{device}` is not")), "{text}");
    }
    if cfg!(all(feature = "flex", feature = "ndarray")) {
        let row = text.lines().find(|line| line.trim_start().starts_with("ndarray")).unwrap();
        assert!(row.ends_with("24 of 24"), "{text}");
    }
}

#[test]
fn one_token_is_timed_after_contexts() {
    let text = printed(&["decode", "--config", "tiny", "--device", DEVICE, "--context", "0,30", "--repeats", "1"]);
    assert!(text.contains("context 0") && text.contains("context 30"), "{text}");
    assert_eq!(text.matches("1 of 1").count(), 2, "{text}");
}

#[test]
fn parts_are_timed_step_by_step() {
    let folder = tempfile::tempdir().unwrap();
    let steps = [
        ("engram", vec!["hashes", "look-up", "projection", "gates", "all"]),
        ("hyper-connection", vec!["mixer", "collapse", "expansion", "all"]),
        ("sparse-attention", vec!["window", "ratio 1", "ratio 2"]),
    ];
    for (part, steps) in steps {
        let json = path(folder.path(), part);
        let args = ["--config", "tiny", "--device", DEVICE, "--lengths", "9", "--repeats", "1", "--json", &json];
        printed(&[&[part][..], &args].concat());
        let report = read(&json);
        let found = report["measurements"].as_array().unwrap().iter().map(|one| one["case"]["step"].as_str().unwrap());
        assert_eq!(found.collect::<Vec<_>>(), steps, "{part}");
    }
}

#[test]
fn training_and_products_leave_the_same_kind_of_report() {
    let folder = tempfile::tempdir().unwrap();
    let [step, linear, svg] = ["step.json", "linear.json", "step.svg"].map(|name| path(folder.path(), name));
    let usual = ["train-step", "--config", "tiny", "--device", DEVICE, "--length", "8", "--repeats", "1"];
    printed(&[&usual[..], &["--recompute", "none,blocks", "--json", &step, "--plot", &svg]].concat());
    assert!(printed(&[&usual[..], &["--compare", &step]].concat()).contains("now / before"));
    assert_eq!(read(&step)["measurements"].as_array().unwrap().len(), 4);

    let product = ["linear", "--device", DEVICE, "--types", "q8_0", "--shape", "64x32", "--vectors", "1"];
    printed(&[&product[..], &["--repeats", "1", "--json", &linear]].concat());
    assert!(read(&linear)["measurements"][0]["error"].as_f64().unwrap() < 1e-2);
    let error = complaint(&[&product[..], &["--compare", &step]].concat());
    assert!(error.ends_with("step.json: a report of `train-step`, and this is `linear`"), "{error}");
}

#[test]
fn bad_input_is_one_clear_line() {
    let forward = |args: &[&str]| complaint(&[&["forward", "--device", DEVICE][..], args].concat());
    assert!(forward(&["--config", "tinny"]).starts_with("error: `tinny`: no such file, and none of"));
    assert!(forward(&["--config", "tiny", "--lengths", "65"]).contains("the model has 64"));
    assert!(complaint(&["forward", "--config", "tiny", "--device", "cuda:77"]).starts_with("error: no device is left"));
    let none =
        ["hyper-connection", "--config", "tiny", "--lengths", "1", "--device", DEVICE, "--compare", "no/such.json"];
    assert!(complaint(&none).starts_with("error: no/such.json: cannot be read"));
}
