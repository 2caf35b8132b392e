use dsv41_config::ConfigError;

/// Why a model cannot be built or a call cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The configuration breaks a rule.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The source has no weight of this name, or cannot give it.
    #[error("weight `{name}`: {reason}")]
    Weight {
        /// The reference's name of the weight.
        name: String,
        /// What the source said.
        reason: String,
    },
    /// A weight has other axes than the configuration asks for.
    #[error("weight `{name}` has {found} values, expected {expected:?}")]
    WeightShape {
        /// The reference's name of the weight.
        name: String,
        /// Values found.
        found: usize,
        /// Axes expected.
        expected: Vec<usize>,
    },
    /// Rows of a table cannot be read.
    #[error("rows of a table cannot be read: {0}")]
    Rows(#[from] std::io::Error),
    /// A call without tokens.
    #[error("no tokens: every sequence needs at least one")]
    NoTokens,
    /// The rows of a call differ in length.
    #[error("sequence {row} has {found} tokens, sequence 0 has {expected}")]
    RaggedBatch {
        /// The row that differs.
        row: usize,
        /// Its length.
        found: usize,
        /// The first row's length.
        expected: usize,
    },
    /// A token id that the embedding does not have.
    #[error("token id {id} at sequence {row}, position {position}: the vocabulary has {vocab}")]
    TokenOutOfRange {
        /// The id.
        id: u32,
        /// Its row.
        row: usize,
        /// Its position in the call.
        position: usize,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// The cache was made for another number of sequences.
    #[error("the call has {found} sequences, the cache was made for {expected}")]
    BatchMismatch {
        /// Sequences of the call.
        found: usize,
        /// Sequences of the cache.
        expected: usize,
    },
    /// The cache was made for another model.
    #[error("the cache has {found} layers, the model {expected}")]
    CacheMismatch {
        /// Layers of the cache.
        found: usize,
        /// Layers of the model.
        expected: usize,
    },
    /// More positions than the cache or the model can hold.
    #[error("{asked} positions asked for, the context holds {capacity}")]
    ContextExceeded {
        /// Positions after the call.
        asked: usize,
        /// Positions that fit.
        capacity: usize,
    },
    /// A truncation further back than the rollback margin.
    #[error("cannot truncate from {len} to {asked} positions: at most {margin} can be taken back")]
    Rollback {
        /// Positions held.
        len: usize,
        /// Positions asked for.
        asked: usize,
        /// The margin left.
        margin: usize,
    },
    /// Document starts that do not fit the call.
    #[error("documents of row {row}: {problem}")]
    Documents {
        /// The row.
        row: usize,
        /// What is wrong with them.
        problem: String,
    },
    /// Selections handed in that do not fit the call.
    #[error("layer {layer}: the {part} handed in {problem}")]
    Selection {
        /// The layer.
        layer: usize,
        /// `topk`, `candidates` or `experts`.
        part: &'static str,
        /// What is wrong with them.
        problem: String,
    },
}
