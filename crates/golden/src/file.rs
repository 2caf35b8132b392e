//! The golden file: a fixture, the recipes of its weights, and what every regime of the run gave.

use std::fmt;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use serde_json::{Map, Value, json};

use crate::capture::{Capture, counted_shape};
use crate::error::{EntryFault, GoldenError, Place};
use crate::fixture::Fixture;
use crate::inputs::Inputs;
use crate::json::{self, Entry};
use crate::recorded::Recorded;
use crate::weights::{Dtype, Kind, WeightMeta, WeightSet};

/// The captures of one call, in the order they were made.
pub type Regime = IndexMap<String, Capture>;

/// What a golden file is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GoldenKind {
    /// The text graph.
    Text,
    /// The vision tower and aligner, and the text graph around an image.
    Vision,
    /// The draft head after the text graph.
    Draft,
    /// Gradients and losses of training steps.
    Gradient,
}

impl GoldenKind {
    /// Passes what can be read and run.
    pub(crate) fn supported(self, file: &Place) -> Result<(), GoldenError> {
        match self {
            Self::Text => Ok(()),
            kind => Err(GoldenError::Unsupported { file: file.file.clone(), kind }),
        }
    }
}

impl fmt::Display for GoldenKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text => "text",
            Self::Vision => "vision",
            Self::Draft => "dspark (draft head)",
            Self::Gradient => "gradient",
        })
    }
}

/// A golden file of the text graph.
#[derive(Debug, Clone, PartialEq)]
pub struct Golden {
    /// Where it came from, or will go: named in errors, and the inputs file lies beside it.
    pub path: PathBuf,
    /// What was run.
    pub fixture: Fixture,
    /// How to make each stored tensor, in the reference's order.
    pub weights: IndexMap<String, WeightMeta>,
    /// What each call gave.
    pub regimes: IndexMap<String, Regime>,
}

impl Golden {
    /// Reads a golden file.
    ///
    /// # Errors
    /// [`GoldenError::Read`], or as [`Golden::from_str`].
    pub fn read(path: &Path) -> Result<Self, GoldenError> {
        let text = fs::read_to_string(path)
            .map_err(|source| GoldenError::Read { file: path.display().to_string(), source })?;
        Self::from_str(path, &text)
    }

    /// Reads the text of a golden file. `origin` names it in errors.
    ///
    /// # Errors
    /// [`GoldenError::Json`], [`GoldenError::Unsupported`] for a vision, draft or gradient golden, and
    /// [`GoldenError::Entry`] for everything else that can be wrong.
    pub fn from_str(origin: &Path, text: &str) -> Result<Self, GoldenError> {
        let file = Place::file(origin);
        let value = json::parse(&file, text)?;
        let top = Entry::new(&file, "file", &value)?;
        if top.optional("train").is_some() {
            GoldenKind::Gradient.supported(&file)?;
        }
        let config = top.read("fixture", "an object", Value::as_object)?;
        let fixture = Fixture::from_map(origin, config.clone())?;

        let weights = read_recipes(&file, top)?;
        let mut regimes = IndexMap::with_capacity(fixture.regimes.len());
        for name in &fixture.regimes {
            let place = file.regime(name);
            let regime = top.optional(name).ok_or_else(|| place.fault(EntryFault::Missing))?;
            regimes.insert(name.clone(), read_regime(&place, regime)?);
        }
        Ok(Self { path: origin.to_owned(), fixture, weights, regimes })
    }

    /// Writes the file to [`Golden::path`], under a temporary name first. Equal goldens give equal bytes.
    ///
    /// # Errors
    /// [`GoldenError::Write`], or [`GoldenError::Entry`] for a capture with a value that the format cannot hold.
    pub fn write(&self) -> Result<(), GoldenError> {
        write_atomically(&self.path, &self.to_bytes()?)
    }

