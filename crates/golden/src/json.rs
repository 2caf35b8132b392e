//! Typed reading of JSON values, with errors that say where; and writing in the style of the handed files.

use std::io;

use serde::Serialize;
use serde_json::ser::Formatter;
use serde_json::{Map, Value};

use crate::error::{EntryFault, GoldenError, Place};

/// Parses a whole file.
///
/// Python writes NaN and the infinities bare, which is not JSON. They become strings here, so that the readers below
/// meet them where they stand and can name the capture.
pub(crate) fn parse(file: &Place, text: &str) -> Result<Value, GoldenError> {
    serde_json::from_str(text).or_else(|source| {
        serde_json::from_str(&quote_non_finite(text)).map_err(|_| GoldenError::Json { file: file.file.clone(), source })
    })
}

/// `text` with every bare NaN, Infinity and -Infinity in quotes.
fn quote_non_finite(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let length = match next {
            '"' => string_length(rest),
            'N' | 'I' | '-' => match ["NaN", "Infinity", "-Infinity"].iter().find(|word| rest.starts_with(**word)) {
                Some(word) => {
                    quoted.extend(["\"", word, "\""]);
                    rest = &rest[word.len()..];
                    continue;
                }
                None => 1,
            },
            other => other.len_utf8(),
        };
        quoted.push_str(&rest[..length]);
        rest = &rest[length..];
    }
    quoted
}

/// The length of the string literal that `text` starts with, quotes included, or all of `text` if it does not end.
fn string_length(text: &str) -> usize {
    let mut escaped = false;
    for (index, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return index + 1,
            _ => {}
        }
    }
    text.len()
}

/// A JSON object and where it stands.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'a> {
    pub(crate) place: &'a Place,
    object: &'a Map<String, Value>,
}

impl<'a> Entry<'a> {
    pub(crate) fn new(place: &'a Place, key: &'static str, value: &'a Value) -> Result<Self, GoldenError> {
        let object = value.as_object().ok_or_else(|| place.fault(wrong_type(key, "an object", value)))?;
        Ok(Self { place, object })
    }

    pub(crate) fn of(place: &'a Place, object: &'a Map<String, Value>) -> Self {
        Self { place, object }
    }

    /// What stands under `key`; null counts as absent.
    pub(crate) fn optional(&self, key: &str) -> Option<&'a Value> {
        self.object.get(key).filter(|value| !value.is_null())
    }

    pub(crate) fn get(&self, key: &'static str) -> Result<&'a Value, GoldenError> {
        self.object.get(key).ok_or_else(|| self.place.fault(EntryFault::MissingKey { key }))
    }

    pub(crate) fn read<T>(
        &self,
        key: &'static str,
        expected: &'static str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<T, GoldenError> {
        let value = self.get(key)?;
        convert(value).ok_or_else(|| self.place.fault(wrong_type(key, expected, value)))
    }

    pub(crate) fn usize(&self, key: &'static str) -> Result<usize, GoldenError> {
        self.read(key, "a non-negative integer", as_usize)
    }

    pub(crate) fn f64(&self, key: &'static str) -> Result<f64, GoldenError> {
        self.read(key, "a number", Value::as_f64)
    }

    pub(crate) fn string(&self, key: &'static str) -> Result<&'a str, GoldenError> {
        self.read(key, "a string", Value::as_str)
    }

    pub(crate) fn sizes(&self, key: &'static str) -> Result<Vec<usize>, GoldenError> {
        self.read(key, "an array of non-negative integers", as_sizes)
    }

    /// The named value of a closed set.
    pub(crate) fn named<T: Copy>(&self, key: &'static str, known: &[(&str, T)]) -> Result<T, GoldenError> {
        let found = self.string(key)?;
        known.iter().find(|(name, _)| *name == found).map(|&(_, value)| value).ok_or_else(|| {
            let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
            self.value(key, format!("\"{found}\""), format!("one of {}", names.join(", ")))
        })
    }

    /// The error for a value that breaks a rule.
    pub(crate) fn value(&self, key: &'static str, found: impl ToString, rule: impl Into<String>) -> GoldenError {
        self.place.fault(EntryFault::Value { key, found: found.to_string(), rule: rule.into() })
    }
}

pub(crate) fn as_usize(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|number| usize::try_from(number).ok())
}

