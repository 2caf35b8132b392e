//! `dsv41 train` and `dsv41 finetune` as a user runs them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

fn dsv41(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dsv41"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn config(name: &str) -> String {
    format!("{}/../../configs/{name}.json", env!("CARGO_MANIFEST_DIR"))
}

/// A folder with some lines to train on.
struct Workshop {
    folder: TempDir,
}

impl Workshop {
    fn new() -> Self {
        let workshop = Self { folder: tempfile::tempdir().unwrap() };
        let line = |number: usize| {
            let ids: Vec<usize> = (0..14 + number % 5).map(|place| (place * place + 7 * number) % 60).collect();
            format!("{{\"ids\": {ids:?}}}\n")
        };
        workshop.write("lines.jsonl", &(0..24).map(line).collect::<String>());
        workshop
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// A short run on the lines, a checkpoint after every step.
    fn finetune(&self, out: &str, more: &[&str]) -> Command {
        let (data, out, model) = (self.path("lines.jsonl"), self.path(out), config("tiny"));
        let mut args = vec!["finetune", "--model", &model, "--data", data.to_str().unwrap()];
        args.extend(["--out", out.to_str().unwrap()]);
        args.extend(more);
        let usual = [
            ("--batch", "2"),
            ("--length", "32"),
            ("--rate", "1e-3"),
            ("--checkpoint-every", "1"),
            ("--log-every", "1"),
        ];
        let open = usual.into_iter().filter(|(option, _)| !more.contains(option));
        args.extend(open.flat_map(|(option, value)| [option, value]));
        dsv41(&args)
    }

    fn resume(&self, out: &str) -> Command {
        dsv41(&["finetune", "--resume", self.path(out).to_str().unwrap()])
    }

    /// What each step came to, but for its times.
    fn metrics(&self, out: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.path(out).join("metrics.jsonl")).unwrap_or_default();
        let line = |line: &str| {
            let mut metrics: Value = serde_json::from_str(line).unwrap();
            let fields = metrics.as_object_mut().unwrap();
            fields.retain(|key, _| !["seconds", "tokens_per_second", "peak_memory"].contains(&key.as_str()));
            metrics
        };
        text.lines().map(line).collect()
    }

    /// The files of the newest checkpoint.
    fn checkpoint(&self, out: &str) -> Vec<(String, Vec<u8>)> {
        let checkpoints = list(&self.path(out).join("checkpoints"));
        let newest = checkpoints.iter().max().unwrap();
        list(newest)
            .into_iter()
            .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(path).unwrap()))
            .collect()
    }
}

fn list(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

fn succeed(mut command: Command) -> String {
    let output = command.output().unwrap();
    let (out, err) = texts(&output);
    assert!(output.status.success(), "{out}{err}");
    out
}

/// What a command that must fail on bad input says, on one line.
fn refuse(mut command: Command) -> String {
    let output = command.output().unwrap();
    let (out, err) = texts(&output);
    assert_eq!(output.status.code(), Some(2), "{out}{err}");
    assert!(err.starts_with("error: ") && !err.contains("panicked"), "{err}");
    err
}

fn texts(output: &Output) -> (String, String) {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).into()
}

/// Waits until a run has so many lines of metrics, or has ended.
fn wait_for_steps(workshop: &Workshop, out: &str, steps: usize, child: &mut Child) {
    let begun = Instant::now();
    let file = workshop.path(out).join("metrics.jsonl");
    while begun.elapsed() < Duration::from_secs(120) {
        let lines = fs::read_to_string(&file).unwrap_or_default().lines().count();
        if lines >= steps || child.try_wait().unwrap().is_some() {
            return;
        }
        thread::sleep(Duration::from_millis(2));
    }
    panic!("no {steps} steps in two minutes");
}

#[test]
fn a_run_killed_again_and_again_ends_like_one_that_was_not() {
    let workshop = Workshop::new();
    let steps = &["--steps", "8"];
    let told = succeed(workshop.finetune("whole", steps));
    assert!(told.contains("step 8 of 8"), "{told}");
    let expected = workshop.metrics("whole");
    assert_eq!(expected.len(), 8);

    let mut child = workshop.finetune("killed", steps).spawn().unwrap();
    for kill in 0..6_usize {
        wait_for_steps(&workshop, "killed", kill + 1, &mut child);
        // From right after the step, where the checkpoint is being written, on.
        thread::sleep(Duration::from_millis(4 * kill as u64));
        child.kill().unwrap();
        child.wait().unwrap();
        let known = workshop.metrics_of_whole_lines("killed");
        assert_eq!(known[..], expected[..known.len()], "kill {kill}");
        child = if workshop.path("killed").join("config.json").exists() {
            workshop.resume("killed").spawn().unwrap()
        } else {
            workshop.finetune("killed", steps).spawn().unwrap()
        };
    }
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{:?}", texts(&output));
    assert_eq!(workshop.metrics("killed"), expected);
    let of_weights = |files: Vec<(String, Vec<u8>)>| -> Vec<(String, Vec<u8>)> {
        files.into_iter().filter(|(name, _)| name != "manifest.json").collect()
    };
    assert!(of_weights(workshop.checkpoint("killed")) == of_weights(workshop.checkpoint("whole")));
    assert!(fs::read_to_string(workshop.path("killed").join("report.html")).unwrap().contains("<svg"));
}

