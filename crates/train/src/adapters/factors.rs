//! The two matrices of an adapter on the host.

use std::borrow::Cow;

use burn::tensor::{DType, Tensor, TensorData, backend::Backend};
use dsv41::LowRank;
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use sha2::{Digest as _, Sha256};

use super::targets::Target;

/// What an adapter adds to the matrix of one linear layer, `B A`, as files have it.
#[derive(Debug, Clone, PartialEq)]
pub struct Factors<'a> {
    /// `[rank, in]`
    pub a: Cow<'a, [f32]>,
    /// `[out, rank]`
    pub b: Cow<'a, [f32]>,
    /// The rank.
    pub rank: usize,
    /// `[out, in]`
    pub shape: [usize; 2],
}

impl Factors<'_> {
    /// Those of an adapter that has not learnt yet: A uniform within the inverse root of the number of inputs, which is
    /// [Kaiming's bound](https://arxiv.org/abs/1502.01852) for a slope of the root of 5, as PEFT has it, and B zero. Values
    /// follow from the seed and the layer's name, whatever the device and the other layers.
    pub(super) fn initial(target: &Target, rank: usize, seed: u64) -> Self {
        let [outputs, inputs] = target.shape;
        let bound = (inputs as f64).sqrt().recip() as f32;
        let mut random = generator(seed, &target.linear);
        let a = (0..rank * inputs).map(|_| (2.0 * random.random::<f32>() - 1.0) * bound).collect();
        Self { a, b: vec![0.0; outputs * rank].into(), rank, shape: target.shape }
    }

    /// An adapter of these values, multiplied by `scale`.
    pub(super) fn to_device<B: Backend>(
        &self,
        linear: &str,
        scale: f64,
        device: &B::Device,
        dtype: DType,
    ) -> LowRank<B> {
        let [outputs, inputs] = self.shape;
        let tensor = |stored: &[f32], [rows, columns]: [usize; 2]| {
            let data = TensorData::new(transpose(stored, columns), [columns, rows]);
            Tensor::from_data(data, (device, dtype))
        };
        LowRank::new(linear, tensor(&self.a, [self.rank, inputs]), tensor(&self.b, [outputs, self.rank]), scale)
    }

    /// Adds `scale * B A` to rows of the layer's matrix from `start` on. Products are summed in f64, so that of several
    /// additions each costs one rounding.
    ///
    /// # Panics
    /// When `rows` are not whole rows of the matrix.
    pub fn add_rows(&self, start: usize, scale: f64, rows: &mut [f32]) {
        let [outputs, inputs] = self.shape;
        assert!(rows.len().is_multiple_of(inputs) && start + rows.len() / inputs <= outputs, "rows of the matrix");
        let b = &self.b[start * self.rank..];
        rows.par_chunks_exact_mut(inputs).zip(b.par_chunks_exact(self.rank)).for_each(|(row, b)| {
            let mut sums = vec![0.0; inputs];
            for (&b, a) in b.iter().zip(self.a.chunks_exact(inputs)) {
                let factor = scale * f64::from(b);
                sums.iter_mut().zip(a).for_each(|(sum, &a)| *sum += factor * f64::from(a));
            }
            row.iter_mut().zip(sums).for_each(|(value, sum)| *value = (f64::from(*value) + sum) as f32);
        });
    }
}

/// `[rows, columns]` to `[columns, rows]`.
fn transpose(stored: &[f32], columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|column| stored[column..].iter().step_by(columns).copied()).collect()
}

/// The generator of one layer's first values.
fn generator(seed: u64, linear: &str) -> ChaCha8Rng {
    let mut sum = Sha256::new();
    sum.update(seed.to_le_bytes());
    sum.update(linear);
    ChaCha8Rng::from_seed(sum.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(linear: &str) -> Target {
        Target { linear: linear.to_owned(), shape: [3, 400] }
    }

    #[test]
    fn first_values_follow_from_seed_and_name_and_change_nothing() {
        let factors = Factors::initial(&target("a"), 2, 1);
        assert_eq!(factors, Factors::initial(&target("a"), 2, 1));
        assert_ne!(factors.a, Factors::initial(&target("b"), 2, 1).a);
        assert_ne!(factors.a, Factors::initial(&target("a"), 2, 2).a);
        assert_eq!(factors.b[..], [0.0; 6]);
        // Uniform up to 1/20: a variance of a third of its square.
        assert!(factors.a.iter().all(|value| value.abs() <= 0.05));
        let variance = factors.a.iter().map(|value| value * value).sum::<f32>() / 800.0;
        assert!((variance * 1200.0 - 1.0).abs() < 0.1, "{variance}");
        // Pinned: another value would change adapters that are made from a seed.
        assert_eq!(factors.a[0], 0.031_067_55);
    }

    #[test]
    fn rows_get_their_share_of_the_product() {
        let factors =
            Factors { a: vec![1.0, 2.0, 3.0, -1.0].into(), b: vec![1.0, 0.0, 0.5, 2.0].into(), rank: 2, shape: [2, 2] };
        let mut whole = vec![0.0; 4];
        factors.add_rows(0, 2.0, &mut whole);
        assert_eq!(whole, [2.0, 4.0, 13.0, -2.0]);
        let mut last = vec![10.0, 20.0];
        factors.add_rows(1, 2.0, &mut last);
        assert_eq!(last, [23.0, 18.0]);
    }
}