    /// The bytes of the file.
    ///
    /// # Errors
    /// [`GoldenError::Entry`] for a capture with a value that the format cannot hold.
    pub fn to_bytes(&self) -> Result<Vec<u8>, GoldenError> {
        let recipes: Map<String, Value> =
            self.weights.iter().map(|(name, meta)| (name.clone(), recipe_to_json(meta))).collect();
        let mut top = Map::new();
        top.insert("fixture".to_owned(), Value::Object(self.fixture.to_map()));
        top.insert("weights_meta".to_owned(), Value::Object(recipes));
        for (regime, captures) in &self.regimes {
            let mut object = Map::new();
            for (name, capture) in captures {
                if let Some(index) = capture.data.to_f64().position(|value| !value.is_finite()) {
                    return Err(self.place(regime, name).fault(EntryFault::NonFinite { index }));
                }
                object.insert(name.clone(), capture.to_json());
            }
            top.insert(regime.clone(), Value::Object(object));
        }
        Ok(json::to_bytes(&Value::Object(top)))
    }

    /// Makes the weights and checks every checksum.
    ///
    /// # Errors
    /// [`GoldenError::Entry`] that names the weight, for what [`WeightSet::generate`] finds wrong.
    pub fn make_weights(&self) -> Result<WeightSet, GoldenError> {
        make_weights(&self.path, &self.fixture.salt, &self.weights)
    }

    /// Where the whole tensors lie: `NAME.inputs.safetensors` beside `NAME.json`.
    pub fn inputs_path(&self) -> PathBuf {
        self.path.with_extension("inputs.safetensors")
    }

    /// The whole tensors beside this golden, checked against its samples; none if there is no such file.
    ///
    /// # Errors
    /// As [`Inputs::read`] and [`Inputs::check`].
    pub fn inputs(&self) -> Result<Option<Inputs>, GoldenError> {
        let path = self.inputs_path();
        if !path.exists() {
            return Ok(None);
        }
        let inputs = Inputs::read(&path)?;
        inputs.check(self)?;
        Ok(Some(inputs))
    }

    /// The captures of a regime.
    ///
    /// # Errors
    /// [`GoldenError::Entry`] with [`EntryFault::Missing`].
    pub fn regime(&self, regime: &str) -> Result<&Regime, GoldenError> {
        self.regimes.get(regime).ok_or_else(|| self.place(regime, "").fault(EntryFault::Missing))
    }

    /// One capture of a regime.
    ///
    /// # Errors
    /// [`GoldenError::Entry`] with [`EntryFault::Missing`].
    pub fn capture(&self, regime: &str, capture: &str) -> Result<&Capture, GoldenError> {
        self.regime(regime)?.get(capture).ok_or_else(|| self.place(regime, capture).fault(EntryFault::Missing))
    }

    /// The whole tensor behind a capture, if the golden or its inputs hold it.
    ///
    /// # Errors
    /// [`GoldenError::Entry`] with [`EntryFault::Missing`] when there is no such capture.
    pub fn whole(&self, regime: &str, capture: &str, inputs: Option<&Inputs>) -> Result<Option<Recorded>, GoldenError> {
        let sampled = self.capture(regime, capture)?;
        let stored = || inputs.and_then(|inputs| inputs.get(regime, capture)).cloned();
        Ok(sampled.whole().or_else(stored))
    }

    pub(crate) fn place(&self, regime: &str, capture: &str) -> Place {
        Place::file(&self.path).regime(regime).capture(capture)
    }
}

/// The recipes under `weights_meta`.
pub(crate) fn read_recipes(file: &Place, top: Entry<'_>) -> Result<IndexMap<String, WeightMeta>, GoldenError> {
    let place = file.regime("weights_meta");
    let recipes = top.read("weights_meta", "an object", Value::as_object)?;
    recipes.iter().map(|(name, recipe)| Ok((name.clone(), read_recipe(&place.capture(name), recipe)?))).collect()
}

/// Makes the weights of the golden file at `path` and checks every checksum.
pub(crate) fn make_weights(
    path: &Path,
    salt: &str,
    recipes: &IndexMap<String, WeightMeta>,
) -> Result<WeightSet, GoldenError> {
    let place = |name: &str| Place::file(path).regime("weights_meta").capture(name);
    WeightSet::generate(salt, recipes).map_err(|error| match error {
        GoldenError::Weight { name, fault } => place(&name).fault(EntryFault::Recipe(fault)),
        GoldenError::MissingWeight { name } => place(&name).fault(EntryFault::Missing),
        other => other,
    })
}

