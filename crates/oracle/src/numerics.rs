//! Where a run rounds, and which quirks of the released code it reproduces.

use dsv41_golden::{ProbsDtype, rounding};

use crate::{Real, quantise};

/// Where a run rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numerics {
    /// To bf16, fp8 and fp4 wherever the released kernels do.
    Reference,
    /// Nowhere: no bf16 step, no quantiser, one softmax over all selected positions. RoPE angles are f32 still.
    Full,
}

/// Behaviours of the released code that are switched off by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Switches {
    /// Score the keys of whichever source published last instead of the layer's own source.
    ///
    /// The released code keeps one reference to "the" index keys, set when a source completes a group. In a decode step
    /// between two group boundaries of a ratio > 1 source nothing is set, so its readers find the keys that the last
    /// source of the step before left there: the first `T` rows of another layer's cache (`T` is the number of the
    /// reader's own compressed positions; rows never written are zero). `released.json` shows it against `tiny.json` in
    /// `decode12` and `decode14`, where ratio-2 layer 2 completes no group: `shared.L2.index_k` holds the first rows of
    /// layer 4's keys, `L2.index_score` follows from them and with it the picks, while `shared.L2.compress_kv`, the
    /// attended stream, stays the layer's own. Outside such steps the last source to publish is the layer's own, so the
    /// rule needs no case for them.
    pub stale_index_keys: bool,
    /// Attend positions outside the candidate mask when fewer than `index_topk` are inside.
    ///
    /// The released code takes the best of all scores, minus infinity among them, and drops what is not visible yet
    /// (`t >= (pos + 1) / ratio`) but not what is masked. Masked positions are picked lowest first.
    pub keep_masked_picks: bool,
    /// What attention probabilities are rounded to in [`Numerics::Reference`] before they meet the values.
    pub probs_dtype: ProbsDtype,
}

impl Default for Switches {
    fn default() -> Self {
        Self { stale_index_keys: false, keep_masked_picks: false, probs_dtype: ProbsDtype::Bf16 }
    }
}

/// The roundings of the graph by the place they stand at. Each is the identity in [`Numerics::Full`].
impl Numerics {
    /// An activation to bf16.
    pub(crate) fn bf16<F: Real>(self, value: F) -> F {
        match self {
            Self::Reference => F::from_f32(rounding::bf16(value.to_f32())),
            Self::Full => value,
        }
    }

    /// Every element of a vector to bf16.
    pub(crate) fn bf16_all<F: Real>(self, values: &mut [F]) {
        for value in values {
            *value = self.bf16(*value);
        }
    }

    /// A window key, or the input of a linear whose weights are fp8 or fp4: fp8 in groups of 32.
    pub(crate) fn fp8<F: Real>(self, values: &mut [F]) {
        self.round_trip(values, quantise::FP8_GROUP, quantise::fp8);
    }

    /// An index query or key: fp4 with power-of-two scales in groups of 32.
    pub(crate) fn index_fp4<F: Real>(self, values: &mut [F]) {
        self.round_trip(values, quantise::INDEX_FP4_GROUP, quantise::index_fp4);
    }

    /// A compressed latent: fp4 with e4m3 scales in groups of 16.
    pub(crate) fn latent_fp4<F: Real>(self, values: &mut [F]) {
        self.round_trip(values, quantise::LATENT_FP4_GROUP, quantise::latent_fp4);
    }

    fn round_trip<F: Real>(self, values: &mut [F], group: usize, quantiser: fn(&mut [f32])) {
        if self == Self::Full {
            return;
        }
        for group in values.chunks_mut(group) {
            let mut rounded: Vec<f32> = group.iter().map(|value| value.to_f32()).collect();
            quantiser(&mut rounded);
            for (value, rounded) in group.iter_mut().zip(rounded) {
                *value = F::from_f32(rounded);
            }
        }
    }
}
