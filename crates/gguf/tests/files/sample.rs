//! A file by another writer.

use std::env;
use std::path::PathBuf;

use dsv41_gguf::Gguf;
use dsv41_quant::GgmlType;

/// The sample, or none with a word about it.
fn sample() -> Option<Gguf> {
    let Some(shared) = env::var_os("DSV41_SHARED") else {
        eprintln!("skipped: DSV41_SHARED names no folder with gguf/tiny-q2_k.gguf");
        return None;
    };
    Some(Gguf::open(&PathBuf::from(shared).join("gguf/tiny-q2_k.gguf")).unwrap())
}

#[test]
fn the_sample_is_read() {
    let Some(gguf) = sample() else { return };
    assert_eq!((gguf.metadata().len(), gguf.tensors().len()), (65, 176));
    assert_eq!(gguf.metadata().str("general.architecture").unwrap(), Some("deepseek41"));
    assert_eq!(gguf.metadata().strings("tokenizer.ggml.tokens").unwrap().map(<[String]>::len), Some(320));
    assert_eq!(gguf.metadata().u64s("deepseek41.engram.primes").unwrap().map(|primes| primes.is_empty()), Some(false));

    let head = gguf.matrix("output.weight").unwrap();
    assert_eq!((head.ty(), head.rows(), head.columns(), head.bytes().len()), (GgmlType::Q6K, 320, 256, 67_200));
    let info = gguf.required("output_norm.weight").unwrap();
    assert_eq!((info.offset(), info.byte_len().unwrap()), (90_016, 1024));
    let end = gguf.tensors().map(|info| info.offset() + info.byte_len().unwrap()).max();
    let (_, file_bytes) = gguf.files().next().unwrap();
    assert!(end.is_some_and(|end| end <= file_bytes && file_bytes - end < 32), "{end:?} of {file_bytes}");
}
