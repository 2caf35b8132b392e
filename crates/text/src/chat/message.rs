//! One message of a conversation.

use std::fmt;

use serde::Deserialize;
use serde_json::Value;

use super::ChatError;
use super::error::refuse;

/// Whose message it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// The text before all turns.
    System,
    /// The user's turn.
    User,
    /// The model's turn.
    Assistant,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
        })
    }
}

/// One message of a conversation.
///
/// In JSON an object with `role`, `content` and, of the assistant, `reasoning` or `reasoning_content`. Tool calls are
/// refused, and so are keys that are not known, since they could change what is meant.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "RawMessage")]
pub struct Message {
    /// Whose it is.
    pub role: Role,
    /// What it says.
    pub content: String,
    /// What the assistant thought before. Empty counts as none.
    pub reasoning: Option<String>,
}

impl Message {
    /// The text before all turns.
    pub fn system(content: impl Into<String>) -> Self {
        Self { role: Role::System, content: content.into(), reasoning: None }
    }

    /// A turn of the user.
    pub fn user(content: impl Into<String>) -> Self {
        Self { role: Role::User, content: content.into(), reasoning: None }
    }

    /// A turn of the assistant, without reasoning.
    pub fn assistant(content: impl Into<String>) -> Self {
        Self { role: Role::Assistant, content: content.into(), reasoning: None }
    }

    /// Puts reasoning before the message.
    #[must_use]
    pub fn with_reasoning(self, reasoning: impl Into<String>) -> Self {
        Self { reasoning: Some(reasoning.into()), ..self }
    }

    /// The reasoning, unless it is empty.
    pub(super) fn reasoning(&self) -> Option<&str> {
        self.reasoning.as_deref().filter(|reasoning| !reasoning.is_empty())
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawMessage {
    role: String,
    #[serde(default)]
    content: Option<String>,
    #[serde(default, alias = "reasoning_content")]
    reasoning: Option<String>,
    #[serde(default)]
    tool_calls: Value,
    #[serde(default)]
    tool_call_id: Value,
    #[serde(default)]
    function_call: Value,
    #[serde(default)]
    reasoning_effort: Value,
}

impl TryFrom<RawMessage> for Message {
    type Error = ChatError;

    fn try_from(raw: RawMessage) -> Result<Self, ChatError> {
        refuse("tool_calls", &raw.tool_calls)?;
        refuse("tool_call_id", &raw.tool_call_id)?;
        refuse("function_call", &raw.function_call)?;
        refuse("reasoning_effort", &raw.reasoning_effort)?;
        let role = match raw.role.as_str() {
            "system" => Role::System,
            "user" => Role::User,
            "assistant" => Role::Assistant,
            _ => return Err(ChatError::UnknownRole { found: raw.role }),
        };
        let content = raw.content.ok_or(ChatError::NoContent { role })?;
        Ok(Self { role, content, reasoning: raw.reasoning })
    }
}
