//! The whole tensors beside a golden: what a layer-by-layer run is fed, and every long integer capture.

use std::fs;
use std::path::{Path, PathBuf};

use half::bf16;
use indexmap::IndexMap;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use crate::capture::holds_integers;
use crate::error::{EntryFault, GoldenError, Place};
use crate::file::{Golden, write_atomically};
use crate::recorded::{Captures, Recorded, Values};

/// More integers than this and the golden's sample is thin, so that the whole is kept.
const LONG_INTEGERS: usize = 64;

/// Whole tensors by `regime/capture`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Inputs {
    path: PathBuf,
    tensors: IndexMap<String, Recorded>,
}

impl Inputs {
    /// None yet, to be written to `path`.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), tensors: IndexMap::new() }
    }

    /// Reads a safetensors file of BF16, F32, I32 and I64 tensors named `regime/capture`.
    ///
    /// # Errors
    /// [`GoldenError::Read`], [`GoldenError::Safetensors`], and [`GoldenError::Entry`] for a tensor of another type, a
    /// value that is not finite, or a name without a regime.
    pub fn read(path: &Path) -> Result<Self, GoldenError> {
        let file = Place::file(path);
        let bytes = fs::read(path).map_err(|source| GoldenError::Read { file: file.file.clone(), source })?;
        let container = SafeTensors::deserialize(&bytes)
            .map_err(|source| GoldenError::Safetensors { file: file.file.clone(), source })?;
        let mut inputs = Self::new(path);
        for (name, view) in container.iter() {
            let (regime, capture) =
                name.split_once('/').ok_or_else(|| file.capture(name).fault(EntryFault::Unexpected))?;
            let recorded = read_tensor(&file.regime(regime).capture(capture), &view)?;
            inputs.tensors.insert(name.to_owned(), recorded);
        }
        Ok(inputs)
    }

    /// Keeps, of the captures of a regime, those that belong in the file: every layer's `h_in`, `pre_mix_in` and
    /// `engram_in`, and every integer capture too long for its sample to be whole.
    pub fn keep(&mut self, regime: &str, captures: &Captures) {
        for (name, recorded) in captures {
            let fed = [".h_in", ".pre_mix_in", ".engram_in"].iter().any(|part| name.ends_with(part));
            if fed || (holds_integers(name) && recorded.len() > LONG_INTEGERS) {
                self.tensors.insert(key(regime, name), recorded.clone());
            }
        }
    }

    /// Writes the file, under a temporary name first: mixes as F32, other floats as BF16, integers as I32.
    ///
    /// # Errors
    /// [`GoldenError::Write`], or [`GoldenError::Entry`] for a value that its type does not hold.
    pub fn write(&self) -> Result<(), GoldenError> {
        write_atomically(&self.path, &self.to_bytes()?)
    }

    /// The bytes of the file.
    ///
    /// # Errors
    /// [`GoldenError::Entry`] for a value that its type does not hold.
    pub fn to_bytes(&self) -> Result<Vec<u8>, GoldenError> {
        let file = Place::file(&self.path);
        let mut stored = Vec::with_capacity(self.tensors.len());
        for (name, recorded) in &self.tensors {
            let (regime, capture) = name.split_once('/').unwrap_or(("", name));
            let (dtype, bytes) = stored_bytes(&file.regime(regime).capture(capture), recorded)?;
            stored.push((name, dtype, &recorded.shape, bytes));
        }
        let views = stored
            .iter()
            .map(|(name, dtype, shape, bytes)| Ok((name.as_str(), TensorView::new(*dtype, shape.to_vec(), bytes)?)))
            .collect::<Result<Vec<_>, _>>();
        views
            .and_then(|views| safetensors::serialize(views, None))
            .map_err(|source| GoldenError::Safetensors { file: file.file.clone(), source })
    }

    /// The whole tensor of a capture.
    pub fn get(&self, regime: &str, capture: &str) -> Option<&Recorded> {
        self.tensors.get(&key(regime, capture))
    }

    /// The tensors of one regime by capture.
    pub fn regime(&self, regime: &str) -> Captures {
        self.tensors
            .iter()
            .filter_map(|(name, recorded)| {
                let (of, capture) = name.split_once('/')?;
                (of == regime).then(|| (capture.to_owned(), recorded.clone()))
            })
            .collect()
    }

    /// Checks that these are the tensors the golden sampled: the same shapes, the same values at its strides.
    ///
    /// # Errors
    /// [`GoldenError::Entry`] for a tensor that the golden has no capture of, or another one.
    pub fn check(&self, golden: &Golden) -> Result<(), GoldenError> {
        let file = Place::file(&self.path);
        for (name, whole) in &self.tensors {
            let (regime, capture) = name.split_once('/').unwrap_or(("", name));
            let place = file.regime(regime).capture(capture);
            let sampled = golden.capture(regime, capture)?;
            if sampled.shape != whole.shape {
                let (expected, found) = (sampled.shape.clone(), whole.shape.clone());
                return Err(place.fault(EntryFault::Shape { expected, found }));
            }
            for (index, expected) in sampled.samples() {
                let found = whole.get(index);
                if found != expected {
                    return Err(place.fault(EntryFault::Sample { index, found, expected }));
                }
            }
        }
        Ok(())
    }
}

