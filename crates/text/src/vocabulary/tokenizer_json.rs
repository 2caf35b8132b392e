//! A vocabulary from a release's `tokenizer.json`.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;
use tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};

use super::{BYTE_LEVEL, PRE_TOKENIZERS, TokenType, Vocabulary};
use crate::error::TextError;
use crate::special;
use crate::tokenizer::splits;

/// The parts that decide about ids. Others (truncation, padding, post-processing, the decoder's offsets) do not, for
/// text encoded without special tokens.
#[derive(Deserialize)]
struct TokenizerJson {
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Option<PreTokenizerWrapper>,
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    model: Bpe,
}

#[derive(Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
    special: bool,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
}

#[derive(Deserialize)]
struct Bpe {
    #[serde(rename = "type")]
    kind: BpeKind,
    vocab: HashMap<String, u32>,
    merges: Vec<Merge>,
    #[serde(default)]
    unk_token: Option<String>,
    #[serde(default)]
    dropout: Option<f32>,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
}

#[derive(Deserialize)]
enum BpeKind {
    #[serde(rename = "BPE")]
    Bpe,
}

/// A merge as older and as newer files spell it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Joined(String),
    Pair(String, String),
}

impl Vocabulary {
    /// Reads a `tokenizer.json` of byte-level BPE with this model's splits.
    ///
    /// Whatever a GGUF file can hold is kept. The special ids, which a `tokenizer.json` does not name, are those of
    /// DeepSeek's tokens where the file has them.
    ///
    /// # Errors
    ///
    /// The file cannot be read, is no `tokenizer.json`, holds another kind of tokenizer, or has ids with gaps or shared
    /// by two tokens.
    pub fn from_tokenizer_json(path: impl AsRef<Path>) -> Result<Self, TextError> {
        let path = path.as_ref();
        let file = path.display().to_string();
        let read = std::fs::read(path).map_err(|source| TextError::Read { file: file.clone(), source })?;
        let json: TokenizerJson =
            serde_json::from_slice(&read).map_err(|source| TextError::Json { file: file.clone(), source })?;
        json.check().map_err(|(part, found, expected)| TextError::Unsupported {
            file: file.clone(),
            part,
            found,
            expected,
        })?;
        json.into_vocabulary(&file)
    }
}

/// The part that is not supported, what it is, and what is supported.
type Unsupported = (&'static str, String, &'static str);

impl TokenizerJson {
    fn check(&self) -> Result<(), Unsupported> {
        let no_normalizer =
            self.normalizer.is_null() || self.normalizer["normalizers"].as_array().is_some_and(Vec::is_empty);
        if !no_normalizer {
            return Err(("normalizer", self.normalizer.to_string(), "none"));
        }
        if !self.pre_tokenizer.as_ref().is_some_and(is_supported) {
            let found = serde_json::to_string(&self.pre_tokenizer).unwrap_or_else(|error| error.to_string());
            return Err(("pre_tokenizer", found, "the three splits of joyai-llm, then ByteLevel without a regex"));
        }
        for token in &self.added_tokens {
            if token.single_word || token.lstrip || token.rstrip {
                let found = format!("`{}` with single_word, lstrip or rstrip", token.content);
                return Err(("added_tokens", found, "tokens that match exactly as spelled"));
            }
        }
        self.model.check()
    }

