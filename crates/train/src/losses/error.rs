/// Why a loss cannot be computed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LossError {
    /// There are more or fewer targets than positions.
    #[error("{found} targets for {expected} positions")]
    TargetCount {
        /// Targets given.
        found: usize,
        /// Rows of the input.
        expected: usize,
    },
    /// A target that the head has no logit of.
    #[error("target {target} of position {position}: the vocabulary has {vocab}")]
    TargetOutOfRange {
        /// The target.
        target: u32,
        /// Its position.
        position: usize,
        /// Columns of the head.
        vocab: usize,
    },
    /// The input is not what the head multiplies.
    #[error("positions have {found} numbers, the head takes {expected}")]
    Width {
        /// Columns of the input.
        found: usize,
        /// Rows of the head.
        expected: usize,
    },
    /// A sum cannot be divided by this.
    #[error("the sum of losses is to be divided by {found}, expected a positive number")]
    Denominator {
        /// The denominator given.
        found: f64,
    },
    /// A batch is described with another number of tokens than a call has.
    #[error("the call has {found} tokens, the batch is described with {expected}, padding included")]
    TokenCount {
        /// Tokens of the call.
        found: usize,
        /// Tokens of the description.
        expected: usize,
    },
    /// Experts were not chosen for every token alike.
    #[error("{found} choices of experts for {tokens} tokens, expected one or more for each")]
    ChoiceCount {
        /// Choices given.
        found: usize,
        /// Tokens of the call.
        tokens: usize,
    },
}
