//! Text of ids that come one at a time.

use super::Tokenizer;
use crate::error::TextError;

/// Decodes ids as they come, never giving out half a character.
///
/// What it gives out, put together, is what [`Tokenizer::decode`] makes of all the ids at once.
#[derive(Debug, Clone)]
pub struct StreamDecoder<'t> {
    tokenizer: &'t Tokenizer,
    /// Bytes of a character that is not complete yet.
    unfinished: Vec<u8>,
    /// Whether a space that encoding put before the text is still to come.
    drop_space: bool,
}

impl<'t> StreamDecoder<'t> {
    /// A decoder at the beginning of a text.
    pub fn new(tokenizer: &'t Tokenizer) -> Self {
        Self { tokenizer, unfinished: Vec::new(), drop_space: tokenizer.begins_with_added_space() }
    }

    /// Takes the next id and gives out the text that is settled by it: none if a character is still unfinished.
    ///
    /// Bytes that no byte to come can make UTF-8 become U+FFFD.
    ///
    /// # Errors
    ///
    /// [`TextError::IdOutOfRange`] if the vocabulary lacks the id.
    pub fn push(&mut self, id: u32) -> Result<Option<String>, TextError> {
        let bytes = self.tokenizer.bytes(id)?;
        let mut bytes = bytes.as_slice();
        if self.drop_space && !self.tokenizer.is_control(id) {
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
            self.drop_space = false;
        }
        self.unfinished.extend_from_slice(bytes);
        let text = self.take_settled();
        Ok((!text.is_empty()).then_some(text))
    }

    /// Ends the text: an unfinished character becomes U+FFFD.
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.unfinished).into_owned()
    }

    fn take_settled(&mut self) -> String {
        let mut settled = String::new();
        let mut kept = 0;
        let mut chunks = self.unfinished.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            settled.push_str(chunk.valid());
            if chunks.peek().is_none() && may_continue(chunk.invalid()) {
                kept = chunk.invalid().len();
            } else if !chunk.invalid().is_empty() {
                settled.push(char::REPLACEMENT_CHARACTER);
            }
        }
        let done = self.unfinished.len() - kept;
        self.unfinished.drain(..done);
        settled
    }
}

/// Whether more bytes could make these a character.
fn may_continue(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{byte_level, sentence_piece};

    fn streamed(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<Option<String>> {
        let mut decoder = StreamDecoder::new(tokenizer);
        let mut texts: Vec<_> = ids.iter().map(|&id| decoder.push(id).unwrap()).collect();
        let rest = decoder.finish();
        texts.extend((!rest.is_empty()).then_some(Some(rest)));
        texts
    }

    fn bytes() -> Tokenizer {
        Tokenizer::from_vocabulary(byte_level(&["h i"], &[])).unwrap()
    }

    /// The ids of bytes that need not be UTF-8.
    fn ids(tokenizer: &Tokenizer, bytes: &[u8]) -> Vec<u32> {
        let id = |&byte: &u8| (0..tokenizer.len() as u32).find(|&id| tokenizer.bytes(id).unwrap() == [byte]).unwrap();
        bytes.iter().map(id).collect()
    }

    #[test]
    fn a_character_comes_when_its_last_byte_does() {
        let tokenizer = bytes();
        let texts = streamed(&tokenizer, &ids(&tokenizer, "a😀é".as_bytes()));
        let expected = [Some("a"), None, None, None, Some("😀"), None, Some("é")];
        assert_eq!(texts, expected.map(|text| text.map(str::to_owned)));
    }

    #[test]
    fn an_unfinished_character_at_the_end_is_replaced_once() {
        let tokenizer = bytes();
        let texts = streamed(&tokenizer, &ids(&tokenizer, b"a\xf0\x9f\x98"));
        let expected = [Some("a"), None, None, None, Some("\u{fffd}")];
        assert_eq!(texts, expected.map(|text| text.map(str::to_owned)));
    }

    #[test]
    fn a_byte_that_cannot_continue_settles_what_came_before() {
        let tokenizer = bytes();
        let texts = streamed(&tokenizer, &ids(&tokenizer, b"\xe4\xb8a\xff"));
        let expected = [None, None, Some("\u{fffd}a"), Some("\u{fffd}")];
        assert_eq!(texts, expected.map(|text| text.map(str::to_owned)));
    }

    #[test]
    fn a_space_that_encoding_added_is_taken_away_and_others_are_not() {
        let mut vocabulary = sentence_piece(true, &[("▁", -1.5), ("▁a", -2.5), ("a", -3.5)]);
        for (adds, text) in [(true, "a a"), (true, " a"), (true, "<s>a"), (false, " a"), (false, "a a")] {
            vocabulary.add_space_prefix = adds;
            let tokenizer = Tokenizer::from_vocabulary(vocabulary.clone()).unwrap();
            let ids = tokenizer.encode(text).unwrap();
            assert_eq!(tokenizer.decode(&ids).unwrap(), text, "adds a space: {adds}");
        }
    }

    proptest! {
        #[test]
        fn the_texts_together_are_all_the_bytes_as_text(any_bytes in prop::collection::vec(any::<u8>(), 0..24)) {
            let tokenizer = bytes();
            let ids = ids(&tokenizer, &any_bytes);
            let texts: String = streamed(&tokenizer, &ids).into_iter().flatten().collect();
            prop_assert_eq!(&texts, &String::from_utf8_lossy(&any_bytes));
            prop_assert_eq!(texts, tokenizer.decode(&ids).unwrap());
        }

        #[test]
        fn text_is_never_replaced(text in any::<String>()) {
            let tokenizer = bytes();
            let texts = streamed(&tokenizer, &tokenizer.encode_plain(&text).unwrap());
            prop_assert_eq!(texts.into_iter().flatten().collect::<String>(), text);
        }
    }
}
