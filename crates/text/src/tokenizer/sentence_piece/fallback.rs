//! What stands for text that has no pieces.

use crate::error::TextError;
use crate::vocabulary::{TokenType, Vocabulary, byte_of};

/// What stands for text that has no pieces.
pub(super) enum Fallback {
    /// Its bytes: the id of each.
    Bytes(Box<[u32; 256]>),
    /// One id for all of it.
    Unknown(u32),
}

impl Fallback {
    /// The bytes if every one has a token, else the unknown token.
    pub(super) fn new(vocabulary: &Vocabulary, types: &[TokenType]) -> Result<Self, TextError> {
        let mut found = [None; 256];
        for (id, (token, &token_type)) in (0..).zip(vocabulary.tokens.iter().zip(types)) {
            if let Some(byte) = byte_of(token).filter(|_| token_type == TokenType::Byte) {
                found[usize::from(byte)] = Some(id);
            }
        }
        let mut ids = Box::new([0; 256]);
        for ((byte, found), id) in (0..=u8::MAX).zip(found).zip(ids.iter_mut()) {
            match (found, vocabulary.unknown) {
                (Some(found), _) => *id = found,
                (None, Some(unknown)) => return Ok(Self::Unknown(unknown)),
                (None, None) => return Err(TextError::MissingByte { byte, token: name(byte) }),
            }
        }
        Ok(Self::Bytes(ids))
    }

    /// The ids that stand for `text`.
    pub(super) fn ids(&self, text: &str) -> Vec<u32> {
        match self {
            Self::Bytes(ids) => text.bytes().map(|byte| ids[usize::from(byte)]).collect(),
            Self::Unknown(id) => vec![*id],
        }
    }
}

/// How SentencePiece spells a byte.
pub(super) fn name(byte: u8) -> String {
    format!("<0x{byte:02X}>")
}
