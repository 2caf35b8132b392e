use std::fmt;
use std::path::Path;

use safetensors::SafeTensorError;

use crate::GoldenKind;
use crate::weights::{Dtype, Kind};

/// Why a golden file or the weights it describes cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum GoldenError {
    /// No recipe for a weight that the graph needs.
    #[error("weight `{name}` is missing")]
    MissingWeight {
        /// The reference's name.
        name: String,
    },
    /// A recipe that cannot be carried out, or does not give what it says.
    #[error("weight `{name}`: {fault}")]
    Weight {
        /// The reference's name.
        name: String,
        /// What is wrong with it.
        fault: WeightFault,
    },
    /// The file cannot be read, or is not text.
    #[error("{file}: cannot be read: {source}")]
    Read {
        /// The file.
        file: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// The file cannot be written.
    #[error("{file}: cannot be written: {source}")]
    Write {
        /// The file.
        file: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// Not JSON, or cut short; the source says at which line and column.
    #[error("{file}: not valid JSON: {source}")]
    Json {
        /// The file.
        file: String,
        /// What the parser says.
        source: serde_json::Error,
    },
    /// Not a safetensors container.
    #[error("{file}: not a valid safetensors file: {source}")]
    Safetensors {
        /// The file.
        file: String,
        /// What the parser says.
        source: SafeTensorError,
    },
    /// A golden of a part of the model that this project does not run yet.
    #[error("{file}: {kind} golden: not supported yet")]
    Unsupported {
        /// The file.
        file: String,
        /// What it holds.
        kind: GoldenKind,
    },
    /// Something in the file is wrong.
    #[error("{place}: {fault}")]
    Entry {
        /// Where.
        place: Box<Place>,
        /// What is wrong.
        fault: EntryFault,
    },
}

/// Where in a golden file something is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub file: String,
    /// The regime; `fixture` and `weights_meta` stand beside the regimes. Empty for the file as a whole.
    pub regime: String,
    /// The capture, or the weight. Empty for the regime as a whole.
    pub capture: String,
}

impl Place {
    pub(crate) fn file(path: &Path) -> Self {
        Self { file: path.display().to_string(), ..Self::default() }
    }

    pub(crate) fn regime(&self, regime: &str) -> Self {
        Self { regime: regime.to_owned(), ..self.clone() }
    }

    pub(crate) fn capture(&self, capture: &str) -> Self {
        Self { capture: capture.to_owned(), ..self.clone() }
    }

    pub(crate) fn fault(&self, fault: EntryFault) -> GoldenError {
        GoldenError::Entry { place: Box::new(self.clone()), fault }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        for part in [&self.regime, &self.capture] {
            if !part.is_empty() {
                write!(f, ": {part}")?;
            }
        }
        Ok(())
    }
}

/// What is wrong with an entry of a golden file.
#[derive(Debug, thiserror::Error)]
pub enum EntryFault {
    /// A regime or capture that should be there is not.
    #[error("missing")]
    Missing,
    /// A capture that no run of this fixture makes.
    #[error("a run has no such capture")]
    Unexpected,
    /// A recipe that cannot be carried out, or does not give what it says.
    #[error(transparent)]
    Recipe(WeightFault),
    /// A key is absent.
    #[error("key `{key}` is missing")]
    MissingKey {
        /// The key.
        key: &'static str,
    },
    /// A value of the wrong type.
    #[error("`{key}` is {found}, expected {expected}")]
    Type {
        /// The key.
        key: &'static str,
        /// What should stand there.
        expected: &'static str,
        /// What stands there.
        found: String,
    },
    /// A value of the right type that breaks a rule.
    #[error("`{key}` is {found}, must be {rule}")]
    Value {
        /// The key.
        key: &'static str,
        /// What stands there.
        found: String,
        /// What would be valid.
        rule: String,
    },
    /// The element count contradicts the shape, or the shape's product overflows.
    #[error("n is {n}, which is not the product of shape {shape:?}")]
    Count {
        /// The declared shape.
        shape: Vec<usize>,
        /// The declared count.
        n: usize,
    },
    /// `data` is not as long as every stride-th of n elements.
    #[error("data holds {found} values, {n} at stride {stride} make {expected}")]
    Length {
        /// The declared count.
        n: usize,
        /// The declared stride.
        stride: usize,
        /// How many there should be.
        expected: usize,
        /// How many there are.
        found: usize,
    },
    /// NaN, or more than f32 holds.
    #[error("data[{index}] is not a finite float32")]
    NonFinite {
        /// Position in `data`.
        index: usize,
    },
    /// Another shape than the run's, or than the golden's own.
    #[error("shape is {found:?}, expected {expected:?}")]
    Shape {
        /// What it should be.
        expected: Vec<usize>,
        /// What the file says.
        found: Vec<usize>,
    },
    /// A whole tensor of a type that the capture does not have.
    #[error("stored as {found}, expected {expected}")]
    StoredAs {
        /// The types that would do.
        expected: &'static str,
        /// The tensor's.
        found: String,
    },
    /// The whole tensor is not the one that was sampled.
    #[error("element {index} is {found}, the golden's sample says {expected}")]
    Sample {
        /// Position in the tensor.
        index: usize,
        /// Of the whole tensor.
        found: f64,
        /// Of the sample.
        expected: f64,
    },
}

/// What is wrong with the recipe of a weight.
#[derive(Debug, thiserror::Error)]
pub enum WeightFault {
    /// Values of this kind are not stored as this dtype.
    #[error("kind {kind} cannot be stored as {dtype}")]
    KindOfDtype {
        /// The recipe's kind.
        kind: Kind,
        /// The recipe's dtype.
        dtype: Dtype,
    },
    /// Powers of two that e8m0 (2^-127 to 2^127) lacks, or none at all.
    #[error("no e8m0 values have exponents from lo {lo} with span {span}")]
    Exponents {
        /// Lowest exponent.
        lo: i64,
        /// Number of exponents.
        span: u64,
    },
    /// More elements than any golden fixture has.
    #[error("shape {shape:?} has more than {} elements", crate::filler::MAX_ELEMENTS)]
    TooLarge {
        /// The declared shape.
        shape: Vec<usize>,
    },
    /// A block format that needs two axes, or scales of another shape than the blocks need.
    #[error("shape {shape:?} stored as {dtype} does not go with scales of shape {scales:?}")]
    Scales {
        /// The stored shape of the weight.
        shape: Vec<usize>,
        /// Its dtype.
        dtype: Dtype,
        /// The stored shape of its `.scale`.
        scales: Vec<usize>,
    },
    /// The values made from the name are not the ones the golden was made with.
    #[error("checksum is {found}, the golden says {expected}")]
    Checksum {
        /// Of the values made here.
        found: f64,
        /// Of the recipe.
        expected: f64,
    },
}
