//! What a GGUF file holds of a tokenizer.

mod tokenizer_json;

use std::collections::HashMap;

use crate::error::TextError;

/// Byte-level BPE, as `tokenizer.ggml.model` names it.
pub(crate) const BYTE_LEVEL: &str = "gpt2";
/// SentencePiece, as `tokenizer.ggml.model` names it.
pub(crate) const SENTENCE_PIECE: &str = "llama";
/// The supported values of `tokenizer.ggml.model`.
pub(crate) const MODELS: [&str; 2] = [BYTE_LEVEL, SENTENCE_PIECE];

/// The supported values of `tokenizer.ggml.pre`: two names for the same three splits. The first is the one written.
pub(crate) const PRE_TOKENIZERS: [&str; 2] = ["joyai-llm", "deepseek-v3"];

/// A tokenizer as GGUF's `tokenizer.ggml.*` metadata holds it.
///
/// Plain data: [`Tokenizer::from_vocabulary`](crate::Tokenizer::from_vocabulary) checks it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Vocabulary {
    /// `model`: `gpt2` for byte-level BPE, `llama` for SentencePiece.
    pub model: String,
    /// `pre`: how byte-level BPE splits text before merging. SentencePiece does not split.
    pub pre: Option<String>,
    /// `tokens`: each id's token in its raw form, bytes spelled as printable characters for byte-level BPE.
    pub tokens: Vec<String>,
    /// `token_type`: each token's [`TokenType`] as a number. Without it the special ids are control tokens, tokens
    /// spelled `<0xNN>` of SentencePiece are bytes, and all others are normal.
    pub token_types: Option<Vec<i32>>,
    /// `merges`: pairs of tokens with a space between, the first to be carried out first. SentencePiece has none.
    pub merges: Vec<String>,
    /// `scores`: each token's score. Byte-level BPE has none.
    pub scores: Option<Vec<f32>>,
    /// `bos_token_id`: the token that begins a sequence.
    pub bos: Option<u32>,
    /// `eos_token_id`: the token that ends a reply.
    pub eos: Option<u32>,
    /// `padding_token_id`: the token that fills up a batch.
    pub pad: Option<u32>,
    /// `unknown_token_id`: what stands for text that no token spells.
    pub unknown: Option<u32>,
    /// `add_bos_token`: whether a bare text is meant to be preceded by `bos`.
    pub add_bos: bool,
    /// `add_space_prefix`: whether SentencePiece puts a space before the text, so that its first word is spelled as in
    /// the middle of a sentence.
    pub add_space_prefix: bool,
}

/// What a token is for: the numbers of `tokenizer.ggml.token_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum TokenType {
    /// A piece of text.
    Normal = 1,
    /// What stands for text that no token spells.
    Unknown = 2,
    /// A mark that is no text, such as the end of a reply.
    Control = 3,
    /// A piece of text that is matched whole before anything else.
    UserDefined = 4,
    /// An id that nothing encodes to.
    Unused = 5,
    /// One byte, for text that has no pieces.
    Byte = 6,
}

impl TokenType {
    /// The type of this number, if there is one.
    pub fn from_number(number: i32) -> Option<Self> {
        [Self::Normal, Self::Unknown, Self::Control, Self::UserDefined, Self::Unused, Self::Byte]
            .into_iter()
            .find(|&token_type| token_type as i32 == number)
    }

    /// Whether text that spells the token out is meant to become the token, before any splitting.
    pub(crate) fn matches_whole(self) -> bool {
        matches!(self, Self::Control | Self::UserDefined)
    }
}

impl Vocabulary {
    /// Each token's id.
    ///
    /// # Errors
    ///
    /// Two ids have the same token, or there are more tokens than ids.
    pub(crate) fn ids(&self) -> Result<HashMap<String, u32>, TextError> {
        let mut ids = HashMap::with_capacity(self.tokens.len());
        for (index, token) in self.tokens.iter().enumerate() {
            let id = u32::try_from(index).map_err(|_| TextError::TooManyTokens { found: self.tokens.len() })?;
            if let Some(first) = ids.insert(token.clone(), id) {
                return Err(TextError::DuplicateToken { token: token.clone(), first, second: id });
            }
        }
        Ok(ids)
    }

