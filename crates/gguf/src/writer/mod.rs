//! Writing GGUF files and sets of them, tensor by tensor.

mod encode;
mod layout;

use std::io;
use std::path::{Path, PathBuf};

use crate::error::{GgufError, HeaderFault, KeyFault, TensorFault};
use crate::format::{
    ALIGNMENT, DEFAULT_ALIGNMENT, LONGEST_KEY, Place, SHARD, SHARD_COUNT, TENSOR_COUNT, check_alignment,
};
use crate::metadata::Metadata;
use crate::new_file::{NewFile, WholeFile};
use crate::tensor::fault_in;
use crate::value::{Array, Value};
pub use layout::TensorPlan;
use layout::{PlannedFile, PlannedTensor, lay_out};

/// How files are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriterOptions {
    /// Tensors begin at multiples of this many bytes: a power of two of at least 8.
    pub alignment: u32,
    /// When the next file is begun.
    pub split: Split,
}

/// One file, and data at multiples of 32 bytes.
impl Default for WriterOptions {
    fn default() -> Self {
        Self { alignment: DEFAULT_ALIGNMENT, split: Split::None }
    }
}

/// When the next file of a set is begun. Every file has one tensor at least; a set of one file is written as a file of
/// its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// Never.
    None,
    /// When the data would be longer than this many bytes.
    Bytes(u64),
    /// Behind this many tensors.
    Tensors(usize),
}

impl Split {
    /// Whether a file of so many tensors and bytes cannot take `more` bytes of another.
    fn is_full(self, tensors: usize, bytes: u64, more: u64) -> bool {
        match self {
            Self::None => false,
            Self::Bytes(most) => bytes.saturating_add(more) > most,
            Self::Tensors(most) => tensors >= most,
        }
    }
}

/// A model that is being written: every tensor in the order of the plan, each in one chunk or several.
///
/// Files have temporary names until [`GgufWriter::finish`]; dropping the writer before that removes them. After an error
/// of [`GgufWriter::write`] there is nothing to do but that.
pub struct GgufWriter {
    path: PathBuf,
    alignment: u32,
    tensors: Vec<PlannedTensor>,
    files: Vec<PlannedFile>,
    /// The first files of the plan, whole.
    closed: Vec<WholeFile>,
    /// The next. None once all are whole, or a write has failed.
    open: Option<NewFile>,
    /// The tensor whose turn it is, and how many of its bytes are written.
    next: usize,
    written: u64,
}

impl GgufWriter {
    /// Begins a model of these tensors. Where it is split, `NAME.gguf` becomes `NAME-00001-of-0000N.gguf` and so on, and
    /// the first file has the metadata. What metadata say of alignment and shards is replaced by what is written.
    ///
    /// # Errors
    /// [`GgufError::Tensor`] for a plan that cannot be written, [`GgufError::Key`] for such metadata or such an
    /// alignment, [`GgufError::Shard`] for such a set; [`GgufError::Io`].
    pub fn create(
        path: &Path,
        metadata: &Metadata,
        tensors: Vec<TensorPlan>,
        options: WriterOptions,
    ) -> Result<Self, GgufError> {
        let WriterOptions { alignment, split } = options;
        check_alignment(alignment.into()).map_err(|fault| key_fault(path, ALIGNMENT, fault))?;
        let metadata = of_model(path, metadata)?;
        let (tensors, files) = lay_out(path, tensors, alignment.into(), split)?;
        let path = path.to_owned();
        let mut writer = Self { path, alignment, tensors, files, closed: vec![], open: None, next: 0, written: 0 };
        writer.open_next(metadata)?;
        writer.close_full()?;
        Ok(writer)
    }

