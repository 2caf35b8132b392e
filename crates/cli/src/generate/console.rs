use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dsv41::generate::{Observer, StopStrings};
use dsv41_text::{StreamDecoder, TextError};
use indicatif::{ProgressBar, ProgressStyle};

use super::logits::LogitsFile;

/// How tokens are shown.
pub(crate) enum Shown<'a> {
    /// As text.
    Text(StreamDecoder<'a>),
    /// As numbers between spaces, where there is no tokenizer.
    Ids,
}

/// Why a generation was broken off.
#[derive(Debug, thiserror::Error)]
pub enum ConsoleError {
    /// The output cannot be written.
    #[error("the output cannot be written: {0}")]
    Output(#[source] io::Error),
    /// The logits cannot be written.
    #[error("{}: the logits cannot be written: {source}", path.display())]
    Logits {
        /// Where to.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A token has no text.
    #[error(transparent)]
    Text(#[from] TextError),
}

/// Shows a generation on the terminal while it is made, and keeps its times.
pub(crate) struct Console<'a, W: Write> {
    output: W,
    shown: Shown<'a>,
    stop: StopStrings,
    logits: Option<LogitsFile>,
    interrupted: &'a AtomicBool,
    progress: ProgressBar,
    prompt_tokens: usize,
    started: Instant,
    prefilled: Option<Instant>,
    /// Tokens made, and when the last of them was.
    made: usize,
    last: Option<Instant>,
    /// Whether a stop string has come.
    stopped: bool,
    error: Option<ConsoleError>,
}

/// How fast it went.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Speed {
    pub(crate) prompt_tokens: usize,
    pub(crate) prompt_time: Duration,
    pub(crate) made: usize,
    /// From the end of the prompt to the last token.
    pub(crate) made_time: Duration,
    pub(crate) stopped: bool,
}

impl<'a, W: Write> Console<'a, W> {
    pub(crate) fn new(
        output: W,
        shown: Shown<'a>,
        stop: StopStrings,
        logits: Option<LogitsFile>,
        prompt_tokens: usize,
        interrupted: &'a AtomicBool,
    ) -> Self {
        // Draws on standard error, and only where that is a terminal.
        let style = ProgressStyle::with_template("prompt {bar:30} {pos}/{len} tokens, {per_sec}, {eta} left")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        let progress = ProgressBar::new(prompt_tokens as u64).with_style(style);
        Self {
            output,
            shown,
            stop,
            logits,
            interrupted,
            progress,
            prompt_tokens,
            started: Instant::now(),
            prefilled: None,
            made: 0,
            last: None,
            stopped: false,
            error: None,
        }
    }

    /// Shows what was held back, puts the logits in their place and says how fast it went.
    ///
    /// # Errors
    /// Whatever broke the generation off, or the last writes.
    pub(crate) fn finish(mut self) -> Result<Speed, ConsoleError> {
        self.progress.finish_and_clear();
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        if !self.stopped {
            let mut rest = match self.shown {
                Shown::Text(stream) => self.stop.push(&stream.finish()).text,
                Shown::Ids => String::new(),
            };
            rest.push_str(&self.stop.finish());
            self.output.write_all(rest.as_bytes()).map_err(ConsoleError::Output)?;
        }
        let ended = if self.made > 0 { "\n" } else { "" };
        self.output.write_all(ended.as_bytes()).and_then(|()| self.output.flush()).map_err(ConsoleError::Output)?;
        if let Some(logits) = self.logits.take() {
            logits.finish()?;
        }
        let prefilled = self.prefilled.unwrap_or_else(Instant::now);
        Ok(Speed {
            prompt_tokens: self.prompt_tokens,
            prompt_time: prefilled - self.started,
            made: self.made,
            made_time: self.last.map_or(Duration::ZERO, |last| last - prefilled),
            stopped: self.stopped,
        })
    }

    fn show(&mut self, token: u32) -> Result<(), ConsoleError> {
        let text = match &mut self.shown {
            Shown::Text(stream) => {
                let piece = self.stop.push(&stream.push(token)?.unwrap_or_default());
                self.stopped = piece.stopped;
                piece.text
            }
            Shown::Ids if self.made == 0 => token.to_string(),
            Shown::Ids => format!(" {token}"),
        };
        self.output.write_all(text.as_bytes()).and_then(|()| self.output.flush()).map_err(ConsoleError::Output)
    }

    /// Goes on unless something failed, a stop string came or the user wants to stop.
    fn after(&mut self, result: Result<(), ConsoleError>) -> ControlFlow<()> {
        self.error = result.err();
        if self.error.is_some() || self.stopped || self.interrupted.load(Ordering::Relaxed) {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}

impl<W: Write> Observer for Console<'_, W> {
    fn wants_prompt_logits(&self) -> bool {
        self.logits.is_some()
    }

    fn logits(&mut self, row: &[f32]) -> ControlFlow<()> {
        let written = self.logits.as_mut().map_or(Ok(()), |file| file.write(row));
        self.after(written)
    }

    fn prefilled(&mut self, done: usize) -> ControlFlow<()> {
        self.progress.set_position(done as u64);
        if done == self.prompt_tokens {
            self.progress.finish_and_clear();
            self.prefilled = Some(Instant::now());
        }
        self.after(Ok(()))
    }

    fn token(&mut self, token: u32) -> ControlFlow<()> {
        let shown = self.show(token);
        self.made += 1;
        self.last = Some(Instant::now());
        self.after(shown)
    }
}
