//! Where the tensors' data are in a file: each checked to be in it, and to be its own.

use std::path::Path;
use std::sync::Arc;

use super::header::{Header, TensorEntry};
use crate::error::{GgufError, TensorFault};
use crate::format::{ALIGNMENT, DEFAULT_ALIGNMENT, check_alignment};
use crate::metadata::Metadata;
use crate::tensor::{TensorInfo, TensorType, check_bytes, check_shape, fault_in};

/// The part of a file that its tensors' data may be in.
struct Data<'a> {
    file: &'a Arc<Path>,
    alignment: u64,
    start: u64,
    file_bytes: u64,
}

/// A tensor and where its data end, which only a known type tells.
struct Placed {
    info: TensorInfo,
    end: Option<usize>,
}

/// The tensors of one file, the one at this place in its set, in the order of its list; and its metadata.
pub(super) fn place(
    file: &Arc<Path>,
    shard: usize,
    header: Header,
    file_bytes: usize,
) -> Result<(Metadata, Vec<TensorInfo>), GgufError> {
    let alignment = alignment(&header.metadata)?;
    // The header lies within the file, so that only an alignment that no file has overflows.
    let start = (header.end as u64).checked_next_multiple_of(alignment).unwrap_or(u64::MAX);
    let data = Data { file, alignment, start, file_bytes: file_bytes as u64 };
    let placed: Vec<Placed> =
        header.tensors.into_iter().map(|entry| data.place(entry, shard)).collect::<Result<_, _>>()?;
    check_overlaps(&placed)?;
    Ok((header.metadata, placed.into_iter().map(|placed| placed.info).collect()))
}

fn alignment(metadata: &Metadata) -> Result<u64, GgufError> {
    let alignment = metadata.u64(ALIGNMENT)?.unwrap_or(DEFAULT_ALIGNMENT.into());
    check_alignment(alignment).map_err(|fault| metadata.fault(ALIGNMENT, fault))
}

impl Data<'_> {
    fn place(
        &self,
        TensorEntry { name, shape, type_id, offset }: TensorEntry,
        shard: usize,
    ) -> Result<Placed, GgufError> {
        let fault = |fault| fault_in(self.file, &name, fault);
        let shape = check_shape(&shape).map_err(fault)?;
        let ty = TensorType::from_id(type_id);
        let bytes = match ty {
            TensorType::Known(ty) => Some(check_bytes(&shape, ty).map_err(fault)?),
            TensorType::Unknown(_) => None,
        };
        if !offset.is_multiple_of(self.alignment) {
            return Err(fault(TensorFault::Misaligned { offset, alignment: self.alignment }));
        }
        let start = self.start.saturating_add(offset);
        let end = start.saturating_add(bytes.unwrap_or(0) as u64);
        if end > self.file_bytes {
            return Err(fault(TensorFault::PastEnd { start, end, file_bytes: self.file_bytes }));
        }
        // The file is in memory, so that its places are numbers of this machine.
        let offset = start as usize;
        let end = bytes.map(|bytes| offset + bytes);
        Ok(Placed { info: TensorInfo { name, shape, ty, file: self.file.clone(), shard, offset }, end })
    }
}

/// Passes tensors of which none begins within another. How far one of unknown type goes is not known.
fn check_overlaps(placed: &[Placed]) -> Result<(), GgufError> {
    let mut in_order: Vec<&Placed> = placed.iter().collect();
    in_order.sort_by_key(|placed| placed.info.offset);
    let mut furthest: Option<(usize, &TensorInfo)> = None;
    for Placed { info, end } in in_order {
        if let Some((end, other)) = furthest
            && info.offset < end
        {
            let other = other.name.clone();
            return Err(info.fault(TensorFault::Overlap { start: info.offset as u64, other, end: end as u64 }));
        }
        furthest = end.map(|end| (end, info)).or(furthest);
    }
    Ok(())
}