    /// The files that will be there in the end.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|file| &*file.path)
    }

    /// Writes the next bytes of a tensor: of the one before until it is whole, then of the next in the plan.
    ///
    /// # Errors
    /// [`TensorFault::Turn`] for another tensor, [`TensorFault::Length`] for more bytes than it takes or when one before
    /// lacks some, [`GgufError::Io`].
    pub fn write(&mut self, tensor: &str, chunk: &[u8]) -> Result<(), GgufError> {
        let fault = |fault| Err(fault_in(&self.path, tensor, fault));
        let Some(next) = self.tensors.get(self.next) else { return fault(TensorFault::Turn { expected: None }) };
        if next.plan.name != tensor {
            if self.written > 0 {
                return Err(self.lacking(next));
            }
            return fault(TensorFault::Turn { expected: Some(next.plan.name.clone()) });
        }
        let (expected, written) = (next.bytes, self.written + chunk.len() as u64);
        if written > expected {
            return fault(TensorFault::Length { expected, written });
        }
        self.append(chunk)?;
        self.written = written;
        if written == expected {
            let alignment = u64::from(self.alignment);
            let padding = expected.next_multiple_of(alignment) - expected;
            self.append(&vec![0; padding as usize])?;
            (self.next, self.written) = (self.next + 1, 0);
            self.close_full()?;
        }
        Ok(())
    }

    /// Waits until all files are on disk, gives them their names, in place of files that had them, and returns these.
    ///
    /// # Errors
    /// [`TensorFault::Length`] for the first tensor that is not whole, [`GgufError::Io`]. In either case no file is left
    /// under a temporary name.
    pub fn finish(self) -> Result<Vec<PathBuf>, GgufError> {
        if let Some(tensor) = self.tensors.get(self.next) {
            return Err(self.lacking(tensor));
        }
        if let Some(file) = self.files.get(self.closed.len()) {
            return Err(GgufError::io(&file.path, "written")(earlier_failure()));
        }
        let paths: Vec<PathBuf> = self.files.into_iter().map(|file| file.path).collect();
        for (whole, path) in self.closed.into_iter().zip(&paths) {
            whole.publish().map_err(GgufError::io(path, "renamed"))?;
        }
        Ok(paths)
    }

    /// What to say when the tensor whose turn it is has not all of its bytes.
    fn lacking(&self, tensor: &PlannedTensor) -> GgufError {
        let fault = TensorFault::Length { expected: tensor.bytes, written: self.written };
        fault_in(&self.path, &tensor.plan.name, fault)
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), GgufError> {
        let open = self.open.take().ok_or_else(earlier_failure);
        let written = open.and_then(|mut file| file.write(bytes).map(|()| file));
        self.open =
            Some(written.map_err(|error| GgufError::io(&self.files[self.closed.len()].path, "written")(error))?);
        Ok(())
    }

    /// Closes the open file if it has all of its tensors, and opens the next.
    fn close_full(&mut self) -> Result<(), GgufError> {
        let file = &self.files[self.closed.len()];
        if self.next < file.tensors.end {
            return Ok(());
        }
        if let Some(open) = self.open.take() {
            self.closed.push(open.close().map_err(GgufError::io(&file.path, "written"))?);
        }
        if self.closed.len() < self.files.len() { self.open_next(Metadata::new()) } else { Ok(()) }
    }

    /// Opens the file behind those that are closed, and writes all of it before the data.
    fn open_next(&mut self, mut metadata: Metadata) -> Result<(), GgufError> {
        let file = &self.files[self.closed.len()];
        if self.alignment != DEFAULT_ALIGNMENT {
            metadata.insert(ALIGNMENT, self.alignment);
        }
        if let Some(Place { number, count }) = file.place {
            // The plan has checked that its counts fit.
            metadata.insert(SHARD, (number - 1) as u16);
            metadata.insert(SHARD_COUNT, count as u16);
            metadata.insert(TENSOR_COUNT, self.tensors.len() as i32);
        }
        let header = encode::header(&metadata, &self.tensors[file.tensors.clone()], self.alignment as usize);
        let mut open = NewFile::create(&file.path).map_err(GgufError::io(&file.path, "created"))?;
        open.write(&header).map_err(GgufError::io(&file.path, "written"))?;
        self.open = Some(open);
        Ok(())
    }
}

/// The metadata of a model without what they say of its files, if the format can hold them.
fn of_model(path: &Path, metadata: &Metadata) -> Result<Metadata, GgufError> {
    let mut kept = Metadata::new();
    for (key, value) in metadata.iter().filter(|(key, _)| ![ALIGNMENT, SHARD, SHARD_COUNT, TENSOR_COUNT].contains(key))
    {
        let fault = match value {
            _ if key.len() > LONGEST_KEY => HeaderFault::Length { found: key.len() as u64, most: LONGEST_KEY },
            Value::Array(array) if array.depth() > Array::MAX_DEPTH => HeaderFault::Depth { most: Array::MAX_DEPTH },
            _ => {
                kept.insert(key, value.clone());
                continue;
            }
        };
        return Err(key_fault(path, key, KeyFault::Unwritable(fault)));
    }
    Ok(kept)
}

fn earlier_failure() -> io::Error {
    io::Error::other("an earlier write has failed")
}

fn key_fault(path: &Path, key: &str, fault: KeyFault) -> GgufError {
    GgufError::Key { file: Some(path.to_owned()), key: key.to_owned(), fault }
}
