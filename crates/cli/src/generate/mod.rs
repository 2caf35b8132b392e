//! `dsv41 generate`: text from a model.

mod console;
mod ids;
mod logits;

use std::io;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use bytesize::ByteSize;
use clap::{Args, ValueEnum};
use dsv41::{
    LogitsOf, ModelError, Numerics,
    generate::{Ending, GenerateOptions, SamplerOptions, Sequence, StopStrings, generate},
};
use dsv41_quant::kernel::Activations;
use dsv41_text::{Conversation, Message, StreamDecoder, Thinking, Tokenizer};

pub use console::ConsoleError;
pub use ids::{IdsError, parse_ids};

use crate::{
    adapters::{AdapterArgs, Adapters},
    device::DeviceName,
    interrupt::interruption,
    memory,
    model_source::{ModelSource, SourceOptions},
    numerics::NumericsArg,
    runner::{self, HostCall, Runner, RunnerOptions},
    threads,
};
use console::{Console, Shown, Speed};
use logits::LogitsFile;

/// What the built-in model is given where there is no prompt: eight pairs to remember, and then one key.
const SAMPLE_PROMPT: &str = "hjHQdxRLmpIYecFDcaIGmrAUjzZIybZI...............................?mp";
/// Tokens of the answer, `IY`.
const SAMPLE_ANSWER: usize = 2;
/// Tokens made where nothing else is said.
const MAX_TOKENS: usize = 128;

/// What to generate, from what, and how.
#[derive(Debug, Args)]
pub struct GenerateArgs {
    /// A GGUF file, any member of a shard set, or a configuration (its weights are then made from their names). Without
    /// one, a small built-in model of bytes.
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// A tokenizer.json to use instead of the vocabulary of the model's file.
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    #[command(flatten)]
    adapters: AdapterArgs,

    /// The text to go on from.
    #[arg(long, value_name = "TEXT", group = "input")]
    prompt: Option<String>,
    /// A file with the text to go on from.
    #[arg(long, value_name = "FILE", group = "input")]
    prompt_file: Option<PathBuf>,
    /// Token ids to go on from, between spaces or commas, or @FILE with a JSON list.
    #[arg(long, value_name = "IDS", group = "input")]
    ids: Option<String>,
    /// Take the prompt as a user's message in the chat form, and answer it.
    #[arg(long, conflicts_with = "ids")]
    chat: bool,
    /// The system message of the chat.
    #[arg(long, value_name = "TEXT", requires = "chat")]
    system: Option<String>,
    /// Let the model think before its answer.
    #[arg(long, requires = "chat")]
    think: bool,

    /// Tokens to make at most, by default 128; 0 runs the prompt alone.
    #[arg(long, value_name = "N")]
    max_tokens: Option<usize>,
    /// End the text before this string; may be given more than once.
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Positions that the cache has room for; by default what the prompt and the new tokens take.
    #[arg(long, value_name = "N")]
    context: Option<usize>,
    #[command(flatten)]
    sampling: SamplingArgs,

    /// Where to compute: ndarray, flex, wgpu[:N] or cuda[:N].
    #[arg(long, value_name = "DEVICE", default_value = "flex")]
    device: DeviceName,
    /// Round nowhere, as other programs for GGUF files do, or where the released kernels round.
    #[arg(long, value_enum, default_value_t = NumericsArg::Full)]
    numerics: NumericsArg,
    /// Leave activations as they are in products with packed matrices, or round them to 8 bits, for speed.
    #[arg(long, value_enum, default_value_t = ActivationsArg::F32)]
    activations: ActivationsArg,
    /// Tokens of the prompt that run at once.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..))]
    chunk: u32,
    /// Threads that compute; by default one for each core.
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Memory for the model's weights, such as 24GiB: experts used lately and engram rows are kept within it, others are
    /// read again when they are used.
    #[arg(long, value_name = "SIZE")]
    memory_limit: Option<ByteSize>,
    /// Write the logits here, as raw little-endian f32: a row for each token of the prompt, then for each one made.
    #[arg(long, value_name = "FILE")]
    logits: Option<PathBuf>,
}

