//! `dsv41 generate`, `convert` and `make-tiny` as a user runs them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use dsv41_gguf::{GgufWriter, Metadata, TensorPlan, WriterOptions};
use dsv41_quant::GgmlType;

fn dsv41(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_dsv41")).args(arguments).output().expect("the command runs")
}

fn succeeds(arguments: &[&str]) -> Output {
    let output = dsv41(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// The last line on standard error of a command that fails.
fn complaint(arguments: &[&str]) -> String {
    let output = dsv41(arguments);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or_default().to_owned()
}

fn config(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs").join(name);
    path.to_str().expect("a path of UTF-8").to_owned()
}

/// The handed file, quantised by a peer, and what comes with it, where it is at hand.
struct Handed {
    folder: PathBuf,
}

impl Handed {
    fn find() -> Option<Self> {
        match std::env::var_os("DSV41_SHARED") {
            Some(shared) => Some(Self { folder: Path::new(&shared).join("gguf") }),
            None => {
                eprintln!("skipped: DSV41_SHARED is not set, which says where the handed GGUF file is");
                None
            }
        }
    }

    fn path(&self, name: &str) -> String {
        self.folder.join(name).to_str().expect("a path of UTF-8").to_owned()
    }

    fn model(&self) -> String {
        self.path("tiny-q2_k.gguf")
    }

    fn ids(&self) -> String {
        format!("@{}", self.path("tiny-q2_k.ids.json"))
    }
}

fn logits(path: &Path) -> Vec<f32> {
    let bytes = std::fs::read(path).expect("a file of logits");
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// Runs the handed ids through `model`, and gives the file of their logits.
fn prefill(handed: &Handed, model: &str, folder: &Path, options: &[&str]) -> PathBuf {
    let path = folder.join("logits.f32");
    let out = path.to_str().expect("a path of UTF-8");
    let ids = handed.ids();
    let mut arguments = vec!["generate", "--model", model, "--ids", &ids, "--max-tokens", "0", "--logits", out];
    arguments.extend(options);
    let output = succeeds(&arguments);
    assert!(output.stdout.is_empty(), "nothing is made");
    path
}

fn best(row: &[f32]) -> usize {
    let better = |best: usize, other: usize| if row[other] > row[best] { other } else { best };
    (0..row.len()).reduce(better).expect("a vocabulary")
}

#[test]
fn the_handed_file_gives_the_peer_s_logits() {
    const VOCABULARY: usize = 320;
    let Some(handed) = Handed::find() else { return };
    let expected = logits(Path::new(&handed.path("tiny-q2_k.logits.f32")));
    assert_eq!(expected.len(), 60 * VOCABULARY);
    let folder = tempfile::tempdir().expect("a folder");
    for device in ["flex", "ndarray"] {
        for chunk in ["60", "7", "1"] {
            let path = prefill(&handed, &handed.model(), folder.path(), &["--device", device, "--chunk", chunk]);
            let found = logits(&path);
            assert_eq!(found.len(), expected.len());
            for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
                // Measured: 6e-6.
                assert!((found - expected).abs() <= 1e-4, "{device}, {chunk}: logit {index}: {found}, {expected}");
            }
            for (found, expected) in found.chunks(VOCABULARY).zip(expected.chunks(VOCABULARY)) {
                assert_eq!(best(found), best(expected), "{device}, {chunk}");
            }
        }
    }
}

#[test]
fn shards_give_identical_bits_and_a_missing_one_is_named() {
    let Some(handed) = Handed::find() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let whole = std::fs::read(prefill(&handed, &handed.model(), folder.path(), &[])).expect("logits");

    let out = folder.path().join("copy.gguf");
    let out = out.to_str().expect("a path of UTF-8");
    let output =
        succeeds(&["convert", &handed.model(), out, "--types", "published,router=f32", "--shard-tensors", "70"]);
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(report.contains("176 of them copied as they were"), "{report}");
    let shard = |number| folder.path().join(format!("copy-0000{number}-of-00003.gguf"));
    let any = shard(2);
    let sharded = prefill(&handed, any.to_str().expect("a path of UTF-8"), folder.path(), &[]);
    assert!(std::fs::read(sharded).expect("logits") == whole, "the shards' logits differ from the whole file's");

    std::fs::remove_file(shard(3)).expect("a shard to remove");
    let complaint = complaint(&["generate", "--model", any.to_str().expect("a path of UTF-8"), "--ids", "1"]);
    assert!(complaint.contains("copy-00003-of-00003.gguf: is missing"), "{complaint}");
}

#[test]
fn a_memory_limit_changes_no_bit_and_has_to_hold_one_token() {
    let Some(handed) = Handed::find() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let free = std::fs::read(prefill(&handed, &handed.model(), folder.path(), &["--chunk", "5"])).expect("logits");
    let options = ["--chunk", "5", "--memory-limit", "4500KiB"];
    let limited = std::fs::read(prefill(&handed, &handed.model(), folder.path(), &options)).expect("logits");
    assert!(free == limited, "the limit changes the logits");

    let complaint = complaint(&["generate", "--model", &handed.model(), "--ids", "1", "--memory-limit", "1MiB"]);
    assert!(complaint.starts_with("error: a memory limit of 1.0 MiB is too small: 4."), "{complaint}");
    assert!(complaint.contains("for the 2 experts of one layer"), "{complaint}");
}

#[test]
fn the_handed_vocabulary_makes_text() {
    let Some(handed) = Handed::find() else { return };
    let arguments = ["generate", "--model", &handed.model(), "--prompt", "hello world", "--max-tokens", "8"];
    let (first, second) = (succeeds(&arguments), succeeds(&arguments));
    assert!(!first.stdout.is_empty());
    assert_eq!(first.stdout, second.stdout);
}

#[test]
fn the_built_in_model_recalls_what_it_was_shown() {
    let output = succeeds(&["generate"]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("?mp\n") && told.contains("mpIY"), "{told}");
    assert_eq!(output.stdout, b"IY\n");

    // The same pairs, another key.
    let prompt = "hjHQdxRLmpIYecFDcaIGmrAUjzZIybZI...............................?ec";
    assert_eq!(succeeds(&["generate", "--prompt", prompt, "--max-tokens", "2"]).stdout, b"FD\n");
}

#[test]
fn the_built_in_model_makes_as_many_tokens_as_asked_for() {
    let arguments = ["generate", "--ids", "72,105", "--max-tokens", "5", "--temperature", "9", "--seed", "3"];
    let output = succeeds(&arguments);
    assert_eq!(succeeds(&arguments).stdout, output.stdout, "a seed makes the same draws");
    let report = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(report.contains("made: 5 tokens"), "{report}");

    let other = succeeds(&["generate", "--ids", "72,105", "--max-tokens", "5", "--temperature", "9", "--seed", "4"]);
    assert_ne!(other.stdout, output.stdout);
}

#[test]
fn logits_are_a_row_for_each_token_of_the_prompt_and_each_made() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("logits.f32");
    let out = path.to_str().expect("a path of UTF-8");
    succeeds(&["generate", "--prompt", "abc", "--max-tokens", "4", "--logits", out]);
    assert_eq!(logits(&path).len(), (3 + 4) * 256);
}

#[test]
fn a_made_file_generates_what_its_configuration_does() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("nano.gguf");
    let out = out.to_str().expect("a path of UTF-8");
    let output = succeeds(&["make-tiny", "--config", &config("nano.json"), "--out", out, "--types", "q4_k"]);
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    let fallback = "token_embd.weight: rows of 96 do not divide into blocks of q4_k: written as q8_0\n";
    assert!(report.contains(fallback), "{report}");

    let file = folder.path().join("full.gguf");
    let file = file.to_str().expect("a path of UTF-8");
    succeeds(&["make-tiny", "--config", &config("nano.json"), "--out", file, "--types", "f32"]);
    let logits_of = |model: &str| {
        let path = folder.path().join("logits.f32");
        let written = path.to_str().expect("a path of UTF-8");
        succeeds(&["generate", "--model", model, "--prompt", "abcabc", "--max-tokens", "0", "--logits", written]);
        logits(&path)
    };
    let (full, eight_bits) = (logits_of(file), logits_of(out));
    let square = |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x * x)).sum::<f64>();
    let difference = square(&mut full.iter().zip(&eight_bits).map(|(a, b)| a - b)) / square(&mut full.iter().copied());
    assert!(difference > 0.0 && difference.sqrt() < 0.05, "{difference}");
}

