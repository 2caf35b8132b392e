//! Files put together number by number, so that any of them can be wrong.

use bytes::Bytes;
use dsv41_gguf::{Gguf, GgufError};

/// The bytes of a file so far.
#[derive(Clone, Default)]
pub(crate) struct Raw(pub(crate) Vec<u8>);

impl Raw {
    /// Magic, version 3, and the counts of tensors and of metadata keys.
    pub(crate) fn new(tensors: u64, keys: u64) -> Self {
        Self(b"GGUF".to_vec()).u32(3).u64(tensors).u64(keys)
    }

    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    pub(crate) fn u32(self, number: u32) -> Self {
        self.bytes(&number.to_le_bytes())
    }

    pub(crate) fn u64(self, number: u64) -> Self {
        self.bytes(&number.to_le_bytes())
    }

    pub(crate) fn string(self, text: &str) -> Self {
        self.u64(text.len() as u64).bytes(text.as_bytes())
    }

    /// A metadata key and the number of its value's type.
    pub(crate) fn key(self, key: &str, value_type: u32) -> Self {
        self.string(key).u32(value_type)
    }

    /// A tensor of the list; axes in the order of the file.
    pub(crate) fn tensor(self, name: &str, axes: &[u64], type_id: u32, offset: u64) -> Self {
        let dimensions = self.string(name).u32(axes.len() as u32);
        axes.iter().fold(dimensions, |raw, &axis| raw.u64(axis)).u32(type_id).u64(offset)
    }

    /// Zeros up to a multiple of `alignment`, and then so many for the tensors.
    pub(crate) fn data(mut self, alignment: usize, bytes: usize) -> Self {
        let begin = self.0.len().next_multiple_of(alignment);
        self.0.resize(begin + bytes, 0);
        self
    }

    pub(crate) fn open(self) -> Result<Gguf, Box<GgufError>> {
        Gguf::from_bytes("m.gguf", Bytes::from(self.0)).map_err(Box::new)
    }
}
