//! A sample and a checksum of one result: what a golden file holds of it.

use serde_json::{Value, json};

use crate::error::{EntryFault, GoldenError};
use crate::json::{self, Entry};
use crate::recorded::{Recorded, Values, checksum};

/// What stands for minus infinity, which JSON lacks.
pub const MASKED: f64 = -1e30_f32 as f64;

/// The most values of a sample.
const SAMPLE: usize = 12;
/// The most values of a sample of integers.
const INTEGER_SAMPLE: usize = 64;

/// Captures that hold integers, by the last part of their names.
const INTEGERS: [&str; 8] = [
    "input_ids",
    "engram_hashes",
    "engram_hash_ids",
    "sa_topk_idxs",
    "topk_idxs",
    "candidates",
    "moe_indices",
    "next_ids",
];

/// One capture of a regime.
#[derive(Debug, Clone, PartialEq)]
pub struct Capture {
    /// Axes of the whole tensor, outermost first.
    pub shape: Vec<usize>,
    /// Elements of the whole tensor.
    pub n: usize,
    /// Distance between stored elements.
    pub stride: usize,
    /// Checksum of the whole tensor: the f64 sum of `value * (index + 1)`.
    pub ck: f64,
    /// Elements `0, stride, 2*stride, ...` of the whole tensor. Floats are float32 values, widened.
    pub data: Values,
}

impl Capture {
    /// Samples a result: all of it up to 12 values (64 integers), else every p-th, p the first prime that keeps to that
    /// number. Minus infinity becomes [`MASKED`].
    pub fn sample(whole: &Recorded) -> Self {
        let cap = match whole.values {
            Values::Float(_) => SAMPLE,
            Values::Int(_) => INTEGER_SAMPLE,
        };
        let n = whole.len();
        let stride = if n <= cap { 1 } else { prime_from(n.div_ceil(cap)) };
        match &whole.values {
            Values::Float(values) => {
                let stored = |value: f64| {
                    if value == f64::NEG_INFINITY { MASKED } else { f64::from(value as f32) }
                };
                Self {
                    shape: whole.shape.clone(),
                    n,
                    stride,
                    ck: checksum(values.iter().map(|&value| stored(value))).sum,
                    data: Values::Float(values.iter().step_by(stride).map(|&value| stored(value)).collect()),
                }
            }
            Values::Int(values) => Self {
                shape: whole.shape.clone(),
                n,
                stride,
                ck: whole.checksum(),
                data: Values::Int(values.iter().step_by(stride).copied().collect()),
            },
        }
    }

    /// The whole tensor, if all of it is stored.
    pub fn whole(&self) -> Option<Recorded> {
        (self.stride == 1).then(|| Recorded { shape: self.shape.clone(), values: self.data.clone() })
    }

    /// Whether it holds integers.
    pub fn is_integer(&self) -> bool {
        matches!(self.data, Values::Int(_))
    }

    /// The stored elements: index in the whole tensor, and value.
    pub fn samples(&self) -> impl Iterator<Item = (usize, f64)> {
        let stored = self.data.to_f64();
        stored.enumerate().map(|(position, value)| (position * self.stride, value))
    }

    /// Reads the capture called `name`.
    pub(crate) fn from_json(name: &str, entry: Entry<'_>) -> Result<Self, GoldenError> {
        let (shape, n) = counted_shape(entry)?;
        let stride = entry.usize("stride")?;
        if stride == 0 {
            return Err(entry.value("stride", stride, "at least 1"));
        }
        let ck = entry.f64("ck")?;
        let items = entry.read("data", "an array of numbers", Value::as_array)?;
        let expected = n.div_ceil(stride);
        if items.len() != expected {
            return Err(entry.place.fault(EntryFault::Length { n, stride, expected, found: items.len() }));
        }
        let data = if holds_integers(name) {
            let read = |item: &Value| {
                let fault = || entry.place.fault(json::wrong_type("data", "integers", item));
                item.as_i64().ok_or_else(fault)
            };
            Values::Int(items.iter().map(read).collect::<Result<_, _>>()?)
        } else {
            let read = |(index, item): (usize, &Value)| finite_float(entry, index, item);
            Values::Float(items.iter().enumerate().map(read).collect::<Result<_, _>>()?)
        };
        Ok(Self { shape, n, stride, ck, data })
    }

