//! Reading GGUF files and sets of them.

mod cursor;
mod data;
mod header;
mod shards;

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use dsv41_quant::PackedMatrix;

use crate::error::{GgufError, ShardFault, TensorFault};
use crate::format::{Place, TENSOR_COUNT};
use crate::mapped::{Advice, MappedFile};
use crate::metadata::Metadata;
use crate::tensor::{TensorInfo, fault_in};
use header::Header;
use shards::{Members, place_by_metadata};

/// A model in GGUF: one file or all shards of a set, mapped into memory.
///
/// Opening reads headers alone, and checks them: what is listed lies within its file, and no two tensors share bytes.
/// Tensors of types that are not known here are listed too, and are errors once they are used. Memory is in proportion
/// to the headers, whatever counts and lengths they claim.
///
/// A mapped file must not be cut short by others meanwhile: reading what is gone ends the process.
pub struct Gguf {
    shards: Vec<Shard>,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    places: HashMap<String, usize>,
}

/// One file of a model.
struct Shard {
    path: Arc<Path>,
    file: MappedFile,
}

impl Gguf {
    /// Opens a file, or the whole set of which it is any shard.
    ///
    /// # Errors
    /// [`GgufError::Io`], and for files that are not what they should be [`GgufError::Header`], [`GgufError::Key`],
    /// [`GgufError::Tensor`] and [`GgufError::Shard`].
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        let opened = Shard::open(path).map_err(GgufError::io(path, "opened"))?;
        let header = Header::parse(path, opened.file.bytes())?;
        let mut gguf = Self::empty();
        let Some(members) = Members::of(path, &header.metadata)? else {
            gguf.add(opened, header)?;
            return Ok(gguf);
        };
        // It comes again in its turn.
        drop(opened);
        let mut counts = vec![];
        for (index, path) in members.paths().enumerate() {
            let shard = match Shard::open(&path) {
                Ok(shard) => shard,
                Err(source) => return Err(members.unopened(path, index, source)),
            };
            let header = Header::parse(&path, shard.file.bytes())?;
            members.check(&path, index, &header.metadata)?;
            counts.push(header.metadata.u64(TENSOR_COUNT)?);
            gguf.add(shard, header)?;
        }
        for (shard, count) in gguf.shards.iter().zip(counts) {
            gguf.check_tensor_count(&shard.path, count)?;
        }
        Ok(gguf)
    }

    /// The one file of a model, in memory. `name` names it in errors.
    ///
    /// # Errors
    /// As [`Gguf::open`]; [`GgufError::Shard`] for a shard of several.
    pub fn from_bytes(name: &str, bytes: Bytes) -> Result<Self, GgufError> {
        let path = Path::new(name);
        let header = Header::parse(path, &bytes)?;
        if let Some(Place { number, count }) = place_by_metadata(&header.metadata)? {
            return Err(GgufError::Shard { file: path.to_owned(), fault: ShardFault::Alone { number, count } });
        }
        let mut gguf = Self::empty();
        gguf.add(Shard { path: path.into(), file: MappedFile::in_memory(bytes) }, header)?;
        Ok(gguf)
    }

    fn empty() -> Self {
        Self { shards: vec![], metadata: Metadata::new(), tensors: vec![], places: HashMap::new() }
    }

    /// Adds a file behind those there are; the metadata are those of the first.
    fn add(&mut self, shard: Shard, header: Header) -> Result<(), GgufError> {
        let (metadata, tensors) = data::place(&shard.path, self.shards.len(), header, shard.file.bytes().len())?;
        for info in tensors {
            if let Some(earlier) = self.places.insert(info.name.clone(), self.tensors.len()) {
                let other = self.tensors[earlier].file().to_owned();
                return Err(info.fault(TensorFault::Duplicate { other }));
            }
            self.tensors.push(info);
        }
        if self.shards.is_empty() {
            self.metadata = metadata;
        }
        self.shards.push(shard);
        Ok(())
    }

    fn check_tensor_count(&self, file: &Path, expected: Option<u64>) -> Result<(), GgufError> {
        let found = self.tensors.len() as u64;
        match expected {
            Some(expected) if expected != found => {
                Err(GgufError::Shard { file: file.to_owned(), fault: ShardFault::TensorCount { found, expected } })
            }
            _ => Ok(()),
        }
    }

    /// The metadata of the model: those of the first file.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Every tensor, in the order of the files and of their lists.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &TensorInfo> {
        self.tensors.iter()
    }

    /// The tensor of a name, if there is one.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.places.get(name).map(|&place| &self.tensors[place])
    }

    /// The tensor of a name.
    ///
    /// # Errors
    /// [`TensorFault::Missing`].
    pub fn required(&self, name: &str) -> Result<&TensorInfo, GgufError> {
        // There is a first file in every model.
        let file = self.shards.first().map_or(Path::new(""), |shard| &shard.path);
        self.tensor(name).ok_or_else(|| fault_in(file, name, TensorFault::Missing))
    }

    /// The files and their sizes in bytes.
    pub fn files(&self) -> impl ExactSizeIterator<Item = (&Path, usize)> {
        self.shards.iter().map(|shard| (&*shard.path, shard.file.bytes().len()))
    }

    /// The bytes of a tensor, which are the mapped file's.
    ///
    /// # Errors
    /// [`TensorFault::UnknownType`].
    ///
    /// # Panics
    /// When the tensor is another model's.
    pub fn bytes(&self, info: &TensorInfo) -> Result<Bytes, GgufError> {
        self.row_bytes(info, 0..info.rows())
    }

    /// The matrix of a tensor of two axes.
    ///
    /// # Errors
    /// [`TensorFault::Missing`], [`TensorFault::Rank`], [`TensorFault::UnknownType`].
    pub fn matrix(&self, name: &str) -> Result<PackedMatrix, GgufError> {
        let info = self.required(name)?;
        let &[rows, _] = info.of_rank::<2>()?;
        self.rows_matrix(info, 0..rows)
    }

    /// One matrix of a stack: of the tensor `[experts, rows, columns]`.
    ///
    /// # Errors
    /// As [`Gguf::matrix`]; [`TensorFault::Index`] for an expert that is not in the stack.
    pub fn expert(&self, name: &str, index: usize) -> Result<PackedMatrix, GgufError> {
        let info = self.required(name)?;
        let &[experts, rows, _] = info.of_rank::<3>()?;
        if index >= experts {
            return Err(info.no("expert", index as u64, experts));
        }
        self.rows_matrix(info, index * rows..(index + 1) * rows)
    }

    /// Fills `out` with the bytes of one row, by a read of the file that leaves the map alone: for few rows of a table
    /// that is larger than memory. Rows are counted over all axes but the last.
    ///
    /// # Errors
    /// [`TensorFault::UnknownType`], [`TensorFault::Index`] for a row that is not there, [`GgufError::Io`].
    ///
    /// # Panics
    /// When `out` is not [`TensorInfo::row_bytes`] long, or the tensor is another model's.
    pub fn read_row(&self, info: &TensorInfo, row: u64, out: &mut [u8]) -> Result<(), GgufError> {
        let missing = || info.no("row", row, info.rows());
        let index = usize::try_from(row).ok().filter(|&index| index < info.rows()).ok_or_else(missing)?;
        let range = info.byte_range(index..index + 1)?;
        assert_eq!(out.len(), range.len(), "bytes of a row of `{}`", info.name);
        self.file(info).read_at(range.start, out).map_err(GgufError::io(&info.file, "read"))
    }

    /// Tells the system that some rows of a tensor will be read soon, or not for long: reading and freeing memory go on
    /// in the background. Does nothing but on Unix.
    ///
    /// # Errors
    /// [`TensorFault::UnknownType`], [`TensorFault::Index`] for rows that are not there, [`GgufError::Io`].
    ///
    /// # Panics
    /// When the tensor is another model's.
    pub fn advise(&self, info: &TensorInfo, rows: Range<usize>, advice: Advice) -> Result<(), GgufError> {
        let range = info.byte_range(rows)?;
        self.file(info).advise(range, advice).map_err(GgufError::io(&info.file, "advised on"))
    }

    fn rows_matrix(&self, info: &TensorInfo, rows: Range<usize>) -> Result<PackedMatrix, GgufError> {
        let shape = [rows.len(), info.columns()];
        let bytes = self.row_bytes(info, rows)?;
        PackedMatrix::new(info.known_type()?, shape, bytes).map_err(|fault| info.quant(fault))
    }

    fn row_bytes(&self, info: &TensorInfo, rows: Range<usize>) -> Result<Bytes, GgufError> {
        Ok(self.file(info).bytes().slice(info.byte_range(rows)?))
    }

    fn file(&self, info: &TensorInfo) -> &MappedFile {
        &self.shards[info.shard].file
    }
}

/// The files and how much they hold.
impl std::fmt::Debug for Gguf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let files: Vec<PathBuf> = self.files().map(|(path, _)| path.to_owned()).collect();
        f.debug_struct("Gguf")
            .field("files", &files)
            .field("keys", &self.metadata.len())
            .field("tensors", &self.tensors.len())
            .finish()
    }
}

impl Shard {
    fn open(path: &Path) -> std::io::Result<Self> {
        Ok(Self { path: path.into(), file: MappedFile::open(path)? })
    }
}
