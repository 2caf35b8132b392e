//! What a writer refuses, and what it leaves behind.

use std::fs;
use std::path::Path;

use dsv41_gguf::{Array, Gguf, GgufError, GgufWriter, Metadata, Split, TensorPlan, WriterOptions};
use dsv41_quant::GgmlType;
use tempfile::TempDir;

use crate::{bytes_of, plan, write};

fn plans() -> [TensorPlan; 3] {
    [plan("a", &[4], GgmlType::F32), plan("b", &[2, 4], GgmlType::F32), plan("c", &[4], GgmlType::F32)]
}

fn create(folder: &TempDir, plans: &[TensorPlan], options: WriterOptions) -> Result<GgufWriter, GgufError> {
    GgufWriter::create(&folder.path().join("m.gguf"), &Metadata::new(), plans.to_vec(), options)
}

/// What is said, without the folder.
fn message<T>(folder: &TempDir, result: Result<T, GgufError>) -> String {
    let message = result.err().expect("an error").to_string();
    message.replace(&format!("{}/", folder.path().display()), "")
}

fn files_in(folder: &Path) -> usize {
    fs::read_dir(folder).unwrap().count()
}

#[test]
fn plans_that_cannot_be_written_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let long = "n".repeat(64);
    for (plans, expected) in [
        (vec![plan("", &[4], GgmlType::F32)], "`` has a name of 0 bytes, expected 1 to 63".to_owned()),
        (vec![plan(&long, &[4], GgmlType::F32)], format!("`{long}` has a name of 64 bytes, expected 1 to 63")),
        (vec![plan("t", &[], GgmlType::F32)], "`t` has 0 dimensions, expected 1 to 4".to_owned()),
        (vec![plan("t", &[1; 5], GgmlType::F32)], "`t` has 5 dimensions, expected 1 to 4".to_owned()),
        (vec![plan("t", &[3, 0], GgmlType::F32)], "`t` has shape [3, 0], expected no dimension of 0".to_owned()),
        (
            vec![plan("t", &[3, 100], GgmlType::Q2K)],
            "`t` does not hold what its shape and type say: q2_k holds blocks of 256, and a row has 100 values"
                .to_owned(),
        ),
        (
            vec![plan("t", &[1 << 61, 4], GgmlType::F32)],
            "`t` has shape [2305843009213693952, 4], which does not fit this machine's memory".to_owned(),
        ),
        (vec![plan("t", &[4], GgmlType::F32), plan("t", &[4], GgmlType::F32)], "`t` is also in m.gguf".to_owned()),
    ] {
        let result = create(&folder, &plans, WriterOptions::default());
        assert_eq!(message(&folder, result), format!("m.gguf: tensor {expected}"));
    }
    assert_eq!(files_in(folder.path()), 0);
}

#[test]
fn metadata_that_cannot_be_written_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let creating = |key: &str, value: Array| {
        let mut metadata = Metadata::new();
        metadata.insert(key, value);
        message(&folder, GgufWriter::create(&path, &metadata, vec![], WriterOptions::default()))
    };
    let deep = (0..Array::MAX_DEPTH).fold(Array::U8(vec![]), |inner, _| Array::Array(vec![inner]));
    assert_eq!(
        creating("deep", deep),
        "m.gguf: metadata key `deep` cannot be written: arrays within arrays more than 8 deep"
    );
    let long = "k".repeat(65_536);
    assert_eq!(
        creating(&long, Array::U8(vec![])),
        format!("m.gguf: metadata key `{long}` cannot be written: 65536 bytes long, expected at most 65535")
    );
    for alignment in [0, 4, 24] {
        let result = create(&folder, &[], WriterOptions { alignment, split: Split::None });
        assert_eq!(
            message(&folder, result),
            format!("m.gguf: metadata key `general.alignment` is {alignment}, expected a power of two of at least 8")
        );
    }
    assert_eq!(files_in(folder.path()), 0);
}

#[test]
fn tensors_are_written_in_the_order_of_the_plan() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = create(&folder, &plans(), WriterOptions::default()).unwrap();
    let out_of_turn = writer.write("b", &[0; 32]);
    assert_eq!(message(&folder, out_of_turn), "m.gguf: tensor `b` is written out of turn, expected `a`");
    writer.write("a", &[0; 16]).unwrap();
    writer.write("b", &[0; 32]).unwrap();
    writer.write("c", &[0; 16]).unwrap();
    let again = writer.write("c", &[0; 16]);
    assert_eq!(message(&folder, again), "m.gguf: tensor `c` is written out of turn, expected no more tensor");
}

