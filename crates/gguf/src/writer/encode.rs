//! The bytes before the tensors' data.

use super::layout::PlannedTensor;
use crate::format::{MAGIC, VERSION};
use crate::metadata::Metadata;
use crate::value::{Array, Value};

/// Magic, version, metadata, and the list of these tensors, padded to where the data begin.
pub(super) fn header(metadata: &Metadata, tensors: &[PlannedTensor], alignment: usize) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend(VERSION.to_le_bytes());
    count(&mut out, tensors.len());
    count(&mut out, metadata.len());
    for (key, entry) in metadata.iter() {
        string(&mut out, key);
        out.extend(entry.ty().id().to_le_bytes());
        value(&mut out, entry);
    }
    for tensor in tensors {
        string(&mut out, &tensor.plan.name);
        out.extend((tensor.plan.shape.len() as u32).to_le_bytes());
        for &axis in tensor.plan.shape.iter().rev() {
            count(&mut out, axis);
        }
        out.extend(tensor.plan.ty.id().to_le_bytes());
        out.extend(tensor.offset.to_le_bytes());
    }
    out.resize(out.len().next_multiple_of(alignment), 0);
    out
}

fn count(out: &mut Vec<u8>, count: usize) {
    out.extend((count as u64).to_le_bytes());
}

fn string(out: &mut Vec<u8>, text: &str) {
    count(out, text.len());
    out.extend(text.as_bytes());
}

fn value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(value) => out.extend(value.to_le_bytes()),
        Value::I8(value) => out.extend(value.to_le_bytes()),
        Value::U16(value) => out.extend(value.to_le_bytes()),
        Value::I16(value) => out.extend(value.to_le_bytes()),
        Value::U32(value) => out.extend(value.to_le_bytes()),
        Value::I32(value) => out.extend(value.to_le_bytes()),
        Value::F32(value) => out.extend(value.to_le_bytes()),
        Value::Bool(value) => out.push((*value).into()),
        Value::String(value) => string(out, value),
        Value::Array(value) => array(out, value),
        Value::U64(value) => out.extend(value.to_le_bytes()),
        Value::I64(value) => out.extend(value.to_le_bytes()),
        Value::F64(value) => out.extend(value.to_le_bytes()),
    }
}

fn array(out: &mut Vec<u8>, array: &Array) {
    out.extend(array.ty().id().to_le_bytes());
    count(out, array.len());
    match array {
        Array::U8(values) => out.extend(values),
        Array::I8(values) => out.extend(values.iter().flat_map(|value| value.to_le_bytes())),
        Array::U16(values) => out.extend(values.iter().flat_map(|value| value.to_le_bytes())),
        Array::I16(values) => out.extend(values.iter().flat_map(|value| value.to_le_bytes())),
        Array::U32(values) => out.extend(values.iter().flat_map(|value| value.to_le_bytes())),
        Array::I32(values) => out.extend(values.iter().flat_map(|value| value.to_le_bytes())),
        Array::F32(values) => out.extend(values.iter().flat_map(|value| value.to_le_bytes())),
        Array::Bool(values) => out.extend(values.iter().map(|&value| u8::from(value))),
        Array::String(values) => values.iter().for_each(|value| string(out, value)),
        Array::Array(values) => values.iter().for_each(|value| self::array(out, value)),
        Array::U64(values) => out.extend(values.iter().flat_map(|value| value.to_le_bytes())),
        Array::I64(values) => out.extend(values.iter().flat_map(|value| value.to_le_bytes())),
        Array::F64(values) => out.extend(values.iter().flat_map(|value| value.to_le_bytes())),
    }
}
