//! The golden of engram hashing at the released model's size: constants, and the hash ids of two sequences.

use std::path::Path;

use serde::Deserialize;

use crate::error::{EntryFault, GoldenError, Place};

/// What `engram-hash.json` holds. Ids are compressed ids already: the token map is the identity.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct EngramHashGolden {
    /// Layers with an engram.
    pub layer_ids: Vec<usize>,
    /// Longest n-gram.
    pub max_ngram_size: usize,
    /// Hash heads of each n-gram size.
    pub n_heads: usize,
    /// Primes are searched above this, less one.
    pub engram_vocab_size: u64,
    /// Distinct compressed ids.
    pub compressed_vocab_size: u64,
    /// The compressed id read before a sequence's start and at masked positions.
    pub pad_id: i64,
    /// `[layer][n-gram size - 2][head]`
    pub primes: Vec<Vec<Vec<u64>>>,
    /// `[layer][slot]`, slots n-gram size major, head minor.
    pub offsets: Vec<Vec<u64>>,
    /// `[layer][step]`
    pub multipliers: Vec<Vec<i64>>,
    /// `[layer]`
    pub table_rows: Vec<u64>,
    /// `[sequence][position]`
    pub input_ids: Vec<Vec<i64>>,
    /// `[sequence][position]`: 1 for text, 0 within an image span.
    pub token_mask: Vec<Vec<u8>>,
    /// How many positions the first call had; the others were decoded one by one.
    pub prefill: usize,
    /// `[sequence][position][layer][slot]`
    pub hash_ids: Vec<Vec<Vec<Vec<i64>>>>,
}

impl EngramHashGolden {
    /// Reads the file.
    ///
    /// # Errors
    /// [`GoldenError::Read`]; [`GoldenError::Json`] for what is not JSON, lacks a key or has one of the wrong type;
    /// [`GoldenError::Entry`] for arrays whose lengths contradict each other.
    pub fn read(path: &Path) -> Result<Self, GoldenError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| GoldenError::Read { file: path.display().to_string(), source })?;
        Self::from_str(path, &text)
    }

    /// Reads the text of the file. `origin` names it in errors.
    ///
    /// # Errors
    /// As [`EngramHashGolden::read`].
    pub fn from_str(origin: &Path, text: &str) -> Result<Self, GoldenError> {
        let file = Place::file(origin);
        let golden: Self =
            serde_json::from_str(text).map_err(|source| GoldenError::Json { file: file.file.clone(), source })?;
        golden.check(&file)?;
        Ok(golden)
    }

    fn check(&self, file: &Place) -> Result<(), GoldenError> {
        let layers = self.layer_ids.len();
        let sizes = self.max_ngram_size.saturating_sub(1);
        let slots = sizes.saturating_mul(self.n_heads);
        let sequences = self.input_ids.len();
        let length = self.input_ids.first().map_or(0, Vec::len);

        let prime_rows: Vec<&Vec<u64>> = self.primes.iter().flatten().collect();
        let positions: Vec<&Vec<Vec<i64>>> = self.hash_ids.iter().flatten().collect();
        let hash_rows: Vec<&Vec<i64>> = positions.iter().copied().flatten().collect();
        let rules = [
            ("primes", self.primes.len() == layers && all_of(&self.primes, sizes) && all_of(prime_rows, self.n_heads)),
            ("offsets", self.offsets.len() == layers && all_of(&self.offsets, slots)),
            ("multipliers", self.multipliers.len() == layers && all_of(&self.multipliers, self.max_ngram_size)),
            ("table_rows", self.table_rows.len() == layers),
            ("input_ids", all_of(&self.input_ids, length)),
            ("token_mask", self.token_mask.len() == sequences && all_of(&self.token_mask, length)),
            ("hash_ids", self.hash_ids.len() == sequences && all_of(&self.hash_ids, length)),
            ("hash_ids", all_of(positions, layers) && all_of(hash_rows, slots)),
        ];
        match rules.into_iter().find(|(_, holds)| !holds) {
            Some((key, _)) => {
                let rule = "of the lengths that layer_ids, max_ngram_size, n_heads and input_ids give".to_owned();
                Err(file.fault(EntryFault::Value { key, found: "an array of other lengths".to_owned(), rule }))
            }
            None if self.prefill > length => {
                let (found, rule) = (self.prefill.to_string(), format!("at most {length}, the sequences' length"));
                Err(file.fault(EntryFault::Value { key: "prefill", found, rule }))
            }
            None => Ok(()),
        }
    }
}

fn all_of<'a, T: 'a>(rows: impl IntoIterator<Item = &'a Vec<T>>, length: usize) -> bool {
    rows.into_iter().all(|row| row.len() == length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn value() -> Value {
        json!({
            "layer_ids": [1], "max_ngram_size": 2, "n_heads": 1, "engram_vocab_size": 5, "compressed_vocab_size": 9,
            "pad_id": 2, "primes": [[[5]]], "offsets": [[0]], "multipliers": [[3, 7]], "table_rows": [5],
            "input_ids": [[4, 6]], "token_mask": [[1, 0]], "prefill": 1, "hash_ids": [[[[1]], [[2]]]],
        })
    }

    fn read(value: &Value) -> Result<EngramHashGolden, String> {
        EngramHashGolden::from_str(Path::new("hash.json"), &value.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn lengths_must_agree() {
        assert_eq!(read(&value()).map(|golden| golden.hash_ids[0][1][0][0]), Ok(2));
        let cases = [
            ("primes", json!([[[5, 7]]])),
            ("offsets", json!([])),
            ("multipliers", json!([[3]])),
            ("table_rows", json!([5, 5])),
            ("input_ids", json!([[4, 6], [4]])),
            ("token_mask", json!([[1]])),
            ("hash_ids", json!([[[[1]]]])),
            ("hash_ids", json!([[[[1]], [[2, 3]]]])),
            ("prefill", json!(3)),
        ];
        for (key, new) in cases {
            let mut value = value();
            value[key] = new;
            let error = read(&value).expect_err(key);
            assert!(error.starts_with(&format!("hash.json: `{key}` is")), "{error}");
        }
    }

    #[test]
    fn wrong_json_says_where() {
        let mut value = value();
        value["n_heads"] = json!(-1);
        let error = read(&value).expect_err("negative");
        assert!(error.starts_with("hash.json: not valid JSON: invalid value: integer `-1`"), "{error}");
        assert!(error.contains("line 1 column"), "{error}");
        assert!(matches!(EngramHashGolden::read(Path::new("/no/such/file")), Err(GoldenError::Read { .. })));
    }
}
