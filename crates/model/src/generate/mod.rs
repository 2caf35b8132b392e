//! Text after text: a prompt in chunks, then one sampled token after another.

mod sampler;
mod stop;

use std::ops::ControlFlow;

use burn::tensor::backend::Backend;

pub use sampler::{SampleError, Sampler, SamplerOptions};
pub use stop::{StopPiece, StopStrings};

use crate::{Cache, Call, LogitsOf, ModelBackend, ModelError, Numerics, Transformer};

/// Why a generation cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// The model refuses the call.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// No token can be chosen.
    #[error(transparent)]
    Sample(#[from] SampleError),
}

/// One sequence of a model, which takes tokens and says what it expects next.
pub trait Sequence {
    /// Appends `tokens`: the logits after each of them, or after the last alone, row-major `[rows, vocab]`.
    ///
    /// # Errors
    /// As [`Transformer::forward`]; the sequence is then as it was.
    fn extend(&mut self, tokens: &[u32], logits: LogitsOf) -> Result<Vec<f32>, ModelError>;
}

/// A sequence of a model on its device.
pub struct Session<'a, B: Backend> {
    model: &'a Transformer<B>,
    cache: Cache<B>,
    numerics: Numerics,
}

impl<'a, B: ModelBackend> Session<'a, B> {
    /// An empty sequence of at most `capacity` tokens.
    ///
    /// # Errors
    /// As [`Cache::new`].
    pub fn new(model: &'a Transformer<B>, capacity: usize, numerics: Numerics) -> Result<Self, ModelError> {
        Ok(Self { model, cache: Cache::new(model.config(), 1, capacity, 0)?, numerics })
    }
}

impl<B: ModelBackend> Sequence for Session<'_, B> {
    fn extend(&mut self, tokens: &[u32], logits: LogitsOf) -> Result<Vec<f32>, ModelError> {
        let call = Call { numerics: self.numerics, logits, ..Call::default() };
        let output = self.model.forward(&[tokens.to_vec()], Some(&mut self.cache), call)?;
        Ok(output.logits.into_data().iter::<f32>().collect())
    }
}

/// What to generate.
#[derive(Debug, Clone)]
pub struct GenerateOptions {
    /// Tokens to make at most; none runs the prompt alone.
    pub max_tokens: usize,
    /// Tokens of the prompt that run at once.
    pub chunk: usize,
    /// Tokens that end the text.
    pub ends: Vec<u32>,
    /// How tokens are chosen.
    pub sampler: SamplerOptions,
}

/// Sees a generation while it is made.
pub trait Observer {
    /// Whether logits after every token of the prompt are wanted; otherwise only those that choose tokens are computed.
    fn wants_prompt_logits(&self) -> bool {
        false
    }

    /// Sees logits, `[vocab]`: of the prompt's tokens in turn where wanted, then of each token made.
    ///
    /// # Errors
    /// Whatever ends the generation.
    fn logits(&mut self, _row: &[f32]) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    /// Hears that `done` tokens of the prompt have run.
    fn prefilled(&mut self, _done: usize) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    /// Sees a token made, which is not one that ends the text.
    fn token(&mut self, _token: u32) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The model made a token that ends the text.
    EndOfText(u32),
    /// As many tokens as asked for.
    MaxTokens,
    /// The observer said so.
    Observer,
}

/// Runs `prompt` and makes tokens after it.
///
/// # Errors
/// When the model refuses a call (a prompt that does not fit its context, an id it does not have) or its logits choose
/// nothing. Tokens that the observer saw before stay good.
pub fn generate(
    sequence: &mut dyn Sequence,
    prompt: &[u32],
    options: &GenerateOptions,
    observer: &mut dyn Observer,
) -> Result<Ending, GenerateError> {
    let mut sampler = Sampler::new(options.sampler.clone())?;
    let mut tokens = prompt.to_vec();
    let mut last = Vec::new();
    let mut done = 0;
    if prompt.is_empty() {
        return Err(ModelError::NoTokens.into());
    }
    let wanted = if observer.wants_prompt_logits() { LogitsOf::Every } else { LogitsOf::Last };
    for chunk in prompt.chunks(options.chunk.max(1)) {
        let rows = sequence.extend(chunk, wanted)?;
        done += chunk.len();
        let vocab = rows.len() / if wanted == LogitsOf::Every { chunk.len() } else { 1 };
        if wanted == LogitsOf::Every {
            for row in rows.chunks_exact(vocab) {
                if observer.logits(row).is_break() {
                    return Ok(Ending::Observer);
                }
            }
        }
        last = rows[rows.len() - vocab..].to_vec();
        if observer.prefilled(done).is_break() {
            return Ok(Ending::Observer);
        }
    }
    for made in 1..=options.max_tokens {
        let token = sampler.sample(&last, &tokens)?;
        if options.ends.contains(&token) {
            return Ok(Ending::EndOfText(token));
        }
        tokens.push(token);
        if observer.token(token).is_break() {
            return Ok(Ending::Observer);
        }
        // The last token's own logits choose nothing, but whoever looks at logits may want them.
        if made < options.max_tokens || observer.wants_prompt_logits() {
            last = sequence.extend(&[token], LogitsOf::Last)?;
            if observer.logits(&last).is_break() {
                return Ok(Ending::Observer);
            }
        }
    }
    Ok(Ending::MaxTokens)
}
