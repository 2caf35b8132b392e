//! Files with arbitrary damage: whatever they say, they are read or refused.

use std::cell::Cell;

use bytes::Bytes;
use dsv41_gguf::{Array, Gguf, Metadata, TensorType, Value, WriterOptions};
use dsv41_quant::GgmlType;
use proptest::prelude::*;

use crate::{plan, write};

/// A small file with everything in it.
fn file() -> Vec<u8> {
    let mut metadata = Metadata::new();
    metadata.insert("general.architecture", "deepseek41");
    metadata.insert("block_count", 2_u32);
    metadata.insert("flag", true);
    metadata.insert("tokens", ["a", "bc", "def", ""].map(str::to_owned).to_vec());
    metadata.insert("flags", vec![true, false]);
    metadata.insert("ratios", vec![0_i32, 4, 128]);
    metadata.insert("nested", vec![Array::U8(vec![1, 2]), Array::Array(vec![Array::F64(vec![0.5])])]);
    let plans = [
        plan("embd", &[4, 256], GgmlType::Q2K),
        plan("norm", &[8], GgmlType::F32),
        plan("exps", &[3, 2, 32], GgmlType::Mxfp4),
        plan("gate", &[2, 16], GgmlType::Bf16),
    ];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    write(&path, &metadata, &plans, WriterOptions::default());
    std::fs::read(path).unwrap()
}

/// One damage to a file.
#[derive(Debug, Clone)]
enum Damage {
    /// Other bits of a byte.
    Flip(prop::sample::Index, u8),
    /// A number over eight bytes, or over four, as counts, lengths, shapes and offsets are.
    Number(prop::sample::Index, u64, bool),
    /// The end cut off.
    Cut(prop::sample::Index),
    /// A number between two bytes.
    Insert(prop::sample::Index, u64),
    /// Some bytes again at another place.
    Splice(prop::sample::Index, prop::sample::Index, usize),
    /// Some bytes left out.
    Remove(prop::sample::Index, usize),
}

/// Numbers at the edges of what is sensible, and any.
fn number() -> impl Strategy<Value = u64> {
    let edges =
        vec![0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 31, 32, 255, 256, 1 << 20, 1 << 32, 1 << 61, 1 << 63, u64::MAX - 31];
    prop_oneof![4 => prop::sample::select(edges), 1 => any::<u64>(), 1 => 0_u64..4096]
}

fn damage() -> impl Strategy<Value = Damage> {
    let place = any::<prop::sample::Index>;
    prop_oneof![
        4 => (place(), 1..=u8::MAX).prop_map(|(place, bits)| Damage::Flip(place, bits)),
        4 => (place(), number(), any::<bool>()).prop_map(|(place, number, long)| Damage::Number(place, number, long)),
        1 => place().prop_map(Damage::Cut),
        1 => (place(), number()).prop_map(|(place, number)| Damage::Insert(place, number)),
        1 => (place(), place(), 1_usize..80).prop_map(|(from, to, len)| Damage::Splice(from, to, len)),
        1 => (place(), 1_usize..80).prop_map(|(place, len)| Damage::Remove(place, len)),
    ]
}

impl Damage {
    /// Does the damage, for the most part in the first `header` bytes, where it is least expected to be harmless.
    fn apply(&self, file: &mut Vec<u8>, header: usize) {
        if file.is_empty() {
            return;
        }
        let within = header.min(file.len());
        match self {
            Self::Flip(place, bits) => file[place.index(within)] ^= bits,
            Self::Number(place, number, long) => {
                let place = place.index(within);
                let bytes = &number.to_le_bytes()[..if *long { 8 } else { 4 }];
                let end = file.len().min(place + bytes.len());
                file[place..end].copy_from_slice(&bytes[..end - place]);
            }
            Self::Cut(place) => file.truncate(place.index(file.len())),
            Self::Insert(place, number) => {
                let place = place.index(within);
                file.splice(place..place, number.to_le_bytes());
            }
            Self::Splice(from, to, len) => {
                let (from, to) = (from.index(file.len()), to.index(within));
                let piece = file[from..file.len().min(from + len)].to_vec();
                file.splice(to..to, piece);
            }
            Self::Remove(place, len) => {
                let place = place.index(within);
                file.drain(place..file.len().min(place + len));
            }
        }
    }
}