impl Workshop {
    /// [`Self::metrics`], where the last line may be torn.
    fn metrics_of_whole_lines(&self, out: &str) -> Vec<Value> {
        let file = self.path(out).join("metrics.jsonl");
        let text = fs::read_to_string(&file).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
        let copy = tempfile::tempdir().unwrap();
        fs::write(copy.path().join("metrics.jsonl"), whole).unwrap();
        Self { folder: copy }.metrics("")
    }
}

#[cfg(unix)]
#[test]
fn an_interrupt_ends_with_a_checkpoint_of_the_last_step() {
    let workshop = Workshop::new();
    let every = &["--steps", "500", "--checkpoint-every", "400"];
    let mut child = workshop.finetune("run", every).spawn().unwrap();
    wait_for_steps(&workshop, "run", 2, &mut child);
    let interrupted = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(interrupted.success());
    let output = child.wait_with_output().unwrap();
    let (told, err) = texts(&output);
    assert!(output.status.success(), "{err}");
    let steps = workshop.metrics("run").len();
    assert!(told.contains(&format!("interrupted after step {steps} of 500: go on with --resume")), "{told}");
    let checkpoints = list(&workshop.path("run/checkpoints"));
    assert!(checkpoints.last().unwrap().ends_with(format!("step-{steps:06}")), "{checkpoints:?}");
}

#[test]
fn bad_input_is_one_clear_error_before_anything_is_written() {
    let workshop = Workshop::new();
    workshop.write("empty.jsonl", "");
    workshop.write("long.jsonl", &format!("{{\"ids\": {:?}}}\n", vec![1; 40]));
    workshop.write("masked.jsonl", "{\"ids\": [1, 2, 3], \"learn\": [true, false, false]}\n");
    workshop.write("mixed.jsonl", "{\"ids\": [1, 2, 3]}\nnonsense\n{\"ids\": []}\n");
    let on = |file: &str, more: &[&str]| {
        let (data, out, model) = (workshop.path(file), workshop.path("run"), config("tiny"));
        let mut args = vec!["finetune", "--model", &model, "--data", data.to_str().unwrap()];
        args.extend(["--out", out.to_str().unwrap()]);
        args.extend(if more.contains(&"--length") { &[][..] } else { &["--length", "32"] });
        args.extend(more);
        dsv41(&args)
    };
    for (command, said) in [
        (on("empty.jsonl", &[]), "empty.jsonl: nothing but 0 blank lines, expected an example a line"),
        (on("long.jsonl", &[]), "long.jsonl: line 1 has 40 tokens, a sequence holds 32"),
        (on("masked.jsonl", &[]), "line 1: nothing to learn: no token but the first is one to be predicted"),
        (on("missing.jsonl", &[]), "missing.jsonl: cannot be read"),
        (on("lines.jsonl", &["--length", "100000"]), "--length is 100000, the model's context has"),
        (on("lines.jsonl", &["--device", "tpu"]), "unknown device `tpu`"),
        (on("lines.jsonl", &["--rate", "-1"]), "setting "),
        (on("lines.jsonl", &["--balance-loss", "-1"]), "balance"),
        (
            dsv41(&["train", "--resume", workshop.path("run").to_str().unwrap()]),
            "holds no run: there is no config.json",
        ),
    ] {
        let output = { command }.output().unwrap();
        let (_, err) = texts(&output);
        assert_eq!(output.status.code(), Some(2), "{err}");
        assert!(err.contains(said), "{err}\nexpected {said}");
        assert!(!workshop.path("run/config.json").exists(), "{said}: nothing is begun");
    }
    let told = succeed(on("mixed.jsonl", &["--steps", "1", "--batch", "1"]));
    assert!(told.contains("left out 2 lines\n  line 2: not JSON") && told.contains("line 3: no tokens"), "{told}");
}