/// How the next token is chosen: penalty, top-k, temperature, top-p, min-p, in this order.
#[derive(Debug, Args)]
struct SamplingArgs {
    /// Divisor of the logits; 0 takes the best token always.
    #[arg(long, value_name = "T", default_value_t = 0.0, allow_negative_numbers = true)]
    temperature: f64,
    /// Choose among this many of the best tokens; 0 for all.
    #[arg(long, value_name = "K", default_value_t = 0)]
    top_k: usize,
    /// Choose among the fewest best tokens whose probabilities sum to this.
    #[arg(long, value_name = "P", default_value_t = 1.0, allow_negative_numbers = true)]
    top_p: f64,
    /// Choose among tokens with at least this share of the best one's probability.
    #[arg(long, value_name = "P", default_value_t = 0.0, allow_negative_numbers = true)]
    min_p: f64,
    /// Make tokens seen before less likely: divides their positive logits, multiplies negative ones.
    #[arg(long, value_name = "R", default_value_t = 1.0, allow_negative_numbers = true)]
    repetition_penalty: f64,
    /// The same seed makes the same choices.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ActivationsArg {
    F32,
    Int8,
}

/// Generates as asked, on standard output; times go to standard error.
///
/// # Errors
/// Bad input, an absent device, a model that cannot be used, output that cannot be written.
pub fn run(args: &GenerateArgs) -> Result<()> {
    threads::compute(args.threads, || make_text(args))
}

fn make_text(args: &GenerateArgs) -> Result<()> {
    let source_options = SourceOptions { tokenizer: args.tokenizer.clone(), memory_limit: args.memory_limit };
    let source = ModelSource::open(args.model.as_deref(), &source_options)?;
    for note in source.notes() {
        eprintln!("note: {note}");
    }
    let prompt = prompt_ids(args, &source)?;
    let made = max_tokens(args);
    let capacity = args.context.unwrap_or(prompt.len().saturating_add(made));

    let adapters = match args.adapters.adapters.is_empty() {
        true => None,
        false => Some(Adapters::open(&args.adapters, source.config(), source.base()?)?),
    };
    let loading = crate::progress::spinner("loading");
    let options = RunnerOptions {
        activations: match args.activations {
            ActivationsArg::F32 => Activations::F32,
            ActivationsArg::Int8 => Activations::Int8,
        },
        token_map: source.token_map().map(<[u32]>::to_vec),
        adapters,
        ..RunnerOptions::default()
    };
    let mut model = runner::load(args.device, source.config(), source.weights(), options)?;
    model.begin(1, capacity, 0)?;
    loading.finish_and_clear();

    let interrupted = interruption()?;
    let logits = args.logits.as_deref().map(LogitsFile::create).transpose()?;
    let shown = source.tokenizer().map_or(Shown::Ids, |tokenizer| Shown::Text(StreamDecoder::new(tokenizer)));
    let stop = StopStrings::new(args.stop.clone());
    let mut console = Console::new(io::stdout().lock(), shown, stop, logits, prompt.len(), interrupted);
    let mut sequence = Continued { model: &mut *model, numerics: args.numerics.into() };
    let ending = generate(&mut sequence, &prompt, &generate_options(args, &source), &mut console);
    let speed = console.finish()?;
    let ending = ending?;
    report(&speed, ending, interrupted.load(Ordering::Relaxed), &source);
    Ok(())
}

fn generate_options(args: &GenerateArgs, source: &ModelSource) -> GenerateOptions {
    let SamplingArgs { temperature, top_k, top_p, min_p, repetition_penalty, seed } = args.sampling;
    GenerateOptions {
        max_tokens: max_tokens(args),
        chunk: args.chunk as usize,
        ends: source.end_of_text().into_iter().collect(),
        sampler: SamplerOptions { temperature, top_k, top_p, min_p, repetition_penalty, seed },
    }
}

/// Whether the built-in model is to show what it can.
fn is_sample(args: &GenerateArgs) -> bool {
    let GenerateArgs { model, prompt, prompt_file, ids, .. } = args;
    model.is_none() && prompt.is_none() && prompt_file.is_none() && ids.is_none()
}

