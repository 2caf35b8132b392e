//! A conversation as special tokens and text, which gives its spelling, its ids and what of it the model has to
//! produce.

use super::{ChatError, Message, Role, Thinking};
use crate::special;
use crate::tokenizer::Tokenizer;

/// A conversation in the model's form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Form<'c> {
    segments: Vec<Segment<'c>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Segment<'c> {
    part: Part<'c>,
    /// Whether the model has to produce it.
    target: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part<'c> {
    Special(&'static str),
    Text(&'c str),
}

/// The ids of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    /// The ids, in order.
    pub ids: Vec<u32>,
    /// For each id whether it is one that the model has to produce: the assistant's words and the token that ends its
    /// turn, but not the tokens that begin it, which a prompt ends with.
    pub mask: Vec<bool>,
}

impl<'c> Form<'c> {
    pub(super) fn begin() -> Self {
        let mut form = Self { segments: Vec::new() };
        form.given(Part::Special(special::BOS));
        form
    }

    /// Adds a message; `reasoning` is given where the model reasoned and it is kept.
    pub(super) fn add(&mut self, message: &'c Message, reasoning: Option<&'c str>) {
        let content = Part::Text(&message.content);
        match message.role {
            Role::System => self.given(content),
            Role::User => {
                self.given(Part::Special(special::USER));
                self.given(content);
            }
            Role::Assistant => {
                self.await_reply(if reasoning.is_some() { Thinking::On } else { Thinking::Off });
                if let Some(reasoning) = reasoning {
                    self.produced(Part::Text(reasoning));
                    self.produced(Part::Special(special::END_OF_THINKING));
                }
                self.produced(content);
                self.produced(Part::Special(special::EOS));
            }
        }
    }

    /// Adds what the model's reply follows.
    pub(super) fn await_reply(&mut self, thinking: Thinking) {
        self.given(Part::Special(special::ASSISTANT));
        self.given(Part::Special(match thinking {
            Thinking::On => special::THINK,
            Thinking::Off => special::END_OF_THINKING,
        }));
    }

    /// The spelling, for people to read.
    ///
    /// It does not say which special tokens are the form's and which a message only spells out;
    /// [`encode`](Self::encode) does.
    pub fn text(&self) -> String {
        let parts = self.segments.iter().map(|segment| match segment.part {
            Part::Special(token) => token,
            Part::Text(text) => text,
        });
        parts.collect()
    }

    /// The ids, special tokens by themselves and messages as nothing but text.
    ///
    /// # Errors
    ///
    /// The tokenizer lacks one of the form's special tokens, or cannot encode a message.
    pub fn encode(&self, tokenizer: &Tokenizer) -> Result<Encoded, ChatError> {
        let mut encoded = Encoded { ids: Vec::new(), mask: Vec::new() };
        for segment in &self.segments {
            match segment.part {
                Part::Special(token) => {
                    encoded.ids.push(tokenizer.id_of(token).ok_or(ChatError::MissingToken { token })?);
                }
                Part::Text(text) => encoded.ids.extend(tokenizer.encode_plain(text)?),
            }
            encoded.mask.resize(encoded.ids.len(), segment.target);
        }
        Ok(encoded)
    }

    fn given(&mut self, part: Part<'c>) {
        self.segments.push(Segment { part, target: false });
    }

    fn produced(&mut self, part: Part<'c>) {
        self.segments.push(Segment { part, target: true });
    }
}
