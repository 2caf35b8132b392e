//! How far a run may be from a golden, by check and capture.
//!
//! The quantisers make a free run chaotic: one f32 ulp in a mix flips a bf16, then an fp4 code, then a pick, and
//! everything after differs. Hence three checks: every layer fed the golden's exact input; the whole run with the
//! golden's selections; and the whole run alone.

use serde::Serialize;

/// The largest error of a value that one more or one less rounding explains, in bf16 steps of the capture.
const STEPS: f64 = 2.0;

/// Of index scores: one flipped code of a key moves a dot product by a few steps.
const INDEX_SCORE_STEPS: f64 = 8.0;

/// Of the mixes before the attention, which only f32 arithmetic separates from the layer's input.
const ATTENTION_MIX: f64 = 1e-5;

/// Of the mixes before the feed-forward part, which come after `attn_out`.
const FEED_FORWARD_MIX: f64 = 2e-3;

/// Of a checksum, relative to the index-weighted magnitude: one bf16 rounding of every value, all one way.
const CHECKSUM: f64 = 1.0 / 256.0;

/// Which groups may hold other codes: one in this many, and at least one.
const GROUPS_FOR_ONE_FLIP: usize = 32;

/// How a run was driven.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// Every layer got the golden's `h_in`, `pre_mix_in` and selections.
    Fed,
    /// From the token ids on, with the golden's selections.
    Forced,
    /// From the token ids on, alone.
    Free,
}

/// A tolerance.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// Equal.
    Exact,
    /// Largest error, in bf16 steps of the capture.
    Steps(f64),
    /// Largest error.
    Absolute(f64),
    /// Root of the summed squared errors over that of the golden's values.
    RelativeL2(f64),
    /// As [`Bound::Steps`] with two steps, but in few groups by one quantiser code.
    Codes(Codes),
    /// The golden's choice among logits is the run's, or within that many steps on either side of it.
    Argmax(f64),
}

/// The tolerances of one capture. What has none is reported, not judged.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Bounds {
    /// Of the values.
    pub value: Option<Bound>,
    /// Of the checksum, relative to the sum of `|value| * (index + 1)`.
    pub checksum: Option<f64>,
}

impl Bounds {
    /// Reported, not judged.
    pub const UNJUDGED: Self = Self { value: None, checksum: None };

    const EXACT: Self = Self { value: Some(Bound::Exact), checksum: Some(0.0) };

    fn value(bound: Bound) -> Self {
        Self { value: Some(bound), checksum: None }
    }
}

/// Which quantisers made a capture's values.
///
/// A value on the edge between two codes may land on either side, and a group's largest value on the edge between two
/// scales may move the grid of its whole group. Both show as differences of at most one code, rarely: they are counted
/// by group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Codes {
    /// Window keys (fp8), then compressed latents (fp4): `[B, rows, d]`.
    KeysValues {
        /// Rows of window keys.
        window_rows: usize,
    },
    /// Compressed latents: fp4 with e4m3 scales.
    Latents,
    /// Index keys: fp4 with power-of-two scales.
    IndexKeys,
}

impl Codes {
    /// Which bf16 steps a value may be off without another code.
    pub(crate) const STEPS: f64 = STEPS;

    /// How many of `groups` may hold other codes.
    pub(crate) fn few(groups: usize) -> usize {
        (groups / GROUPS_FOR_ONE_FLIP).max(1)
    }

    /// What quantised element `index` of a tensor of that shape.
    pub(crate) fn quantiser(self, shape: &[usize], index: usize) -> Quantiser {
        match self {
            Self::KeysValues { window_rows } => match *shape {
                [.., rows, columns] if index / columns % rows >= window_rows => Quantiser::Fp4Groups16,
                _ => Quantiser::Fp8Groups32,
            },
            Self::Latents => Quantiser::Fp4Groups16,
            Self::IndexKeys => Quantiser::Fp4Groups32,
        }
    }
}

/// A format of quantised activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quantiser {
    Fp8Groups32,
    Fp4Groups16,
    Fp4Groups32,
}

impl Quantiser {
    /// Elements that share a scale.
    pub(crate) fn group(self) -> usize {
        match self {
            Self::Fp8Groups32 | Self::Fp4Groups32 => 32,
            Self::Fp4Groups16 => 16,
        }
    }

    /// How far apart one code (or one scale) can put a value whose larger outcome is `larger`, in a group whose largest
    /// value is `largest`.
    ///
    /// e4m3 has at least eight codes to a power of two. Of e2m1, neighbours above 2 differ by a third of the larger one
    /// at most (6 and 4, 3 and 2), and those up to 2 by half a scale, a sixth of the largest value if that is 3.
    pub(crate) fn one_code(self, larger: f64, largest: f64) -> f64 {
        match self {
            Self::Fp8Groups32 => larger / 8.0,
            Self::Fp4Groups16 | Self::Fp4Groups32 => (larger / 3.0).max(largest / 6.0),
        }
    }
}