fn max_tokens(args: &GenerateArgs) -> usize {
    args.max_tokens.unwrap_or(if is_sample(args) { SAMPLE_ANSWER } else { MAX_TOKENS })
}

/// The tokens to go on from.
fn prompt_ids(args: &GenerateArgs, source: &ModelSource) -> Result<Vec<u32>> {
    if let Some(ids) = &args.ids {
        return Ok(parse_ids(ids)?);
    }
    let text = match (&args.prompt, &args.prompt_file) {
        (Some(text), _) => text.clone(),
        (_, Some(path)) => {
            std::fs::read_to_string(path).with_context(|| format!("{}: cannot be read", path.display()))?
        }
        (None, None) if is_sample(args) => {
            eprintln!("prompt: {SAMPLE_PROMPT}");
            SAMPLE_PROMPT.to_owned()
        }
        (None, None) => bail!("nothing to go on from: give --prompt, --prompt-file or --ids"),
    };
    let Some(tokenizer) = source.tokenizer() else {
        let model = args.model.as_deref().map(|path| path.display().to_string()).unwrap_or_default();
        bail!("{model}: no vocabulary in this file: give --tokenizer with a tokenizer.json, or --ids instead of text");
    };
    let ids = if args.chat { chat_ids(args, tokenizer, text)? } else { text_ids(tokenizer, &text)? };
    let place = args.prompt_file.as_deref().map_or_else(|| "--prompt".to_owned(), |path| path.display().to_string());
    ensure!(!ids.is_empty(), "{place}: the prompt is empty");
    Ok(ids)
}

/// A bare text, behind the token that begins one where the tokenizer says so.
fn text_ids(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>> {
    let begin = tokenizer.bos().filter(|_| tokenizer.adds_bos());
    Ok(begin.into_iter().chain(tokenizer.encode(text)?).collect())
}

fn chat_ids(args: &GenerateArgs, tokenizer: &Tokenizer, text: String) -> Result<Vec<u32>> {
    let system = args.system.iter().map(Message::system);
    let conversation = Conversation::new(system.chain([Message::user(text)]).collect())?;
    let thinking = if args.think { Thinking::On } else { Thinking::Off };
    Ok(conversation.prompt(thinking)?.encode(tokenizer)?.ids)
}

/// A runner's one sequence.
struct Continued<'a> {
    model: &'a mut dyn Runner,
    numerics: Numerics,
}

impl Sequence for Continued<'_> {
    fn extend(&mut self, tokens: &[u32], logits: LogitsOf) -> Result<Vec<f32>, ModelError> {
        let call = HostCall { numerics: self.numerics, logits, ..HostCall::default() };
        let output = self.model.forward(&[tokens.to_vec()], call)?;
        Ok(output.logits.iter::<f32>().collect())
    }
}

/// One line for people who measure, on standard error.
fn report(speed: &Speed, ending: Ending, interrupted: bool, source: &ModelSource) {
    let rate = |tokens: usize, time: Duration| tokens as f64 / time.as_secs_f64().max(1e-9);
    let Speed { prompt_tokens, prompt_time, made, made_time, stopped } = *speed;
    let mut line = format!("prompt: {prompt_tokens} tokens, {:.1} tokens/s", rate(prompt_tokens, prompt_time));
    if made > 0 {
        line += &format!("; made: {made} tokens, {:.1} tokens/s", rate(made, made_time));
    }
    line += match ending {
        _ if interrupted => "; interrupted",
        _ if stopped => "; ended by a stop string",
        Ending::EndOfText(_) => "; ended by the model",
        Ending::MaxTokens | Ending::Observer => "",
    };
    if let Some(peak) = memory::peak() {
        line += &format!("; peak memory {}", ByteSize(peak).display().iec());
    }
    if let Some((wanted, hits)) = source.row_counts() {
        line += &format!("; engram rows {wanted}, {:.0}% from memory", 100.0 * hits as f64 / (wanted.max(1)) as f64);
    }
    eprintln!("{line}");
}
