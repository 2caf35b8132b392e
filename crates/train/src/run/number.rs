//! Numbers in JSON, which has neither NaN nor infinities: they are written as `"NaN"`, `"inf"` and `"-inf"`.
//!
//! For `#[serde(with = "number")]` on an `f64`, on an optional one, and on a map of them by name.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub(super) fn serialize<T: Numbers, S: Serializer>(numbers: &T, serializer: S) -> Result<S::Ok, S::Error> {
    numbers.to_json().serialize(serializer)
}

pub(super) fn deserialize<'de, T: Numbers, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    T::Json::deserialize(deserializer).map(T::from_json)
}

/// A number as JSON can tell it.
#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a number, \"NaN\", \"inf\" or \"-inf\"")]
pub(super) enum Number {
    Finite(f64),
    Special(Special),
}

#[derive(Serialize, Deserialize)]
pub(super) enum Special {
    #[serde(rename = "NaN")]
    NaN,
    #[serde(rename = "inf")]
    Infinite,
    #[serde(rename = "-inf")]
    NegativeInfinite,
}

impl From<f64> for Number {
    fn from(number: f64) -> Self {
        match number {
            f64::INFINITY => Self::Special(Special::Infinite),
            f64::NEG_INFINITY => Self::Special(Special::NegativeInfinite),
            _ if number.is_nan() => Self::Special(Special::NaN),
            _ => Self::Finite(number),
        }
    }
}

impl From<Number> for f64 {
    fn from(number: Number) -> Self {
        match number {
            Number::Finite(number) => number,
            Number::Special(Special::NaN) => Self::NAN,
            Number::Special(Special::Infinite) => Self::INFINITY,
            Number::Special(Special::NegativeInfinite) => Self::NEG_INFINITY,
        }
    }
}

/// Something made of numbers, and the same made of what JSON can tell.
pub(super) trait Numbers: Sized {
    type Json: Serialize + for<'de> Deserialize<'de>;

    fn to_json(&self) -> Self::Json;

    fn from_json(json: Self::Json) -> Self;
}

impl Numbers for f64 {
    type Json = Number;

    fn to_json(&self) -> Number {
        Number::from(*self)
    }

    fn from_json(json: Number) -> Self {
        json.into()
    }
}

impl Numbers for Option<f64> {
    type Json = Option<Number>;

    fn to_json(&self) -> Option<Number> {
        self.map(Number::from)
    }

    fn from_json(json: Option<Number>) -> Self {
        json.map(f64::from)
    }
}

impl Numbers for BTreeMap<String, f64> {
    type Json = BTreeMap<String, Number>;

    fn to_json(&self) -> BTreeMap<String, Number> {
        self.iter().map(|(name, &number)| (name.clone(), number.into())).collect()
    }

    fn from_json(json: BTreeMap<String, Number>) -> Self {
        json.into_iter().map(|(name, number)| (name, number.into())).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Holder {
        #[serde(with = "super")]
        number: f64,
        #[serde(with = "super")]
        optional: Option<f64>,
        #[serde(with = "super")]
        named: BTreeMap<String, f64>,
    }

    proptest! {
        #[test]
        fn every_number_comes_back_as_it_was(number in prop::num::f64::ANY) {
            let holder = Holder { number, optional: Some(number), named: BTreeMap::from([("a".into(), number)]) };
            let text = serde_json::to_string(&holder).unwrap();
            let back: Holder = serde_json::from_str(&text).unwrap();
            for found in [back.number, back.optional.unwrap(), back.named["a"]] {
                prop_assert!(found.to_bits() == number.to_bits() || (found.is_nan() && number.is_nan()), "{text}");
            }
        }
    }

    #[test]
    fn what_is_not_finite_is_written_by_name() {
        let named = BTreeMap::from([("a".to_owned(), f64::NEG_INFINITY)]);
        let holder = Holder { number: f64::NAN, optional: Some(f64::INFINITY), named };
        let text = serde_json::to_string(&holder).unwrap();
        assert_eq!(text, r#"{"number":"NaN","optional":"inf","named":{"a":"-inf"}}"#);
    }

    #[test]
    fn other_names_are_refused_with_those_that_are_known() {
        let error = serde_json::from_str::<Number>(r#""nan""#).err().unwrap();
        assert_eq!(error.to_string(), r#"expected a number, "NaN", "inf" or "-inf""#);
    }
}