#[test]
fn what_cannot_be_written_is_told_and_leaves_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path().to_str().expect("a path of UTF-8");
    let missing = format!("{place}/none/nano.gguf");
    let make = |out: &str| complaint(&["make-tiny", "--config", &config("tiny.json"), "--out", out]);
    assert_eq!(make(place), format!("error: {place}: cannot be created: is a directory"));
    let found = make(&missing);
    assert!(found.starts_with(&format!("error: {missing}: cannot be created: No such file or directory")), "{found}");
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0);
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_standard_output_is_told() {
    for arguments in [&["generate", "--ids", "1", "--max-tokens", "1"][..], &["inspect", &config("nano.json")]] {
        let full = std::fs::File::create("/dev/full").expect("a device");
        let output = Command::new(env!("CARGO_BIN_EXE_dsv41")).args(arguments).stdout(full).output().expect("it runs");
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let found = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(found.contains("error: the output cannot be written: No space left on device"), "{found}");
    }
}

#[cfg(unix)]
#[test]
fn devices_are_not_replaced() {
    use std::os::unix::fs::FileTypeExt as _;

    let found = complaint(&["generate", "--ids", "1", "--max-tokens", "0", "--logits", "/dev/null"]);
    let expected = "error: /dev/null: the logits cannot be written: it is a device, expected a file or a new name";
    assert_eq!(found, expected);
    assert!(std::fs::metadata("/dev/null").expect("a device").file_type().is_char_device());
}

