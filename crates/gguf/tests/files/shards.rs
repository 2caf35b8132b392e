//! Models in several files.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use dsv41_gguf::{Gguf, Metadata, Split, TensorPlan, WriterOptions};
use dsv41_quant::GgmlType;
use tempfile::TempDir;

use crate::raw::Raw;
use crate::{bytes_of, plan, write};

const U16: u32 = 2;
const I32: u32 = 5;
const F32: u32 = 0;

fn plans() -> Vec<TensorPlan> {
    (0..7).map(|index| plan(&format!("blk.{index}.t"), &[index + 1, 40], GgmlType::F16)).collect()
}

fn metadata() -> Metadata {
    let mut metadata = Metadata::new();
    metadata.insert("general.architecture", "deepseek41");
    metadata
}

/// A model in several files.
fn split(split: Split) -> (TempDir, Vec<PathBuf>) {
    let folder = tempfile::tempdir().unwrap();
    let options = WriterOptions { alignment: 64, split };
    let files = write(&folder.path().join("m.gguf"), &metadata(), &plans(), options);
    (folder, files)
}

fn names(files: &[PathBuf]) -> Vec<&str> {
    files.iter().map(|file| file.file_name().unwrap().to_str().unwrap()).collect()
}

fn opening(path: &Path) -> String {
    Gguf::open(path).unwrap_err().to_string()
}

#[test]
fn a_set_is_opened_by_any_of_its_files() {
    let (folder, files) = split(Split::Tensors(3));
    assert_eq!(names(&files), ["m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"]);
    let there: BTreeSet<PathBuf> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(there.iter().eq(&files), "nothing else is left");
    for opened in &files {
        let gguf = Gguf::open(opened).unwrap();
        assert!(gguf.files().map(|(path, _)| path).eq(&files));
        assert!(gguf.files().all(|(path, bytes)| fs::metadata(path).unwrap().len() == bytes as u64));
        assert!(gguf.tensors().map(|info| &info.name).eq(plans().iter().map(|plan| &plan.name)));
        assert_eq!(gguf.metadata().str("general.architecture").unwrap(), Some("deepseek41"));
        for (index, plan) in plans().iter().enumerate() {
            let info = gguf.required(&plan.name).unwrap();
            assert_eq!(info.file(), files[index / 3]);
            assert_eq!(gguf.bytes(info).unwrap(), bytes_of(plan));
            let mut row = vec![0; 80];
            gguf.read_row(info, index as u64, &mut row).unwrap();
            assert_eq!(row, bytes_of(plan)[index * 80..]);
        }
    }
}

#[test]
fn the_first_file_has_the_metadata_and_every_file_its_place() {
    let (_folder, files) = split(Split::Tensors(3));
    for (index, file) in files.iter().enumerate() {
        // As a model of its own: under another name, and not the shard of a set.
        let bytes = fs::read(file).unwrap();
        let message = Gguf::from_bytes("alone", bytes.into()).unwrap_err().to_string();
        assert_eq!(message, format!("alone: is shard {} of 3 by its metadata, expected a whole model", index + 1));
    }
    let gguf = Gguf::open(&files[1]).unwrap();
    let keys: Vec<&str> = gguf.metadata().iter().map(|(key, _)| key).collect();
    let expected = ["general.architecture", "general.alignment", "split.no", "split.count", "split.tensors.count"];
    assert_eq!(keys, expected);
    let types = gguf.metadata().iter().map(|(_, value)| value.describe_type());
    assert!(types.eq(["string", "u32", "u16", "u16", "i32"]));
    let second = fs::read(&files[1]).unwrap();
    assert!(!second.windows(10).any(|window| window == b"deepseek41"));
}

#[test]
fn files_are_no_longer_than_asked_unless_one_tensor_is() {
    // Tensors of 80 to 560 bytes, each padded to a multiple of 64.
    let (_folder, files) = split(Split::Bytes(512));
    let gguf = Gguf::open(&files[0]).unwrap();
    let mut data = vec![0; files.len()];
    let mut tensors = vec![0; files.len()];
    for info in gguf.tensors() {
        let file = files.iter().position(|file| file == info.file()).unwrap();
        data[file] += info.byte_len().unwrap().next_multiple_of(64);
        tensors[file] += 1;
    }
    assert_eq!(data, [128 + 192, 256, 320, 448, 512, 576]);
    assert_eq!(tensors, [2, 1, 1, 1, 1, 1]);
}

#[test]
fn a_set_of_one_file_is_a_file() {
    let (_folder, files) = split(Split::Bytes(1 << 30));
    assert_eq!(names(&files), ["m.gguf"]);
    assert_eq!(Gguf::open(&files[0]).unwrap().metadata().get("split.count"), None);
}

