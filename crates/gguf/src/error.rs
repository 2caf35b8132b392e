//! Why a GGUF file cannot be read or written.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use dsv41_quant::{GgmlType, QuantError};

/// Why a GGUF file, or a part of it, cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The system refuses.
    #[error("{file}: cannot be {action}: {source}")]
    Io {
        /// The file.
        file: PathBuf,
        /// What was to be done: opened, read, written.
        action: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// Something before the tensors' data is wrong.
    #[error("{file}: {item}, at byte {offset}: {fault}")]
    Header {
        /// The file.
        file: PathBuf,
        /// What was being read.
        item: HeaderItem,
        /// Where in the file.
        offset: usize,
        /// What is wrong with it.
        fault: HeaderFault,
    },
    /// A metadata value is not what it should be.
    #[error("{}metadata key `{key}` {fault}", prefix(.file.as_deref()))]
    Key {
        /// The file, if the metadata are those of one.
        file: Option<PathBuf>,
        /// The key.
        key: String,
        /// What is wrong with its value.
        fault: KeyFault,
    },
    /// A tensor is not what it should be.
    #[error("{file}: tensor `{tensor}` {fault}")]
    Tensor {
        /// The file.
        file: PathBuf,
        /// The name.
        tensor: String,
        /// What is wrong with it.
        fault: TensorFault,
    },
    /// Files are not the shards of one model.
    #[error("{file}: {fault}")]
    Shard {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        fault: ShardFault,
    },
}

impl GgufError {
    /// Names the file and what was to be done with it in an error of the system.
    pub(crate) fn io(file: &Path, action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { file: file.to_owned(), action, source }
    }
}

fn prefix(file: Option<&Path>) -> String {
    file.map(|file| format!("{}: ", file.display())).unwrap_or_default()
}

fn beginning(found: &[u8]) -> String {
    if found.is_empty() { "the file is empty".to_owned() } else { format!("begins with `{}`", found.escape_ascii()) }
}

/// A part of a file before the tensors' data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeaderItem {
    /// Magic, version and counts.
    Start,
    /// The key at this place in the metadata.
    Key(usize),
    /// The value of a key.
    Value(String),
    /// The name at this place in the list of tensors.
    TensorName(usize),
    /// Shape, type and offset of a tensor.
    Tensor(String),
}

impl fmt::Display for HeaderItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start => f.write_str("header"),
            Self::Key(place) => write!(f, "metadata key {place}"),
            Self::Value(key) => write!(f, "value of `{key}`"),
            Self::TensorName(place) => write!(f, "name of tensor {place}"),
            Self::Tensor(name) => write!(f, "tensor `{name}`"),
        }
    }
}

/// What is wrong with a part of a file before the tensors' data.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderFault {
    /// Another format.
    #[error("{}, expected `GGUF`", beginning(.found))]
    Magic {
        /// The first bytes: four, or as many as there are.
        found: Vec<u8>,
    },
    /// Another version of the format.
    #[error("version {found}, expected 2 or 3")]
    Version {
        /// The version.
        found: u32,
    },
    /// Written for machines that store the highest byte first.
    #[error("big-endian, expected a little-endian file")]
    BigEndian,
    /// The file ends too early.
    #[error("takes {needed} bytes, and {left} are left in the file")]
    Truncated {
        /// Bytes of what should follow.
        needed: u64,
        /// Bytes that follow.
        left: u64,
    },
    /// More elements than the file can hold.
    #[error("{count} {what} of at least {least} bytes, and {left} bytes are left in the file")]
    Count {
        /// What is counted.
        what: &'static str,
        /// How many there should be.
        count: u64,
        /// Bytes of the shortest.
        least: usize,
        /// Bytes that follow.
        left: u64,
    },
    /// A key or name longer than the format allows.
    #[error("{found} bytes long, expected at most {most}")]
    Length {
        /// Its bytes.
        found: u64,
        /// Bytes that the format allows.
        most: usize,
    },
    /// Bytes that are no text.
    #[error("not UTF-8 after {valid} bytes")]
    Utf8 {
        /// Bytes before the fault.
        valid: usize,
    },
    /// No type of metadata values.
    #[error("type {id}, expected 0 to 12")]
    ValueType {
        /// The number.
        id: u32,
    },
    /// A flag that is neither 0 nor 1.
    #[error("bool {found}, expected 0 or 1")]
    Bool {
        /// The byte.
        found: u8,
    },
    /// Arrays within arrays.
    #[error("arrays within arrays more than {most} deep")]
    Depth {
        /// How deep they may be.
        most: usize,
    },
    /// A key that was there before.
    #[error("`{key}` again")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// More axes than a tensor may have, or none.
    #[error("{found} dimensions, expected 1 to 4")]
    Dimensions {
        /// How many.
        found: u32,
    },
}

/// What is wrong with a metadata value.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum KeyFault {
    /// No such key.
    #[error("is missing")]
    Missing,
    /// A value of another type.
    #[error("is {found}, expected {expected}")]
    Type {
        /// Its type.
        found: String,
        /// What it should be.
        expected: &'static str,
    },
    /// An integer that does not fit.
    #[error("is {value}, expected {expected}")]
    Range {
        /// The integer, in digits.
        value: String,
        /// What it should be.
        expected: &'static str,
    },
    /// An integer of an array that does not fit.
    #[error("has {value} at place {index}, expected {expected}")]
    Element {
        /// Its place.
        index: usize,
        /// The integer, in digits.
        value: String,
        /// What it should be.
        expected: &'static str,
    },
    /// A key or value that the format cannot hold.
    #[error("cannot be written: {0}")]
    Unwritable(HeaderFault),
}