/// Uses all that a file says it holds.
fn use_all(gguf: &Gguf) {
    let metadata = gguf.metadata();
    for (key, value) in metadata.iter() {
        assert_eq!(metadata.get(key).map(Value::ty), Some(value.ty()));
        // Errors are right for most of them; none may panic.
        let _ = (metadata.u32(key), metadata.usizes(key), metadata.f32s(key), metadata.strings(key));
    }
    let (_, file_bytes) = gguf.files().next().unwrap();
    for info in gguf.tensors() {
        let Ok(bytes) = gguf.bytes(info) else {
            assert!(matches!(info.ty, TensorType::Unknown(_)), "{info:?}");
            continue;
        };
        assert_eq!(bytes.len(), info.byte_len().unwrap());
        assert!(info.offset() + bytes.len() <= file_bytes);
        let mut row = vec![0; info.row_bytes().unwrap()];
        gguf.read_row(info, info.rows() as u64 - 1, &mut row).unwrap();
        assert!(bytes.ends_with(&row));
        match info.shape.len() {
            2 => drop(gguf.matrix(&info.name).unwrap().dequantise()),
            3 => drop(gguf.expert(&info.name, info.shape[0] - 1).unwrap().dequantise()),
            _ => assert!(gguf.matrix(&info.name).is_err()),
        }
    }
}

/// Where the header ends and the data begin.
fn header_bytes(file: &[u8]) -> usize {
    let gguf = Gguf::from_bytes("whole", Bytes::copy_from_slice(file)).unwrap();
    use_all(&gguf);
    gguf.tensors().map(|info| info.offset()).min().unwrap()
}

#[test]
fn damaged_files_are_read_or_refused() {
    let file = file();
    let header = header_bytes(&file);
    let config = ProptestConfig { cases: 100_000, failure_persistence: None, ..ProptestConfig::default() };
    let (read, refused) = (Cell::new(0), Cell::new(0));
    proptest!(config, |(damages in prop::collection::vec(damage(), 1..4))| {
        let mut damaged = file.clone();
        damages.iter().for_each(|damage| damage.apply(&mut damaged, header));
        match Gguf::from_bytes("damaged", damaged.into()) {
            Ok(gguf) => {
                read.set(read.get() + 1);
                use_all(&gguf);
            }
            Err(error) => {
                refused.set(refused.get() + 1);
                prop_assert!(error.to_string().starts_with("damaged: "), "{error}");
            }
        }
    });
    assert!(read.get() > 1_000 && refused.get() > 1_000, "{read:?} read, {refused:?} refused");
}

#[test]
fn a_file_cut_short_anywhere_is_refused() {
    let file = file();
    // The padding behind the last tensor may be missing.
    let needed = {
        let gguf = Gguf::from_bytes("whole", Bytes::copy_from_slice(&file)).unwrap();
        gguf.tensors().map(|info| info.offset() + info.byte_len().unwrap()).max().unwrap()
    };
    for len in 0..=file.len() {
        let result = Gguf::from_bytes("cut", Bytes::copy_from_slice(&file[..len]));
        assert_eq!(result.is_ok(), len >= needed, "{len} of {needed} bytes");
    }
}

#[test]
fn every_number_of_the_header_may_be_huge() {
    let file = file();
    for place in 0..header_bytes(&file) {
        for number in [0, u64::MAX, 1 << 63, u64::MAX / 32, 1 << 32, u64::from(u32::MAX)] {
            let mut damaged = file.clone();
            damaged[place..place + 8].copy_from_slice(&number.to_le_bytes());
            if let Ok(gguf) = Gguf::from_bytes("damaged", damaged.into()) {
                use_all(&gguf);
            }
        }
    }
}
