//! Matrix products with one row of activations.

use dsv41_golden::StoredAs;

use crate::load::Scope;
use crate::{Numerics, OracleError, Real, quantise};

/// `y = W x` without a bias, `W` of `[outputs, inputs]`.
pub(crate) struct Linear<F> {
    inputs: usize,
    values: Vec<F>,
    /// Stored as fp8 or fp4: the kernels quantise the input too, and sum 32 products at a time.
    quantised: bool,
}

impl<F: Real> Linear<F> {
    /// The weight `name.weight`.
    pub(crate) fn load(scope: &Scope, name: &str, outputs: usize, inputs: usize) -> Result<Self, OracleError> {
        Self::load_tensor(scope, &format!("{name}.weight"), outputs, inputs)
    }

    /// The weight under its full name.
    pub(crate) fn load_tensor(scope: &Scope, name: &str, outputs: usize, inputs: usize) -> Result<Self, OracleError> {
        let stored = scope.stored(name, &[outputs, inputs])?;
        Ok(Self {
            inputs,
            values: stored.values.iter().map(|&value| F::from_f32(value)).collect(),
            quantised: matches!(stored.stored_as, StoredAs::Fp8 | StoredAs::Fp4),
        })
    }

    /// A matrix of bf16 or f32 values.
    #[cfg(test)]
    pub(crate) fn of(inputs: usize, values: Vec<F>) -> Self {
        Self { inputs, values, quantised: false }
    }

    /// The matrix cut into `groups` of as many consecutive outputs.
    pub(crate) fn split(self, groups: usize) -> Vec<Self> {
        let (inputs, quantised) = (self.inputs, self.quantised);
        let group = self.values.len() / groups;
        self.values.chunks_exact(group).map(|values| Self { inputs, values: values.to_vec(), quantised }).collect()
    }

    /// The product rounded to bf16, as every linear of the graph whose weights are not f32 gives it.
    pub(crate) fn forward(&self, x: &[F], numerics: Numerics) -> Vec<F> {
        let mut y = if self.quantised && numerics == Numerics::Reference {
            let mut x = x.to_vec();
            numerics.fp8(&mut x);
            // The kernels scale each partial sum; here the scales are in the factors. Scales are powers of two, so the
            // sums are the same.
            self.rows().map(|row| partial_sums(row, &x)).collect()
        } else {
            self.project(x)
        };
        numerics.bf16_all(&mut y);
        y
    }

    /// The unrounded product: f32 weights, and the router.
    pub(crate) fn project(&self, x: &[F]) -> Vec<F> {
        self.rows().map(|row| dot(row, x)).collect()
    }

    fn rows(&self) -> impl Iterator<Item = &[F]> {
        self.values.chunks_exact(self.inputs)
    }
}

/// The sum of `terms` in order, one after the other.
pub(crate) fn sum<F: Real>(terms: impl IntoIterator<Item = F>) -> F {
    terms.into_iter().fold(F::ZERO, |sum, term| sum + term)
}

/// The [`sum`] of products.
pub(crate) fn dot<F: Real>(a: &[F], b: &[F]) -> F {
    debug_assert_eq!(a.len(), b.len());
    sum(a.iter().zip(b).map(|(&a, &b)| a * b))
}

/// The sum, in order, of the [`dot`]s of each 32 inputs.
fn partial_sums<F: Real>(a: &[F], b: &[F]) -> F {
    let group = quantise::FP8_GROUP;
    sum(a.chunks(group).zip(b.chunks(group)).map(|(a, b)| dot(a, b)))
}
