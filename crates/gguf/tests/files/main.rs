//! GGUF files written and read, and files that are not what they should be.

mod faults;
mod hostile;
mod raw;
mod round_trip;
mod sample;
mod shards;
mod writing;

use std::path::{Path, PathBuf};

use dsv41_gguf::{GgufWriter, Metadata, TensorPlan, WriterOptions};
use dsv41_quant::GgmlType;

impl raw::Raw {
    /// What is said of the file, which is named `m.gguf`.
    #[track_caller]
    fn message(self) -> String {
        self.open().unwrap_err().to_string()
    }
}

/// A tensor of the plan.
fn plan(name: &str, shape: &[usize], ty: GgmlType) -> TensorPlan {
    TensorPlan { name: name.to_owned(), shape: shape.to_vec(), ty }
}

/// Bytes that differ from tensor to tensor and from place to place.
fn filler(name: &str, len: usize) -> Vec<u8> {
    let salt = name.bytes().fold(0_usize, |sum, byte| sum * 31 % 10_007 + usize::from(byte));
    (0..len).map(|place| (((place + salt) * 37) >> 3) as u8).collect()
}

/// Bytes of a tensor of the plan.
fn bytes_of(plan: &TensorPlan) -> Vec<u8> {
    let (columns, outer) = plan.shape.split_last().unwrap();
    filler(&plan.name, outer.iter().product::<usize>() * plan.ty.row_bytes(*columns).unwrap())
}

/// Writes tensors of filler and returns the files.
fn write(path: &Path, metadata: &Metadata, plans: &[TensorPlan], options: WriterOptions) -> Vec<PathBuf> {
    let mut writer = GgufWriter::create(path, metadata, plans.to_vec(), options).unwrap();
    for plan in plans {
        // In two chunks, neither of which is a row.
        let bytes = bytes_of(plan);
        let (begin, end) = bytes.split_at(bytes.len() / 3);
        writer.write(&plan.name, begin).unwrap();
        writer.write(&plan.name, end).unwrap();
    }
    writer.finish().unwrap()
}
