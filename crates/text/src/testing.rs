//! Vocabularies for tests.

use std::collections::BTreeSet;

use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use crate::special;
use crate::tokenizer::Tokenizer;
use crate::vocabulary::{TokenType, Vocabulary};

/// Byte-level BPE: bos, eos and pad, the 256 bytes, the merged tokens, then `added`.
pub(crate) fn byte_level(merges: &[&str], added: &[(&str, TokenType)]) -> Vocabulary {
    let mut typed: Vec<(String, TokenType)> = Vec::new();
    typed.extend([special::BOS, special::EOS, special::PAD].map(|token| (token.to_owned(), TokenType::Control)));
    let bytes: BTreeSet<char> = ByteLevel::alphabet().into_iter().collect();
    typed.extend(bytes.iter().map(|byte| (byte.to_string(), TokenType::Normal)));
    typed.extend(merges.iter().map(|merge| (merge.replace(' ', ""), TokenType::Normal)));
    typed.extend(added.iter().map(|&(token, token_type)| (token.to_owned(), token_type)));
    let (tokens, types): (_, Vec<_>) = typed.into_iter().unzip();
    Vocabulary {
        model: "gpt2".to_owned(),
        pre: Some("joyai-llm".to_owned()),
        tokens,
        token_types: Some(types.into_iter().map(|token_type| token_type as i32).collect()),
        merges: merges.iter().map(|&merge| merge.to_owned()).collect(),
        bos: Some(0),
        eos: Some(1),
        pad: Some(2),
        ..Vocabulary::default()
    }
}

/// Byte-level BPE with the marks of a conversation and a few merges.
pub(crate) fn chat_tokenizer() -> Tokenizer {
    let marks = [special::USER, special::ASSISTANT, special::THINK, special::END_OF_THINKING];
    let marks = marks.map(|token| (token, TokenType::UserDefined));
    Tokenizer::from_vocabulary(byte_level(&["h i", "Ġ hi"], &marks)).unwrap()
}

/// SentencePiece: unknown, bos and eos, perhaps the 256 bytes, then `pieces` with their scores.
pub(crate) fn sentence_piece(bytes: bool, pieces: &[(&str, f32)]) -> Vocabulary {
    let mut typed = vec![
        ("<unk>".to_owned(), 0.0, TokenType::Unknown),
        ("<s>".to_owned(), 0.0, TokenType::Control),
        ("</s>".to_owned(), 0.0, TokenType::Control),
    ];
    if bytes {
        typed.extend((0..=u8::MAX).map(|byte| (format!("<0x{byte:02X}>"), 0.0, TokenType::Byte)));
    }
    typed.extend(pieces.iter().map(|&(piece, score)| (piece.to_owned(), score, TokenType::Normal)));
    Vocabulary {
        model: "llama".to_owned(),
        pre: Some("default".to_owned()),
        tokens: typed.iter().map(|(token, _, _)| token.clone()).collect(),
        token_types: Some(typed.iter().map(|&(_, _, token_type)| token_type as i32).collect()),
        scores: Some(typed.iter().map(|&(_, score, _)| score).collect()),
        bos: Some(1),
        eos: Some(2),
        unknown: Some(0),
        ..Vocabulary::default()
    }
}

/// The raw forms of the tokens that `text` becomes.
pub(crate) fn raw_forms<'t>(tokenizer: &'t Tokenizer, text: &str) -> Vec<&'t str> {
    let ids = tokenizer.encode(text).unwrap();
    ids.into_iter().map(|id| tokenizer.token(id).unwrap()).collect()
}
