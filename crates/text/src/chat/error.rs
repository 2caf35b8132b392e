//! Why messages have no form.

use serde_json::Value;

use super::Role;
use crate::error::TextError;

/// Why messages cannot be brought into the model's form.
#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    /// A conversation without messages.
    #[error("no messages: a conversation needs at least one")]
    NoMessages,
    /// A role that the form does not have.
    #[error("role `{found}`, supported: `system`, `user`, `assistant`")]
    UnknownRole {
        /// The role.
        found: String,
    },
    /// A message without text.
    #[error("a message of `{role}` has no content")]
    NoContent {
        /// Whose it is.
        role: Role,
    },
    /// Something that the model knows and this form does not cover yet.
    #[error("`{key}` is not supported: the form of tool calls and of reasoning efforts is not covered")]
    Unsupported {
        /// The JSON key.
        key: &'static str,
    },
    /// A system text after other messages.
    #[error("message {index} is a system text, which can only be the first message")]
    SystemNotFirst {
        /// Its index.
        index: usize,
    },
    /// Two turns of one side in a row, or the assistant first.
    #[error("message {index} is of `{found}`, expected `{expected}`: user and assistant take turns, the user first")]
    OutOfTurn {
        /// Its index.
        index: usize,
        /// Whose it is.
        found: Role,
        /// Whose turn it is.
        expected: Role,
    },
    /// Reasoning that is not the assistant's.
    #[error("message {index} is of `{role}` and has reasoning, which only the assistant's can have")]
    ReasoningOfOther {
        /// Its index.
        index: usize,
        /// Whose it is.
        role: Role,
    },
    /// A prompt ends with the user's message, a finished conversation with the assistant's.
    #[error("the last message, {index}, is of `{found}`, expected `{expected}`")]
    LastMessage {
        /// Its index.
        index: usize,
        /// Whose it is.
        found: Role,
        /// Whose it has to be.
        expected: Role,
    },
    /// The tokenizer has no such token: it is not this model's.
    #[error("the tokenizer has no token `{token}`, which the form of a conversation needs")]
    MissingToken {
        /// The token.
        token: &'static str,
    },
    /// The text of a message cannot be encoded.
    #[error(transparent)]
    Text(#[from] TextError),
}

/// Refuses a key that has anything in it.
pub(super) fn refuse(key: &'static str, value: &Value) -> Result<(), ChatError> {
    let empty = value.is_null() || value.as_array().is_some_and(Vec::is_empty);
    if empty { Ok(()) } else { Err(ChatError::Unsupported { key }) }
}
