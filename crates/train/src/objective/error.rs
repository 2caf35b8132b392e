use crate::losses::LossError;

/// Why an objective cannot be made or has nothing to say.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ObjectiveError {
    /// A setting out of its range.
    #[error("setting objective.{key} is {found}, expected a number not below 0")]
    Setting {
        /// Its name.
        key: &'static str,
        /// Its value.
        found: f64,
    },
    /// A share of a step that is none.
    #[error("the share of a micro-batch is {found}, expected a number not below 0")]
    Scale {
        /// The share.
        found: f64,
    },
    /// A layer cannot be taken account of.
    #[error("layer {layer}: {source}")]
    Layer {
        /// The layer.
        layer: usize,
        /// Why.
        source: LossError,
    },
    /// An objective took part in more than one call.
    #[error("layer {layer} was seen twice, expected one call for each objective")]
    SeenTwice {
        /// The layer.
        layer: usize,
    },
    /// Results cannot be read from their device.
    #[error("losses cannot be read from their device: {0}")]
    Device(String),
}