fn read_regime(place: &Place, value: &Value) -> Result<Regime, GoldenError> {
    let captures = value.as_object().ok_or_else(|| place.fault(json::wrong_type("regime", "an object", value)))?;
    captures
        .iter()
        .map(|(name, value)| {
            let place = place.capture(name);
            Ok((name.clone(), Capture::from_json(name, Entry::new(&place, "capture", value)?)?))
        })
        .collect()
}

fn read_recipe(place: &Place, value: &Value) -> Result<WeightMeta, GoldenError> {
    let entry = Entry::new(place, "recipe", value)?;
    let (shape, _) = counted_shape(entry)?;
    let kind = entry.named("kind", &Kind::ALL.map(|kind| (kind.name(), kind)))?;
    let dtype = entry.named("dtype", &Dtype::ALL.map(|dtype| (dtype.name(), dtype)))?;
    let mut meta = WeightMeta::unscaled(shape, kind, dtype);
    match kind {
        Kind::F32 | Kind::Fp8 | Kind::E8m0 => {
            meta.scale = entry.f64("scale")?;
            meta.offset = entry.f64("offset")?;
        }
        Kind::Pow2 => {
            meta.lo = entry.read("lo", "an integer", Value::as_i64)?;
            meta.span = entry.read("span", "a non-negative integer", Value::as_u64)?;
        }
        Kind::Fp4x2 => {}
    }
    meta.ck = entry.f64("ck")?;
    Ok(meta)
}

fn recipe_to_json(meta: &WeightMeta) -> Value {
    let n: usize = meta.shape.iter().product();
    let mut recipe = json!({ "shape": meta.shape, "n": n, "kind": meta.kind.name(), "dtype": meta.dtype.name() });
    match meta.kind {
        Kind::F32 | Kind::Fp8 | Kind::E8m0 => {
            recipe["scale"] = meta.scale.into();
            recipe["offset"] = meta.offset.into();
        }
        Kind::Pow2 => {
            recipe["lo"] = meta.lo.into();
            recipe["span"] = meta.span.into();
        }
        Kind::Fp4x2 => {}
    }
    recipe["ck"] = meta.ck.into();
    recipe
}