    fn into_vocabulary(self, file: &str) -> Result<Vocabulary, TextError> {
        let defined = self.model.vocab.iter().map(|(token, &id)| (id, token.as_str()));
        let added = self.added_tokens.iter().map(|token| (token.id, token.content.as_str()));
        let mut by_id = BTreeMap::new();
        for (id, token) in defined.chain(added) {
            if let Some(first) = by_id.insert(id, token).filter(|&first| first != token) {
                let (first, second) = (first.to_owned(), token.to_owned());
                return Err(TextError::SharedId { file: file.to_owned(), id, first, second });
            }
        }
        if let Some((gap, _)) = (0..).zip(by_id.keys()).find(|&(expected, &id)| id != expected) {
            return Err(TextError::MissingId { file: file.to_owned(), id: gap, tokens: by_id.len() });
        }
        let id_of = |token: &str| by_id.iter().find(|&(_, &found)| found == token).map(|(&id, _)| id);
        let mut types = vec![TokenType::Normal as i32; by_id.len()];
        for token in &self.added_tokens {
            let token_type = if token.special { TokenType::Control } else { TokenType::UserDefined };
            types[token.id as usize] = token_type as i32;
        }
        Ok(Vocabulary {
            model: BYTE_LEVEL.to_owned(),
            pre: Some(PRE_TOKENIZERS[0].to_owned()),
            tokens: by_id.values().map(|&token| token.to_owned()).collect(),
            token_types: Some(types),
            scores: None,
            bos: id_of(special::BOS),
            eos: id_of(special::EOS),
            pad: id_of(special::PAD),
            unknown: self.model.unk_token.as_deref().and_then(id_of),
            add_bos: false,
            add_space_prefix: false,
            merges: self.model.merges.into_iter().map(Merge::into_joined).collect(),
        })
    }
}

impl Bpe {
    fn check(&self) -> Result<(), Unsupported> {
        let BpeKind::Bpe = self.kind;
        if let Some(dropout) = self.dropout.filter(|&dropout| dropout != 0.0) {
            return Err(("model.dropout", dropout.to_string(), "none"));
        }
        for (part, affix) in [
            ("model.continuing_subword_prefix", &self.continuing_subword_prefix),
            ("model.end_of_word_suffix", &self.end_of_word_suffix),
        ] {
            if let Some(affix) = affix.as_ref().filter(|affix| !affix.is_empty()) {
                return Err((part, format!("`{affix}`"), "none"));
            }
        }
        for (part, set) in [("model.byte_fallback", self.byte_fallback), ("model.ignore_merges", self.ignore_merges)] {
            if set {
                return Err((part, set.to_string(), "false"));
            }
        }
        Ok(())
    }
}

impl Merge {
    fn into_joined(self) -> String {
        match self {
            Self::Joined(merge) => merge,
            Self::Pair(left, right) => format!("{left} {right}"),
        }
    }
}

/// Whether these are this model's splits, then bytes.
fn is_supported(found: &PreTokenizerWrapper) -> bool {
    let PreTokenizerWrapper::Sequence(steps) = found else {
        return false;
    };
    let Some((PreTokenizerWrapper::ByteLevel(bytes), found)) = steps.as_ref().split_last() else {
        return false;
    };
    let same = |found: &PreTokenizerWrapper, pattern: &str| {
        let PreTokenizerWrapper::Split(found) = found else {
            return false;
        };
        found.behavior == splits::BEHAVIOUR && !found.invert && spelling(found) == pattern
    };
    !bytes.add_prefix_space
        && !bytes.use_regex
        && found.len() == splits::PATTERNS.len()
        && found.iter().zip(splits::PATTERNS).all(|(found, pattern)| same(found, pattern))
}

