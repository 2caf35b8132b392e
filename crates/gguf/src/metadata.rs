//! The metadata of a model: keys and their values, read by the type that is wanted.

use std::path::{Path, PathBuf};

use indexmap::IndexMap;

use crate::error::{GgufError, KeyFault};
use crate::value::{Array, Value};

/// Keys and values in the order of the file. Two are equal when their keys and values are.
#[derive(Debug, Clone, Default)]
pub struct Metadata {
    /// The file that errors name, if they came from one.
    file: Option<PathBuf>,
    values: IndexMap<String, Value>,
}

impl Metadata {
    /// No metadata yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// No metadata yet, for those of a file.
    pub(crate) fn of_file(file: &Path) -> Self {
        Self { file: Some(file.to_owned()), ..Self::default() }
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Keys and values in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.values.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The value of a key, whatever its type.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// Sets the value of a key, and returns the one it had. A new key goes to the end.
    pub fn insert(&mut self, key: impl Into<String>, value: impl Into<Value>) -> Option<Value> {
        self.values.insert(key.into(), value.into())
    }

    /// The value of a key that must be there: `metadata.required(key, Metadata::u32)`.
    ///
    /// # Errors
    /// [`KeyFault::Missing`], or as the getter.
    pub fn required<'a, T>(
        &'a self,
        key: &str,
        getter: impl FnOnce(&'a Self, &str) -> Result<Option<T>, GgufError>,
    ) -> Result<T, GgufError> {
        getter(self, key)?.ok_or_else(|| self.fault(key, KeyFault::Missing))
    }

    /// An integer of any width in the file.
    ///
    /// # Errors
    /// [`KeyFault::Type`] when it is no integer, [`KeyFault::Range`] when it does not fit.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, GgufError> {
        self.integer(key, "u32")
    }

    /// An integer of any width in the file.
    ///
    /// # Errors
    /// As [`Metadata::u32`].
    pub fn u64(&self, key: &str) -> Result<Option<u64>, GgufError> {
        self.integer(key, "u64")
    }

    /// An integer of any width in the file.
    ///
    /// # Errors
    /// As [`Metadata::u32`].
    pub fn usize(&self, key: &str) -> Result<Option<usize>, GgufError> {
        self.integer(key, "usize")
    }

    /// A float; one of 64 bits is rounded.
    ///
    /// # Errors
    /// [`KeyFault::Type`] when it is no float.
    pub fn f32(&self, key: &str) -> Result<Option<f32>, GgufError> {
        self.read(key, "a float", |value| match *value {
            Value::F32(value) => Some(value),
            Value::F64(value) => Some(value as f32),
            _ => None,
        })
    }

