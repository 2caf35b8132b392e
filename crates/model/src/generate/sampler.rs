use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

/// How the next token is chosen from its logits.
///
/// In this order: the repetition penalty on logits, the `top_k` best, the temperature, then `top_p` and `min_p` on the
/// probabilities, and a draw from what is left.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplerOptions {
    /// Divisor of the logits; 0 takes the best token always.
    pub temperature: f64,
    /// Tokens that stay, the best ones; 0 for all.
    pub top_k: usize,
    /// The fewest best tokens stay whose probabilities sum to this; 1 for all.
    pub top_p: f64,
    /// Tokens stay whose probability is at least this share of the best one's; 0 for all.
    pub min_p: f64,
    /// Divides positive logits of tokens seen before and multiplies negative ones; 1 for none.
    pub repetition_penalty: f64,
    /// Where the draws begin: the same seed makes the same draws on every machine.
    pub seed: u64,
}

impl Default for SamplerOptions {
    fn default() -> Self {
        Self { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, repetition_penalty: 1.0, seed: 0 }
    }
}

/// Why no token can be chosen.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SampleError {
    /// An option out of its range.
    #[error("{option} is {found}: expected {expected}")]
    Option {
        /// The option's name.
        option: &'static str,
        /// What it is.
        found: f64,
        /// What it can be.
        expected: &'static str,
    },
    /// The logits hold a number that is none, or infinity.
    #[error("the logit of token {token} is {value}")]
    NotFinite {
        /// The first such token.
        token: usize,
        /// Its logit.
        value: f32,
    },
    /// There are no logits.
    #[error("there are no logits")]
    Empty,
}

/// Chooses tokens.
#[derive(Debug, Clone)]
pub struct Sampler {
    options: SamplerOptions,
    random: ChaCha8Rng,
}

/// A token that can still be chosen, with its logit or probability.
#[derive(Clone, Copy)]
struct Candidate {
    token: u32,
    value: f64,
}

impl Sampler {
    /// Takes the options.
    ///
    /// # Errors
    /// [`SampleError::Option`] for one out of its range.
    pub fn new(options: SamplerOptions) -> Result<Self, SampleError> {
        let check = |holds: bool, option, found, expected| {
            if holds { Ok(()) } else { Err(SampleError::Option { option, found, expected }) }
        };
        let SamplerOptions { temperature, top_p, min_p, repetition_penalty, .. } = options;
        check(temperature >= 0.0 && temperature.is_finite(), "temperature", temperature, "a number from 0")?;
        check(top_p > 0.0 && top_p <= 1.0, "top-p", top_p, "a number above 0, up to 1")?;
        check((0.0..=1.0).contains(&min_p), "min-p", min_p, "a number from 0 to 1")?;
        check(
            repetition_penalty > 0.0 && repetition_penalty.is_finite(),
            "repetition penalty",
            repetition_penalty,
            "a number above 0",
        )?;
        let random = ChaCha8Rng::seed_from_u64(options.seed);
        Ok(Self { options, random })
    }

    /// The next token after `previous`, from its `logits`, one for each id of the vocabulary. Equal logits: the lowest id
    /// counts as the better one.
    ///
    /// # Errors
    /// When there are no logits, or one is NaN or positive infinity; minus infinity excludes a token, as long as another
    /// is left.
    pub fn sample(&mut self, logits: &[f32], previous: &[u32]) -> Result<u32, SampleError> {
        let invalid = |value: &f32| value.is_nan() || *value == f32::INFINITY;
        if let Some(token) = logits.iter().position(invalid) {
            return Err(SampleError::NotFinite { token, value: logits[token] });
        }
        let mut candidates: Vec<Candidate> =
            (0..).zip(logits).map(|(token, &logit)| Candidate { token, value: logit.into() }).collect();
        self.penalise(&mut candidates, previous);
        candidates.retain(|candidate| candidate.value > f64::NEG_INFINITY);
        let best =
            candidates.iter().copied().reduce(|best, other| if before(&other, &best).is_lt() { other } else { best });
        let Some(best) = best else {
            return Err(match logits.first() {
                Some(&value) => SampleError::NotFinite { token: 0, value },
                None => SampleError::Empty,
            });
        };
        if self.options.temperature == 0.0 {
            return Ok(best.token);
        }
        self.keep_top_k(&mut candidates);
        let temperature = self.options.temperature;
        for candidate in &mut candidates {
            candidate.value = ((candidate.value - best.value) / temperature).exp();
        }
        self.keep_probable(&mut candidates);
        Ok(self.draw(&candidates))
    }

