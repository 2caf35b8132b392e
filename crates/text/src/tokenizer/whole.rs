//! Tokens that are matched whole, before any splitting.

use aho_corasick::{AhoCorasick, MatchKind};

use crate::error::TextError;
use crate::vocabulary::TokenType;

/// Finds the tokens that text spells out.
pub(super) struct WholeTokens {
    automaton: AhoCorasick,
    /// The id of each pattern.
    ids: Vec<u32>,
}

/// A stretch of text.
#[derive(Debug, PartialEq)]
pub(super) enum Part<'t> {
    /// Nothing but text, and not empty.
    Text(&'t str),
    /// A token that was spelled out.
    Token(u32),
}

impl WholeTokens {
    pub(super) fn new(tokens: &[String], types: &[TokenType]) -> Result<Self, TextError> {
        let typed = (0..).zip(tokens.iter().zip(types));
        let whole = typed.filter(|(_, (token, token_type))| token_type.matches_whole() && !token.is_empty());
        let (ids, patterns): (_, Vec<_>) = whole.map(|(id, (token, _))| (id, token)).unzip();
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(patterns)
            .map_err(|source| TextError::Library(source.into()))?;
        Ok(Self { automaton, ids })
    }

    /// The parts of `text`, in order: the leftmost token, of those the longest, then on after it.
    pub(super) fn split<'t>(&self, text: &'t str) -> Vec<Part<'t>> {
        let mut parts = Vec::new();
        let mut done = 0;
        for found in self.automaton.find_iter(text) {
            parts.extend(plain(&text[done..found.start()]));
            parts.push(Part::Token(self.ids[found.pattern().as_usize()]));
            done = found.end();
        }
        parts.extend(plain(&text[done..]));
        parts
    }
}

fn plain(text: &str) -> Option<Part<'_>> {
    (!text.is_empty()).then_some(Part::Text(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(tokens: &[(&str, TokenType)]) -> WholeTokens {
        let (tokens, types): (Vec<_>, Vec<_>) = tokens.iter().map(|&(token, ty)| (token.to_owned(), ty)).unzip();
        WholeTokens::new(&tokens, &types).unwrap()
    }

    #[test]
    fn control_and_user_defined_tokens_are_found_and_others_are_not() {
        let whole = whole(&[
            ("a", TokenType::Normal),
            ("<b>", TokenType::Control),
            ("<c>", TokenType::UserDefined),
            ("<unk>", TokenType::Unknown),
        ]);
        let parts = whole.split("a<b><c>é<unk>");
        assert_eq!(parts, [Part::Text("a"), Part::Token(1), Part::Token(2), Part::Text("é<unk>")]);
    }

    #[test]
    fn of_two_tokens_at_one_place_the_longer_wins() {
        let whole = whole(&[("<t", TokenType::Control), ("<t>", TokenType::Control), ("t><", TokenType::Control)]);
        assert_eq!(whole.split("<t><t"), [Part::Token(1), Part::Token(0)]);
    }

    #[test]
    fn an_empty_token_matches_nothing() {
        let whole = whole(&[("", TokenType::Control)]);
        assert_eq!(whole.split("ab"), [Part::Text("ab")]);
        assert_eq!(whole.split(""), []);
    }
}
