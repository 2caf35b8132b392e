//! Which tensors go into which file, and where in it.

use std::collections::HashSet;
use std::ops::Range;
use std::path::{Path, PathBuf};

use dsv41_quant::GgmlType;

use super::Split;
use crate::error::{GgufError, ShardFault, TensorFault};
use crate::format::{EXTENSION, LONGEST_NAME, Place};
use crate::tensor::{check_bytes, check_shape, fault_in};

/// A tensor that will be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorPlan {
    /// The name, of 63 bytes at most.
    pub name: String,
    /// The shape, slowest axis first. One to four axes, none of them empty.
    pub shape: Vec<usize>,
    /// The type.
    pub ty: GgmlType,
}

/// A tensor and its place in a file.
pub(super) struct PlannedTensor {
    pub(super) plan: TensorPlan,
    /// Bytes without padding.
    pub(super) bytes: u64,
    /// From the begin of the file's data on.
    pub(super) offset: u64,
}

/// A file that will be written.
pub(super) struct PlannedFile {
    pub(super) path: PathBuf,
    /// Its place, if it is one of several.
    pub(super) place: Option<Place>,
    pub(super) tensors: Range<usize>,
}

/// Every tensor and every file. Each file holds a tensor at least, unless there is none at all.
pub(super) fn lay_out(
    path: &Path,
    plans: Vec<TensorPlan>,
    alignment: u64,
    split: Split,
) -> Result<(Vec<PlannedTensor>, Vec<PlannedFile>), GgufError> {
    let mut names = HashSet::with_capacity(plans.len());
    for plan in &plans {
        if !names.insert(&plan.name) {
            return Err(fault_in(path, &plan.name, TensorFault::Duplicate { other: path.to_owned() }));
        }
    }
    let mut tensors: Vec<PlannedTensor> = Vec::with_capacity(plans.len());
    let mut starts = vec![0];
    let mut offset = 0_u64;
    for (index, plan) in plans.into_iter().enumerate() {
        let fault = |fault| fault_in(path, &plan.name, fault);
        let bytes = check(&plan).map_err(fault)?;
        let too_large = || fault(TensorFault::TooLarge { shape: plan.shape.iter().map(|&axis| axis as u64).collect() });
        let padded = bytes.checked_next_multiple_of(alignment).ok_or_else(too_large)?;
        let first = starts.last().copied().unwrap_or(0);
        if index > first && split.is_full(index - first, offset, padded) {
            starts.push(index);
            offset = 0;
        }
        let end = offset.checked_add(padded).ok_or_else(too_large)?;
        tensors.push(PlannedTensor { plan, bytes, offset });
        offset = end;
    }
    let files = files(path, &starts, tensors.len())?;
    Ok((tensors, files))
}

/// Bytes of a tensor that can be written.
fn check(plan: &TensorPlan) -> Result<u64, TensorFault> {
    if !(1..=LONGEST_NAME).contains(&plan.name.len()) {
        return Err(TensorFault::Name { found: plan.name.len(), most: LONGEST_NAME });
    }
    let shape: Vec<u64> = plan.shape.iter().map(|&axis| axis as u64).collect();
    check_bytes(&check_shape(&shape)?, plan.ty).map(|bytes| bytes as u64)
}

/// The files whose first tensors are these.
fn files(path: &Path, starts: &[usize], tensors: usize) -> Result<Vec<PlannedFile>, GgufError> {
    let fault = |fault| GgufError::Shard { file: path.to_owned(), fault };
    if let [start] = *starts {
        return match Place::by_name(path, EXTENSION) {
            // The reader would look for the others.
            Some((_, Place { number, count })) if count != 1 => Err(fault(ShardFault::Unsplit { number, count })),
            _ => Ok(vec![PlannedFile { path: path.to_owned(), place: None, tensors: start..tensors }]),
        };
    }
    for (what, count, most) in [("shards", starts.len(), u16::MAX.into()), ("tensors", tensors, i32::MAX as usize)] {
        if count > most {
            return Err(fault(ShardFault::TooMany { what, count, most }));
        }
    }
    let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(|| fault(ShardFault::NoName))?;
    let stem = name.strip_suffix(&format!(".{EXTENSION}")).unwrap_or(name);
    let ends = starts[1..].iter().copied().chain([tensors]);
    let file = |(index, (&start, end)): (usize, (&usize, usize))| {
        let place = Place { number: index as u64 + 1, count: starts.len() as u64 };
        PlannedFile { path: path.with_file_name(place.name(stem, EXTENSION)), place: Some(place), tensors: start..end }
    };
    Ok(starts.iter().zip(ends).enumerate().map(file).collect())
}