    fn penalise(&self, candidates: &mut [Candidate], previous: &[u32]) {
        let penalty = self.options.repetition_penalty;
        if penalty == 1.0 {
            return;
        }
        let mut seen = previous.to_vec();
        seen.sort_unstable();
        seen.dedup();
        for token in seen {
            if let Some(Candidate { value, .. }) = candidates.get_mut(token as usize) {
                *value = if *value > 0.0 { *value / penalty } else { *value * penalty };
            }
        }
    }

    fn keep_top_k(&self, candidates: &mut Vec<Candidate>) {
        let top_k = self.options.top_k;
        if top_k > 0 && top_k < candidates.len() {
            candidates.select_nth_unstable_by(top_k - 1, before);
            candidates.truncate(top_k);
        }
    }

    /// Keeps what `top_p` and `min_p` leave of unnormalised probabilities, of which the best is 1. The order in which
    /// they stay is the order of the draw: best first.
    fn keep_probable(&self, candidates: &mut Vec<Candidate>) {
        let SamplerOptions { top_p, min_p, .. } = self.options;
        let total: f64 = candidates.iter().map(|candidate| candidate.value).sum();
        candidates.retain(|candidate| candidate.value >= min_p);
        candidates.sort_unstable_by(before);
        if top_p < 1.0 {
            let mut sum = 0.0;
            let enough = candidates.iter().position(|candidate| {
                sum += candidate.value;
                sum >= top_p * total
            });
            candidates.truncate(enough.map_or(candidates.len(), |last| last + 1));
        }
    }

    fn draw(&mut self, candidates: &[Candidate]) -> u32 {
        let total: f64 = candidates.iter().map(|candidate| candidate.value).sum();
        let mut left = self.random.random::<f64>() * total;
        let chosen = candidates.iter().find(|candidate| {
            left -= candidate.value;
            left < 0.0
        });
        // Rounding can leave a rest behind the last one.
        chosen.unwrap_or(&candidates[candidates.len() - 1]).token
    }
}

