//! What comes before the tensors' data: magic, version, metadata, and the list of tensors.

use std::path::Path;

use super::cursor::Cursor;
use crate::error::{GgufError, HeaderFault, HeaderItem};
use crate::format::{LONGEST_KEY, MAGIC};
use crate::metadata::Metadata;
use crate::tensor::MAX_DIMENSIONS;
use crate::value::{Array, Value, ValueType};

/// A key's length, and the type and the byte of its value.
const LEAST_ENTRY: usize = 8 + 4 + 1;
/// A name's length, the number of axes, one axis, type and offset.
const LEAST_TENSOR: usize = 8 + 4 + 8 + 4 + 8;

/// A file before its data.
pub(super) struct Header {
    pub(super) metadata: Metadata,
    pub(super) tensors: Vec<TensorEntry>,
    /// Where the list of tensors ends.
    pub(super) end: usize,
}

/// A tensor as the file lists it, unchecked.
pub(super) struct TensorEntry {
    pub(super) name: String,
    /// Slowest axis first: the reverse of the file's order.
    pub(super) shape: Vec<u64>,
    pub(super) type_id: u32,
    /// From the begin of the data on.
    pub(super) offset: u64,
}

impl Header {
    pub(super) fn parse(file: &Path, bytes: &[u8]) -> Result<Self, GgufError> {
        let mut cursor = Cursor::new(bytes);
        let mut metadata = Metadata::of_file(file);
        let parsed = parse(&mut cursor, &mut metadata);
        let fault = |fault| GgufError::Header {
            file: file.to_owned(),
            offset: cursor.offset(),
            item: cursor.item.clone(),
            fault,
        };
        let tensors = parsed.map_err(fault)?;
        Ok(Self { metadata, tensors, end: cursor.offset() })
    }
}

/// Reads the metadata into `metadata`, and returns the list of tensors.
fn parse(cursor: &mut Cursor<'_>, metadata: &mut Metadata) -> Result<Vec<TensorEntry>, HeaderFault> {
    let magic = cursor.rest().get(..MAGIC.len()).unwrap_or(cursor.rest());
    if magic != MAGIC {
        return Err(HeaderFault::Magic { found: magic.to_vec() });
    }
    cursor.number(|_: [u8; MAGIC.len()]| ())?;
    cursor.whole(version)?;
    let tensors = cursor.count("tensors", LEAST_TENSOR)?;
    let keys = cursor.count("metadata keys", LEAST_ENTRY)?;
    for place in 0..keys {
        entry(cursor, place, metadata)?;
    }
    (0..tensors).map(|place| tensor(cursor, place)).collect()
}

/// Versions 2 and 3 differ in nothing but that 3 may be big-endian; 1 had shorter counts.
fn version(cursor: &mut Cursor<'_>) -> Result<(), HeaderFault> {
    match cursor.number(u32::from_le_bytes)? {
        2 | 3 => Ok(()),
        found if (1..=3).contains(&found.swap_bytes()) => Err(HeaderFault::BigEndian),
        found => Err(HeaderFault::Version { found }),
    }
}

fn entry(cursor: &mut Cursor<'_>, place: usize, metadata: &mut Metadata) -> Result<(), HeaderFault> {
    cursor.item = HeaderItem::Key(place);
    let key = cursor.whole(|cursor| match cursor.string(LONGEST_KEY)? {
        key if metadata.get(key).is_some() => Err(HeaderFault::DuplicateKey { key: key.to_owned() }),
        key => Ok(key.to_owned()),
    })?;
    cursor.item = HeaderItem::Value(key.clone());
    let ty = value_type(cursor)?;
    let value = value(cursor, ty)?;
    metadata.insert(key, value);
    Ok(())
}

fn value_type(cursor: &mut Cursor<'_>) -> Result<ValueType, HeaderFault> {
    cursor.whole(|cursor| {
        let id = cursor.number(u32::from_le_bytes)?;
        ValueType::from_id(id).ok_or(HeaderFault::ValueType { id })
    })
}