    /// Each token's type.
    ///
    /// # Errors
    ///
    /// `token_types` has another length than `tokens` or holds a number that is no type; a special id is out of range.
    pub(crate) fn types(&self) -> Result<Vec<TokenType>, TextError> {
        self.check_special_ids()?;
        let Some(numbers) = &self.token_types else {
            return Ok(self.implied_types());
        };
        self.check_length("tokenizer.ggml.token_type", numbers.len())?;
        let read =
            |(id, &found): (usize, &i32)| TokenType::from_number(found).ok_or(TextError::TokenType { id, found });
        numbers.iter().enumerate().map(read).collect()
    }

    /// Whether an array that runs parallel to the tokens has their length.
    pub(crate) fn check_length(&self, key: &'static str, found: usize) -> Result<(), TextError> {
        let expected = self.tokens.len();
        if found == expected { Ok(()) } else { Err(TextError::Length { key, found, expected }) }
    }

    fn check_special_ids(&self) -> Result<(), TextError> {
        let len = self.tokens.len();
        for (key, id) in [
            ("tokenizer.ggml.bos_token_id", self.bos),
            ("tokenizer.ggml.eos_token_id", self.eos),
            ("tokenizer.ggml.padding_token_id", self.pad),
            ("tokenizer.ggml.unknown_token_id", self.unknown),
        ] {
            if let Some(id) = id.filter(|&id| id as usize >= len) {
                return Err(TextError::SpecialOutOfRange { key, id, len });
            }
        }
        Ok(())
    }

    fn implied_types(&self) -> Vec<TokenType> {
        let sentence_piece = self.model == SENTENCE_PIECE;
        let implied = |(id, token): (usize, &String)| {
            let is = |special: Option<u32>| special.is_some_and(|special| special as usize == id);
            if is(self.unknown) {
                TokenType::Unknown
            } else if is(self.bos) || is(self.eos) || is(self.pad) {
                TokenType::Control
            } else if sentence_piece && byte_of(token).is_some() {
                TokenType::Byte
            } else {
                TokenType::Normal
            }
        };
        self.tokens.iter().enumerate().map(implied).collect()
    }
}

/// The byte that SentencePiece spells `<0xNN>`.
pub(crate) fn byte_of(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    let well_formed = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    if well_formed { u8::from_str_radix(digits, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn without_types_special_ids_are_control_and_spelled_bytes_are_bytes() {
        let with = testing::sentence_piece(true, &[("a", -1.5)]);
        let without = Vocabulary { token_types: None, ..with.clone() };
        assert_eq!(without.types().unwrap(), with.types().unwrap());
    }

    #[test]
    fn a_byte_is_spelled_with_two_hexadecimal_digits() {
        assert_eq!(byte_of("<0x0A>"), Some(10));
        assert_eq!(byte_of("<0xff>"), Some(255));
        for other in ["<0xA>", "<0x+A>", "<0x100>", "0x0A", "<0x0A", "<0xGG>", "<0x\u{e9}>"] {
            assert_eq!(byte_of(other), None, "{other}");
        }
    }

    #[test]
    fn a_token_type_that_is_not_defined_is_refused() {
        let mut vocabulary = testing::byte_level(&["h i"], &[]);
        vocabulary.token_types.as_mut().unwrap()[4] = 7;
        let error = vocabulary.types().unwrap_err();
        assert_eq!(error.to_string(), "tokenizer.ggml.token_type[4] is 7, expected 1 to 6");
    }

    #[test]
    fn an_array_of_another_length_is_refused() {
        let mut vocabulary = testing::byte_level(&["h i"], &[]);
        vocabulary.token_types.as_mut().unwrap().pop();
        let error = vocabulary.types().unwrap_err();
        assert!(matches!(error, TextError::Length { found: 259, expected: 260, .. }), "{error}");
    }

    #[test]
    fn a_special_id_outside_of_the_vocabulary_is_refused() {
        let vocabulary = Vocabulary { pad: Some(260), ..testing::byte_level(&["h i"], &[]) };
        let error = vocabulary.types().unwrap_err();
        assert_eq!(error.to_string(), "tokenizer.ggml.padding_token_id is 260, the vocabulary has 260 tokens");
    }

    #[test]
    fn a_token_with_two_ids_is_refused() {
        let vocabulary = testing::byte_level(&["h i"], &[("hi", TokenType::Control)]);
        let error = vocabulary.ids().unwrap_err();
        assert_eq!(error.to_string(), "tokenizer.ggml.tokens: `hi` has the ids 259 and 260");
    }
}