/// A split's pattern, line ends spelled as escapes: files hold them either way.
fn spelling(split: &Split) -> String {
    match &split.pattern {
        SplitPattern::Regex(pattern) => pattern.replace('\r', "\\r").replace('\n', "\\n"),
        SplitPattern::String(literal) => format!("the literal {literal}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing;

    /// The `tokenizer.json` of a vocabulary, as a release would write it.
    fn tokenizer_json(vocabulary: &Vocabulary) -> Value {
        let types = vocabulary.types().unwrap();
        let typed = || vocabulary.tokens.iter().zip(&types).enumerate();
        let added: Vec<Value> = typed()
            .filter(|(_, (_, token_type))| token_type.matches_whole())
            .map(|(id, (token, token_type))| {
                let special = *token_type == TokenType::Control;
                json!({"id": id, "content": token, "special": special, "normalized": !special,
                    "single_word": false, "lstrip": false, "rstrip": false})
            })
            .collect();
        let normal = typed().filter(|(_, (_, token_type))| !token_type.matches_whole());
        let vocab: serde_json::Map<String, Value> = normal.map(|(id, (token, _))| (token.clone(), id.into())).collect();
        let split = |pattern: &str| {
            let pattern = pattern.replace("\\r", "\r").replace("\\n", "\n");
            json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
        };
        let mut steps: Vec<Value> = splits::PATTERNS.into_iter().map(split).collect();
        steps.push(json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}));
        json!({
            "version": "1.0",
            "added_tokens": added,
            "normalizer": {"type": "Sequence", "normalizers": []},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
            "model": {"type": "BPE", "unk_token": null, "vocab": vocab, "merges": vocabulary.merges},
        })
    }

    fn read(json: &Value) -> Result<Vocabulary, TextError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.json");
        std::fs::write(&path, json.to_string()).unwrap();
        Vocabulary::from_tokenizer_json(path)
    }

    fn vocabulary() -> Vocabulary {
        let added = [("<｜User｜>", TokenType::UserDefined), ("<｜x｜>", TokenType::Control)];
        testing::byte_level(&["h i", "Ġ hi"], &added)
    }

    /// What is said of `tokenizer.json` with one of its values replaced.
    fn refusal(pointer: &str, value: Value) -> String {
        let mut json = tokenizer_json(&vocabulary());
        *json.pointer_mut(pointer).unwrap() = value;
        read(&json).unwrap_err().to_string()
    }

    #[test]
    fn a_vocabulary_survives_the_way_through_a_file() {
        assert_eq!(read(&tokenizer_json(&vocabulary())).unwrap(), vocabulary());
    }

    #[test]
    fn merges_can_be_pairs() {
        let mut json = tokenizer_json(&vocabulary());
        json["model"]["merges"] = json!([["h", "i"], ["Ġ", "hi"]]);
        assert_eq!(read(&json).unwrap(), vocabulary());
    }

    #[test]
    fn what_would_change_ids_is_refused_by_name() {
        for (pointer, value, part) in [
            ("/normalizer", json!({"type": "NFC"}), "`normalizer`"),
            ("/pre_tokenizer", json!(null), "`pre_tokenizer`"),
            ("/pre_tokenizer/pretokenizers/0/pattern", json!({"Regex": r"\p{N}"}), "`pre_tokenizer`"),
            ("/pre_tokenizer/pretokenizers/1/behavior", json!("Removed"), "`pre_tokenizer`"),
            ("/pre_tokenizer/pretokenizers/3/use_regex", json!(true), "`pre_tokenizer`"),
            ("/added_tokens/0/lstrip", json!(true), "`added_tokens`"),
            ("/model/type", json!("Unigram"), "unknown variant `Unigram`, expected `BPE`"),
        ] {
            let said = refusal(pointer, value);
            assert!(said.contains(part) && said.contains("tokenizer.json"), "{pointer}: {said}");
        }
    }

    #[test]
    fn what_would_change_merging_is_refused_by_name() {
        for (key, value) in [
            ("dropout", json!(0.1)),
            ("continuing_subword_prefix", json!("##")),
            ("end_of_word_suffix", json!("</w>")),
            ("byte_fallback", json!(true)),
            ("ignore_merges", json!(true)),
        ] {
            let mut json = tokenizer_json(&vocabulary());
            json["model"][key] = value;
            let said = read(&json).unwrap_err().to_string();
            assert!(said.contains(&format!("`model.{key}`")), "{key}: {said}");
        }
    }

    #[test]
    fn a_gap_in_the_ids_is_named() {
        let said = refusal("/added_tokens/0/id", json!(900));
        assert!(said.ends_with("no token has id 0, but 263 tokens are defined"), "{said}");
    }

    #[test]
    fn an_id_of_two_tokens_is_named() {
        let said = refusal("/added_tokens/0/id", json!(1));
        assert!(said.contains("id 1 belongs to both"), "{said}");
    }

    #[test]
    fn a_file_that_is_missing_or_is_no_json_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.json");
        assert!(matches!(Vocabulary::from_tokenizer_json(&path), Err(TextError::Read { .. })));
        std::fs::write(&path, "{").unwrap();
        assert!(matches!(Vocabulary::from_tokenizer_json(&path), Err(TextError::Json { .. })));
    }
}
