//! What a golden was made from: a configuration and how it was run.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::GoldenKind;
use crate::error::{GoldenError, Place};
use crate::filler::integers;
use crate::json::{self, Entry, as_sizes};

/// The most tokens of a run, all sequences together: beyond any golden, and a corrupt length must not ask for memory.
const MAX_TOKENS: usize = 1 << 22;

/// What attention rounds its probabilities to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbsDtype {
    /// bfloat16, as the released kernels do.
    Bf16,
    /// Not rounded.
    F32,
}

const PROBS_DTYPES: [(&str, ProbsDtype); 2] = [("bf16", ProbsDtype::Bf16), ("f32", ProbsDtype::F32)];

/// Who decides among equal scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SelectionRule {
    /// The lowest position.
    Stable,
    /// torch's `topk`, whose choice is not specified: a run takes the golden's.
    Torch,
}

const SELECTION_RULES: [(&str, SelectionRule); 2] =
    [("stable", SelectionRule::Stable), ("torch", SelectionRule::Torch)];

/// The forward pass behind one regime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegimeCall {
    /// The regime's name.
    pub name: String,
    /// Position of the first token.
    pub start: usize,
    /// Tokens of each sequence.
    pub length: usize,
}

impl RegimeCall {
    /// Whether this is the prefill, whose keys and index lists are laid out without the ring.
    pub fn is_prefill(&self) -> bool {
        self.start == 0
    }

    /// How many keys of the window precede the compressed ones in `sa_kv`, which is what compressed indices are offset
    /// by: the prompt in the prefill, the whole ring after it.
    pub fn window_rows(&self, window_size: usize) -> usize {
        if self.is_prefill() { self.length } else { window_size }
    }
}

/// The `fixture` of a golden file.
#[derive(Debug, Clone, PartialEq)]
pub struct Fixture {
    /// Every key as read: the configuration under the reference's names, and the keys below.
    pub config: Map<String, Value>,
    /// The golden's name.
    pub name: String,
    /// Prefix of every name that values are made from.
    pub salt: String,
    /// Sequences.
    pub batch: usize,
    /// Tokens of the first call.
    pub prefill_len: usize,
    /// Calls of one token after it.
    pub decode_steps: usize,
    /// The regimes that the file holds, in order.
    pub regimes: Vec<String>,
    /// Rounding of attention probabilities.
    pub probs_dtype: ProbsDtype,
    /// Rule for equal scores.
    pub selection: SelectionRule,
    /// The released code's slip between group boundaries: keys of whichever source published last are scored.
    pub stale_index_keys: bool,
    /// The released code's slip with few candidates: masked positions can be picked and attended.
    pub keep_masked_picks: bool,
    /// The configuration's `vocab_size`.
    pub vocab_size: usize,
    /// The configuration's `window_size`.
    pub window_size: usize,
    /// The configuration's `n_routed_experts`.
    pub n_routed_experts: usize,
}

impl Fixture {
    /// Reads a fixture from a file that is one, or is a golden and so has one.
    ///
    /// # Errors
    /// [`GoldenError::Read`], [`GoldenError::Json`], or as [`Fixture::from_map`].
    pub fn read(path: &Path) -> Result<Self, GoldenError> {
        let file = Place::file(path);
        let text =
            std::fs::read_to_string(path).map_err(|source| GoldenError::Read { file: file.file.clone(), source })?;
        let value = json::parse(&file, &text)?;
        let fixture = value.get("fixture").unwrap_or(&value);
        match fixture.as_object() {
            Some(map) => Self::from_map(path, map.clone()),
            None => Err(file.fault(json::wrong_type("fixture", "an object", fixture))),
        }
    }

