//! What can be wrong with a vocabulary, and with a call to a tokenizer.

use std::fmt;

use crate::vocabulary::{MODELS, PRE_TOKENIZERS};

/// Why a tokenizer cannot be built, or a call to it cannot be answered.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// The file cannot be read, or is not text.
    #[error("{file}: cannot be read: {source}")]
    Read {
        /// The file.
        file: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// Not a `tokenizer.json`, or one whose model is not byte-level BPE; the source says at which line and column.
    #[error("{file}: not a tokenizer.json of byte-level BPE: {source}")]
    Json {
        /// The file.
        file: String,
        /// What the parser says.
        source: serde_json::Error,
    },
    /// A `tokenizer.json` that does what this tokenizer cannot do, so that its ids would differ.
    #[error("{file}: `{part}` is {found}, expected {expected}")]
    Unsupported {
        /// The file.
        file: String,
        /// The part, as a path of keys.
        part: &'static str,
        /// What it holds.
        found: String,
        /// What is supported.
        expected: &'static str,
    },
    /// Ids of a `tokenizer.json` have to be 0, 1, 2, ... to be the index of an array.
    #[error("{file}: no token has id {id}, but {tokens} tokens are defined")]
    MissingId {
        /// The file.
        file: String,
        /// The lowest id without a token.
        id: u32,
        /// Tokens defined.
        tokens: usize,
    },
    /// Two tokens of a `tokenizer.json` claim one id.
    #[error("{file}: id {id} belongs to both `{first}` and `{second}`")]
    SharedId {
        /// The file.
        file: String,
        /// The id.
        id: u32,
        /// One of its tokens.
        first: String,
        /// The other.
        second: String,
    },
    /// A kind of tokenizer that is not supported.
    #[error("tokenizer.ggml.model is `{found}`, supported: {}", list(&MODELS))]
    UnknownModel {
        /// What the file says.
        found: String,
    },
    /// A way to split text before the merges that is not supported.
    #[error("tokenizer.ggml.pre is {}, supported: {}", quoted(found), list(&PRE_TOKENIZERS))]
    UnknownPreTokenizer {
        /// What the file says, if anything.
        found: Option<String>,
    },
    /// Byte-level BPE without merges.
    #[error("tokenizer.ggml.merges is empty: byte-level BPE needs merges")]
    MissingMerges,
    /// A merge that cannot be carried out.
    #[error("tokenizer.ggml.merges[{index}], `{merge}`: {fault}")]
    Merge {
        /// Its index.
        index: usize,
        /// As the file holds it.
        merge: String,
        /// What is wrong with it.
        fault: MergeFault,
    },
    /// A SentencePiece vocabulary without scores.
    #[error("tokenizer.ggml.scores is missing: a `llama` tokenizer needs them")]
    MissingScores,
    /// A score that cannot be compared.
    #[error("tokenizer.ggml.scores[{id}] is {found}, expected a finite number")]
    Score {
        /// The token's id.
        id: usize,
        /// What the file holds.
        found: f32,
    },
    /// Parallel arrays of different lengths.
    #[error("{key} has {found} entries, tokenizer.ggml.tokens has {expected}")]
    Length {
        /// The array's key.
        key: &'static str,
        /// Its length.
        found: usize,
        /// Tokens of the vocabulary.
        expected: usize,
    },
    /// A token type that GGUF does not define.
    #[error("tokenizer.ggml.token_type[{id}] is {found}, expected 1 to 6")]
    TokenType {
        /// The token's id.
        id: usize,
        /// What the file holds.
        found: i32,
    },
    /// Two ids for one token: text could not say which is meant.
    #[error("tokenizer.ggml.tokens: `{token}` has the ids {first} and {second}")]
    DuplicateToken {
        /// The token.
        token: String,
        /// Its lower id.
        first: u32,
        /// Its higher id.
        second: u32,
    },
    /// More tokens than ids.
    #[error("tokenizer.ggml.tokens has {found} entries, more than there are ids")]
    TooManyTokens {
        /// Tokens of the vocabulary.
        found: usize,
    },
    /// A special token outside of the vocabulary.
    #[error("{key} is {id}, the vocabulary has {len} tokens")]
    SpecialOutOfRange {
        /// The metadata key.
        key: &'static str,
        /// What the file holds.
        id: u32,
        /// Tokens of the vocabulary.
        len: usize,
    },
    /// A byte that no token stands for: text that holds it could not be encoded.
    #[error("tokenizer.ggml.tokens has no token `{token}` for byte {byte:#04x}")]
    MissingByte {
        /// The byte.
        byte: u8,
        /// The token that would stand for it.
        token: String,
    },
    /// A token id that the vocabulary does not have.
    #[error("token id {id}: the vocabulary has {len} tokens")]
    IdOutOfRange {
        /// The id.
        id: u32,
        /// Tokens of the vocabulary.
        len: usize,
    },
    /// The `tokenizers` crate refused.
    #[error("tokenizer: {0}")]
    Library(#[source] tokenizers::Error),
}

/// What is wrong with a merge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MergeFault {
    /// Not two tokens with a space between.
    NotAPair,
    /// One of the two tokens, or the merged one, is not in the vocabulary.
    UnknownToken(String),
}

impl fmt::Display for MergeFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAPair => write!(f, "expected two tokens with one space between"),
            Self::UnknownToken(token) => write!(f, "`{token}` is not in tokenizer.ggml.tokens"),
        }
    }
}

fn list(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

fn quoted(found: &Option<String>) -> String {
    found.as_ref().map_or_else(|| "missing".to_owned(), |found| format!("`{found}`"))
}
