//! From text to token ids and back.

mod byte_level;
mod sentence_piece;
pub(crate) mod splits;
mod stream;
mod whole;

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use crate::error::TextError;
use crate::vocabulary::{BYTE_LEVEL, SENTENCE_PIECE, TokenType, Vocabulary};
use byte_level::ByteLevel;
use sentence_piece::SentencePiece;
pub use stream::StreamDecoder;
use whole::{Part, WholeTokens};

/// Turns text into token ids and back.
pub struct Tokenizer {
    tokens: Vec<String>,
    types: Vec<TokenType>,
    ids: HashMap<String, u32>,
    whole: WholeTokens,
    pieces: Pieces,
    bos: Option<u32>,
    eos: Option<u32>,
    pad: Option<u32>,
    adds_bos: bool,
}

/// How ordinary text becomes ids.
enum Pieces {
    ByteLevel(ByteLevel),
    SentencePiece(SentencePiece),
}

/// The algorithm that a tokenizer uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TokenizerKind {
    /// Merges of bytes, as DeepSeek's tokenizers use.
    ByteLevelBpe,
    /// Merges of characters, each score the merge's rank.
    SentencePieceBpe,
    /// The pieces whose scores have the highest sum.
    SentencePieceUnigram,
}

impl fmt::Display for TokenizerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ByteLevelBpe => "byte-level BPE",
            Self::SentencePieceBpe => "SentencePiece BPE",
            Self::SentencePieceUnigram => "SentencePiece unigram",
        })
    }
}

impl Tokenizer {
    /// Reads a release's `tokenizer.json`.
    ///
    /// # Errors
    ///
    /// Those of [`Vocabulary::from_tokenizer_json`] and of [`Tokenizer::from_vocabulary`].
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, TextError> {
        Self::from_vocabulary(Vocabulary::from_tokenizer_json(path)?)
    }

    /// Builds the tokenizer that a GGUF file describes.
    ///
    /// # Errors
    ///
    /// The model or its pre-tokenizer is not supported; an array is missing, has the wrong length or holds what cannot
    /// be used; a token occurs twice; a special id is out of range; no token stands for some byte.
    pub fn from_vocabulary(vocabulary: Vocabulary) -> Result<Self, TextError> {
        let ids = vocabulary.ids()?;
        let types = vocabulary.types()?;
        let pieces = match vocabulary.model.as_str() {
            BYTE_LEVEL => Pieces::ByteLevel(ByteLevel::new(&vocabulary, &ids)?),
            SENTENCE_PIECE => Pieces::SentencePiece(SentencePiece::new(&vocabulary, &types)?),
            _ => return Err(TextError::UnknownModel { found: vocabulary.model }),
        };
        Ok(Self {
            whole: WholeTokens::new(&vocabulary.tokens, &types)?,
            tokens: vocabulary.tokens,
            types,
            ids,
            pieces,
            bos: vocabulary.bos,
            eos: vocabulary.eos,
            pad: vocabulary.pad,
            adds_bos: vocabulary.add_bos,
        })
    }

