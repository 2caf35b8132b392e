//! What a model computed on the way to a loss that is not finite.

use std::fmt;

use burn::tensor::{TensorData, backend::Backend};
use dsv41::Probe;

/// Activations that are told.
const TOLD: usize = 5;

/// The largest activations of a call, and the first that were not finite.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Activations {
    /// The results with the largest finite magnitudes, largest first.
    pub largest: Vec<Activation>,
    /// The first result, in the order of the graph, that is not finite throughout.
    pub first_non_finite: Option<String>,
}

/// The largest magnitude in a named result of the graph.
#[derive(Debug, Clone, PartialEq)]
pub struct Activation {
    /// Its name, with the layer's number: `L3.attn_out`.
    pub name: String,
    /// Its largest finite magnitude.
    pub magnitude: f64,
}

impl<B: Backend> Probe<B> for Activations {
    fn record(&mut self, layer: Option<usize>, name: &'static str, data: TensorData) {
        // Scores of what cannot be seen are infinite on purpose, and choices are no activations.
        if !data.dtype.is_float() || matches!(name, "index_score" | "router_scores") {
            return;
        }
        let name = || layer.map_or_else(|| name.to_owned(), |layer| format!("L{layer}.{name}"));
        let mut magnitude = 0.0_f64;
        for value in data.iter::<f64>() {
            if value.is_finite() {
                magnitude = magnitude.max(value.abs());
            } else if self.first_non_finite.is_none() {
                self.first_non_finite = Some(name());
            }
        }
        let place = self.largest.partition_point(|other| other.magnitude >= magnitude);
        if place < TOLD {
            self.largest.insert(place, Activation { name: name(), magnitude });
            self.largest.truncate(TOLD);
        }
    }
}

impl fmt::Display for Activations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("largest activations")?;
        for (place, Activation { name, magnitude }) in self.largest.iter().enumerate() {
            let before = if place == 0 { "" } else { "," };
            write!(f, "{before} {name} {magnitude:.3e}")?;
        }
        match &self.first_non_finite {
            Some(name) => write!(f, "; the first that is not finite is {name}"),
            None => f.write_str("; all before the head are finite"),
        }
    }
}