fn key(regime: &str, capture: &str) -> String {
    format!("{regime}/{capture}")
}

fn read_tensor(place: &Place, view: &TensorView<'_>) -> Result<Recorded, GoldenError> {
    let bytes = view.data();
    let values = match (view.dtype(), holds_integers(&place.capture)) {
        (Dtype::BF16, false) => Values::Float(elements(bytes, |raw| bf16::from_le_bytes(raw).to_f64())),
        (Dtype::F32, false) => Values::Float(elements(bytes, |raw| f64::from(f32::from_le_bytes(raw)))),
        (Dtype::I32, true) => Values::Int(elements(bytes, |raw| i64::from(i32::from_le_bytes(raw)))),
        (Dtype::I64, true) => Values::Int(elements(bytes, i64::from_le_bytes)),
        (found, integers) => {
            let expected = if integers { "I32 or I64" } else { "BF16 or F32" };
            return Err(place.fault(EntryFault::StoredAs { expected, found: format!("{found:?}") }));
        }
    };
    if let Some(index) = values.to_f64().position(|value| !value.is_finite()) {
        return Err(place.fault(EntryFault::NonFinite { index }));
    }
    Ok(Recorded { shape: view.shape().to_vec(), values })
}

/// Little-endian elements of `N` bytes. A tensor's length is a multiple: the container was checked.
fn elements<const N: usize, T>(bytes: &[u8], read: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks().0.iter().map(|&raw| read(raw)).collect()
}