    /// The ids of `text`. Special tokens spelled out in it become those tokens; nothing is put before or after it.
    ///
    /// # Errors
    ///
    /// [`TextError::Library`] if the text cannot be split.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TextError> {
        let mut ids = Vec::new();
        for part in self.whole.split(text) {
            match part {
                Part::Token(id) => ids.push(id),
                Part::Text(text) => ids.extend(self.encode_plain(text)?),
            }
        }
        Ok(ids)
    }

    /// The ids of `text` taken as nothing but text: special tokens spelled out in it stay text.
    ///
    /// What others wrote is encoded this way, so that it cannot end its turn or begin another's.
    ///
    /// # Errors
    ///
    /// [`TextError::Library`] if the text cannot be split.
    pub fn encode_plain(&self, text: &str) -> Result<Vec<u32>, TextError> {
        match &self.pieces {
            Pieces::ByteLevel(pieces) => pieces.encode(text),
            Pieces::SentencePiece(pieces) => pieces.encode(text),
        }
    }

    /// The text of `ids`. Special tokens are spelled out, spaces stay as they are, and bytes that are no UTF-8 become
    /// U+FFFD.
    ///
    /// # Errors
    ///
    /// [`TextError::IdOutOfRange`] if the vocabulary lacks an id.
    pub fn decode(&self, ids: &[u32]) -> Result<String, TextError> {
        let mut decoder = StreamDecoder::new(self);
        let mut text = String::new();
        for &id in ids {
            text.extend(decoder.push(id)?);
        }
        text.push_str(&decoder.finish());
        Ok(text)
    }

    /// The id of a token, given in its raw form.
    pub fn id_of(&self, token: &str) -> Option<u32> {
        self.ids.get(token).copied()
    }

    /// The raw form of the token with this id.
    pub fn token(&self, id: u32) -> Option<&str> {
        self.tokens.get(id as usize).map(String::as_str)
    }

    /// The raw forms of all tokens, by id.
    pub fn tokens(&self) -> impl ExactSizeIterator<Item = &str> {
        self.tokens.iter().map(String::as_str)
    }

    /// The number of tokens; ids are smaller.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there are no tokens at all.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// The token that begins a sequence.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The token that ends a reply.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// The token that fills up a batch.
    pub fn pad(&self) -> Option<u32> {
        self.pad
    }

    /// Whether a bare text is meant to be preceded by [`bos`](Self::bos). [`encode`](Self::encode) leaves that to its
    /// caller.
    pub fn adds_bos(&self) -> bool {
        self.adds_bos
    }

    /// The algorithm in use.
    pub fn kind(&self) -> TokenizerKind {
        match &self.pieces {
            Pieces::ByteLevel(_) => TokenizerKind::ByteLevelBpe,
            Pieces::SentencePiece(pieces) => pieces.kind(),
        }
    }

    /// The bytes that the token with this id stands for.
    fn bytes(&self, id: u32) -> Result<Vec<u8>, TextError> {
        let out_of_range = || TextError::IdOutOfRange { id, len: self.len() };
        let token = self.token(id).ok_or_else(out_of_range)?;
        let token_type = *self.types.get(id as usize).ok_or_else(out_of_range)?;
        Ok(match &self.pieces {
            Pieces::ByteLevel(_) => byte_level::bytes(token, token_type),
            Pieces::SentencePiece(_) => sentence_piece::bytes(token, token_type),
        })
    }

    /// Whether text begins with a space that encoding put there.
    fn begins_with_added_space(&self) -> bool {
        match &self.pieces {
            Pieces::ByteLevel(_) => false,
            Pieces::SentencePiece(pieces) => pieces.adds_space(),
        }
    }

    /// Whether the token with this id is a mark and no text.
    fn is_control(&self, id: u32) -> bool {
        self.types.get(id as usize) == Some(&TokenType::Control)
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer").field("kind", &self.kind()).field("tokens", &self.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{byte_level, raw_forms};

    fn tokenizer() -> Tokenizer {
        let added = [("<｜a｜>", TokenType::Control), ("<｜b｜>", TokenType::UserDefined)];
        Tokenizer::from_vocabulary(byte_level(&["h i", "Ġ hi", "Ã ©"], &added)).unwrap()
    }

    #[test]
    fn merges_are_carried_out_within_the_splits() {
        assert_eq!(raw_forms(&tokenizer(), "hi hi, hé"), ["hi", "Ġhi", ",", "Ġ", "h", "Ã©"]);
    }

    #[test]
    fn the_earlier_merge_is_carried_out_first() {
        for (merges, expected) in [(["a b", "b c"], ["ab", "c"]), (["b c", "a b"], ["a", "bc"])] {
            let tokenizer = Tokenizer::from_vocabulary(byte_level(&merges, &[])).unwrap();
            assert_eq!(raw_forms(&tokenizer, "abc"), expected);
        }
    }

    #[test]
    fn special_tokens_match_whole_whether_control_or_user_defined() {
        assert_eq!(raw_forms(&tokenizer(), "hi<｜a｜>hi<｜b｜>"), ["hi", "<｜a｜>", "hi", "<｜b｜>"]);
    }

    #[test]
    fn plain_text_has_no_special_tokens() {
        let tokenizer = tokenizer();
        for token in ["<｜a｜>", "<｜b｜>", crate::special::BOS] {
            let ids = tokenizer.encode_plain(token).unwrap();
            assert!(!ids.contains(&tokenizer.id_of(token).unwrap()), "{token}");
            assert_eq!(tokenizer.decode(&ids).unwrap(), token);
        }
    }

    #[test]
    fn decoding_keeps_spaces_and_spells_special_tokens() {
        let tokenizer = tokenizer();
        for text in ["", " ", "  hi , hi .  n't <｜a｜> \n", "é😀\u{0}"] {
            assert_eq!(tokenizer.decode(&tokenizer.encode(text).unwrap()).unwrap(), text);
        }
    }

    #[test]
    fn a_special_token_is_spelled_as_it_is_even_in_characters_that_spell_bytes() {
        let tokenizer = Tokenizer::from_vocabulary(byte_level(&["h i"], &[("é", TokenType::Control)])).err();
        assert!(matches!(tokenizer, Some(TextError::DuplicateToken { .. })), "the byte 0xe9 is spelled so");
        let tokenizer = Tokenizer::from_vocabulary(byte_level(&["h i"], &[("éé", TokenType::Control)])).unwrap();
        assert_eq!(tokenizer.decode(&tokenizer.encode("éé").unwrap()).unwrap(), "éé");
    }

    #[test]
    fn every_byte_is_spelled_as_the_library_spells_it() {
        let tokenizer = tokenizer();
        let text: String = ('\0'..='\u{7f}').chain('é'..='ÿ').chain(['中', '😀', '\u{10ffff}']).collect();
        assert_eq!(tokenizer.decode(&tokenizer.encode(&text).unwrap()).unwrap(), text);
        let covered: std::collections::HashSet<u8> = (3..259).flat_map(|id| tokenizer.bytes(id).unwrap()).collect();
        assert_eq!(covered.len(), 256);
    }

    #[test]
    fn tokens_are_found_by_id_and_by_raw_form() {
        let tokenizer = tokenizer();
        assert_eq!(tokenizer.len(), 3 + 256 + 3 + 2);
        assert_eq!(tokenizer.tokens().len(), tokenizer.len());
        for (id, token) in (0..).zip(tokenizer.tokens()) {
            assert_eq!((tokenizer.token(id), tokenizer.id_of(token)), (Some(token), Some(id)));
        }
        assert_eq!((tokenizer.token(264), tokenizer.id_of("nothing")), (None, None));
    }

    #[test]
    fn an_id_out_of_range_is_refused() {
        let error = tokenizer().decode(&[3, 264]).unwrap_err();
        assert_eq!(error.to_string(), "token id 264: the vocabulary has 264 tokens");
    }

    #[test]
    fn both_names_of_the_splits_are_known_and_others_are_refused_with_them() {
        let with = |pre: Option<&str>| {
            let vocabulary = Vocabulary { pre: pre.map(str::to_owned), ..byte_level(&["h i"], &[]) };
            Tokenizer::from_vocabulary(vocabulary).map(|_| ()).map_err(|error| error.to_string())
        };
        assert_eq!(with(Some("deepseek-v3")), Ok(()));
        let supported = "supported: `joyai-llm`, `deepseek-v3`";
        assert_eq!(with(Some("qwen2")), Err(format!("tokenizer.ggml.pre is `qwen2`, {supported}")));
        assert_eq!(with(None), Err(format!("tokenizer.ggml.pre is missing, {supported}")));
    }

    #[test]
    fn another_model_is_refused() {
        let vocabulary = Vocabulary { model: "bert".to_owned(), ..byte_level(&["h i"], &[]) };
        let error = Tokenizer::from_vocabulary(vocabulary).unwrap_err();
        assert_eq!(error.to_string(), "tokenizer.ggml.model is `bert`, supported: `gpt2`, `llama`");
    }

    #[test]
    fn merges_that_cannot_be_carried_out_are_named() {
        let with = |merges: &[&str]| {
            let merges = merges.iter().map(|&merge| merge.to_owned()).collect();
            let vocabulary = Vocabulary { merges, ..byte_level(&["h i"], &[]) };
            Tokenizer::from_vocabulary(vocabulary).unwrap_err().to_string()
        };
        assert_eq!(with(&[]), "tokenizer.ggml.merges is empty: byte-level BPE needs merges");
        let unknown = "tokenizer.ggml.merges[1], `h o`: `ho` is not in tokenizer.ggml.tokens";
        assert_eq!(with(&["h i", "h o"]), unknown);
        for merge in ["hi", " hi", "h ", "h i i"] {
            assert!(with(&[merge]).ends_with("expected two tokens with one space between"), "{merge}");
        }
    }

    #[test]
    fn a_byte_without_a_token_is_named() {
        let mut vocabulary = byte_level(&["h i"], &[]);
        let newline = vocabulary.tokens.iter_mut().find(|token| *token == "Ċ").unwrap();
        *newline = "[unused]".to_owned();
        let error = Tokenizer::from_vocabulary(vocabulary).unwrap_err();
        assert_eq!(error.to_string(), "tokenizer.ggml.tokens has no token `Ċ` for byte 0x0a");
    }
}