#[test]
fn a_missing_file_is_named() {
    for absent in 0..3 {
        let (_folder, files) = split(Split::Tensors(3));
        fs::remove_file(&files[absent]).unwrap();
        let opened = &files[(absent + 1) % 3];
        assert_eq!(
            opening(opened),
            format!(
                "{}: is missing: it is shard {} of 3, as {} says",
                files[absent].display(),
                absent + 1,
                opened.display()
            )
        );
    }
}

#[test]
fn a_file_under_the_name_of_another_is_refused() {
    let (_folder, files) = split(Split::Tensors(3));
    fs::copy(&files[1], &files[2]).unwrap();
    let third = files[2].display();
    assert_eq!(opening(&files[0]), format!("{third}: is shard 2 of 3 by its metadata, expected 3 of 3"));
    assert_eq!(
        opening(&files[2]),
        format!("{third}: is shard 2 of 3 by its metadata, expected a name that ends in `-00002-of-00003.gguf`")
    );
    let (_other, others) = split(Split::Tensors(4));
    fs::copy(&others[1], &files[2]).unwrap();
    assert_eq!(opening(&files[0]), format!("{third}: is shard 2 of 2 by its metadata, expected 3 of 3"));
    fs::write(&files[2], Raw::new(0, 0).0).unwrap();
    assert_eq!(opening(&files[0]), format!("{third}: is shard 1 of 1 by its metadata, expected 3 of 3"));
    assert_eq!(
        opening(&files[2]),
        format!("{third}: has the name of shard 3 of 3, and metadata without `split.count`")
    );
}

#[test]
fn a_shard_under_another_name_is_refused() {
    let (folder, files) = split(Split::Tensors(3));
    let renamed = folder.path().join("renamed.gguf");
    fs::rename(&files[1], &renamed).unwrap();
    assert_eq!(
        opening(&renamed),
        format!(
            "{}: is shard 2 of 3 by its metadata, expected a name that ends in `-00002-of-00003.gguf`",
            renamed.display()
        )
    );
}

/// A shard of two with one tensor, and what it says of the number of tensors.
fn shard(number: u16, tensors: i32, name: &str) -> Vec<u8> {
    let keys = Raw::new(1, 3).key("split.no", U16).bytes(&number.to_le_bytes());
    let keys = keys.key("split.count", U16).bytes(&[2, 0]).key("split.tensors.count", I32).u32(tensors as u32);
    keys.tensor(name, &[8], F32, 0).data(32, 32).0
}

fn pair(first: &[u8], second: &[u8]) -> (TempDir, PathBuf, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let paths = [1, 2].map(|number| folder.path().join(format!("m-0000{number}-of-00002.gguf")));
    fs::write(&paths[0], first).unwrap();
    fs::write(&paths[1], second).unwrap();
    let [first, second] = paths;
    (folder, first, second)
}

#[test]
fn another_number_of_tensors_is_refused() {
    let (_folder, first, _) = pair(&shard(0, 3, "a"), &shard(1, 3, "b"));
    assert_eq!(
        opening(&first),
        format!("{}: `split.tensors.count` is 3, and the shards hold 2 tensors", first.display())
    );
    let (_folder, first, second) = pair(&shard(0, 2, "a"), &shard(1, 1, "b"));
    assert_eq!(
        opening(&first),
        format!("{}: `split.tensors.count` is 1, and the shards hold 2 tensors", second.display())
    );
    let (_folder, first, _) = pair(&shard(0, -2, "a"), &shard(1, 2, "b"));
    assert_eq!(opening(&first), format!("{}: metadata key `split.tensors.count` is -2, expected u64", first.display()));
}

#[test]
fn a_tensor_of_two_files_is_refused() {
    let (_folder, first, second) = pair(&shard(0, 2, "a"), &shard(1, 2, "a"));
    assert_eq!(opening(&second), format!("{}: tensor `a` is also in {}", second.display(), first.display()));
}

#[test]
fn a_shard_without_a_number_is_refused() {
    let numberless = Raw::new(0, 1).key("split.count", U16).bytes(&[2, 0]).0;
    let (_folder, first, _) = pair(&numberless, &numberless);
    assert_eq!(opening(&first), format!("{}: metadata key `split.no` is missing", first.display()));
}

#[test]
fn a_set_of_no_files_is_refused() {
    let raw = Raw::new(0, 2).key("split.count", U16).bytes(&[0, 0]).key("split.no", U16).bytes(&[0, 0]);
    assert_eq!(raw.message(), "m.gguf: is shard 1 of 0 by its metadata, expected a whole model");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m-00001-of-00000.gguf");
    let raw = Raw::new(0, 2).key("split.count", U16).bytes(&[0, 0]).key("split.no", U16).bytes(&[0, 0]);
    fs::write(&path, raw.0).unwrap();
    assert_eq!(
        opening(&path),
        format!(
            "{}: is shard 1 of 0 by its metadata, expected a name that ends in `-00001-of-00000.gguf`",
            path.display()
        )
    );
}
