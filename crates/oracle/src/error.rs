use dsv41_config::ConfigError;
use dsv41_golden::GoldenError;

/// Why the oracle cannot be built, or cannot run a call. A call that fails leaves its cache as it was.
#[derive(Debug, thiserror::Error)]
pub enum OracleError {
    /// The configuration breaks a rule.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A weight cannot be had.
    #[error(transparent)]
    Weight(#[from] GoldenError),
    /// A weight has other axes than the configuration says.
    #[error("weight `{name}` has shape {found:?}, expected {expected:?}")]
    WeightShape {
        /// The reference's name.
        name: String,
        /// Its axes.
        found: Vec<usize>,
        /// The axes that follow from the configuration.
        expected: Vec<usize>,
    },
    /// The identity token map, the only one the oracle knows, does not fit the hash.
    #[error(
        "engram_compressed_vocab_size is {compressed}: the oracle's token map is the identity, which needs at least vocab_size = {vocab}"
    )]
    TokenMap {
        /// `engram_compressed_vocab_size`
        compressed: usize,
        /// `vocab_size`
        vocab: usize,
    },
    /// The cache was made for another model shape.
    #[error("the cache was made for another model")]
    ForeignCache,
    /// The call has another number of sequences than its cache.
    #[error("{found} rows of ids for a cache of {expected} sequences")]
    Batch {
        /// Rows of ids.
        found: usize,
        /// Sequences of the cache.
        expected: usize,
    },
    /// The call has no token.
    #[error("a call needs at least one sequence and one token")]
    Empty,
    /// Rows of ids differ in length.
    #[error("row {row} has {found} ids, row 0 has {expected}")]
    Ragged {
        /// The first row that differs.
        row: usize,
        /// Its ids.
        found: usize,
        /// Ids of row 0.
        expected: usize,
    },
    /// A token that the vocabulary lacks.
    #[error("id {id} at row {row}, column {column} is not below vocab_size = {vocab}")]
    Token {
        /// The id.
        id: u32,
        /// Its sequence.
        row: usize,
        /// Its place in the call.
        column: usize,
        /// `vocab_size`
        vocab: usize,
    },
    /// The sequence would grow too long.
    #[error("{start} cached and {tokens} new tokens exceed max_seq_len = {limit}")]
    Context {
        /// Tokens in the cache.
        start: usize,
        /// Tokens of the call.
        tokens: usize,
        /// `max_seq_len`
        limit: usize,
    },
    /// A truncation to more tokens than there are, or to fewer than the rollback margin keeps.
    #[error("cannot truncate {len} cached tokens to {target}: possible are {lowest} to {len}")]
    Rollback {
        /// Tokens in the cache.
        len: usize,
        /// The length asked for.
        target: usize,
        /// The shortest length that can still be returned to.
        lowest: usize,
    },
    /// A forced selection of the wrong size.
    #[error("forced {what} of layer {layer}: {found} entries, expected {expected}")]
    SelectionSize {
        /// `topk`, `candidates` or `experts`.
        what: &'static str,
        /// The layer.
        layer: usize,
        /// Entries given.
        found: usize,
        /// Entries the call needs.
        expected: usize,
    },
    /// A forced selection of something that does not exist.
    #[error("forced {what} of layer {layer}: {found} at entry {entry} is not in {lowest}..{end}")]
    SelectionRange {
        /// `topk` or `experts`.
        what: &'static str,
        /// The layer.
        layer: usize,
        /// The entry.
        entry: usize,
        /// Its value.
        found: i64,
        /// The lowest value allowed.
        lowest: i64,
        /// One past the highest.
        end: usize,
    },
    /// A fed stream of the wrong shape.
    #[error("fed `{name}` has shape {found:?}, expected {expected:?}")]
    FeedShape {
        /// The capture's name.
        name: String,
        /// Its axes.
        found: Vec<usize>,
        /// The axes of this call.
        expected: Vec<usize>,
    },
}