    /// A flag.
    ///
    /// # Errors
    /// [`KeyFault::Type`] when it is none.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, GgufError> {
        self.read(key, "a bool", |value| match *value {
            Value::Bool(value) => Some(value),
            _ => None,
        })
    }

    /// A string.
    ///
    /// # Errors
    /// [`KeyFault::Type`] when it is none.
    pub fn str(&self, key: &str) -> Result<Option<&str>, GgufError> {
        self.read(key, "a string", |value| match value {
            Value::String(value) => Some(value.as_str()),
            _ => None,
        })
    }

    /// An array.
    ///
    /// # Errors
    /// [`KeyFault::Type`] when it is none.
    pub fn array(&self, key: &str) -> Result<Option<&Array>, GgufError> {
        self.read(key, "an array", |value| match value {
            Value::Array(array) => Some(array),
            _ => None,
        })
    }

    /// Integers of any width in the file.
    ///
    /// # Errors
    /// [`KeyFault::Type`] when the value is no array of integers, [`KeyFault::Element`] for the first that does not fit.
    pub fn u32s(&self, key: &str) -> Result<Option<Vec<u32>>, GgufError> {
        self.integers(key, "u32")
    }

    /// Integers of any width in the file.
    ///
    /// # Errors
    /// As [`Metadata::u32s`].
    pub fn u64s(&self, key: &str) -> Result<Option<Vec<u64>>, GgufError> {
        self.integers(key, "u64")
    }

    /// Integers of any width in the file.
    ///
    /// # Errors
    /// As [`Metadata::u32s`].
    pub fn usizes(&self, key: &str) -> Result<Option<Vec<usize>>, GgufError> {
        self.integers(key, "usize")
    }

    /// Floats; those of 64 bits are rounded.
    ///
    /// # Errors
    /// [`KeyFault::Type`] when the value is no array of floats.
    pub fn f32s(&self, key: &str) -> Result<Option<Vec<f32>>, GgufError> {
        self.read(key, "an array of floats", |value| match value {
            Value::Array(Array::F32(values)) => Some(values.clone()),
            Value::Array(Array::F64(values)) => Some(values.iter().map(|&value| value as f32).collect()),
            _ => None,
        })
    }

    /// Strings.
    ///
    /// # Errors
    /// [`KeyFault::Type`] when the value is no array of strings.
    pub fn strings(&self, key: &str) -> Result<Option<&[String]>, GgufError> {
        self.read(key, "an array of strings", |value| match value {
            Value::Array(Array::String(values)) => Some(values.as_slice()),
            _ => None,
        })
    }

    /// An error about a key, for what a getter cannot know: a value that the model cannot have, say.
    pub fn fault(&self, key: &str, fault: KeyFault) -> GgufError {
        GgufError::Key { file: self.file.clone(), key: key.to_owned(), fault }
    }

    fn read<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, GgufError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match convert(value) {
            None => Err(self.fault(key, KeyFault::Type { found: value.describe_type(), expected })),
            converted => Ok(converted),
        }
    }

    fn integer<T: TryFrom<i128>>(&self, key: &str, expected: &'static str) -> Result<Option<T>, GgufError> {
        let Some(value) = self.read(key, "an integer", Value::integer)? else { return Ok(None) };
        match T::try_from(value) {
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(self.fault(key, KeyFault::Range { value: value.to_string(), expected })),
        }
    }

    fn integers<T: TryFrom<i128>>(&self, key: &str, expected: &'static str) -> Result<Option<Vec<T>>, GgufError> {
        let narrowed = self.read(key, "an array of integers", |value| match value {
            Value::Array(Array::U8(values)) => Some(narrow(values)),
            Value::Array(Array::I8(values)) => Some(narrow(values)),
            Value::Array(Array::U16(values)) => Some(narrow(values)),
            Value::Array(Array::I16(values)) => Some(narrow(values)),
            Value::Array(Array::U32(values)) => Some(narrow(values)),
            Value::Array(Array::I32(values)) => Some(narrow(values)),
            Value::Array(Array::U64(values)) => Some(narrow(values)),
            Value::Array(Array::I64(values)) => Some(narrow(values)),
            _ => None,
        })?;
        let misfit = |(index, value): (usize, i128)| {
            self.fault(key, KeyFault::Element { index, value: value.to_string(), expected })
        };
        narrowed.transpose().map_err(misfit)
    }
}

impl PartialEq for Metadata {
    fn eq(&self, other: &Self) -> bool {
        self.values == other.values
    }
}

