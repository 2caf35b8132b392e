//! Each token's id in the engram's vocabulary, where tokens that read alike are one.

use std::collections::HashMap;

use tokenizers::normalizers::replace::ReplacePattern;
use tokenizers::normalizers::{Lowercase, NFD, NFKC, Replace, Sequence, Strip, StripAccents};
use tokenizers::{NormalizedString, Normalizer, NormalizerWrapper};

use crate::error::TextError;
use crate::tokenizer::Tokenizer;

/// Stands for a space that is all of a text while spaces around texts are dropped.
const LONE_SPACE: &str = "\u{E000}";

/// Each token's id in the engram's vocabulary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenMap {
    ids: Vec<u32>,
    distinct: usize,
}

impl TokenMap {
    /// Numbers the tokens of `tokenizer` in order of first appearance, those that read alike as one.
    ///
    /// A token reads as its text in compatibility decomposition, without accents, in lower case, with runs of blanks
    /// and line ends as one space, and without white space around it. Where nothing is left, the text itself counts;
    /// where it is no whole character, the token's raw form.
    ///
    /// # Errors
    ///
    /// [`TextError::Library`] if a text cannot be normalised.
    pub fn new(tokenizer: &Tokenizer) -> Result<Self, TextError> {
        let reading = Reading::new()?;
        let mut numbers = HashMap::new();
        let mut ids = Vec::with_capacity(tokenizer.len());
        for (id, token) in (0..).zip(tokenizer.tokens()) {
            let text = tokenizer.decode(&[id])?;
            let key = if text.contains(char::REPLACEMENT_CHARACTER) { token.to_owned() } else { reading.of(text)? };
            let next = numbers.len() as u32;
            ids.push(*numbers.entry(key).or_insert(next));
        }
        Ok(Self { distinct: numbers.len(), ids })
    }

    /// Each token's id in the engram's vocabulary.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// The size of the engram's vocabulary.
    pub fn distinct(&self) -> usize {
        self.distinct
    }
}

/// What texts that read alike have in common.
struct Reading(Sequence);

impl Reading {
    fn new() -> Result<Self, TextError> {
        let replace = |pattern: &str, content: &str| {
            let pattern = ReplacePattern::Regex(pattern.to_owned());
            Replace::new(pattern, content).map(NormalizerWrapper::Replace).map_err(TextError::Library)
        };
        Ok(Self(Sequence::new(vec![
            NormalizerWrapper::NFKC(NFKC),
            NormalizerWrapper::NFD(NFD),
            NormalizerWrapper::StripAccents(StripAccents),
            NormalizerWrapper::Lowercase(Lowercase),
            replace(r"[ \t\r\n]+", " ")?,
            replace("^ $", LONE_SPACE)?,
            NormalizerWrapper::StripNormalizer(Strip::new(true, true)),
            replace(LONE_SPACE, " ")?,
        ])))
    }

    fn of(&self, text: String) -> Result<String, TextError> {
        let mut normalized = NormalizedString::from(text.as_str());
        self.0.normalize(&mut normalized).map_err(TextError::Library)?;
        let reading = normalized.get();
        Ok(if reading.is_empty() { text } else { reading.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::testing::byte_level;
    use crate::vocabulary::TokenType;

    /// The tokens of bytes and two more, then `texts`.
    fn map(texts: &[&str]) -> (Tokenizer, TokenMap) {
        let added: Vec<_> = texts.iter().map(|&text| (text, TokenType::UserDefined)).collect();
        let tokenizer = Tokenizer::from_vocabulary(byte_level(&["h i"], &added)).unwrap();
        let map = TokenMap::new(&tokenizer).unwrap();
        (tokenizer, map)
    }

    /// What the map makes of the tokens with these raw forms.
    fn of((tokenizer, map): &(Tokenizer, TokenMap), tokens: &[&str]) -> Vec<u32> {
        tokens.iter().map(|token| map.ids()[tokenizer.id_of(token).unwrap() as usize]).collect()
    }

    fn distinct(ids: &[u32]) -> usize {
        ids.iter().collect::<HashSet<_>>().len()
    }

    #[test]
    fn tokens_are_numbered_in_order_of_first_appearance() {
        let texts = ["new", "NEW", "other", "new "];
        let made = map(&texts);
        let ids = of(&made, &texts);
        let first = ids[0];
        assert_eq!(ids, [first, first, first + 1, first]);
        assert_eq!(made.1.distinct(), first as usize + 2);

        let mut next = 0;
        for &id in made.1.ids() {
            assert!(id <= next, "{id} comes before {next}");
            next = next.max(id + 1);
        }
        assert_eq!(made.1.distinct(), next as usize);
    }

    #[test]
    fn case_accents_width_and_outer_space_do_not_count() {
        for (one, other) in [
            ("Café", "cafe"),
            ("cafe\u{301}x", "CAFÉX"),
            ("ﬁne", "fine"),
            ("ｆｕｌｌ", "FULL"),
            (" both ", "both"),
            ("\u{a0}nobreak\u{3000}", "nobreak"),
            ("a \t\r\n b", "a b"),
            ("²x", "2X"),
        ] {
            let ids = of(&map(&[one, other]), &[one, other]);
            assert_eq!(ids[0], ids[1], "{one:?} and {other:?}");
        }
    }

    #[test]
    fn what_differs_otherwise_stays_apart() {
        for (one, other) in [("ab", "a b"), ("a-b", "ab"), ("ßx", "ssx"), ("ıx", "ix"), ("a\u{b}b", "a b")] {
            let ids = of(&map(&[one, other]), &[one, other]);
            assert_ne!(ids[0], ids[1], "{one:?} and {other:?}");
        }
    }

    #[test]
    fn blanks_and_line_ends_alone_are_one_space() {
        let blanks = ["  ", "\n\n", " \t\r\n"];
        let made = map(&blanks);
        let space = of(&made, &["Ġ"])[0];
        assert_eq!(of(&made, &blanks), [space; 3]);
        assert_eq!(of(&made, &["Ċ", "ĉ", "č"]), [space; 3], "line feed, tabulator, carriage return");
    }

    #[test]
    fn a_text_of_which_nothing_is_left_counts_as_it_is() {
        // Accents, and white space that is not among the blanks.
        let texts = ["\u{301}", "\u{300}", "\u{301}\u{300}", "\u{85}\u{85}", "\u{b}\u{b}"];
        assert_eq!(distinct(&of(&map(&texts), &texts)), texts.len());
    }

    #[test]
    fn bytes_that_are_no_character_count_by_their_raw_form() {
        // 0x80, 0x81, 0xf6 and 0xff: their text would be U+FFFD alike. The raw forms of the latter are letters.
        let ids = of(&map(&["öö"]), &["Ģ", "ģ", "ö", "ÿ", "öö"]);
        assert_eq!(distinct(&ids), 5);
    }
}
