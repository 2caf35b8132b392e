//! SentencePiece: pieces of the whole text, spaces spelled U+2581, and bytes for what has no piece.
//!
//! A GGUF file does not say which of SentencePiece's two algorithms its pieces were made for. The scores tell: the
//! trainer of merges numbers its pieces 0, -1, -2, ..., while unigram pieces have the logarithms of their
//! probabilities.

mod fallback;
mod merges;
mod unigram;

use super::TokenizerKind;
use crate::error::TextError;
use crate::vocabulary::{TokenType, Vocabulary, byte_of};
use fallback::Fallback;
use merges::Merges;
use unigram::UnigramPieces;

/// What stands for a space.
const SPACE: &str = "\u{2581}";

/// The name, in the library's models, of what has no piece. No text has it, because spaces are spelled otherwise.
const UNKNOWN: &str = " ";

/// The pieces, and how text is taken apart into them.
pub(super) struct SentencePiece {
    algorithm: Algorithm,
    adds_space: bool,
}

enum Algorithm {
    Merges(Merges),
    Unigram(UnigramPieces),
}

/// A token that text can become without being spelled out as a whole.
struct Piece<'v> {
    id: u32,
    text: &'v str,
    score: f32,
}

impl SentencePiece {
    pub(super) fn new(vocabulary: &Vocabulary, types: &[TokenType]) -> Result<Self, TextError> {
        let pieces = pieces(vocabulary, types)?;
        let fallback = Fallback::new(vocabulary, types)?;
        let algorithm = if are_ranks(&pieces) {
            Algorithm::Merges(Merges::new(&pieces, &fallback)?)
        } else {
            Algorithm::Unigram(UnigramPieces::new(&pieces, fallback)?)
        };
        Ok(Self { algorithm, adds_space: vocabulary.add_space_prefix })
    }

    pub(super) fn encode(&self, text: &str) -> Result<Vec<u32>, TextError> {
        if text.is_empty() {
            return Ok(Vec::new());
        }
        let prefix = if self.adds_space { SPACE } else { "" };
        let spelled = format!("{prefix}{}", text.replace(' ', SPACE));
        match &self.algorithm {
            Algorithm::Merges(merges) => merges.encode(&spelled),
            Algorithm::Unigram(pieces) => pieces.encode(&spelled),
        }
    }

    pub(super) fn kind(&self) -> TokenizerKind {
        match self.algorithm {
            Algorithm::Merges(_) => TokenizerKind::SentencePieceBpe,
            Algorithm::Unigram(_) => TokenizerKind::SentencePieceUnigram,
        }
    }

    /// Whether a space is put before the text.
    pub(super) fn adds_space(&self) -> bool {
        self.adds_space
    }
}

/// The bytes that a token stands for. Marks spell their names.
pub(super) fn bytes(token: &str, token_type: TokenType) -> Vec<u8> {
    match token_type {
        TokenType::Normal | TokenType::UserDefined => token.replace(SPACE, " ").into_bytes(),
        TokenType::Byte => byte_of(token).map_or_else(|| token.as_bytes().to_vec(), |byte| vec![byte]),
        TokenType::Unknown | TokenType::Control | TokenType::Unused => token.as_bytes().to_vec(),
    }
}

fn pieces<'v>(vocabulary: &'v Vocabulary, types: &[TokenType]) -> Result<Vec<Piece<'v>>, TextError> {
    let scores = vocabulary.scores.as_ref().ok_or(TextError::MissingScores)?;
    vocabulary.check_length("tokenizer.ggml.scores", scores.len())?;
    if let Some((id, &found)) = scores.iter().enumerate().find(|(_, score)| !score.is_finite()) {
        return Err(TextError::Score { id, found });
    }
    let tokens = (0..).zip(&vocabulary.tokens).zip(scores.iter().zip(types));
    let normal = tokens.filter(|((_, text), (_, ty))| **ty == TokenType::Normal && !text.is_empty());
    Ok(normal.map(|((id, text), (&score, _))| Piece { id, text, score }).collect())
}