/// Writes a file so that no reader ever sees half of it.
pub(crate) fn write_atomically(path: &Path, bytes: &[u8]) -> Result<(), GoldenError> {
    let write = || -> io::Result<()> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut builder = tempfile::Builder::new();
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            // As any new file, less the umask; temporary files are private by default.
            builder.permissions(fs::Permissions::from_mode(0o666));
        }
        let mut file = builder.tempfile_in(folder)?;
        file.write_all(bytes)?;
        file.persist(path)?;
        Ok(())
    };
    write().map_err(|source| GoldenError::Write { file: path.display().to_string(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{golden, value};

    fn read(text: &str) -> Result<Golden, GoldenError> {
        Golden::from_str(Path::new("test.json"), text)
    }

    #[test]
    fn a_golden_survives_writing_and_reading() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut golden = golden();
        golden.path = folder.path().join("test.json");
        golden.write().expect("writable");
        assert_eq!(Golden::read(&golden.path).expect("just written"), golden);
        assert_eq!(fs::read_dir(folder.path()).expect("it exists").count(), 1, "no temporary file stays behind");
        assert_eq!(golden.inputs_path(), folder.path().join("test.inputs.safetensors"));
        assert_eq!(golden.inputs().expect("absence is no error"), None);
    }

    #[test]
    fn what_the_format_cannot_hold_is_not_written() {
        let mut golden = golden();
        golden.regimes["decode3"]["logits"].data = crate::Values::Float(vec![0.0, f64::NAN, 0.0]);
        let error = golden.to_bytes().expect_err("NaN").to_string();
        assert_eq!(error, "test.json: decode3: logits: data[1] is not a finite float32");
        golden.path = PathBuf::from("/no/such/folder/test.json");
        golden.regimes.clear();
        assert!(matches!(golden.write(), Err(GoldenError::Write { .. })));
    }

    #[test]
    fn missing_parts_are_named() {
        let golden = golden();
        let error = golden.capture("decode3", "L9.h_in").expect_err("no such capture").to_string();
        assert_eq!(error, "test.json: decode3: L9.h_in: missing");
        assert_eq!(golden.whole("prefill3", "L0.h_in", None).expect("it is there"), None);
        assert!(golden.whole("decode3", "logits", None).expect("it is there").is_some());
    }

    #[test]
    fn weights_that_do_not_regenerate_are_named() {
        let mut golden = golden();
        let error = golden.make_weights().expect_err("a false checksum").to_string();
        assert!(error.starts_with("test.json: weights_meta: embed.weight: checksum is "), "{error}");
        golden.weights.shift_remove("embed.weight");
        let error = golden.make_weights().expect_err("scales of nothing").to_string();
        assert_eq!(error, "test.json: weights_meta: layers.0.w.weight: missing");
    }

    #[test]
    fn unreadable_files_are_named() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("golden.json");
        assert!(matches!(Golden::read(&path), Err(GoldenError::Read { .. })), "absent");
        fs::write(&path, [0xff, 0xfe]).expect("writable");
        assert!(matches!(Golden::read(&path), Err(GoldenError::Read { .. })), "not text");
        assert!(matches!(Golden::read(folder.path()), Err(GoldenError::Read { .. })), "a folder");
    }

    #[test]
    fn broken_json_says_where() {
        let whole = value().to_string();
        for length in [0, 1, 100, whole.len() - 1] {
            let error = read(&whole[..length]).expect_err("cut short");
            assert!(matches!(error, GoldenError::Json { .. }));
            let message = error.to_string();
            assert!(
                message.starts_with("test.json: not valid JSON: EOF") && message.contains("line 1 column"),
                "{message}"
            );
        }
        let huge = whole.replacen("0.25", "1e999", 1);
        assert!(read(&huge).expect_err("too large").to_string().contains("number out of range"));
    }

    /// Replaces one value of the test golden; `pointer` is a JSON pointer.
    fn with(pointer: &str, new: Value) -> String {
        let mut value = value();
        *value.pointer_mut(pointer).expect("the test golden has it") = new;
        value.to_string()
    }

    #[test]
    fn wrong_entries_name_file_regime_and_capture() {
        let cases = [
            ("/prefill3", json!([]), "prefill3: `regime` is an array of 0, expected an object"),
            ("/prefill3/L0.h_in", json!(1), "prefill3: L0.h_in: `capture` is 1, expected an object"),
            ("/prefill3/L0.h_in", json!({}), "prefill3: L0.h_in: key `shape` is missing"),
            (
                "/prefill3/L0.h_in/shape",
                json!([1, -3, 5]),
                "prefill3: L0.h_in: `shape` is an array of 3, expected an array of non-negative integers",
            ),
            (
                "/prefill3/L0.h_in/shape",
                json!([1, 3, 4]),
                "prefill3: L0.h_in: n is 15, which is not the product of shape [1, 3, 4]",
            ),
            (
                "/prefill3/L0.h_in/shape",
                json!([1_u64 << 63, 1_u64 << 63]),
                "prefill3: L0.h_in: n is 15, which is not the product of shape [9223372036854775808, 9223372036854775808]",
            ),
            ("/prefill3/L0.h_in/n", json!(1.5), "prefill3: L0.h_in: `n` is 1.5, expected a non-negative integer"),
            ("/prefill3/L0.h_in/stride", json!(0), "prefill3: L0.h_in: `stride` is 0, must be at least 1"),
            ("/prefill3/L0.h_in/stride", json!(3), "prefill3: L0.h_in: data holds 8 values, 15 at stride 3 make 5"),
            ("/prefill3/L0.h_in/ck", json!("x"), "prefill3: L0.h_in: `ck` is \"x\", expected a number"),
            ("/prefill3/L0.h_in/data", json!(null), "prefill3: L0.h_in: `data` is null, expected an array of numbers"),
            ("/prefill3/L0.h_in/data/1", json!(null), "prefill3: L0.h_in: `data` is null, expected numbers"),
            ("/prefill3/L0.h_in/data/1", json!(1e300), "prefill3: L0.h_in: data[1] is not a finite float32"),
            ("/decode3/L0.moe_indices/data/0", json!(0.5), "decode3: L0.moe_indices: `data` is 0.5, expected integers"),
            (
                "/weights_meta/embed.weight/kind",
                json!("f16"),
                "weights_meta: embed.weight: `kind` is \"f16\", must be one of f32, fp8, e8m0, pow2, fp4x2",
            ),
            (
                "/weights_meta/embed.weight/dtype",
                json!("int8"),
                "weights_meta: embed.weight: `dtype` is \"int8\", must be one of float32, bfloat16, float8_e4m3fn, float8_e8m0fnu, float4_e2m1fn_x2",
            ),
            (
                "/weights_meta/embed.weight/n",
                json!(17),
                "weights_meta: embed.weight: n is 17, which is not the product of shape [8, 2]",
            ),
            (
                "/weights_meta/embed.weight",
                json!([]),
                "weights_meta: embed.weight: `recipe` is an array of 0, expected an object",
            ),
            (
                "/weights_meta/layers.0.w.scale/span",
                json!(-1),
                "weights_meta: layers.0.w.scale: `span` is -1, expected a non-negative integer",
            ),
            ("/weights_meta", json!(0), "`weights_meta` is 0, expected an object"),
            ("/fixture", json!("tiny"), "`fixture` is \"tiny\", expected an object"),
        ];
        for (pointer, new, message) in cases {
            let error = read(&with(pointer, new)).expect_err(pointer).to_string();
            assert_eq!(error, format!("test.json: {message}"), "{pointer}");
        }
        assert_eq!(
            read("[]").expect_err("no object").to_string(),
            "test.json: `file` is an array of 0, expected an object"
        );
        assert_eq!(read("{}").expect_err("empty").to_string(), "test.json: key `fixture` is missing");
    }

    #[test]
    fn bare_nan_names_the_capture() {
        for word in ["NaN", "Infinity", "-Infinity"] {
            let text = value().to_string().replacen("0.25", word, 1);
            let error = read(&text).expect_err("not finite").to_string();
            assert_eq!(error, "test.json: prefill3: L0.h_in: data[2] is not a finite float32");
        }
    }

    #[test]
    fn listed_regimes_must_be_there() {
        let mut value = value();
        value.as_object_mut().expect("an object").shift_remove("decode3");
        assert_eq!(read(&value.to_string()).expect_err("one is gone").to_string(), "test.json: decode3: missing");
    }

    #[test]
    fn huge_shapes_cost_nothing() {
        let mut value = value();
        let sparse = json!({ "shape": [1_u64 << 30, 1 << 30], "n": 1_u64 << 60, "stride": 1_u64 << 59, "ck": 0.0, "data": [0.0, 0.0] });
        value["prefill3"]["L0.h_in"] = sparse;
        assert_eq!(read(&value.to_string()).expect("consistent").regimes["prefill3"]["L0.h_in"].n, 1 << 60);
    }

    #[test]
    fn goldens_of_other_parts_are_refused_by_name() {
        for (key, new, kind) in [
            ("image", json!([5, 7, 9]), GoldenKind::Vision),
            ("vision_n_layers", json!(2), GoldenKind::Vision),
            ("n_mtp_layers", json!(3), GoldenKind::Draft),
            ("dspark_block_size", json!(5), GoldenKind::Draft),
        ] {
            let mut value = value();
            value["fixture"][key] = new;
            match read(&value.to_string()) {
                Err(GoldenError::Unsupported { kind: found, .. }) => assert_eq!(found, kind),
                other => panic!("{key}: {other:?}"),
            }
        }
        let mut value = value();
        value["train"] = json!({});
        let message = read(&value.to_string()).expect_err("a gradient golden").to_string();
        assert_eq!(message, "test.json: gradient golden: not supported yet");
    }
}
