//! SentencePiece's merges: of all neighbours that make a piece, those of the best rank are joined first.

use tokenizers::Model;
use tokenizers::models::bpe::{BPE, Vocab};

use super::{Fallback, Piece, UNKNOWN, fallback};
use crate::error::TextError;

/// The merges.
pub(super) struct Merges(BPE);

impl Merges {
    /// Takes the pieces in the order of their ranks.
    pub(super) fn new(pieces: &[Piece<'_>], fallback: &Fallback) -> Result<Self, TextError> {
        let mut vocab: Vocab = pieces.iter().map(|piece| (piece.text.to_owned(), piece.id)).collect();
        // A piece has a rank, but a merge is of a pair: every pair that makes the piece has its rank.
        let merges = pieces.iter().flat_map(|piece| pairs(piece.text));
        let known = merges.filter(|&(left, right)| vocab.contains_key(left) && vocab.contains_key(right));
        let merges = known.map(|(left, right)| (left.to_owned(), right.to_owned())).collect();

        let mut builder = BPE::builder();
        match fallback {
            Fallback::Bytes(ids) => {
                vocab.extend((0..=u8::MAX).zip(ids.iter()).map(|(byte, &id)| (fallback::name(byte), id)));
                builder = builder.byte_fallback(true);
            }
            Fallback::Unknown(id) => {
                vocab.insert(UNKNOWN.to_owned(), *id);
                builder = builder.unk_token(UNKNOWN.to_owned()).fuse_unk(true);
            }
        }
        Ok(Self(builder.vocab_and_merges(vocab, merges).build().map_err(TextError::Library)?))
    }

    pub(super) fn encode(&self, spelled: &str) -> Result<Vec<u32>, TextError> {
        let tokens = self.0.tokenize(spelled).map_err(TextError::Library)?;
        Ok(tokens.into_iter().map(|token| token.id).collect())
    }
}

/// The ways to cut a text in two.
fn pairs(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.char_indices().skip(1).map(|(cut, _)| text.split_at(cut))
}
