//! Weights by the reference's names, checked against the axes that the configuration gives them.

use dsv41_golden::{LogicalWeight, WeightSet};

use crate::{OracleError, Real};

/// The weights below one dotted prefix.
#[derive(Clone)]
pub(crate) struct Scope<'a> {
    weights: &'a WeightSet,
    prefix: String,
}

impl<'a> Scope<'a> {
    pub(crate) fn root(weights: &'a WeightSet) -> Self {
        Self { weights, prefix: String::new() }
    }

    pub(crate) fn child(&self, name: &str) -> Self {
        Self { weights: self.weights, prefix: format!("{}{name}.", self.prefix) }
    }

    /// A weight as it is stored.
    pub(crate) fn stored(&self, name: &str, shape: &[usize]) -> Result<&'a LogicalWeight, OracleError> {
        let name = format!("{}{name}", self.prefix);
        let weight = self.weights.get(&name)?;
        if weight.shape != shape {
            return Err(OracleError::WeightShape { name, found: weight.shape.clone(), expected: shape.to_vec() });
        }
        Ok(weight)
    }

    /// The values of a weight in the run's precision.
    pub(crate) fn values<F: Real>(&self, name: &str, shape: &[usize]) -> Result<Vec<F>, OracleError> {
        Ok(self.stored(name, shape)?.values.iter().map(|&value| F::from_f32(value)).collect())
    }
}
