//! Text in and out of DeepSeek-V4.1: from text to token ids and back, the form of a conversation, and the token map
//! that the engram hashes with.
//!
//! A [`Vocabulary`] is what a GGUF file holds of a tokenizer, or what a release's `tokenizer.json` gives; a
//! [`Tokenizer`] is built from either. [`chat`] turns messages into the ids that the model was trained on, and
//! [`TokenMap`] numbers the tokens as the engram does.
//!
//! ```no_run
//! use dsv41_text::{Conversation, Message, StreamDecoder, Thinking, Tokenizer};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let tokenizer = Tokenizer::from_file("tokenizer.json")?;
//! let conversation = Conversation::new(vec![Message::user("Which crate was that?")])?;
//! let prompt = conversation.prompt(Thinking::Off)?.encode(&tokenizer)?;
//!
//! let mut decoder = StreamDecoder::new(&tokenizer);
//! for id in prompt.ids {
//!     if let Some(text) = decoder.push(id)? {
//!         print!("{text}");
//!     }
//! }
//! print!("{}", decoder.finish());
//! # Ok(())
//! # }
//! ```

pub mod chat;
mod error;
mod special;
#[cfg(test)]
mod testing;
mod token_map;
mod tokenizer;
mod vocabulary;

pub use chat::{ChatError, Conversation, Encoded, Form, Message, Role, Thinking};
pub use error::{MergeFault, TextError};
pub use token_map::TokenMap;
pub use tokenizer::{StreamDecoder, Tokenizer, TokenizerKind};
pub use vocabulary::{TokenType, Vocabulary};
