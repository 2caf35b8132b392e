//! A run from its first step, or from its newest checkpoint, to its end.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context as _, Result};
use dsv41_train::{
    data::{Batch, BatchStream, Examples as _, StreamState, tasks},
    losses::Totals,
    run::{Checkpoints, Evaluation, MetricsLog, Report, RunDirectory, Score, StepMetrics},
};

use super::{
    display::Display,
    learner::{Learner, Learnt},
    plan::RunPlan,
    source::{self, Source},
};
use crate::memory;

/// The place of a run in its data, beside what the trainer keeps in a checkpoint.
const STREAM: &str = "data.json";

/// A run that is under way.
pub(super) struct Session<'a> {
    plan: &'a RunPlan,
    learner: Box<dyn Learner>,
    stream: BatchStream<Source<'a>>,
    evaluation: Option<EvaluationSet>,
    directory: RunDirectory,
    metrics: MetricsLog,
    checkpoints: Checkpoints,
    report: Report,
    display: Box<dyn Display>,
    /// Steps done, and tokens trained on in them.
    steps: u64,
    tokens: u64,
    /// How good the newest step is.
    score: Option<Score>,
}

/// What a model is evaluated on.
struct EvaluationSet {
    batches: Vec<Batch>,
    /// Whether whole answers count, rather than single tokens.
    answers: bool,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Done,
    Interrupted,
}

impl<'a> Session<'a> {
    /// Begins a run, or goes on with one from its newest whole checkpoint.
    pub(super) fn open(
        plan: &'a RunPlan,
        mut learner: Box<dyn Learner>,
        training: Source<'a>,
        held_out: Option<Source<'a>>,
        directory: RunDirectory,
        mut display: Box<dyn Display>,
    ) -> Result<Self> {
        let (mut checkpoints, notices) = directory.checkpoints(plan.cadence.keep)?;
        notices.iter().for_each(|notice| display.notice(&notice.to_string()));
        let (newest, notices) = checkpoints.latest();
        notices.iter().for_each(|notice| display.notice(&notice.to_string()));

        let (mut steps, mut state, mut score) = (0, StreamState::begin(plan.seed, training.count()), None);
        if let Some(checkpoint) = newest {
            learner.restore(checkpoint.path())?;
            state = read_state(&checkpoint.path().join(STREAM))?;
            (steps, score) = (checkpoint.step(), Some(*checkpoint.score()));
        }
        for notice in checkpoints.rewind(steps)? {
            display.notice(&notice.to_string());
        }
        let (metrics, notices) = directory.metrics(steps)?;
        notices.iter().for_each(|notice| display.notice(&notice.to_string()));
        let mut report = Report::new(plan)?;
        let mut tokens = 0;
        for earlier in directory.files().metrics()? {
            let earlier = earlier?;
            report.add(&earlier);
            tokens = earlier.tokens;
        }
        if steps > 0 {
            display.notice(&format!("goes on from step {steps}"));
        }
        let evaluation = match held_out {
            Some(source) => {
                Some(EvaluationSet { answers: source.has_answers(), batches: source::epoch(plan, source)? })
            }
            None => None,
        };
        let stream = BatchStream::resume(training, plan.layout, &state)?;
        Ok(Self {
            plan,
            learner,
            stream,
            evaluation,
            directory,
            metrics,
            checkpoints,
            report,
            display,
            steps,
            tokens,
            score,
        })
    }

    /// Trains to the end of the plan, or until it is interrupted; either way the last step has a checkpoint.
    pub(super) fn run(mut self, interrupted: &AtomicBool) -> Result<()> {
        let mut saved = self.steps;
        let ending = loop {
            if self.steps >= self.plan.steps {
                break Ending::Done;
            }
            if interrupted.load(Ordering::Relaxed) {
                break Ending::Interrupted;
            }
            self.step()?;
            if self.steps.is_multiple_of(self.plan.cadence.checkpoint_every) || self.steps == self.plan.steps {
                self.checkpoint()?;
                saved = self.steps;
            }
        };
        if saved < self.steps {
            self.checkpoint()?;
        }
        self.write_report()?;
        let summary = self.summary(ending);
        self.display.finish(&summary);
        Ok(())
    }

