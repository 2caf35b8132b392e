//! From tokens to table rows, on the host and in 64-bit integers.

use dsv41_config::{
    Config, ConfigError,
    engram::{EngramConstants, EngramLayer},
};

/// Hashes every position's n-grams for each engram layer.
#[derive(Debug, Clone)]
pub struct NgramHasher {
    layers: Vec<EngramLayer>,
    max_ngram: usize,
    /// Compressed id of each token; the identity where absent.
    token_map: Option<Vec<u32>>,
    pad: i64,
}

impl NgramHasher {
    /// Derives the constants of the hash. `token_map` gives each token's compressed id; without one, ids are taken as
    /// they are.
    ///
    /// # Errors
    /// When no constants exist for this configuration.
    pub fn new(config: &Config, token_map: Option<Vec<u32>>) -> Result<Self, ConfigError> {
        let mut hasher = Self {
            layers: EngramConstants::new(config)?.layers,
            max_ngram: config.engram_max_ngram_size,
            token_map,
            pad: 0,
        };
        hasher.pad = hasher.compressed(config.engram_pad_id as u32);
        Ok(hasher)
    }

    /// Rows that each position looks up in a layer's table.
    pub fn slots(&self, slot: usize) -> usize {
        self.layers[slot].offsets.len()
    }

    /// Tokens before a position that its longest n-gram reaches.
    pub fn look_back(&self) -> usize {
        self.max_ngram.saturating_sub(1)
    }

    /// The table rows of the engram layer at place `slot`, `[S, slots]`, for `tokens` of one sequence of which the first
    /// `context` only serve as look-back. `None` stands for a token of an image: the look-back reads pad there and
    /// beyond, as it does before the first token given.
    ///
    /// The n-gram that ends at a position has the value `c_0 m_0 ^ c_1 m_1 ^ ..`, newest token first; a head's row is
    /// that value modulo its prime, plus its offset. Columns: n-gram size major, head minor.
    pub fn rows(&self, slot: usize, tokens: &[Option<u32>], context: usize) -> Vec<i64> {
        let layer = &self.layers[slot];
        let mut rows = Vec::with_capacity((tokens.len() - context) * layer.offsets.len());
        for position in context..tokens.len() {
            let mut reached_end = false;
            let mut offsets = layer.offsets.iter();
            let mut value = 0;
            for (back, multiplier) in layer.multipliers.iter().enumerate() {
                let token = position.checked_sub(back).and_then(|at| tokens[at]);
                reached_end |= token.is_none();
                let id = token.filter(|_| !reached_end).map_or(self.pad, |token| self.compressed(token));
                value ^= id * multiplier;
                if back > 0 {
                    let heads = layer.primes[back - 1].iter().zip(&mut offsets);
                    rows.extend(heads.map(|(&prime, &offset)| value % prime as i64 + offset as i64));
                }
            }
        }
        rows
    }

    fn compressed(&self, token: u32) -> i64 {
        self.token_map.as_ref().map_or(i64::from(token), |map| i64::from(map[token as usize]))
    }
}
