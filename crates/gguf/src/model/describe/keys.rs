//! Typed look-ups of a file's keys.

use std::fmt::Debug;

use super::ARCHITECTURE;
use crate::model::error::ModelError;
use crate::{GgufError, Metadata};

/// A type that metadata can be read as.
pub(super) trait Typed: Sized {
    /// The value of a key, none where it is absent.
    fn read(metadata: &Metadata, key: &str) -> Result<Option<Self>, GgufError>;
}

macro_rules! typed {
    ($($ty:ty => $getter:expr;)*) => {
        $(impl Typed for $ty {
            fn read(metadata: &Metadata, key: &str) -> Result<Option<Self>, GgufError> {
                $getter(metadata, key)
            }
        })*
    };
}

typed! {
    u32 => Metadata::u32;
    usize => Metadata::usize;
    u64 => Metadata::u64;
    bool => Metadata::bool;
    String => |metadata: &Metadata, key: &str| Ok(metadata.str(key)?.map(str::to_owned));
    Vec<usize> => Metadata::usizes;
    Vec<u32> => Metadata::u32s;
    Vec<u64> => Metadata::u64s;
    f64 => |metadata: &Metadata, key: &str| Ok(metadata.f32(key)?.map(decimal));
    Vec<f64> => |metadata: &Metadata, key: &str| {
        Ok(metadata.f32s(key)?.map(|values| values.into_iter().map(decimal).collect()))
    };
}

/// The shortest decimal that means this f32, so that a stored 1e-6 is the configuration's 1e-6 and not 9.99999997e-7.
fn decimal(value: f32) -> f64 {
    // A float prints as a decimal that parses.
    value.to_string().parse().unwrap_or(f64::from(value))
}

/// The keys of a file.
pub(super) struct Keys<'a> {
    pub(super) metadata: &'a Metadata,
}

impl Keys<'_> {
    /// The value under the architecture's prefix.
    pub(super) fn find<T: Typed>(&self, name: &str) -> Result<Option<T>, ModelError> {
        self.find_full(&full(name))
    }

    /// The value of a key under its whole name.
    pub(super) fn find_full<T: Typed>(&self, key: &str) -> Result<Option<T>, ModelError> {
        Ok(T::read(self.metadata, key)?)
    }

    /// The value under the architecture's prefix, which the file must have.
    pub(super) fn required<T: Typed>(&self, name: &str) -> Result<T, ModelError> {
        self.find(name)?.ok_or_else(|| missing(name))
    }

    /// The number under the architecture's prefix, which the file must have if `needed`, and otherwise 0.
    pub(super) fn required_if(&self, needed: bool, name: &str) -> Result<usize, ModelError> {
        if needed { self.required(name) } else { Ok(0) }
    }

    /// The value and the key of the first of several whole names that the file has; the others must agree with it.
    pub(super) fn spelt<T: Typed + PartialEq + Debug>(
        &self,
        spellings: &[String],
    ) -> Result<Option<(T, String)>, ModelError> {
        let mut first: Option<(T, String)> = None;
        for key in spellings {
            let Some(value) = self.find_full::<T>(key)? else { continue };
            match &first {
                None => first = Some((value, key.clone())),
                Some((agreed, _)) if *agreed == value => {}
                Some((agreed, other)) => {
                    let expected = format!("{agreed:?}, as key `{other}` says");
                    return Err(wrong_full(key, format!("{value:?}"), expected));
                }
            }
        }
        Ok(first)
    }

    /// Checks a key that says again what is known already, where the file has it.
    pub(super) fn agrees<T: Typed + PartialEq + Debug>(
        &self,
        name: &str,
        known: &T,
        from: &str,
    ) -> Result<(), ModelError> {
        match self.find::<T>(name)? {
            Some(found) if found != *known => Err(wrong(name, format!("{found:?}"), format!("{known:?}, {from}"))),
            _ => Ok(()),
        }
    }
}

/// The whole name of a key under the architecture's prefix.
pub(super) fn full(name: &str) -> String {
    format!("{ARCHITECTURE}.{name}")
}

/// The error of an absent key under the architecture's prefix.
pub(super) fn missing(name: &str) -> ModelError {
    ModelError::MissingKey { key: full(name) }
}

/// The error of a key under the architecture's prefix.
pub(super) fn wrong(name: &str, found: impl ToString, expected: impl Into<String>) -> ModelError {
    wrong_full(&full(name), found, expected)
}

/// The error of a key under its whole name.
pub(super) fn wrong_full(key: &str, found: impl ToString, expected: impl Into<String>) -> ModelError {
    ModelError::Key { key: key.to_owned(), found: found.to_string(), expected: expected.into() }
}

#[cfg(test)]
mod tests {
    use super::decimal;

    #[test]
    fn a_stored_float_is_the_number_that_was_meant() {
        for number in [1e-20, 1e-6, 10_000.0, 0.1, 1.5, 0.0] {
            assert_eq!(decimal(number as f32), number);
        }
        assert!(decimal(f32::NAN).is_nan() && decimal(f32::INFINITY).is_infinite());
    }
}