/// The integers in another width, or the place and value of the first that does not fit.
fn narrow<S: Copy + Into<i128>, T: TryFrom<i128>>(values: &[S]) -> Result<Vec<T>, (usize, i128)> {
    let fit = |(index, &value): (usize, &S)| {
        let value = value.into();
        T::try_from(value).map_err(|_| (index, value))
    };
    values.iter().enumerate().map(fit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata() -> Metadata {
        let mut metadata = Metadata::new();
        metadata.insert("name", "a model");
        metadata.insert("layers", 40_u32);
        metadata.insert("small", 7_i8);
        metadata.insert("negative", -1_i64);
        metadata.insert("epsilon", 0.5_f64);
        metadata.insert("flag", true);
        metadata.insert("ratios", vec![0_i32, 4, 128]);
        metadata.insert("primes", vec![u64::MAX, 2]);
        metadata.insert("clamps", vec![10.0_f32, 0.5]);
        metadata.insert("tokens", vec!["a".to_owned(), "b".to_owned()]);
        metadata
    }

    fn message<T: std::fmt::Debug>(result: Result<T, GgufError>) -> String {
        result.unwrap_err().to_string()
    }

    #[test]
    fn integers_of_any_width_are_read() {
        let metadata = metadata();
        assert_eq!(metadata.u32("layers").unwrap(), Some(40));
        assert_eq!(metadata.u64("small").unwrap(), Some(7));
        assert_eq!(metadata.usize("layers").unwrap(), Some(40));
        assert_eq!(metadata.usizes("ratios").unwrap(), Some(vec![0, 4, 128]));
        assert_eq!(metadata.u64s("primes").unwrap(), Some(vec![u64::MAX, 2]));
        assert_eq!(metadata.u32s("ratios").unwrap(), Some(vec![0, 4, 128]));
    }

    #[test]
    fn other_values_are_read() {
        let metadata = metadata();
        assert_eq!(metadata.str("name").unwrap(), Some("a model"));
        assert_eq!(metadata.f32("epsilon").unwrap(), Some(0.5));
        assert_eq!(metadata.bool("flag").unwrap(), Some(true));
        assert_eq!(metadata.f32s("clamps").unwrap(), Some(vec![10.0, 0.5]));
        assert_eq!(metadata.strings("tokens").unwrap().map(<[String]>::len), Some(2));
        assert_eq!(metadata.array("tokens").unwrap().map(Array::len), Some(2));
    }

    #[test]
    fn a_key_that_is_not_there_is_none_unless_required() {
        let metadata = metadata();
        assert_eq!(metadata.u32("absent").unwrap(), None);
        assert_eq!(metadata.strings("absent").unwrap(), None);
        assert_eq!(metadata.required("name", Metadata::str).unwrap(), "a model");
        assert_eq!(message(metadata.required("absent", Metadata::u32)), "metadata key `absent` is missing");
    }

    #[test]
    fn values_of_another_type_are_refused() {
        let metadata = metadata();
        for (message, expected) in [
            (message(metadata.u32("name")), "metadata key `name` is string, expected an integer"),
            (message(metadata.str("layers")), "metadata key `layers` is u32, expected a string"),
            (message(metadata.bool("small")), "metadata key `small` is i8, expected a bool"),
            (message(metadata.f32("layers")), "metadata key `layers` is u32, expected a float"),
            (message(metadata.array("flag")), "metadata key `flag` is bool, expected an array"),
            (
                message(metadata.usizes("clamps")),
                "metadata key `clamps` is array of f32, expected an array of integers",
            ),
            (message(metadata.f32s("ratios")), "metadata key `ratios` is array of i32, expected an array of floats"),
            (message(metadata.strings("name")), "metadata key `name` is string, expected an array of strings"),
        ] {
            assert_eq!(message, expected);
        }
    }

    #[test]
    fn integers_that_do_not_fit_are_refused() {
        let metadata = metadata();
        assert_eq!(message(metadata.u32("negative")), "metadata key `negative` is -1, expected u32");
        assert_eq!(
            message(metadata.u32s("primes")),
            "metadata key `primes` has 18446744073709551615 at place 0, expected u32"
        );
    }

    #[test]
    fn setting_a_key_again_keeps_its_place() {
        let mut metadata = metadata();
        assert_eq!(metadata.insert("layers", 2_u8), Some(Value::U32(40)));
        let keys: Vec<&str> = metadata.iter().map(|(key, _)| key).collect();
        assert_eq!(keys[..3], ["name", "layers", "small"]);
    }

    #[test]
    fn errors_name_the_file_of_the_metadata() {
        let metadata = Metadata::of_file(Path::new("a.gguf"));
        assert_eq!(message(metadata.required("x", Metadata::u32)), "a.gguf: metadata key `x` is missing");
    }
}