    pub(crate) fn to_json(&self) -> Value {
        let data: Value = match &self.data {
            Values::Float(values) => values.iter().map(|&value| json::nine_digits(value)).collect(),
            Values::Int(values) => values.iter().copied().collect(),
        };
        json!({ "shape": self.shape, "n": self.n, "stride": self.stride, "ck": self.ck, "data": data })
    }
}

/// Whether the capture called `name` holds integers.
pub(crate) fn holds_integers(name: &str) -> bool {
    let last = name.rsplit_once('.').map_or(name, |(_, last)| last);
    INTEGERS.contains(&last)
}

/// `shape` and `n`, which must agree.
pub(crate) fn counted_shape(entry: Entry<'_>) -> Result<(Vec<usize>, usize), GoldenError> {
    let shape = entry.sizes("shape")?;
    let n = entry.usize("n")?;
    let product = shape.iter().try_fold(1_usize, |product, &axis| product.checked_mul(axis));
    if product == Some(n) { Ok((shape, n)) } else { Err(entry.place.fault(EntryFault::Count { shape, n })) }
}

/// A float32 as files hold it: nine digits, so the nearest float32 is the one meant.
fn finite_float(entry: Entry<'_>, index: usize, item: &Value) -> Result<f64, GoldenError> {
    let value = match item {
        Value::Number(number) => number.as_f64().map(|value| f64::from(value as f32)),
        Value::String(word) => word.parse().ok().filter(|value: &f64| !value.is_finite()),
        _ => None,
    };
    match value {
        Some(value) if value.is_finite() => Ok(value),
        Some(_) => Err(entry.place.fault(EntryFault::NonFinite { index })),
        None => Err(entry.place.fault(json::wrong_type("data", "numbers", item))),
    }
}

/// The first prime that is not below `from`.
fn prime_from(from: usize) -> usize {
    let is_prime = |n: usize| n >= 2 && (2..).take_while(|d| d * d <= n).all(|d| !n.is_multiple_of(d));
    (from..).find(|&n| is_prime(n)).expect("there is always a larger prime")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_whole_or_at_a_prime_stride() {
        for (n, stride) in [(1, 1), (12, 1), (13, 2), (144, 13), (20_992, 1753), (3904, 331)] {
            let sample = Capture::sample(&Recorded::float([n], vec![1.0_f32; n]));
            assert_eq!((sample.n, sample.stride), (n, stride));
            assert_eq!(sample.samples().count(), n.div_ceil(stride));
        }
        for (n, stride) in [(64, 1), (65, 2), (984, 17), (246, 5)] {
            assert_eq!(Capture::sample(&Recorded::int([n], vec![1_i64; n])).stride, stride);
        }
    }

    #[test]
    fn samples_know_where_they_are() {
        let sample = Capture::sample(&Recorded::float([13], (0..13_u8).map(f32::from)));
        assert!(sample.samples().all(|(index, value)| index as f64 == value));
        assert_eq!(sample.whole(), None);
        assert_eq!(sample.ck, (0..13).map(|i| f64::from(i * (i + 1))).sum::<f64>());
    }

    #[test]
    fn minus_infinity_is_stored_as_a_number() {
        let sample = Capture::sample(&Recorded::float([2], [f32::NEG_INFINITY, 1.0]));
        assert_eq!(sample.data, Values::Float(vec![MASKED, 1.0]));
        assert_eq!(sample.ck, MASKED + 2.0);
    }
}