/// Whether the scores number the pieces: whole, never positive, each below the one before.
fn are_ranks(pieces: &[Piece<'_>]) -> bool {
    pieces.iter().all(|piece| piece.score <= 0.0 && piece.score.fract() == 0.0)
        && pieces.is_sorted_by(|earlier, later| earlier.score > later.score)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{raw_forms, sentence_piece};
    use crate::tokenizer::Tokenizer;

    const UNIGRAM: [(&str, f32); 8] =
        [("▁", -2.0), ("a", -3.0), ("b", -3.5), ("c", -2.0), ("ab", -4.0), ("bc", -3.25), ("▁ab", -5.5), ("abc", -7.0)];
    const RANKED: [(&str, f32); 7] =
        [("bc", 0.0), ("ab", -1.0), ("▁ab", -2.0), ("▁", -3.0), ("a", -4.0), ("b", -5.0), ("c", -6.0)];

    fn tokenizer(bytes: bool, pieces: &[(&str, f32)], add_space_prefix: bool) -> Tokenizer {
        Tokenizer::from_vocabulary(Vocabulary { add_space_prefix, ..sentence_piece(bytes, pieces) }).unwrap()
    }

    // What is expected is what the `sentencepiece` package gives for these pieces.

    #[test]
    fn unigram_pieces_have_the_highest_sum() {
        let tokenizer = tokenizer(true, &UNIGRAM, false);
        assert_eq!(tokenizer.kind(), TokenizerKind::SentencePieceUnigram);
        assert_eq!(raw_forms(&tokenizer, "abc"), ["ab", "c"]);
        assert_eq!(raw_forms(&tokenizer, " abab"), ["▁ab", "ab"]);
        assert_eq!(raw_forms(&tokenizer, " ab c"), ["▁ab", "▁", "c"]);
    }

    #[test]
    fn ranked_pieces_are_merged_best_rank_first() {
        let tokenizer = tokenizer(true, &RANKED, false);
        assert_eq!(tokenizer.kind(), TokenizerKind::SentencePieceBpe);
        assert_eq!(raw_forms(&tokenizer, "abc"), ["a", "bc"]);
        assert_eq!(raw_forms(&tokenizer, " abab"), ["▁ab", "ab"]);
        assert_eq!(raw_forms(&tokenizer, " ab c"), ["▁ab", "▁", "c"]);
    }

    #[test]
    fn a_piece_that_no_merge_reaches_is_found_where_scores_are_no_ranks() {
        let tokenizer = tokenizer(true, &[("▁w259", 0.0), ("▁w260", 0.0)], false);
        assert_eq!(raw_forms(&tokenizer, " w260 w259"), ["▁w260", "▁w259"]);
    }

    #[test]
    fn a_space_is_put_before_the_text_where_the_vocabulary_says_so() {
        for pieces in [&UNIGRAM as &[_], &RANKED] {
            assert_eq!(raw_forms(&tokenizer(true, pieces, true), "ab"), ["▁ab"]);
            assert_eq!(raw_forms(&tokenizer(true, pieces, true), ""), [""; 0]);
            assert_eq!(raw_forms(&tokenizer(true, pieces, false), "ab"), ["ab"]);
        }
    }

    #[test]
    fn text_without_pieces_becomes_its_bytes() {
        for pieces in [&UNIGRAM as &[_], &RANKED] {
            let tokenizer = tokenizer(true, pieces, false);
            assert_eq!(raw_forms(&tokenizer, "aéb"), ["a", "<0xC3>", "<0xA9>", "b"]);
            assert_eq!(raw_forms(&tokenizer, "xyb"), ["<0x78>", "<0x79>", "b"]);
            assert_eq!(tokenizer.decode(&tokenizer.encode("xé a😀").unwrap()).unwrap(), "xé a😀");
        }
    }

    #[test]
    fn text_that_spells_a_byte_token_is_no_byte_token() {
        for pieces in [&UNIGRAM as &[_], &RANKED] {
            let tokenizer = tokenizer(true, pieces, false);
            let spelled = ["<0x3C>", "<0x30>", "<0x78>", "<0x34>", "<0x31>", "<0x3E>", "a"];
            assert_eq!(raw_forms(&tokenizer, "<0x41>a"), spelled);
        }
    }

    #[test]
    fn without_bytes_a_run_of_text_without_pieces_is_one_unknown() {
        for pieces in [&UNIGRAM as &[_], &RANKED] {
            let tokenizer = tokenizer(false, pieces, false);
            assert_eq!(raw_forms(&tokenizer, "xyb"), ["<unk>", "b"]);
            assert_eq!(raw_forms(&tokenizer, "aéb"), ["a", "<unk>", "b"]);
        }
    }

    #[test]
    fn plain_text_has_no_control_tokens() {
        for pieces in [&UNIGRAM as &[_], &RANKED] {
            let tokenizer = tokenizer(true, pieces, false);
            let ids = tokenizer.encode_plain("</s>").unwrap();
            assert_eq!(ids.len(), 4, "one for each byte");
            assert_eq!(raw_forms(&tokenizer, "</s>"), ["</s>"]);
        }
    }

    #[test]
    fn scores_are_needed_one_a_token_and_finite() {
        let refusal = |scores: Option<Vec<f32>>| {
            Tokenizer::from_vocabulary(Vocabulary { scores, ..sentence_piece(false, &UNIGRAM) }).unwrap_err()
        };
        assert!(matches!(refusal(None), TextError::MissingScores));
        assert!(matches!(refusal(Some(vec![0.0; 3])), TextError::Length { found: 3, expected: 11, .. }));
        let mut scores = vec![0.0; 11];
        scores[5] = f32::NAN;
        assert_eq!(refusal(Some(scores)).to_string(), "tokenizer.ggml.scores[5] is NaN, expected a finite number");
    }

    #[test]
    fn text_without_pieces_needs_bytes_or_an_unknown_token() {
        let vocabulary = Vocabulary { unknown: None, ..sentence_piece(false, &UNIGRAM) };
        let error = Tokenizer::from_vocabulary(vocabulary).unwrap_err();
        assert_eq!(error.to_string(), "tokenizer.ggml.tokens has no token `<0x00>` for byte 0x00");
    }
}
