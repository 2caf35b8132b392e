//! Attention of one head's query over a list of selected keys, which are the values too.

use crate::linear::{dot, sum};
use dsv41_golden::ProbsDtype;

use crate::{Numerics, Real, Switches};

/// Entries that share one running maximum in the released kernel.
const BLOCK: usize = 64;

/// What a query attends with.
pub(crate) struct SparseAttention {
    pub(crate) numerics: Numerics,
    pub(crate) probs_dtype: ProbsDtype,
}

impl SparseAttention {
    pub(crate) fn new(numerics: Numerics, switches: Switches) -> Self {
        Self { numerics, probs_dtype: switches.probs_dtype }
    }

    /// `softmax(q . k * d^-0.5) k` over the keys of `list`, with `sink`, an unscaled logit without a value, in the
    /// denominator. `None` entries hold a place in a block and nothing else; a list without a key gives zeros.
    ///
    /// The list is walked in blocks of 64: a probability is taken, and rounded to bf16, against the largest score so
    /// far, and what was summed before is rescaled when that grows. The denominator sums unrounded probabilities.
    /// [`Numerics::Full`] knows one block.
    pub(crate) fn attend<F: Real>(&self, q: &[F], list: &[Option<&[F]>], sink: F) -> Vec<F> {
        let scale = F::from_f64(1.0 / libm::sqrt(q.len() as f64));
        let block = match self.numerics {
            Numerics::Reference => BLOCK,
            Numerics::Full => list.len().max(1),
        };
        let mut max = F::NEG_INFINITY;
        let mut denominator = F::ZERO;
        let mut output = vec![F::ZERO; q.len()];
        for entries in list.chunks(block) {
            let keys: Vec<&[F]> = entries.iter().copied().flatten().collect();
            if keys.is_empty() {
                continue;
            }
            let scores: Vec<F> = keys.iter().map(|key| dot(q, key) * scale).collect();
            let grown = scores.iter().copied().fold(max, F::max);
            let rescale = (max - grown).exp();
            max = grown;

            let probabilities: Vec<F> = scores.iter().map(|&score| (score - max).exp()).collect();
            denominator = denominator * rescale + sum(probabilities.iter().copied());
            for (channel, output) in output.iter_mut().enumerate() {
                let values = keys.iter().zip(&probabilities).map(|(key, &p)| self.round(p) * key[channel]);
                *output = *output * rescale + sum(values);
            }
        }
        if max == F::NEG_INFINITY {
            return output;
        }
        denominator += (sink - max).exp();
        output.into_iter().map(|value| self.numerics.bf16(value / denominator)).collect()
    }

    fn round<F: Real>(&self, probability: F) -> F {
        match self.probs_dtype {
            ProbsDtype::Bf16 => self.numerics.bf16(probability),
            ProbsDtype::F32 => probability,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attention(numerics: Numerics) -> SparseAttention {
        SparseAttention::new(numerics, Switches::default())
    }

    #[test]
    fn a_row_that_selects_nothing_gives_zeros() {
        for numerics in [Numerics::Reference, Numerics::Full] {
            for list in [&[][..], &[None, None]] {
                assert_eq!(attention(numerics).attend(&[1.0f32, 2.0], list, 0.5), [0.0, 0.0]);
            }
        }
    }

    #[test]
    fn the_sink_is_an_unscaled_logit_without_a_value() {
        let (q, key) = ([2.0f64, 0.0, 0.0, 0.0], [3.0, 1.0, 0.0, -1.0]);
        // q . k = 6, d^-0.5 = 1/2.
        let share = 1.0 / (1.0 + (1.25f64 - 3.0).exp());
        let output = attention(Numerics::Full).attend(&q, &[Some(&key)], 1.25);
        for (output, key) in output.iter().zip(key) {
            assert!((output - share * key).abs() < 1e-15, "{output} {}", share * key);
        }
    }

    #[test]
    fn empty_entries_count_for_blocks_alone() {
        let keys: Vec<[f32; 2]> = (0..100).map(|i| [(i % 13) as f32 / 4.0, (i % 7) as f32 / 8.0]).collect();
        let q = [1.5f32, -0.75];
        let entries: Vec<Option<&[f32]>> = keys.iter().map(|key| Some(&key[..])).collect();
        let padded_after = [&entries[..60], &[None; 4], &entries[60..]].concat();
        let padded_before = [&[None; 4], &entries[..], &[None]].concat();
        let attention = attention(Numerics::Reference);
        let output = attention.attend(&q, &padded_after, 0.1);
        assert_eq!(output, attention.attend(&q, &padded_before, 0.1));
        assert_ne!(output, [0.0, 0.0]);
    }

    #[test]
    fn blocks_agree_with_one_softmax() {
        let keys: Vec<[f64; 2]> = (0..200).map(|i| [f64::from(i) / 50.0, f64::from(i % 7) / 8.0]).collect();
        let list: Vec<Option<&[f64]>> = keys.iter().map(|key| Some(&key[..])).collect();
        let unrounded = SparseAttention { numerics: Numerics::Reference, probs_dtype: ProbsDtype::F32 };
        let blocks = unrounded.attend(&[1.5, -0.75], &list, 0.1);
        let whole = attention(Numerics::Full).attend(&[1.5, -0.75], &list, 0.1);
        for (blocks, whole) in blocks.iter().zip(whole) {
            assert!((blocks - whole).abs() <= whole.abs() * 2f64.powi(-8), "{blocks} {whole}");
        }
    }
}