#[test]
fn tensors_are_written_whole() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = create(&folder, &plans(), WriterOptions::default()).unwrap();
    let longer = writer.write("a", &[0; 17]);
    assert_eq!(message(&folder, longer), "m.gguf: tensor `a` takes 16 bytes, and 17 were written");
    writer.write("a", &[0; 10]).unwrap();
    let next = writer.write("b", &[0; 32]);
    assert_eq!(message(&folder, next), "m.gguf: tensor `a` takes 16 bytes, and 10 were written");
    assert_eq!(message(&folder, writer.finish()), "m.gguf: tensor `a` takes 16 bytes, and 10 were written");
}

#[test]
fn a_writer_that_does_not_finish_leaves_nothing_behind() {
    for split in [Split::None, Split::Tensors(1)] {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = create(&folder, &plans(), WriterOptions { split, ..WriterOptions::default() }).unwrap();
        writer.write("a", &[0; 16]).unwrap();
        writer.write("b", &[0; 7]).unwrap();
        assert_ne!(files_in(folder.path()), 0);
        assert!(!folder.path().join("m.gguf").exists());
        drop(writer);
        assert_eq!(files_in(folder.path()), 0);

        let unfinished = create(&folder, &plans(), WriterOptions { split, ..WriterOptions::default() }).unwrap();
        assert_eq!(message(&folder, unfinished.finish()), "m.gguf: tensor `a` takes 16 bytes, and 0 were written");
        assert_eq!(files_in(folder.path()), 0);
    }
}

#[test]
fn a_file_that_was_there_is_replaced_by_a_whole_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    write(&path, &Metadata::new(), &[plan("old", &[4], GgmlType::F32)], WriterOptions::default());
    let old = Gguf::open(&path).unwrap();
    let new = plan("new", &[8], GgmlType::F32);
    write(&path, &Metadata::new(), std::slice::from_ref(&new), WriterOptions::default());
    let info = old.required("old").unwrap();
    assert_eq!(old.bytes(info).unwrap(), bytes_of(&plan("old", &[4], GgmlType::F32)), "still mapped");
    assert!(Gguf::open(&path).unwrap().tensor("new").is_some());
    assert_eq!(files_in(folder.path()), 1);
}

#[test]
fn what_the_metadata_say_of_files_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let mut metadata = Metadata::new();
    metadata.insert("general.alignment", 64_u32);
    metadata.insert("split.no", 4_u16);
    metadata.insert("split.count", 7_u16);
    metadata.insert("split.tensors.count", 1046_i32);
    metadata.insert("kept", true);
    write(&path, &metadata, &plans(), WriterOptions::default());
    let gguf = Gguf::open(&path).unwrap();
    assert!(gguf.metadata().iter().map(|(key, _)| key).eq(["kept"]));
}

#[test]
fn a_folder_that_is_not_there_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("absent").join("m.gguf");
    let result = GgufWriter::create(&path, &Metadata::new(), vec![], WriterOptions::default());
    assert!(message(&folder, result).starts_with("absent/m.gguf: cannot be created: "));
}

#[test]
fn a_name_that_asks_for_other_files_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m-00002-of-00003.gguf");
    let result = GgufWriter::create(&path, &Metadata::new(), plans().to_vec(), WriterOptions::default());
    assert_eq!(
        message(&folder, result),
        "m-00002-of-00003.gguf: has the name of shard 2 of 3, and metadata without `split.count`"
    );
}

#[cfg(unix)]
#[test]
fn nothing_is_finished_after_a_failure() {
    let folder = tempfile::tempdir().unwrap();
    let options = WriterOptions { split: Split::Tensors(1), ..WriterOptions::default() };
    let mut writer = create(&folder, &plans(), options).unwrap();
    fs::remove_dir_all(folder.path()).unwrap();
    let next = writer.write("a", &[0; 16]);
    assert!(message(&folder, next).starts_with("m-00002-of-00003.gguf: cannot be created: "));
    let later = writer.write("b", &[0; 32]);
    assert_eq!(message(&folder, later), "m-00002-of-00003.gguf: cannot be written: an earlier write has failed");
    assert_eq!(message(&folder, writer.finish()), "m.gguf: tensor `b` takes 32 bytes, and 0 were written");

    let folder = tempfile::tempdir().unwrap();
    let mut writer = create(&folder, &plans()[..1], WriterOptions::default()).unwrap();
    writer.write("a", &[0; 16]).unwrap();
    fs::remove_dir_all(folder.path()).unwrap();
    assert!(message(&folder, writer.finish()).starts_with("m.gguf: cannot be renamed: "));
}

#[cfg(unix)]
#[test]
fn files_may_be_read_by_whoever_reads_new_files() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let (path, other) = (folder.path().join("m.gguf"), folder.path().join("other"));
    write(&path, &Metadata::new(), &plans(), WriterOptions::default());
    fs::write(&other, b"").unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&path), mode(&other));
}