pub(crate) fn as_sizes(value: &Value) -> Option<Vec<usize>> {
    value.as_array()?.iter().map(as_usize).collect()
}

pub(crate) fn wrong_type(key: &'static str, expected: &'static str, found: &Value) -> EntryFault {
    let found = match found {
        Value::Array(items) => format!("an array of {}", items.len()),
        Value::Object(_) => "an object".to_owned(),
        scalar => scalar.to_string(),
    };
    EntryFault::Type { key, expected, found }
}

/// `value` as compact JSON with numbers as Python prints them.
pub(crate) fn to_bytes(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    value
        .serialize(&mut serde_json::Serializer::with_formatter(&mut bytes, PythonFloats))
        .expect("a JSON value has string keys, and writing to memory does not fail");
    bytes
}

/// A float32 as the f64 of nine significant digits, which is how files hold it: enough to tell every f32.
pub(crate) fn nine_digits(value: f64) -> f64 {
    format!("{:.8e}", value as f32).parse().expect("a formatted float parses")
}

/// Shortest round-trip floats, fixed from 1e-4 up to 1e16 and with a signed exponent of two digits or more elsewhere.
struct PythonFloats;

impl Formatter for PythonFloats {
    fn write_f64<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        writer.write_all(python_float(value).as_bytes())
    }
}

fn python_float(value: f64) -> String {
    // The standard library's shortest digits round ties away from Python's (to even); asking for a number of digits
    // does not.
    let scientific = (0..16)
        .map(|digits| format!("{value:.digits$e}"))
        .find(|text| text.parse() == Ok(value))
        .unwrap_or_else(|| format!("{value:.16e}"));
    let (mantissa, exponent) = scientific.split_once('e').expect("scientific notation has an exponent");
    let exponent: i32 = exponent.parse().expect("the exponent is an integer");
    if (-4..16).contains(&exponent) {
        let decimals = mantissa.split_once('.').map_or(0, |(_, decimals)| decimals.len());
        let decimals = (decimals as i32 - exponent).max(1) as usize;
        format!("{value:.decimals$}")
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_python_does() {
        let cases = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (1e-6, "1e-06"),
            (1e-20, "1e-20"),
            (0.0001, "0.0001"),
            (0.00012345, "0.00012345"),
            (0.00001234, "1.234e-05"),
            (123456789012345680.0, "1.2345678901234568e+17"),
            (1234567890123456.0, "1234567890123456.0"),
            (-5.44260008189734e35, "-5.44260008189734e+35"),
            (81_605.149_414_062_5 / 8.0, "10200.643676757812"),
            (100.0, "100.0"),
        ];
        for (value, text) in cases {
            assert_eq!(python_float(value), text);
        }
    }

    #[test]
    fn nine_digits_tell_every_float32() {
        for bits in (0..0x7f80_0000_u32).step_by(77_773) {
            let value = f32::from_bits(bits);
            assert_eq!(nine_digits(f64::from(value)) as f32, value);
        }
        assert_eq!(nine_digits(0.2275390625), 0.227539062);
    }

    #[test]
    fn bare_non_finite_numbers_become_strings() {
        let text = r#"{"a":[NaN,-Infinity,1,-2],"NaN \" NaN":Infinity}"#;
        assert_eq!(quote_non_finite(text), r#"{"a":["NaN","-Infinity",1,-2],"NaN \" NaN":"Infinity"}"#);
        assert_eq!(quote_non_finite("\"unfinished NaN"), "\"unfinished NaN");
    }
}
