//! Engram: n-grams of token ids hash into a table, and what is found there is added to the residual stream.

use dsv41_config::Config;
use dsv41_config::engram::EngramLayer;

use crate::linear::{Linear, sum};
use crate::load::Scope;
use crate::norm::inverse_rms;
use crate::{Numerics, OracleError, Real};

/// The table rows of the n-grams that end at `position` of a sequence: sizes 2 to the longest, heads within a size.
///
/// `tokens` are compressed ids from the start of the sequence on, `None` at image tokens. Looking back from
/// `position`, everything before the start, and everything at and beyond the first image token met, reads as `pad`.
///
/// # Panics
/// When `position` is beyond `tokens`, or `constants` are not those that
/// [`EngramConstants`](dsv41_config::engram::EngramConstants) makes for a vocabulary that has these ids: the products may
/// then exceed i64.
pub fn hash_ids(constants: &EngramLayer, pad: u32, tokens: &[Option<u32>], position: usize) -> Vec<i64> {
    // Fused: beyond an image token nothing is seen again.
    let mut look_back = tokens[..=position].iter().rev().map_while(|&token| token).fuse();
    let mut term = |multiplier: i64| i64::from(look_back.next().unwrap_or(pad)) * multiplier;

    let (&first, rest) = constants.multipliers.split_first().expect("n-grams have at least two tokens");
    let mut value = term(first);
    let mut slot = 0;
    let mut ids = Vec::with_capacity(constants.offsets.len());
    for (&multiplier, primes) in rest.iter().zip(&constants.primes) {
        value ^= term(multiplier);
        for &prime in primes {
            ids.push(value.rem_euclid(prime as i64) + constants.offsets[slot] as i64);
            slot += 1;
        }
    }
    ids
}

/// The engram of one layer.
pub(crate) struct Engram<F> {
    copies: usize,
    dim: usize,
    eps: F,
    pad: u32,
    constants: EngramLayer,
    /// `[rows, engram_head_dim]`
    table: Vec<F>,
    row_width: usize,
    wkv: Linear<F>,
    /// `[C, D]`, the unrounded product of the query's and the key's weight.
    weight: Vec<F>,
}

/// What one token's engram found.
pub(crate) struct Lookup<F> {
    /// `[slots, engram_head_dim]`: the table rows.
    pub(crate) rows: Vec<F>,
    /// `[(C + 1) * D]`: a key for each copy, then the value.
    pub(crate) kv: Vec<F>,
}

impl<F: Real> Engram<F> {
    pub(crate) fn load(scope: &Scope, config: &Config, constants: EngramLayer) -> Result<Self, OracleError> {
        let (copies, dim, row_width) = (config.hc_mult, config.dim, config.engram_head_dim);
        let q_weight: Vec<F> = scope.values("q_weight", &[copies, dim])?;
        let k_weight: Vec<F> = scope.values("k_weight", &[copies, dim])?;
        Ok(Self {
            copies,
            dim,
            eps: F::from_f64(config.norm_eps),
            pad: config.engram_pad_id as u32,
            table: scope.values("embed.weight", &[constants.rows as usize, row_width])?,
            row_width,
            wkv: Linear::load(scope, "wkv", (copies + 1) * dim, constants.offsets.len() * row_width)?,
            weight: q_weight.into_iter().zip(k_weight).map(|(q, k)| q * k).collect(),
            constants,
        })
    }

    /// The hash ids of the newest of `tokens`, the sequence from its start on. The token map is the identity.
    pub(crate) fn hash(&self, tokens: &[Option<u32>], position: usize) -> Vec<i64> {
        hash_ids(&self.constants, self.pad, tokens, position)
    }

    /// Reads the rows of `ids` and projects them.
    pub(crate) fn look_up(&self, ids: &[i64], numerics: Numerics) -> Lookup<F> {
        let mut rows: Vec<F> =
            ids.iter().flat_map(|&id| &self.table[id as usize * self.row_width..][..self.row_width]).copied().collect();
        numerics.bf16_all(&mut rows);
        let kv = self.wkv.forward(&rows, numerics);
        Lookup { rows, kv }
    }

    /// The stream `h`, `[C * D]`, with the gated value added to each copy.
    pub(crate) fn add(&self, h: &[F], kv: &[F], numerics: Numerics) -> Vec<F> {
        let (keys, value) = kv.split_at(self.copies * self.dim);
        let copies = h.chunks_exact(self.dim).zip(keys.chunks_exact(self.dim)).zip(self.weight.chunks_exact(self.dim));
        copies
            .flat_map(|((h, key), weight)| {
                let gate = self.gate(h, key, weight);
                h.iter().zip(value).map(move |(&h, &value)| numerics.bf16(h + gate * value))
            })
            .collect()
    }

    /// How much of the value one copy takes: a sigmoid of the normed dot product's signed square root.
    fn gate(&self, h: &[F], key: &[F], weight: &[F]) -> F {
        let product = sum(h.iter().zip(weight).zip(key).map(|((&h, &weight), &key)| h * weight * key));
        let scale = F::from_f64(1.0 / libm::sqrt(self.dim as f64));
        let dot = product * inverse_rms(h, self.eps) * inverse_rms(key, self.eps) * scale;
        dot.abs().max(F::from_f64(1e-6)).sqrt().copysign(dot).sigmoid()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bigrams and trigrams with one head each, whose primes are too large to wrap anything here.
    fn constants() -> EngramLayer {
        EngramLayer {
            layer: 0,
            primes: vec![vec![1_000_003], vec![1_000_033]],
            offsets: vec![0, 1_000_003],
            multipliers: vec![1, 3, 5],
            rows: 2_000_036,
        }
    }

    #[test]
    fn grams_grow_backwards_from_the_position() {
        let tokens = [7, 11, 13].map(Some);
        let ids = |position| hash_ids(&constants(), 2, &tokens, position);
        assert_eq!(ids(2), [13 ^ 33, 1_000_003 + (13 ^ 33 ^ 35)]);
        assert_eq!(ids(1), [11 ^ 21, 1_000_003 + (11 ^ 21 ^ 10)], "before the start stands the pad");
        assert_eq!(ids(0), [7 ^ 6, 1_000_003 + (7 ^ 6 ^ 10)]);
    }

    #[test]
    fn nothing_is_seen_at_or_beyond_an_image() {
        let tokens = [Some(7), None, Some(13), Some(17)];
        let ids = |position| hash_ids(&constants(), 2, &tokens, position);
        assert_eq!(ids(3), [17 ^ 39, 1_000_003 + (17 ^ 39 ^ 10)]);
        assert_eq!(ids(2), [13 ^ 6, 1_000_003 + (13 ^ 6 ^ 10)]);
        assert_eq!(ids(1), [2 ^ 6, 1_000_003 + (2 ^ 6 ^ 10)]);
    }
}