#[test]
fn earlier_work_survives_what_goes_wrong_later() {
    let workshop = Workshop::new();
    succeed(workshop.finetune("run", &["--steps", "2"]));
    let (metrics, checkpoint) = (workshop.metrics("run"), workshop.checkpoint("run"));

    // The folder is taken.
    let err = refuse(workshop.finetune("run", &["--steps", "2"]));
    assert!(err.contains("holds a run already: resume it, or choose another folder"), "{err}");

    // A run that is over goes on to nothing.
    succeed(workshop.resume("run"));

    // A loss that is not finite is told with its step and lines, and the checkpoint before it stays.
    let err = refuse(workshop.finetune("broken", &["--steps", "9", "--rate", "1e30", "--clip", "0"]));
    assert!(err.contains("step ") && err.contains("of lines "), "{err}");
    assert!(!list(&workshop.path("broken/checkpoints")).is_empty());

    // A checkpoint of another model.
    let other = config("nano");
    let (data, out) = (workshop.path("lines.jsonl"), workshop.path("other"));
    let mut args = vec!["finetune", "--model", &other, "--data", data.to_str().unwrap()];
    args.extend(["--out", out.to_str().unwrap(), "--steps", "1", "--batch", "1", "--length", "32"]);
    succeed(dsv41(&args));
    let settings = workshop.path("other/config.json");
    let changed = fs::read_to_string(workshop.path("run/config.json")).unwrap();
    fs::write(&settings, changed).unwrap();
    let err = refuse(workshop.resume("other"));
    assert!(err.contains("optimiser.safetensors") || err.contains("data.json"), "{err}");

    assert_eq!(workshop.metrics("run"), metrics);
    assert!(workshop.checkpoint("run") == checkpoint);
}

/// A limit on the size of files stands for a disk that is full.
#[cfg(unix)]
#[test]
fn a_full_disk_is_an_error_and_leaves_the_run_whole() {
    let workshop = Workshop::new();
    succeed(workshop.finetune("run", &["--steps", "2", "--schedule", "constant"]));
    let checkpoint = workshop.checkpoint("run");
    let settings = workshop.path("run/config.json");
    let longer = fs::read_to_string(&settings).unwrap().replace("\"steps\": 2,", "\"steps\": 4,");
    fs::write(&settings, longer).unwrap();

    let inner = workshop.resume("run");
    let mut limited = Command::new("sh");
    // In blocks of 512 bytes; without the trap the process would be ended by a signal.
    limited.args(["-c", "trap '' XFSZ; ulimit -f 100; exec \"$0\" \"$@\""]).arg(inner.get_program());
    limited.args(inner.get_args()).stdin(Stdio::null());
    let err = refuse(limited);
    assert!(err.contains("step-000003") && err.contains("cannot be written"), "{err}");
    assert!(workshop.checkpoint("run") == checkpoint);
    assert_eq!(list(&workshop.path("run/checkpoints")).len(), 2);

    succeed(workshop.resume("run"));
    assert_eq!(workshop.metrics("run").len(), 4);
}

#[test]
fn a_task_is_learnt_from_and_evaluated_on_examples_of_its_own() {
    let workshop = Workshop::new();
    let (out, config) = (workshop.path("run"), config("nano"));
    let mut args = vec!["train", "--config", &config, "--task", "arithmetic", "--out", out.to_str().unwrap()];
    args.extend([
        "--steps",
        "2",
        "--batch",
        "1",
        "--length",
        "128",
        "--held-out",
        "4",
        "--ablate",
        "engram,compression",
    ]);
    let told = succeed(dsv41(&args));
    assert!(told.contains("evaluation after step 2: loss "), "{told}");
    let plan: Value = serde_json::from_slice(&fs::read(out.join("config.json")).unwrap()).unwrap();
    let shape = &plan["model"]["scratch"]["config"];
    assert_eq!(shape["engram_layer_ids"], Value::Array(vec![]));
    assert!(shape["compress_ratios"].as_array().unwrap().iter().all(|ratio| *ratio == 0));
    let metrics = workshop.metrics("run");
    assert_eq!(metrics[1]["routers"].as_array().unwrap().len(), 6);
    assert!(metrics[1]["evaluation"]["accuracy"].is_number());
}

#[test]
fn a_trained_model_becomes_a_file_that_runs() {
    let workshop = Workshop::new();
    let (out, file, config) = (workshop.path("run"), workshop.path("trained.gguf"), config("nano"));
    let (out, file) = (out.to_str().unwrap(), file.to_str().unwrap());
    let mut args = vec!["train", "--config", &config, "--task", "arithmetic", "--out", out, "--held-out", "4"];
    args.extend(["--steps", "2", "--batch", "1", "--length", "128"]);
    succeed(dsv41(&args));
    succeed(dsv41(&["convert", out, file, "--types", "q8_0"]));
    let made = succeed(dsv41(&["generate", "--model", file, "--prompt", "12+34=", "--max-tokens", "3"]));
    assert!(!made.trim().is_empty());

    // The file in full precision computes what the checkpoint does: its next tokens are those that evaluation predicts.
    let exact = workshop.path("exact.gguf");
    let told = succeed(dsv41(&["convert", out, exact.to_str().unwrap(), "--types", "f32"]));
    assert!(told.contains("read back and found as written"), "{told}");
}

