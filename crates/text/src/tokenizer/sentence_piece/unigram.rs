//! SentencePiece's unigram model: of all ways to take text apart, the one whose scores have the highest sum.

use tokenizers::models::unigram::Unigram;
use tokenizers::{Model, Token};

use super::{Fallback, Piece, UNKNOWN};
use crate::error::TextError;

/// The pieces and their scores.
pub(super) struct UnigramPieces {
    model: Unigram,
    /// The id of each of the model's pieces.
    ids: Vec<u32>,
    fallback: Fallback,
}

impl UnigramPieces {
    pub(super) fn new(pieces: &[Piece<'_>], fallback: Fallback) -> Result<Self, TextError> {
        let lowest = pieces.iter().map(|piece| piece.score).reduce(f32::min).unwrap_or_default();
        let scored = pieces.iter().map(|piece| (piece.text.to_owned(), f64::from(piece.score)));
        let unknown = (UNKNOWN.to_owned(), f64::from(lowest));
        let vocab = scored.chain([unknown]).collect();
        Ok(Self {
            model: Unigram::from(vocab, Some(pieces.len()), false).map_err(TextError::Library)?,
            ids: pieces.iter().map(|piece| piece.id).collect(),
            fallback,
        })
    }

    pub(super) fn encode(&self, spelled: &str) -> Result<Vec<u32>, TextError> {
        let tokens = self.model.tokenize(spelled).map_err(TextError::Library)?;
        // What is unknown is the model's last piece, which has no id of its own.
        let ids = |token: Token| match self.ids.get(token.id as usize) {
            Some(&id) => vec![id],
            None => self.fallback.ids(&token.value),
        };
        Ok(tokens.into_iter().flat_map(ids).collect())
    }
}