fn stored_bytes(place: &Place, recorded: &Recorded) -> Result<(Dtype, Vec<u8>), GoldenError> {
    let unfit = |index, expected| {
        let found = recorded.get(index).to_string();
        place.fault(EntryFault::Value { key: "data", found, rule: format!("a finite {expected}") })
    };
    match &recorded.values {
        Values::Float(values) if place.capture.ends_with("pre_mix_in") => {
            let narrow = |(index, &value): (usize, &f64)| {
                let narrow = value as f32;
                if narrow.is_finite() { Ok(narrow.to_le_bytes()) } else { Err(unfit(index, "float32")) }
            };
            let bytes = values.iter().enumerate().map(narrow).collect::<Result<Vec<_>, _>>()?;
            Ok((Dtype::F32, bytes.concat()))
        }
        Values::Float(values) => {
            let narrow = |(index, &value): (usize, &f64)| {
                let narrow = bf16::from_f64(value);
                if narrow.to_f64() == value { Ok(narrow.to_le_bytes()) } else { Err(unfit(index, "bfloat16")) }
            };
            let bytes = values.iter().enumerate().map(narrow).collect::<Result<Vec<_>, _>>()?;
            Ok((Dtype::BF16, bytes.concat()))
        }
        Values::Int(values) => {
            let narrow = |(index, &value): (usize, &i64)| {
                i32::try_from(value).map(i32::to_le_bytes).map_err(|_| unfit(index, "32-bit integer"))
            };
            let bytes = values.iter().enumerate().map(narrow).collect::<Result<Vec<_>, _>>()?;
            Ok((Dtype::I32, bytes.concat()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    /// Writes a container of one tensor of eight bytes and reads it as inputs.
    fn read_one(name: &str, dtype: Dtype, shape: Vec<usize>, bytes: &[u8]) -> Result<Inputs, String> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("test.inputs.safetensors");
        let view = TensorView::new(dtype, shape, bytes).expect("a sound tensor");
        fs::write(&path, safetensors::serialize([(name, view)], None).expect("serialisable")).expect("writable");
        Inputs::read(&path).map_err(|error| {
            let message = error.to_string();
            message.split_once("safetensors: ").map_or(message.clone(), |(_, rest)| rest.to_owned())
        })
    }

    #[test]
    fn each_type_is_widened() {
        let floats = |dtype, bytes: &[u8], n| {
            read_one("prefill3/L0.h_in", dtype, vec![n], bytes).map(|i| i.get("prefill3", "L0.h_in").cloned())
        };
        let bf16s = [1.5, -2.0].map(bf16::from_f32).map(bf16::to_le_bytes).concat();
        assert_eq!(floats(Dtype::BF16, &bf16s, 2), Ok(Some(Recorded::float([2], [1.5, -2.0]))));
        assert_eq!(floats(Dtype::F32, &0.1_f32.to_le_bytes(), 1), Ok(Some(Recorded::float([1], [0.1_f32]))));
        let ids = |dtype, bytes: &[u8]| {
            read_one("decode3/next_ids", dtype, vec![1], bytes).map(|i| i.get("decode3", "next_ids").cloned())
        };
        assert_eq!(ids(Dtype::I32, &(-7_i32).to_le_bytes()), Ok(Some(Recorded::int([1], [-7_i64]))));
        assert_eq!(ids(Dtype::I64, &(1_i64 << 40).to_le_bytes()), Ok(Some(Recorded::int([1], [1_i64 << 40]))));
    }

    #[test]
    fn wrong_tensors_name_regime_and_capture() {
        let cases = [
            (
                "prefill3/L0.h_in",
                Dtype::F64,
                1.0_f64.to_le_bytes(),
                "prefill3: L0.h_in: stored as F64, expected BF16 or F32",
            ),
            (
                "prefill3/next_ids",
                Dtype::F64,
                1.0_f64.to_le_bytes(),
                "prefill3: next_ids: stored as F64, expected I32 or I64",
            ),
            ("prefill3/L0.h_in", Dtype::I64, [0; 8], "prefill3: L0.h_in: stored as I64, expected BF16 or F32"),
            ("L0.h_in", Dtype::F64, [0; 8], "L0.h_in: a run has no such capture"),
        ];
        for (name, dtype, bytes, message) in cases {
            assert_eq!(read_one(name, dtype, vec![1], &bytes), Err(message.to_owned()));
        }
        let nan = [1.0, f32::NAN].map(f32::to_le_bytes).concat();
        let message = "prefill3: L0.h_in: data[1] is not a finite float32".to_owned();
        assert_eq!(read_one("prefill3/L0.h_in", Dtype::F32, vec![2], &nan), Err(message));
    }

    #[test]
    fn broken_containers_are_named() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("test.inputs.safetensors");
        assert!(matches!(Inputs::read(&path), Err(GoldenError::Read { .. })));
        for bytes in [&b""[..], &[0xff; 8], &[0xff; 64]] {
            fs::write(&path, bytes).expect("writable");
            assert!(matches!(Inputs::read(&path), Err(GoldenError::Safetensors { .. })));
        }
    }

    #[test]
    fn what_is_kept_is_what_a_fed_run_needs() {
        let long = Recorded::int([65], vec![1_i64; 65]);
        let short = Recorded::int([64], vec![1_i64; 64]);
        let stream = Recorded::float([1], [1.5]);
        let run = Captures::from_iter([
            ("input_ids".to_owned(), short),
            ("L0.h_in".to_owned(), stream.clone()),
            ("L0.pre_mix_in".to_owned(), Recorded::float([1], [0.1_f32])),
            ("L0.sa_q".to_owned(), stream.clone()),
            ("L0.moe_indices".to_owned(), long),
            ("L1.engram_in".to_owned(), stream),
        ]);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut inputs = Inputs::new(&folder.path().join("test.inputs.safetensors"));
        inputs.keep("prefill3", &run);
        inputs.write().expect("writable");
        let read = Inputs::read(&inputs.path).expect("just written");
        let mut kept: Vec<String> = read.regime("prefill3").into_keys().collect();
        kept.sort_unstable();
        assert_eq!(kept, ["L0.h_in", "L0.moe_indices", "L0.pre_mix_in", "L1.engram_in"]);
        for name in &kept {
            assert_eq!(read.get("prefill3", name), run.get(name));
        }
    }

    #[test]
    fn what_a_type_does_not_hold_is_not_written() {
        for (name, recorded) in [
            ("L0.h_in", Recorded::float([1], [0.1])),
            ("L0.h_in", Recorded::float([1], [f64::NAN])),
            ("L0.pre_mix_in", Recorded::float([1], [1e300])),
            ("L0.moe_indices", Recorded::int([65], vec![1_i64 << 40; 65])),
        ] {
            let mut inputs = Inputs::new(Path::new("test.inputs.safetensors"));
            inputs.keep("prefill3", &Captures::from_iter([(name.to_owned(), recorded)]));
            let error = inputs.write().expect_err("it does not fit").to_string();
            assert!(error.starts_with(&format!("test.inputs.safetensors: prefill3: {name}: `data` is")), "{error}");
        }
    }

    #[test]
    fn inputs_must_be_what_the_golden_sampled() {
        let golden = testing::golden();
        let mut values = [0.5, 9.0, 1.0, 9.0, 0.25, 9.0, 0.0, 9.0, 0.5, 9.0, 1.0, 9.0, -1.0, 9.0, 2.0];
        let check = |regime: &str, name: &str, shape: [usize; 3], values: &[f64]| {
            let mut inputs = Inputs::new(Path::new("test.inputs.safetensors"));
            let recorded = Recorded::float(shape, values.iter().copied());
            inputs.keep(regime, &Captures::from_iter([(name.to_owned(), recorded)]));
            inputs.check(&golden).map_err(|error| error.to_string())
        };
        assert_eq!(check("prefill3", "L0.h_in", [1, 3, 5], &values), Ok(()));
        let missing = Err("test.json: prefill3: L7.h_in: missing".to_owned());
        assert_eq!(check("prefill3", "L7.h_in", [1, 3, 5], &values), missing);
        let place = "test.inputs.safetensors: prefill3: L0.h_in";
        let shape = Err(format!("{place}: shape is [1, 5, 3], expected [1, 3, 5]"));
        assert_eq!(check("prefill3", "L0.h_in", [1, 5, 3], &values), shape);
        values[4] = 0.75;
        let sample = Err(format!("{place}: element 4 is 0.75, the golden's sample says 0.25"));
        assert_eq!(check("prefill3", "L0.h_in", [1, 3, 5], &values), sample);
    }
}