/// What is wrong with a tensor, or with what is asked of it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum TensorFault {
    /// No such tensor.
    #[error("is missing")]
    Missing,
    /// A type that is not known here. Such a tensor is listed, and cannot be used.
    #[error("has type {id}, expected one of {}", GgmlType::ALL.map(|ty| format!("{} ({ty})", ty.id())).join(", "))]
    UnknownType {
        /// The number.
        id: u32,
    },
    /// Too many axes, or none.
    #[error("has {found} dimensions, expected 1 to 4")]
    Dimensions {
        /// How many.
        found: usize,
    },
    /// A tensor without elements.
    #[error("has shape {shape:?}, expected no dimension of 0")]
    Empty {
        /// The shape, slowest axis first.
        shape: Vec<u64>,
    },
    /// More elements than this machine can count.
    #[error("has shape {shape:?}, which does not fit this machine's memory")]
    TooLarge {
        /// The shape, slowest axis first.
        shape: Vec<u64>,
    },
    /// Rows that do not divide into the type's blocks, or other bytes than they take.
    #[error("does not hold what its shape and type say: {0}")]
    Quant(QuantError),
    /// Data that begin between two places where they may.
    #[error("begins at byte {offset} of the data, expected a multiple of {alignment}")]
    Misaligned {
        /// Where they begin, from the end of the header on.
        offset: u64,
        /// The file's alignment.
        alignment: u64,
    },
    /// Data that are not in the file.
    #[error("takes bytes {start} to {end}, and the file ends after {file_bytes}")]
    PastEnd {
        /// Where the data should begin.
        start: u64,
        /// Where they should end.
        end: u64,
        /// Size of the file.
        file_bytes: u64,
    },
    /// Data that begin within those of another tensor.
    #[error("begins at byte {start}, within tensor `{other}`, which ends at {end}")]
    Overlap {
        /// Where the data begin.
        start: u64,
        /// The other tensor.
        other: String,
        /// Where its data end.
        end: u64,
    },
    /// A name that was there before.
    #[error("is also in {}", .other.display())]
    Duplicate {
        /// The file that had it.
        other: PathBuf,
    },
    /// A shape of another rank than is asked for.
    #[error("has shape {shape:?}, expected {expected} dimensions")]
    Rank {
        /// The shape.
        shape: Vec<usize>,
        /// Dimensions asked for.
        expected: usize,
    },
    /// An expert or row that is not there.
    #[error("has no {what} {index}: there are {count}")]
    Index {
        /// Expert or row.
        what: &'static str,
        /// The one asked for.
        index: u64,
        /// How many there are.
        count: u64,
    },
    /// A name that the format cannot hold.
    #[error("has a name of {found} bytes, expected 1 to {most}")]
    Name {
        /// Its bytes.
        found: usize,
        /// Bytes that the format allows.
        most: usize,
    },
    /// Written out of turn.
    #[error("is written out of turn, expected {}", .expected.as_deref().map_or("no more tensor".to_owned(), |name| format!("`{name}`")))]
    Turn {
        /// The tensor whose turn it is, if any is left.
        expected: Option<String>,
    },
    /// More or fewer bytes than the shape takes were written.
    #[error("takes {expected} bytes, and {written} were written")]
    Length {
        /// Bytes of the shape.
        expected: u64,
        /// Bytes written, or that would have been.
        written: u64,
    },
}

/// What keeps files from being the shards of one model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShardFault {
    /// A name that does not say where the others are.
    #[error(
        "is shard {number} of {count} by its metadata, expected a name that ends in `-{number:05}-of-{count:05}.gguf`"
    )]
    Name {
        /// Its number, from 1.
        number: u64,
        /// How many there are.
        count: u64,
    },
    /// The name of a shard, and no word of it in the metadata.
    #[error("has the name of shard {number} of {count}, and metadata without `split.count`")]
    Unsplit {
        /// Its number by the name, from 1.
        number: u64,
        /// How many there are by the name.
        count: u64,
    },
    /// A shard in memory, where there are no others.
    #[error("is shard {number} of {count} by its metadata, expected a whole model")]
    Alone {
        /// Its number, from 1.
        number: u64,
        /// How many there are.
        count: u64,
    },
    /// No such file.
    #[error("is missing: it is shard {number} of {count}, as {} says", .by.display())]
    Missing {
        /// Its number, from 1.
        number: u64,
        /// How many there are.
        count: u64,
        /// The shard that was opened.
        by: PathBuf,
    },
    /// A shard of a set of another size, or at another place in it.
    #[error("is shard {number} of {count} by its metadata, expected {expected_number} of {expected_count}")]
    Place {
        /// Its number by the metadata, from 1.
        number: u64,
        /// How many there are by the metadata.
        count: u64,
        /// Its number, from 1.
        expected_number: u64,
        /// How many there are.
        expected_count: u64,
    },
    /// Fewer or more tensors than the metadata say.
    #[error("`split.tensors.count` is {expected}, and the shards hold {found} tensors")]
    TensorCount {
        /// Tensors of all shards.
        found: u64,
        /// Tensors that the metadata say.
        expected: u64,
    },
    /// A path that names no file, or not in UTF-8, so that its shards have no names either.
    #[error("is no path to name shards after, expected one that ends in a name in UTF-8")]
    NoName,
    /// More shards or tensors than the metadata of a shard can count.
    #[error("would be a set of {count} {what}, expected at most {most}")]
    TooMany {
        /// Shards or tensors.
        what: &'static str,
        /// How many.
        count: usize,
        /// How many can be counted.
        most: usize,
    },
}