    /// Takes a fixture apart. `salt` defaults to none, `regimes` to every call, `probs_dtype` and `selection` to `bf16`
    /// and `stable`, the two slips to off.
    ///
    /// # Errors
    /// [`GoldenError::Entry`] for a key that is missing, of the wrong type or out of range; [`GoldenError::Unsupported`]
    /// for a model with a vision tower or a draft head.
    pub fn from_map(origin: &Path, config: Map<String, Value>) -> Result<Self, GoldenError> {
        let file = Place::file(origin);
        let place = file.regime("fixture");
        let entry = Entry::of(&place, &config);
        GoldenKind::of_fixture(entry)?.supported(&file)?;

        let positive = |key| match entry.usize(key)? {
            0 => Err(entry.value(key, 0, "at least 1")),
            size => Ok(size),
        };
        let switch = |key| match entry.optional(key) {
            Some(_) => entry.read(key, "true or false", Value::as_bool),
            None => Ok(false),
        };
        let mut fixture = Self {
            name: entry.string("name")?.to_owned(),
            salt: entry.optional("salt").map_or(Ok(""), |_| entry.string("salt"))?.to_owned(),
            batch: positive("batch")?,
            prefill_len: positive("prefill_len")?,
            decode_steps: entry.usize("decode_steps")?,
            regimes: Vec::new(),
            probs_dtype: entry
                .optional("probs_dtype")
                .map_or(Ok(ProbsDtype::Bf16), |_| entry.named("probs_dtype", &PROBS_DTYPES))?,
            selection: entry
                .optional("selection")
                .map_or(Ok(SelectionRule::Stable), |_| entry.named("selection", &SELECTION_RULES))?,
            stale_index_keys: switch("stale_index_keys")?,
            keep_masked_picks: switch("keep_masked_picks")?,
            vocab_size: positive("vocab_size")?,
            window_size: positive("window_size")?,
            n_routed_experts: positive("n_routed_experts")?,
            config: Map::new(),
        };
        if u32::try_from(fixture.vocab_size).is_err() {
            return Err(entry.value("vocab_size", fixture.vocab_size, "less than 2^32"));
        }
        let tokens = fixture.prefill_len.checked_add(fixture.decode_steps).and_then(|s| s.checked_mul(fixture.batch));
        if tokens.is_none_or(|tokens| tokens > MAX_TOKENS) {
            let lengths = format!("{} + {}", fixture.prefill_len, fixture.decode_steps);
            return Err(entry.value("prefill_len", lengths, format!("at most {MAX_TOKENS} tokens in all")));
        }
        fixture.regimes = match entry.optional("regimes") {
            Some(_) => entry.read("regimes", "an array of strings", as_strings)?,
            None => fixture.calls().into_iter().map(|call| call.name).collect(),
        };
        if let Some(stray) = fixture.regimes.iter().find(|name| fixture.call(name).is_none()) {
            return Err(entry.value("regimes", stray, "prefill<prefill_len> or decode<position> of a decode step"));
        }
        fixture.config = config;
        Ok(fixture)
    }

    /// All calls of the run, in order: the prefill and each decode step, named after their first positions (the prefill
    /// after its length). `regimes` may leave some out.
    pub fn calls(&self) -> Vec<RegimeCall> {
        let prefill = RegimeCall { name: format!("prefill{}", self.prefill_len), start: 0, length: self.prefill_len };
        let decode = (self.prefill_len..self.prefill_len + self.decode_steps).map(|start| RegimeCall {
            name: format!("decode{start}"),
            start,
            length: 1,
        });
        std::iter::once(prefill).chain(decode).collect()
    }

    /// The call behind a regime.
    pub fn call(&self, regime: &str) -> Option<RegimeCall> {
        let (start, length) = if let Some(length) = regime.strip_prefix("prefill") {
            (0, length.parse().ok().filter(|&length: &usize| length == self.prefill_len)?)
        } else {
            let decoded = self.prefill_len..self.prefill_len + self.decode_steps;
            (regime.strip_prefix("decode")?.parse().ok().filter(|start| decoded.contains(start))?, 1)
        };
        Some(RegimeCall { name: regime.to_owned(), start, length })
    }

    /// The token ids of every sequence over the whole run, made from the name `input_ids`.
    pub fn input_ids(&self) -> Vec<Vec<u32>> {
        let length = self.prefill_len + self.decode_steps;
        integers(&self.salt, "input_ids", self.batch * length, self.vocab_size as u64)
            .chunks(length)
            // Below the vocabulary size, which fits u32.
            .map(|row| row.iter().map(|&id| id as u32).collect())
            .collect()
    }

    /// The keys as a golden file holds them.
    pub fn to_map(&self) -> Map<String, Value> {
        let mut map = self.config.clone();
        let run = [
            ("name", json!(self.name)),
            ("salt", json!(self.salt)),
            ("batch", json!(self.batch)),
            ("prefill_len", json!(self.prefill_len)),
            ("decode_steps", json!(self.decode_steps)),
            ("regimes", json!(self.regimes)),
            ("probs_dtype", json!(name_of(&PROBS_DTYPES, self.probs_dtype))),
            ("selection", json!(name_of(&SELECTION_RULES, self.selection))),
            ("image", Value::Null),
            ("stale_index_keys", json!(self.stale_index_keys)),
            ("keep_masked_picks", json!(self.keep_masked_picks)),
        ];
        map.extend(run.map(|(key, value)| (key.to_owned(), value)));
        map
    }
}

impl GoldenKind {
    /// What a fixture describes.
    fn of_fixture(entry: Entry<'_>) -> Result<Self, GoldenError> {
        let above_zero = |key| entry.optional(key).map_or(Ok(0), |_| entry.usize(key)).map(|count| count > 0);
        let image = match entry.optional("image") {
            Some(_) => entry
                .read("image", "three non-negative integers", |value| as_sizes(value).filter(|s| s.len() == 3))
                .map(|_| true)?,
            None => false,
        };
        Ok(if above_zero("vision_n_layers")? || image {
            Self::Vision
        } else if above_zero("n_mtp_layers")? || above_zero("dspark_block_size")? {
            Self::Draft
        } else {
            Self::Text
        })
    }
}