impl Check {
    /// The tolerances of a capture. `window_rows` is where compressed latents start in `sa_kv`
    /// ([`RegimeCall::window_rows`](crate::RegimeCall::window_rows)).
    pub fn bounds(self, capture: &str, window_rows: usize) -> Bounds {
        let last = capture.rsplit_once('.').map_or(capture, |(_, last)| last);
        match self {
            Self::Fed => fed(last, window_rows),
            Self::Forced => forced(last),
            Self::Free => free(last),
        }
    }
}

fn fed(capture: &str, window_rows: usize) -> Bounds {
    let bound = match capture {
        "next_ids" => return free(capture),
        integers if crate::capture::holds_integers(integers) => return Bounds::EXACT,
        "sa_kv" => Bound::Codes(Codes::KeysValues { window_rows }),
        "compress_kv" => Bound::Codes(Codes::Latents),
        "index_k" => Bound::Codes(Codes::IndexKeys),
        "index_score" => Bound::Steps(INDEX_SCORE_STEPS),
        "attn_pre" | "attn_post" | "attn_comb" => Bound::Absolute(ATTENTION_MIX),
        "ffn_pre" | "ffn_post" | "ffn_comb" | "pre_mix_out" => Bound::Absolute(FEED_FORWARD_MIX),
        _ => Bound::Steps(STEPS),
    };
    Bounds { value: Some(bound), checksum: Some(CHECKSUM) }
}

fn forced(capture: &str) -> Bounds {
    match capture {
        // Token ids alone decide these.
        "input_ids" | "engram_hashes" | "engram_hash_ids" => Bounds::EXACT,
        "h_out" | "logits" | "logits_full" => Bounds::value(Bound::RelativeL2(0.05)),
        "attn_out" | "ffn_out" => Bounds::value(Bound::RelativeL2(0.2)),
        _ => Bounds::UNJUDGED,
    }
}

fn free(capture: &str) -> Bounds {
    match capture {
        "next_ids" => Bounds::value(Bound::Argmax(STEPS)),
        integers if crate::capture::holds_integers(integers) => Bounds::EXACT,
        _ => Bounds::value(Bound::Steps(STEPS)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rounding::{E2M1, e4m3};

    #[test]
    fn neighbouring_codes_are_within_one_code() {
        for mantissa in 8..16_u8 {
            let [low, high] = [f64::from(mantissa), f64::from(mantissa) + 1.0];
            assert_eq!([e4m3(low as f32), e4m3(high as f32)].map(f64::from), [low, high], "both are codes");
            assert!(high - low <= Quantiser::Fp8Groups32.one_code(high, 448.0), "{low} {high}");
        }
        for pair in E2M1.windows(2) {
            let [low, high] = [f64::from(pair[0]), f64::from(pair[1])];
            // The largest value of a group is at least 3 scales, since a smaller scale would have done otherwise.
            assert!(high - low <= Quantiser::Fp4Groups32.one_code(high, 3.0), "{low} {high}");
        }
    }

    #[test]
    fn keys_and_latents_have_their_own_quantisers() {
        let codes = Codes::KeysValues { window_rows: 2 };
        let shape = [2, 3, 32];
        assert_eq!(codes.quantiser(&shape, 63), Quantiser::Fp8Groups32);
        assert_eq!(codes.quantiser(&shape, 64), Quantiser::Fp4Groups16);
        assert_eq!(codes.quantiser(&shape, 96), Quantiser::Fp8Groups32);
    }

    #[test]
    fn captures_have_the_bounds_of_their_check() {
        let fed = |capture| Check::Fed.bounds(capture, 8);
        assert_eq!(fed("L0.h_out"), Bounds { value: Some(Bound::Steps(2.0)), checksum: Some(1.0 / 256.0) });
        assert_eq!(fed("L0.moe_indices"), Bounds::EXACT);
        assert_eq!(fed("L0.sa_kv").value, Some(Bound::Codes(Codes::KeysValues { window_rows: 8 })));
        assert_eq!(fed("L0.attn_comb").value, Some(Bound::Absolute(1e-5)));
        assert_eq!(fed("L0.pre_mix_out").value, Some(Bound::Absolute(2e-3)));
        assert_eq!(Check::Forced.bounds("L0.h_out", 8).value, Some(Bound::RelativeL2(0.05)));
        assert_eq!(Check::Forced.bounds("L0.sa_o", 8), Bounds::UNJUDGED);
        assert_eq!(Check::Free.bounds("logits", 8).value, Some(Bound::Steps(2.0)));
        assert_eq!(Check::Free.bounds("L4.sa_topk_idxs", 8), Bounds::EXACT);
    }
}