    /// One step, its evaluation where one is due, and their record.
    fn step(&mut self) -> Result<()> {
        let batches = (0..self.plan.accumulation.get())
            .map(|_| self.stream.next().expect("a stream of batches has no end"))
            .collect::<Result<Vec<Batch>, _>>()?;
        let started = Instant::now();
        let Learnt { totals, layers, summary } = self.learner.learn(&batches)?;
        let seconds = started.elapsed().as_secs_f64();
        let tokens: usize = batches.iter().map(|batch| batch.counts().tokens).sum();

        let due = summary.step.is_multiple_of(self.plan.cadence.evaluate_every) || summary.step == self.plan.steps;
        let evaluation = if due { self.evaluate()? } else { None };
        self.tokens += tokens as u64;
        let metrics = StepMetrics {
            step: summary.step,
            tokens: self.tokens,
            loss: totals.mean(),
            routers: layers.routers(),
            auxiliary_losses: layers.losses,
            learning_rates: self.learning_rates(summary.step),
            gradient_norm: summary.gradient_norm,
            tokens_per_second: tokens as f64 / seconds.max(1e-9),
            seconds,
            evaluation,
            peak_memory: memory::peak(),
        };
        self.metrics.append(&metrics)?;
        self.report.add(&metrics);
        self.display.step(&metrics);
        if let Some(evaluation) = &evaluation {
            self.display.evaluation(metrics.step, evaluation);
        }
        self.steps = summary.step;
        let evaluation_loss = evaluation.map(|evaluation| evaluation.loss);
        self.score = Some(Score { training_loss: metrics.loss, evaluation_loss });
        Ok(())
    }

    /// The rates of the groups, by name. Steps are numbered from 1 here and from 0 in schedules.
    fn learning_rates(&self, step: u64) -> BTreeMap<String, f64> {
        let settings = &self.plan.trainer.optimiser;
        self.learner
            .groups()
            .into_iter()
            .map(|group| (group.to_string(), settings.group(group).rate_at(step - 1)))
            .collect()
    }

    fn evaluate(&self) -> Result<Option<Evaluation>> {
        let Some(EvaluationSet { batches, answers }) = &self.evaluation else { return Ok(None) };
        let (mut totals, mut score) = (Totals::default(), tasks::Score::default());
        for batch in batches {
            let evaluated = self.learner.evaluate(batch)?;
            totals += evaluated.totals;
            score.add(batch, &evaluated.predicted);
        }
        let accuracy = if *answers { score.answer_accuracy() } else { score.token_accuracy() };
        Ok(Some(Evaluation { loss: totals.mean(), accuracy: Some(accuracy) }))
    }

    fn checkpoint(&mut self) -> Result<()> {
        let Some(score) = self.score else { return Ok(()) };
        // What a checkpoint goes on from has to be on disk with it.
        self.metrics.sync()?;
        let (learner, state) = (&self.learner, self.stream.state());
        self.checkpoints.save(self.steps, score, |folder| -> Result<()> {
            learner.save(folder)?;
            write_state(&folder.join(STREAM), &state)
        })?;
        self.write_report()
    }

    fn write_report(&self) -> Result<()> {
        Ok(self.directory.write_report(&self.report.html()?)?)
    }

    fn summary(&self, ending: Ending) -> String {
        let folder = self.directory.files().folder().display();
        let best = self.checkpoints.best().map(|best| format!(", the best is {}", best.path().display()));
        let best = best.unwrap_or_default();
        match ending {
            Ending::Done => format!("{folder}: {} steps done{best}", self.steps),
            Ending::Interrupted => format!(
                "{folder}: interrupted after step {} of {}: go on with --resume {folder}",
                self.steps, self.plan.steps
            ),
        }
    }
}

fn read_state(path: &Path) -> Result<StreamState> {
    let json = fs::read(path).with_context(|| format!("{}: cannot be read", path.display()))?;
    serde_json::from_slice(&json).with_context(|| path.display().to_string())
}

fn write_state(path: &Path, state: &StreamState) -> Result<()> {
    let json = serde_json::to_vec(state)?;
    fs::write(path, json).with_context(|| format!("{}: cannot be written", path.display()))
}