fn as_strings(value: &Value) -> Option<Vec<String>> {
    value.as_array()?.iter().map(|item| item.as_str().map(str::to_owned)).collect()
}

fn name_of<T: PartialEq>(known: &[(&'static str, T)], value: T) -> Option<&'static str> {
    known.iter().find(|(_, known)| *known == value).map(|&(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn fixture() -> Map<String, Value> {
        testing::value()["fixture"].as_object().cloned().unwrap_or_default()
    }

    fn read(map: Map<String, Value>) -> Result<Fixture, GoldenError> {
        Fixture::from_map(Path::new("test.json"), map)
    }

    #[test]
    fn only_the_lengths_and_the_model_are_needed() {
        let mut map = fixture();
        for key in ["salt", "regimes", "probs_dtype", "selection", "stale_index_keys", "keep_masked_picks", "image"] {
            map.shift_remove(key);
        }
        let fixture = read(map).expect("defaults for the rest");
        assert_eq!(fixture.regimes, ["prefill3", "decode3"]);
        assert_eq!((fixture.probs_dtype, fixture.selection), (ProbsDtype::Bf16, SelectionRule::Stable));
        assert_eq!(fixture.to_map()["probs_dtype"], "bf16");
    }

    #[test]
    fn calls_are_named_after_positions() {
        let fixture = read(fixture()).expect("sound");
        let calls = fixture.calls();
        let expected = [("prefill3", 0, 3, 3), ("decode3", 3, 1, 2)];
        for (call, (name, start, length, window_rows)) in calls.iter().zip(expected) {
            assert_eq!((call.name.as_str(), call.start, call.length), (name, start, length));
            assert_eq!(call.window_rows(fixture.window_size), window_rows);
            assert_eq!(fixture.call(name).as_ref(), Some(call));
        }
        assert_eq!(calls.len(), expected.len());
        for stray in ["prefill4", "decode4", "decode2", "decodex", "warmup"] {
            assert_eq!(fixture.call(stray), None);
        }
    }

    #[test]
    fn ids_go_row_by_row_over_the_whole_run() {
        let mut map = fixture();
        map["batch"] = 2.into();
        let ids: Vec<u64> = read(map).expect("sound").input_ids().concat().into_iter().map(u64::from).collect();
        assert_eq!(ids, integers("", "input_ids", 8, 8));
    }

    #[test]
    fn wrong_keys_are_named() {
        let cases = [
            ("batch", json!(0), "`batch` is 0, must be at least 1"),
            ("batch", json!("two"), "`batch` is \"two\", expected a non-negative integer"),
            ("prefill_len", json!(-1), "`prefill_len` is -1, expected a non-negative integer"),
            (
                "prefill_len",
                json!(u64::MAX),
                "`prefill_len` is 18446744073709551615 + 1, must be at most 4194304 tokens in all",
            ),
            (
                "decode_steps",
                json!(1_u64 << 40),
                "`prefill_len` is 3 + 1099511627776, must be at most 4194304 tokens in all",
            ),
            ("vocab_size", json!(1_u64 << 32), "`vocab_size` is 4294967296, must be less than 2^32"),
            ("name", json!(3), "`name` is 3, expected a string"),
            ("salt", json!([]), "`salt` is an array of 0, expected a string"),
            ("probs_dtype", json!("f16"), "`probs_dtype` is \"f16\", must be one of bf16, f32"),
            ("selection", json!("any"), "`selection` is \"any\", must be one of stable, torch"),
            ("stale_index_keys", json!(1), "`stale_index_keys` is 1, expected true or false"),
            ("regimes", json!([1]), "`regimes` is an array of 1, expected an array of strings"),
            (
                "regimes",
                json!(["decode9"]),
                "`regimes` is decode9, must be prefill<prefill_len> or decode<position> of a decode step",
            ),
            ("image", json!([1, 2]), "`image` is an array of 2, expected three non-negative integers"),
        ];
        for (key, value, message) in cases {
            let mut map = fixture();
            map.insert(key.to_owned(), value);
            let error = read(map).expect_err("a broken fixture").to_string();
            assert_eq!(error, format!("test.json: fixture: {message}"));
        }
        let mut map = fixture();
        map.shift_remove("window_size");
        let error = read(map).expect_err("a key is missing").to_string();
        assert_eq!(error, "test.json: fixture: key `window_size` is missing");
    }

    #[test]
    fn a_fixture_file_may_be_bare_or_a_golden() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("f.json");
        for value in [testing::value(), testing::value()["fixture"].clone()] {
            std::fs::write(&path, value.to_string()).expect("writable");
            assert_eq!(Fixture::read(&path).expect("sound").name, "test");
        }
        std::fs::write(&path, "[]").expect("writable");
        assert!(
            Fixture::read(&path)
                .expect_err("no object")
                .to_string()
                .ends_with("`fixture` is an array of 0, expected an object")
        );
        let absent = Fixture::read(&folder.path().join("absent.json")).expect_err("no file");
        assert!(matches!(absent, GoldenError::Read { .. }));
    }
}
