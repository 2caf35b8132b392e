//! Safetensors files that are whole or not there, and reading them in place.

use std::{
    collections::HashMap,
    fs::{self, File},
    path::Path,
};

use burn::tensor::DType;
use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors, View};

use super::OptimiserError;

/// Key of the one metadata entry. More than one would be written in an order that changes.
const METADATA: &str = "dsv41";

/// Writes a file under a name of its own, waits until it is on disk, and puts it in place of the one before.
pub(crate) fn replace<V: View>(
    path: &Path,
    tensors: impl IntoIterator<Item = (String, V)>,
    metadata: String,
) -> Result<(), OptimiserError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let partial = path.with_file_name(format!(".partial-{name}"));
    let metadata = HashMap::from([(METADATA.to_owned(), metadata)]);
    let written = safetensors::serialize_to_file(tensors, Some(metadata), &partial)
        .map_err(|error| OptimiserError::file(path, format!("cannot be written: {error}")))
        .and_then(|()| put_in_place(&partial, path).map_err(OptimiserError::io(path, "written")));
    if written.is_err() {
        // What went wrong already is what the caller needs to know.
        let _ = fs::remove_file(&partial);
    }
    written
}

fn put_in_place(partial: &Path, path: &Path) -> std::io::Result<()> {
    File::open(partial)?.sync_all()?;
    fs::rename(partial, path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

/// Maps a file for [`parse`].
pub(crate) fn map(path: &Path) -> Result<Mmap, OptimiserError> {
    let file = File::open(path).map_err(OptimiserError::io(path, "read"))?;
    // SAFETY: states are replaced by renaming and never written in place, so nothing changes under the map.
    unsafe { Mmap::map(&file) }.map_err(OptimiserError::io(path, "read"))
}

/// The tensors of a file and its metadata.
pub(crate) fn parse<'a>(path: &Path, bytes: &'a [u8]) -> Result<(SafeTensors<'a>, String), OptimiserError> {
    let malformed = |error| OptimiserError::file(path, error);
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(malformed)?;
    let metadata = header.metadata().as_ref().and_then(|metadata| metadata.get(METADATA)).cloned();
    let metadata = metadata.ok_or_else(|| OptimiserError::file(path, format!("no metadata `{METADATA}`")))?;
    Ok((SafeTensors::deserialize(bytes).map_err(malformed)?, metadata))
}

/// Types that tensors may have, in Burn and in safetensors.
const DTYPES: [(DType, Dtype); 4] =
    [(DType::F64, Dtype::F64), (DType::F32, Dtype::F32), (DType::F16, Dtype::F16), (DType::BF16, Dtype::BF16)];

pub(crate) fn stored_dtype(dtype: DType) -> Result<Dtype, String> {
    let known = DTYPES.iter().find(|(burn, _)| *burn == dtype);
    known.map(|(_, stored)| *stored).ok_or_else(|| format!("values of {dtype:?} cannot be stored"))
}

pub(crate) fn loaded_dtype(dtype: Dtype) -> Option<DType> {
    DTYPES.iter().find(|(_, stored)| *stored == dtype).map(|(burn, _)| *burn)
}