fn value(cursor: &mut Cursor<'_>, ty: ValueType) -> Result<Value, HeaderFault> {
    Ok(match ty {
        ValueType::U8 => Value::U8(cursor.number(u8::from_le_bytes)?),
        ValueType::I8 => Value::I8(cursor.number(i8::from_le_bytes)?),
        ValueType::U16 => Value::U16(cursor.number(u16::from_le_bytes)?),
        ValueType::I16 => Value::I16(cursor.number(i16::from_le_bytes)?),
        ValueType::U32 => Value::U32(cursor.number(u32::from_le_bytes)?),
        ValueType::I32 => Value::I32(cursor.number(i32::from_le_bytes)?),
        ValueType::F32 => Value::F32(cursor.number(f32::from_le_bytes)?),
        ValueType::Bool => Value::Bool(boolean(cursor)?),
        ValueType::String => Value::String(string(cursor)?),
        ValueType::Array => Value::Array(array(cursor, 1)?),
        ValueType::U64 => Value::U64(cursor.number(u64::from_le_bytes)?),
        ValueType::I64 => Value::I64(cursor.number(i64::from_le_bytes)?),
        ValueType::F64 => Value::F64(cursor.number(f64::from_le_bytes)?),
    })
}

/// An array that is itself `depth` deep in others, itself counted.
fn array(cursor: &mut Cursor<'_>, depth: usize) -> Result<Array, HeaderFault> {
    if depth > Array::MAX_DEPTH {
        return Err(HeaderFault::Depth { most: Array::MAX_DEPTH });
    }
    let ty = value_type(cursor)?;
    let count = cursor.count("elements", ty.least_bytes())?;
    Ok(match ty {
        ValueType::U8 => Array::U8(cursor.numbers(count, u8::from_le_bytes)?),
        ValueType::I8 => Array::I8(cursor.numbers(count, i8::from_le_bytes)?),
        ValueType::U16 => Array::U16(cursor.numbers(count, u16::from_le_bytes)?),
        ValueType::I16 => Array::I16(cursor.numbers(count, i16::from_le_bytes)?),
        ValueType::U32 => Array::U32(cursor.numbers(count, u32::from_le_bytes)?),
        ValueType::I32 => Array::I32(cursor.numbers(count, i32::from_le_bytes)?),
        ValueType::F32 => Array::F32(cursor.numbers(count, f32::from_le_bytes)?),
        ValueType::Bool => Array::Bool(many(count, || boolean(cursor))?),
        ValueType::String => Array::String(many(count, || string(cursor))?),
        ValueType::Array => Array::Array(many(count, || array(cursor, depth + 1))?),
        ValueType::U64 => Array::U64(cursor.numbers(count, u64::from_le_bytes)?),
        ValueType::I64 => Array::I64(cursor.numbers(count, i64::from_le_bytes)?),
        ValueType::F64 => Array::F64(cursor.numbers(count, f64::from_le_bytes)?),
    })
}

fn many<T>(count: usize, mut read: impl FnMut() -> Result<T, HeaderFault>) -> Result<Vec<T>, HeaderFault> {
    (0..count).map(|_| read()).collect()
}

fn boolean(cursor: &mut Cursor<'_>) -> Result<bool, HeaderFault> {
    cursor.whole(|cursor| match cursor.number(u8::from_le_bytes)? {
        0 => Ok(false),
        1 => Ok(true),
        found => Err(HeaderFault::Bool { found }),
    })
}

fn string(cursor: &mut Cursor<'_>) -> Result<String, HeaderFault> {
    cursor.string(usize::MAX).map(str::to_owned)
}

fn tensor(cursor: &mut Cursor<'_>, place: usize) -> Result<TensorEntry, HeaderFault> {
    cursor.item = HeaderItem::TensorName(place);
    let name = cursor.string(LONGEST_KEY)?.to_owned();
    cursor.item = HeaderItem::Tensor(name.clone());
    let dimensions = cursor.whole(|cursor| match cursor.number(u32::from_le_bytes)? {
        found @ 1..=MAX_DIMENSIONS => Ok(found),
        found => Err(HeaderFault::Dimensions { found }),
    })?;
    let mut shape = cursor.numbers(dimensions as usize, u64::from_le_bytes)?;
    shape.reverse();
    let type_id = cursor.number(u32::from_le_bytes)?;
    let offset = cursor.number(u64::from_le_bytes)?;
    Ok(TensorEntry { name, shape, type_id, offset })
}
