//! Byte-level BPE: bytes spelled as printable characters, merged within the pieces of the splits.

use std::collections::HashMap;
use std::sync::LazyLock;

use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::{Model, OffsetType, PreTokenizedString, PreTokenizer};

use super::splits;
use crate::error::{MergeFault, TextError};
use crate::vocabulary::{PRE_TOKENIZERS, TokenType, Vocabulary};

/// The splits and the merges.
pub(super) struct ByteLevel {
    pre_tokenizer: Sequence,
    merges: BPE,
}

impl ByteLevel {
    pub(super) fn new(vocabulary: &Vocabulary, ids: &HashMap<String, u32>) -> Result<Self, TextError> {
        if !vocabulary.pre.as_deref().is_some_and(|pre| PRE_TOKENIZERS.contains(&pre)) {
            return Err(TextError::UnknownPreTokenizer { found: vocabulary.pre.clone() });
        }
        // A vocabulary of bytes alone has nothing to merge.
        let only_bytes = || vocabulary.tokens.iter().all(|token| token.chars().count() == 1);
        if vocabulary.merges.is_empty() && !only_bytes() {
            return Err(TextError::MissingMerges);
        }
        // The library drops characters without a token in silence.
        for (&character, &byte) in BYTES.iter() {
            if !ids.contains_key(character.encode_utf8(&mut [0; 4])) {
                return Err(TextError::MissingByte { byte, token: character.to_string() });
            }
        }
        let merges = vocabulary.merges.iter().enumerate();
        let merges = merges
            .map(|(index, merge)| {
                parse_merge(merge, ids).map_err(|fault| TextError::Merge { index, merge: merge.clone(), fault })
            })
            .collect::<Result<_, _>>()?;
        let tokens = ids.iter().map(|(token, &id)| (token.clone(), id));
        let builder = BPE::builder().vocab_and_merges(tokens.collect::<tokenizers::models::bpe::Vocab>(), merges);
        Ok(Self {
            pre_tokenizer: splits::pre_tokenizer().map_err(TextError::Library)?,
            merges: builder.build().map_err(TextError::Library)?,
        })
    }

    pub(super) fn encode(&self, text: &str) -> Result<Vec<u32>, TextError> {
        let encode = || {
            let mut pieces = PreTokenizedString::from(text);
            self.pre_tokenizer.pre_tokenize(&mut pieces)?;
            pieces.tokenize(|piece| self.merges.tokenize(piece.get()))?;
            pieces.into_encoding(None, 0, OffsetType::None)
        };
        Ok(encode().map_err(TextError::Library)?.get_ids().to_vec())
    }
}

fn parse_merge(merge: &str, ids: &HashMap<String, u32>) -> Result<(String, String), MergeFault> {
    let (left, right) = merge.split_once(' ').ok_or(MergeFault::NotAPair)?;
    if left.is_empty() || right.is_empty() || right.contains(' ') {
        return Err(MergeFault::NotAPair);
    }
    for token in [left.to_owned(), right.to_owned(), format!("{left}{right}")] {
        if !ids.contains_key(&token) {
            return Err(MergeFault::UnknownToken(token));
        }
    }
    Ok((left.to_owned(), right.to_owned()))
}

/// The bytes that a token stands for. Tokens matched whole spell text as it is.
pub(super) fn bytes(token: &str, token_type: TokenType) -> Vec<u8> {
    let spelled = if token_type.matches_whole() {
        None
    } else {
        token.chars().map(|character| BYTES.get(&character).copied()).collect()
    };
    spelled.unwrap_or_else(|| token.as_bytes().to_vec())
}

/// The byte that each printable character spells: those of Latin-1 that can be seen are themselves, the others are
/// counted up from U+0100.
static BYTES: LazyLock<HashMap<char, u8>> = LazyLock::new(|| {
    let visible = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..);
    let seen = (0..=u8::MAX).filter(|&byte| visible(byte)).map(|byte| (char::from(byte), byte));
    let unseen = (0..=u8::MAX).filter(|&byte| !visible(byte));
    seen.chain(('\u{100}'..).zip(unseen)).collect()
});
