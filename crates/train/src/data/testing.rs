//! A tokenizer and examples for tests.

use dsv41_text::{Tokenizer, Vocabulary};
use proptest::prelude::*;

use super::{DataError, Example, Examples};

pub(super) const BOS: u32 = 256;
pub(super) const EOS: u32 = 257;

/// A token for each byte, whose id is the byte, then the marks of a conversation.
pub(super) fn bytes_and_marks() -> Tokenizer {
    Tokenizer::from_vocabulary(vocabulary(Some(BOS), Some(EOS))).unwrap()
}

/// The same tokens, none of them known to begin or end a sequence.
pub(super) fn bytes_without_ends() -> Tokenizer {
    Tokenizer::from_vocabulary(vocabulary(None, None)).unwrap()
}

fn vocabulary(bos: Option<u32>, eos: Option<u32>) -> Vocabulary {
    let mut tokens: Vec<String> = (0..=u8::MAX).map(|byte| format!("<0x{byte:02X}>")).collect();
    let marks =
        ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>"];
    tokens.extend(marks.map(str::to_owned));
    let scores = Some(vec![0.0; tokens.len()]);
    Vocabulary { model: "llama".to_owned(), tokens, scores, bos, eos, ..Vocabulary::default() }
}

/// Examples in memory.
#[derive(Debug, Clone)]
pub(super) struct Listed(pub(super) Vec<Example>);

impl Examples for Listed {
    fn count(&self) -> usize {
        self.0.len()
    }

    fn example(&mut self, index: usize) -> Result<Example, DataError> {
        Ok(self.0[index].clone())
    }
}

/// Examples of up to `longest` tokens, each line once. Ids tell whose they are: 1,000 times the line, and the place.
pub(super) fn listed(longest: usize, most: usize) -> impl Strategy<Value = Listed> {
    let learn = prop::collection::vec(any::<bool>(), 1..=longest);
    prop::collection::vec(learn, 1..=most).prop_map(|examples| {
        let numbered = (1..).zip(examples);
        Listed(numbered.map(|(line, learn)| numbered_example(line, learn)).collect())
    })
}

/// An example whose ids tell its line and their place in it.
pub(super) fn numbered_example(line: usize, learn: Vec<bool>) -> Example {
    let first = u32::try_from(line).unwrap() * 1_000;
    Example { ids: (first..).take(learn.len()).collect(), learn, line }
}