/// The better candidate first, of equals the one with the lower id.
fn before(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    b.value.total_cmp(&a.value).then(a.token.cmp(&b.token))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> SamplerOptions {
        SamplerOptions { temperature: 1.0, ..SamplerOptions::default() }
    }

    /// How often each of four tokens is drawn in 20,000 draws, as shares.
    fn shares(options: SamplerOptions, logits: [f32; 4]) -> [f64; 4] {
        let mut sampler = Sampler::new(options).unwrap();
        let mut counts = [0.0; 4];
        for _ in 0..20_000 {
            counts[sampler.sample(&logits, &[]).unwrap() as usize] += 1.0 / 20_000.0;
        }
        counts
    }

    fn assert_shares(options: SamplerOptions, logits: [f32; 4], expected: [f64; 4]) {
        let found = shares(options, logits);
        for (found, expected) in found.iter().zip(expected) {
            // Five standard deviations of a share of one half.
            assert!((found - expected).abs() <= 5.0 * (0.25_f64 / 20_000.0).sqrt(), "{found} of {expected}");
            assert_eq!(*found == 0.0, expected == 0.0);
        }
    }

    /// Logits of the probabilities 0.5, 0.3, 0.15 and 0.05, in another order.
    fn logits() -> [f32; 4] {
        [0.15_f32.ln(), 0.5_f32.ln(), 0.05_f32.ln(), 0.3_f32.ln()]
    }

    #[test]
    fn draws_follow_the_softmax() {
        assert_shares(options(), logits(), [0.15, 0.5, 0.05, 0.3]);
    }

    #[test]
    fn a_temperature_of_one_half_squares_probabilities() {
        let total = 0.0225 + 0.25 + 0.0025 + 0.09;
        let expected = [0.0225 / total, 0.25 / total, 0.0025 / total, 0.09 / total];
        assert_shares(SamplerOptions { temperature: 0.5, ..options() }, logits(), expected);
    }

    #[test]
    fn top_k_keeps_the_best() {
        assert_shares(SamplerOptions { top_k: 2, ..options() }, logits(), [0.0, 0.625, 0.0, 0.375]);
        assert_shares(SamplerOptions { top_k: 4, ..options() }, logits(), [0.15, 0.5, 0.05, 0.3]);
    }

    #[test]
    fn top_p_keeps_the_fewest_that_suffice() {
        assert_shares(SamplerOptions { top_p: 0.79, ..options() }, logits(), [0.0, 0.625, 0.0, 0.375]);
        let expected = [0.15 / 0.95, 0.5 / 0.95, 0.0, 0.3 / 0.95];
        assert_shares(SamplerOptions { top_p: 0.81, ..options() }, logits(), expected);
        assert_shares(SamplerOptions { top_p: 0.01, ..options() }, logits(), [0.0, 1.0, 0.0, 0.0]);
    }

    #[test]
    fn min_p_measures_by_the_best() {
        assert_shares(SamplerOptions { min_p: 0.59, ..options() }, logits(), [0.0, 0.625, 0.0, 0.375]);
        assert_shares(SamplerOptions { min_p: 1.0, ..options() }, logits(), [0.0, 1.0, 0.0, 0.0]);
    }

    #[test]
    fn minus_infinity_excludes_a_token() {
        let [a, b, _, d] = logits();
        let expected = [0.15 / 0.95, 0.5 / 0.95, 0.0, 0.3 / 0.95];
        assert_shares(options(), [a, b, f32::NEG_INFINITY, d], expected);
    }

    #[test]
    fn the_best_token_is_the_first_of_equals() {
        let mut greedy = Sampler::new(SamplerOptions::default()).unwrap();
        assert_eq!(greedy.sample(&[0.0, 2.0, -1.0, 2.0], &[]), Ok(1));
        let mut one = Sampler::new(SamplerOptions { top_k: 1, ..options() }).unwrap();
        assert_eq!(one.sample(&[0.0, 2.0, -1.0, 2.0], &[]), Ok(1));
    }

    #[test]
    fn tokens_seen_before_are_less_likely() {
        let mut sampler =
            Sampler::new(SamplerOptions { repetition_penalty: 2.0, ..SamplerOptions::default() }).unwrap();
        assert_eq!(sampler.sample(&[1.0, 1.9, 1.5], &[]), Ok(1));
        assert_eq!(sampler.sample(&[1.0, 1.9, 1.5], &[1, 1]), Ok(2));
        assert_eq!(sampler.sample(&[-1.0, -1.9, -1.5], &[0]), Ok(2));
        assert_eq!(sampler.sample(&[1.0, 1.9, 1.5], &[1, 9]), Ok(2));
    }

    #[test]
    fn a_seed_makes_the_same_draws() {
        let draws = |seed| {
            let mut sampler = Sampler::new(SamplerOptions { seed, ..options() }).unwrap();
            (0..50).map(|_| sampler.sample(&logits(), &[]).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(draws(1), draws(1));
        assert_ne!(draws(1), draws(2));
    }

    #[test]
    fn logits_that_choose_nothing_are_errors() {
        let mut sampler = Sampler::new(options()).unwrap();
        assert_eq!(sampler.sample(&[], &[]), Err(SampleError::Empty));
        let error = sampler.sample(&[0.0, f32::NAN], &[]).unwrap_err();
        assert_eq!(error.to_string(), "the logit of token 1 is NaN");
        let error = sampler.sample(&[f32::NEG_INFINITY; 2], &[]).unwrap_err();
        assert_eq!(error.to_string(), "the logit of token 0 is -inf");
        assert!(sampler.sample(&[f32::INFINITY, 0.0], &[]).is_err());
    }

    #[test]
    fn options_have_ranges() {
        let message = |options| Sampler::new(options).unwrap_err().to_string();
        let temperature = SamplerOptions { temperature: -1.0, ..options() };
        assert_eq!(message(temperature), "temperature is -1: expected a number from 0");
        assert_eq!(
            message(SamplerOptions { top_p: 0.0, ..options() }),
            "top-p is 0: expected a number above 0, up to 1"
        );
        assert_eq!(message(SamplerOptions { min_p: 1.5, ..options() }), "min-p is 1.5: expected a number from 0 to 1");
        let penalty = SamplerOptions { repetition_penalty: f64::NAN, ..options() };
        assert_eq!(message(penalty), "repetition penalty is NaN: expected a number above 0");
    }
}
