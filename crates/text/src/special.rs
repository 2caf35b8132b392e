//! DeepSeek's special tokens, by their raw forms.

/// Begins a sequence.
pub(crate) const BOS: &str = "<｜begin▁of▁sentence｜>";
/// Ends a reply.
pub(crate) const EOS: &str = "<｜end▁of▁sentence｜>";
/// Fills up a batch.
pub(crate) const PAD: &str = "<｜▁pad▁｜>";
/// Begins the user's turn.
pub(crate) const USER: &str = "<｜User｜>";
/// Begins the assistant's turn.
pub(crate) const ASSISTANT: &str = "<｜Assistant｜>";
/// Begins reasoning.
pub(crate) const THINK: &str = "<think>";
/// Ends reasoning; alone, says that there is none.
pub(crate) const END_OF_THINKING: &str = "</think>";