#[test]
fn engram_tables_in_files_end_like_those_in_memory_though_the_run_is_killed() {
    let workshop = Workshop::new();
    let with = |tables| {
        let mut more = vec!["--steps", "6", "--engram-tables", tables, "--accumulate", "2", "--checkpoint-every", "2"];
        more.extend(["--parallel", "2"]);
        more
    };
    succeed(workshop.finetune("straight", &with("memory")));
    let mut child = workshop.finetune("killed", &with("file")).spawn().unwrap();
    wait_for_steps(&workshop, "killed", 3, &mut child);
    child.kill().unwrap();
    child.wait().unwrap();
    succeed(workshop.resume("killed"));
    assert_eq!(workshop.metrics("killed"), workshop.metrics("straight"));
    assert_eq!(workshop.checkpoint("killed"), workshop.checkpoint("straight"));

    let converted = |out: &str| {
        let file = workshop.path(&format!("{out}.gguf"));
        let (from, to) = (workshop.path(out), file.to_str().unwrap().to_owned());
        succeed(dsv41(&["convert", from.to_str().unwrap(), &to, "--types", "f32"]));
        fs::read(file).unwrap()
    };
    assert!(converted("killed") == converted("straight"));
}

/// Gives what `generate` makes of a prompt of ids.
fn generated(model: &str, more: &[&str]) -> String {
    let mut args = vec!["generate", "--model", model, "--ids", "7,8,11,16,23", "--max-tokens", "8"];
    args.extend(more);
    succeed(dsv41(&args))
}

#[test]
fn adapters_are_trained_beside_a_file_that_stays_as_it_is() {
    let workshop = Workshop::new();
    let (base, config) = (workshop.path("base.gguf"), config("tiny"));
    let base = base.to_str().unwrap();
    succeed(dsv41(&["make-tiny", "--config", &config, "--out", base]));
    let before = fs::read(base).unwrap();

    let (data, out) = (workshop.path("lines.jsonl"), workshop.path("run"));
    let (data, out) = (data.to_str().unwrap(), out.to_str().unwrap());
    let mut args =
        vec!["finetune", "--model", base, "--data", data, "--out", out, "--length", "32", "--log-every", "1"];
    args.extend(["--steps", "12", "--rank", "8", "--dropout", "0.1", "--rate", "2e-2", "--schedule", "constant"]);
    succeed(dsv41(&args));
    assert!(fs::read(base).unwrap() == before, "the base is never written");
    let metrics = workshop.metrics("run");
    let loss = |step: usize| metrics[step]["loss"].as_f64().unwrap();
    assert!(loss(11) < 0.9 * loss(0), "{metrics:?}");
    assert_eq!(metrics[0]["learning_rates"].as_object().unwrap().keys().collect::<Vec<_>>(), ["adapters"]);

    let adapter = workshop.path("run/checkpoints/step-000012/adapter");
    let adapter = adapter.to_str().unwrap();
    let merged = workshop.path("merged.gguf");
    let merged = merged.to_str().unwrap();
    succeed(dsv41(&["export", "--model", base, "--adapter", adapter, "--out", merged, "--types", "f32"]));
    let adapted = generated(base, &["--adapter", adapter]);
    assert_eq!(generated(merged, &[]), adapted);
    assert_ne!(generated(base, &[]), adapted);

    // What was trained is beside the base, so that there is no whole model to convert.
    let err = refuse(dsv41(&["convert", out, workshop.path("no.gguf").to_str().unwrap()]));
    assert!(err.contains("the run trained adapters of") && err.contains("export --model"), "{err}");

    // Another base is noticed when the run goes on.
    let settings = workshop.path("run/config.json");
    let longer = fs::read_to_string(&settings).unwrap().replace("\"steps\": 12,", "\"steps\": 14,");
    fs::write(&settings, longer).unwrap();
    succeed(dsv41(&["make-tiny", "--config", &config, "--out", base, "--seed", "another"]));
    let err = refuse(workshop.resume("run"));
    assert!(err.contains("adapter") && err.contains("base.gguf"), "{err}");
    fs::write(base, before).unwrap();
    succeed(workshop.resume("run"));
    assert_eq!(workshop.metrics("run").len(), 14);
}
