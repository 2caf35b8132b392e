//! What is written is what is read.

use dsv41_gguf::{Advice, Array, Gguf, Metadata, Split, TensorPlan, WriterOptions};
use dsv41_quant::GgmlType;

use crate::{bytes_of, plan, write};

/// A value of every type.
fn every_value() -> Metadata {
    let mut metadata = Metadata::new();
    metadata.insert("general.architecture", "deepseek41");
    metadata.insert("u8", u8::MAX);
    metadata.insert("i8", i8::MIN);
    metadata.insert("u16", u16::MAX);
    metadata.insert("i16", i16::MIN);
    metadata.insert("u32", u32::MAX);
    metadata.insert("i32", i32::MIN);
    metadata.insert("f32", -1.5e-20_f32);
    metadata.insert("true", true);
    metadata.insert("false", false);
    metadata.insert("string", "ünïcödé \0 and \u{1f600}");
    metadata.insert("empty string", "");
    metadata.insert("u64", u64::MAX);
    metadata.insert("i64", i64::MIN);
    metadata.insert("f64", f64::MIN_POSITIVE);
    metadata.insert("u8s", vec![0_u8, 1, u8::MAX]);
    metadata.insert("i8s", vec![i8::MIN, 0, i8::MAX]);
    metadata.insert("u16s", vec![0, u16::MAX]);
    metadata.insert("i16s", vec![i16::MIN, i16::MAX]);
    metadata.insert("u32s", vec![0, u32::MAX]);
    metadata.insert("i32s", vec![i32::MIN, i32::MAX]);
    metadata.insert("f32s", vec![0.1_f32, f32::INFINITY, -0.0]);
    metadata.insert("bools", vec![true, false, true]);
    metadata.insert("strings", ["a", "", "ß"].map(str::to_owned).to_vec());
    metadata.insert("u64s", vec![0, u64::MAX]);
    metadata.insert("i64s", vec![i64::MIN, i64::MAX]);
    metadata.insert("f64s", vec![0.1_f64, f64::MAX]);
    metadata.insert("no strings", Vec::<String>::new());
    metadata.insert("arrays", vec![Array::U8(vec![1]), Array::Array(vec![Array::String(vec!["x".to_owned()])])]);
    metadata
}

/// A tensor of every type and rank.
fn every_tensor() -> Vec<TensorPlan> {
    let mut plans: Vec<TensorPlan> =
        GgmlType::ALL.map(|ty| plan(&format!("{ty}.weight"), &[3, 512], ty)).into_iter().collect();
    plans.push(plan("vector", &[5], GgmlType::F32));
    plans.push(plan("stack", &[3, 2, 256], GgmlType::Q2K));
    plans.push(plan("four", &[2, 1, 3, 7], GgmlType::F16));
    plans
}

#[test]
fn every_value_and_tensor_is_read_as_it_was_written() {
    let (metadata, plans) = (every_value(), every_tensor());
    for alignment in [8, 32, 64, 8192] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        let options = WriterOptions { alignment, split: Split::None };
        assert_eq!(write(&path, &metadata, &plans, options), std::slice::from_ref(&path));

        let gguf = Gguf::open(&path).unwrap();
        let read = gguf.metadata().iter().filter(|&(key, _)| key != "general.alignment");
        assert!(read.eq(metadata.iter()), "values in their order");
        let expected = (alignment != 32).then_some(alignment);
        assert_eq!(gguf.metadata().u32("general.alignment").unwrap(), expected);

        assert!(
            gguf.tensors().map(|info| &info.name).eq(plans.iter().map(|plan| &plan.name)),
            "tensors in their order"
        );
        for plan in &plans {
            let info = gguf.required(&plan.name).unwrap();
            assert_eq!((&info.shape, info.known_type().unwrap()), (&plan.shape, plan.ty));
            assert_eq!(info.file(), path);
            assert!(info.offset().is_multiple_of(alignment as usize));
            let bytes = bytes_of(plan);
            assert_eq!(info.byte_len().unwrap(), bytes.len());
            assert_eq!(gguf.bytes(info).unwrap(), bytes);
        }
    }
}

#[test]
fn metadata_without_tensors_are_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    write(&path, &every_value(), &[], WriterOptions::default());
    let gguf = Gguf::open(&path).unwrap();
    assert_eq!((gguf.metadata(), gguf.tensors().len()), (&every_value(), 0));
}

#[test]
fn rows_and_experts_are_where_the_whole_tensor_has_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let plans = every_tensor();
    write(&path, &Metadata::new(), &plans, WriterOptions::default());
    let on_disk = Gguf::open(&path).unwrap();
    let in_memory = Gguf::from_bytes("m.gguf", std::fs::read(&path).unwrap().into()).unwrap();
    for gguf in [on_disk, in_memory] {
        for plan in &plans {
            let info = gguf.required(&plan.name).unwrap();
            let whole = gguf.bytes(info).unwrap();
            let mut row = vec![0; info.row_bytes().unwrap()];
            gguf.advise(info, 0..info.rows(), Advice::WillNeed).unwrap();
            for index in 0..info.rows() {
                gguf.read_row(info, index as u64, &mut row).unwrap();
                assert_eq!(row, whole[index * row.len()..][..row.len()], "row {index} of {}", plan.name);
            }
            gguf.advise(info, 0..info.rows(), Advice::DontNeed).unwrap();
            assert_eq!(gguf.bytes(info).unwrap(), bytes_of(plan));
        }
        let stack = gguf.bytes(gguf.required("stack").unwrap()).unwrap();
        for expert in 0..3 {
            let matrix = gguf.expert("stack", expert).unwrap();
            assert_eq!((matrix.ty(), matrix.rows(), matrix.columns()), (GgmlType::Q2K, 2, 256));
            assert_eq!(matrix.bytes()[..], stack[expert * 168..][..168]);
        }
        assert_eq!(gguf.matrix("q6_k.weight").unwrap().bytes()[..], bytes_of(&plans[9]));
    }
}

#[test]
fn tensors_are_the_mapped_file_and_outlive_the_reader() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let plans = [plan("t", &[64, 256], GgmlType::Q8_0)];
    write(&path, &Metadata::new(), &plans, WriterOptions::default());
    let gguf = Gguf::open(&path).unwrap();
    let (first, second) = (gguf.matrix("t").unwrap(), gguf.matrix("t").unwrap());
    assert_eq!(first.bytes().as_ptr(), second.bytes().as_ptr(), "no copy");
    drop((gguf, folder));
    assert_eq!(first.bytes()[..], bytes_of(&plans[0]));
}

#[test]
fn equal_models_are_equal_files() {
    let folder = tempfile::tempdir().unwrap();
    let files = ["a.gguf", "b.gguf"].map(|name| {
        let path = folder.path().join(name);
        write(&path, &every_value(), &every_tensor(), WriterOptions::default());
        std::fs::read(path).unwrap()
    });
    assert!(files[0] == files[1]);
}
