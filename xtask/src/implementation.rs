//! The two implementations of the graph behind one interface.

use std::collections::BTreeMap;

use anyhow::Result;
use dsv41_cli::weights::GoldenWeights;
use dsv41_config::Config;
use dsv41_golden::{Captures, Fixture, ProbsDtype, Recorded, Selections};
use dsv41_oracle::{Cache, Numerics, Oracle, Real, Switches};

/// What one call gives.
pub struct Step {
    /// Every capture that golden files have, whole.
    pub captures: Captures,
    /// What the layers' own scores chose.
    pub own: Selections,
    /// Masked index scores by layer, `[B, S, T]`, minus infinity where hidden.
    pub index_scores: BTreeMap<usize, Recorded>,
    /// Router scores plus bias by layer, `[N, E]`.
    pub router_scores: BTreeMap<usize, Recorded>,
}

/// An implementation of the graph with a sequence under way.
pub trait Implementation {
    /// Starts `batch` sequences anew, of which up to `rollback` tokens can be taken back.
    fn begin(&mut self, batch: usize, rollback: usize) -> Result<()>;

    /// Takes back all but the first `len` tokens of each sequence.
    fn truncate(&mut self, len: usize) -> Result<()>;

    /// Runs the next tokens, one row a sequence. `selections` are forced; where `feed` has a layer's `engram_in`, `h_in`
    /// or `pre_mix_in`, the stream takes its value there.
    fn step(&mut self, tokens: &[Vec<u32>], selections: Option<&Selections>, feed: Option<&Captures>) -> Result<Step>;
}

/// The scalar implementation.
pub struct OracleRun<F> {
    oracle: Oracle<F>,
    cache: Cache<F>,
}

impl OracleRun<f32> {
    /// The oracle of a fixture, computing as the released code does.
    pub fn new(config: &Config, weights: &GoldenWeights, fixture: &Fixture) -> Result<Self> {
        Self::with_numerics(config, weights, fixture, Numerics::Reference)
    }
}

impl<F: Real> OracleRun<F> {
    /// The oracle of a fixture in numerics and precision of choice.
    pub fn with_numerics(
        config: &Config,
        weights: &GoldenWeights,
        fixture: &Fixture,
        numerics: Numerics,
    ) -> Result<Self> {
        let switches = Switches {
            stale_index_keys: fixture.stale_index_keys,
            keep_masked_picks: fixture.keep_masked_picks,
            probs_dtype: match fixture.probs_dtype {
                ProbsDtype::Bf16 => dsv41_oracle::ProbsDtype::Bf16,
                ProbsDtype::F32 => dsv41_oracle::ProbsDtype::F32,
            },
        };
        let oracle = Oracle::new(config, &weights.0, numerics, switches)?;
        let cache = oracle.cache(fixture.batch, 0);
        Ok(Self { oracle, cache })
    }
}

impl<F: Real> Implementation for OracleRun<F> {
    fn begin(&mut self, batch: usize, rollback: usize) -> Result<()> {
        self.cache = self.oracle.cache(batch, rollback);
        Ok(())
    }

    fn truncate(&mut self, len: usize) -> Result<()> {
        Ok(self.cache.truncate(len)?)
    }

    fn step(&mut self, tokens: &[Vec<u32>], selections: Option<&Selections>, feed: Option<&Captures>) -> Result<Step> {
        let call = dsv41_oracle::Call { selections, feed, capture: true };
        let output = self.oracle.forward(tokens, &mut self.cache, call)?;
        Ok(Step {
            captures: output.captures,
            own: output.own,
            index_scores: output.index_scores,
            router_scores: output.router_scores,
        })
    }
}