#[test]
fn importances_are_read_from_a_file_and_what_they_lack_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("a path of UTF-8").to_owned();
    let (source, importance, out) = (path("nano.gguf"), path("importance.gguf"), path("out.gguf"));
    succeeds(&["make-tiny", "--config", &config("nano.json"), "--out", &source, "--types", "f32"]);

    let write = |columns: usize| {
        let mut metadata = Metadata::new();
        metadata.insert("general.type", "imatrix");
        let tensors = [("in_sum2", columns), ("counts", 1)];
        let plan = tensors.map(|(what, columns)| TensorPlan {
            name: format!("output.weight.{what}"),
            shape: vec![1, columns],
            ty: GgmlType::F32,
        });
        let file = Path::new(&importance);
        let mut writer = GgufWriter::create(file, &metadata, plan.to_vec(), WriterOptions::default()).expect("a plan");
        for TensorPlan { name, shape, .. } in plan {
            let values: Vec<u8> = (0..shape[1]).flat_map(|place| (1.0 + place as f32).to_le_bytes()).collect();
            writer.write(&name, &values).expect("a place to write");
        }
        writer.finish().expect("a place to write");
    };
    let arguments = ["convert", &source, &out, "--types", "q4_0", "--importance", &importance];
    write(96);
    let report = String::from_utf8(succeeds(&arguments).stdout).expect("UTF-8");
    let lacking = "quantised plainly, as no importances were given for them: token_embd.weight, ";
    assert!(report.starts_with(lacking) && !report.contains("output.weight"), "{report}");

    std::fs::remove_file(&out).expect("the file that was made");
    write(95);
    let expected = "tensor `output.weight.in_sum2` has shape [1, 95], expected [1, 96]";
    assert_eq!(complaint(&arguments), format!("error: {importance}: {expected}"));
    assert!(!Path::new(&out).exists());
}

#[test]
fn bad_input_is_told_on_one_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = folder.path().join("text.gguf");
    std::fs::write(&text, "rooted in text").expect("a file");
    let text = text.to_str().expect("a path of UTF-8");
    let tiny = config("tiny.json");
    let folder = folder.path().to_str().expect("a path of UTF-8");
    let cases: [(&[&str], String); 12] = [
        (&["--model", text, "--ids", "1"], format!("{text}: header, at byte 0: begins with `root`, expected `GGUF`")),
        (&["--ids", "256"], "token id 256 at sequence 0, position 0: the vocabulary has 256".to_owned()),
        (&["--ids", "1,2,3", "--context", "2"], "3 positions asked for, the context holds 2".to_owned()),
        (&["--ids", "1", "--context", "513"], "513 positions asked for, the context holds 512".to_owned()),
        (&["--ids", "one"], "`one` is no token id: expected numbers between spaces or commas, or @FILE".to_owned()),
        (&["--ids", "1", "--temperature", "-1"], "temperature is -1: expected a number from 0".to_owned()),
        (&["--ids", "1", "--threads", "0"], "--threads is 0: expected 1 to 1024".to_owned()),
        (
            &["--model", &tiny, "--prompt", "a"],
            format!(
                "{tiny}: no vocabulary in this file: give --tokenizer with a tokenizer.json, or --ids instead of text"
            ),
        ),
        (&["--model", &tiny], "nothing to go on from: give --prompt, --prompt-file or --ids".to_owned()),
        (&["--prompt", ""], "--prompt: the prompt is empty".to_owned()),
        (&["--model", folder, "--ids", "1"], format!("{folder}: cannot be opened: is a directory")),
        (&["--ids", "1", "--logits", folder], format!("{folder}: the logits cannot be written: is a directory")),
    ];
    for (arguments, expected) in cases {
        let arguments: Vec<&str> = [&["generate"], arguments].concat();
        assert_eq!(complaint(&arguments), format!("error: {expected}"), "{arguments:?}");
    }
}
