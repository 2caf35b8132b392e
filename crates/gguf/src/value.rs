//! Values of metadata, as the file types them.

use std::fmt;

/// Types of metadata values, under the format's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ValueType {
    /// 8-bit unsigned integer.
    U8 = 0,
    /// 8-bit integer.
    I8 = 1,
    /// 16-bit unsigned integer.
    U16 = 2,
    /// 16-bit integer.
    I16 = 3,
    /// 32-bit unsigned integer.
    U32 = 4,
    /// 32-bit integer.
    I32 = 5,
    /// 32-bit float.
    F32 = 6,
    /// A byte that is 0 or 1.
    Bool = 7,
    /// UTF-8 behind its length.
    String = 8,
    /// Values of one type, behind that type and their number.
    Array = 9,
    /// 64-bit unsigned integer.
    U64 = 10,
    /// 64-bit integer.
    I64 = 11,
    /// 64-bit float.
    F64 = 12,
}

impl ValueType {
    /// Every type, each at the place of its number.
    pub const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::String,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    /// The type that a file's number means.
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(id).ok()?).copied()
    }

    /// The number that stands for the type in files.
    pub fn id(self) -> u32 {
        self as u32
    }

    /// The name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::String => "string",
            Self::Array => "array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        }
    }

    /// The fewest bytes that one value takes in a file.
    pub(crate) fn least_bytes(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            // A string has its length, if no more.
            Self::String | Self::U64 | Self::I64 | Self::F64 => 8,
            // Its type and length.
            Self::Array => 12,
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One value of the metadata.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// [`ValueType::U8`].
    U8(u8),
    /// [`ValueType::I8`].
    I8(i8),
    /// [`ValueType::U16`].
    U16(u16),
    /// [`ValueType::I16`].
    I16(i16),
    /// [`ValueType::U32`].
    U32(u32),
    /// [`ValueType::I32`].
    I32(i32),
    /// [`ValueType::F32`].
    F32(f32),
    /// [`ValueType::Bool`].
    Bool(bool),
    /// [`ValueType::String`].
    String(String),
    /// [`ValueType::Array`].
    Array(Array),
    /// [`ValueType::U64`].
    U64(u64),
    /// [`ValueType::I64`].
    I64(i64),
    /// [`ValueType::F64`].
    F64(f64),
}

impl Value {
    /// The type.
    pub fn ty(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// The type in words: `u32`, or `array of u32`.
    pub fn describe_type(&self) -> String {
        match self {
            Self::Array(array) => format!("array of {}", array.ty()),
            value => value.ty().to_string(),
        }
    }

    /// The integer, of whatever width.
    pub(crate) fn integer(&self) -> Option<i128> {
        match *self {
            Self::U8(value) => Some(value.into()),
            Self::I8(value) => Some(value.into()),
            Self::U16(value) => Some(value.into()),
            Self::I16(value) => Some(value.into()),
            Self::U32(value) => Some(value.into()),
            Self::I32(value) => Some(value.into()),
            Self::U64(value) => Some(value.into()),
            Self::I64(value) => Some(value.into()),
            Self::F32(_) | Self::F64(_) | Self::Bool(_) | Self::String(_) | Self::Array(_) => None,
        }
    }
}

/// Values of one type: a vocabulary of a hundred thousand strings is one vector.
#[derive(Debug, Clone, PartialEq)]
pub enum Array {
    /// Of [`ValueType::U8`].
    U8(Vec<u8>),
    /// Of [`ValueType::I8`].
    I8(Vec<i8>),
    /// Of [`ValueType::U16`].
    U16(Vec<u16>),
    /// Of [`ValueType::I16`].
    I16(Vec<i16>),
    /// Of [`ValueType::U32`].
    U32(Vec<u32>),
    /// Of [`ValueType::I32`].
    I32(Vec<i32>),
    /// Of [`ValueType::F32`].
    F32(Vec<f32>),
    /// Of [`ValueType::Bool`].
    Bool(Vec<bool>),
    /// Of [`ValueType::String`].
    String(Vec<String>),
    /// Of [`ValueType::Array`]; those within may be of different types.
    Array(Vec<Array>),
    /// Of [`ValueType::U64`].
    U64(Vec<u64>),
    /// Of [`ValueType::I64`].
    I64(Vec<i64>),
    /// Of [`ValueType::F64`].
    F64(Vec<f64>),
}

impl Array {
    /// Arrays within arrays within an array go this deep, the outermost counted.
    pub const MAX_DEPTH: usize = 8;

    /// The type of the elements.
    pub fn ty(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::U8(values) => values.len(),
            Self::I8(values) => values.len(),
            Self::U16(values) => values.len(),
            Self::I16(values) => values.len(),
            Self::U32(values) => values.len(),
            Self::I32(values) => values.len(),
            Self::F32(values) => values.len(),
            Self::Bool(values) => values.len(),
            Self::String(values) => values.len(),
            Self::Array(values) => values.len(),
            Self::U64(values) => values.len(),
            Self::I64(values) => values.len(),
            Self::F64(values) => values.len(),
        }
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many arrays lie within one another, this one counted.
    pub(crate) fn depth(&self) -> usize {
        match self {
            Self::Array(arrays) => 1 + arrays.iter().map(Self::depth).max().unwrap_or(0),
            _ => 1,
        }
    }
}

macro_rules! from {
    ($($ty:ty => $variant:ident),*) => {$(
        impl From<$ty> for Value {
            fn from(value: $ty) -> Self {
                Self::$variant(value)
            }
        }

        impl From<Vec<$ty>> for Value {
            fn from(values: Vec<$ty>) -> Self {
                Self::Array(Array::$variant(values))
            }
        }
    )*};
}

from!(u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, f32 => F32, bool => Bool, String => String,
    Array => Array, u64 => U64, i64 => I64, f64 => F64);

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::String(value.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_is_at_the_place_of_its_number() {
        for ty in ValueType::ALL {
            assert_eq!(ValueType::from_id(ty.id()), Some(ty));
        }
        assert_eq!(ValueType::from_id(13), None);
        assert_eq!(ValueType::from_id(u32::MAX), None);
    }

    #[test]
    fn values_say_their_type() {
        assert_eq!(Value::from("a").describe_type(), "string");
        assert_eq!(Value::from(vec![1_i16]).describe_type(), "array of i16");
        assert_eq!(Value::from(vec![Array::Bool(vec![true])]).describe_type(), "array of array");
    }

    #[test]
    fn depth_counts_the_deepest_arrays() {
        let inner = Array::Array(vec![Array::U8(vec![]), Array::Array(vec![])]);
        assert_eq!(Array::U8(vec![1]).depth(), 1);
        assert_eq!(Array::Array(vec![Array::U8(vec![]), inner]).depth(), 3);
    }
}
