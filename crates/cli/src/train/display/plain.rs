//! A line every so many steps, for files and pipes.

use std::io::Write;

use dsv41_train::run::units::number;
use dsv41_train::run::{Evaluation, StepMetrics};

use super::{Display, highest_rate, pace::Pace};

/// Writes a line every so many steps.
#[derive(Debug)]
pub struct Plain<W: Write> {
    out: W,
    every: u64,
    pace: Pace,
}

impl<W: Write> Plain<W> {
    /// Writes the steps that `every` divides, and the last one, step `steps`.
    pub fn new(out: W, steps: u64, every: u64) -> Self {
        Self { out, every: every.max(1), pace: Pace::new(steps) }
    }

    fn line(&mut self, text: &str) {
        // Where nobody reads there is nobody to tell.
        let _ = self.out.write_all(format!("{text}\n").as_bytes()).and_then(|()| self.out.flush());
    }
}

impl<W: Write> Display for Plain<W> {
    fn step(&mut self, metrics: &StepMetrics) {
        self.pace.add(metrics);
        if !metrics.step.is_multiple_of(self.every) && !self.pace.is_last() {
            return;
        }
        let rate = highest_rate(metrics).map(|rate| format!(", rate {}", number(rate))).unwrap_or_default();
        self.line(&format!(
            "{}: loss {}{rate}, gradient norm {}, {} tokens/s",
            self.pace.text(),
            number(metrics.loss),
            number(metrics.gradient_norm),
            number(metrics.tokens_per_second)
        ));
    }

    fn evaluation(&mut self, step: u64, evaluation: &Evaluation) {
        let accuracy = evaluation.accuracy.map(|accuracy| format!(", accuracy {}", number(accuracy)));
        let loss = number(evaluation.loss);
        self.line(&format!("evaluation after step {step}: loss {loss}{}", accuracy.unwrap_or_default()));
    }

    fn notice(&mut self, text: &str) {
        self.line(text);
    }

    fn finish(&mut self, text: &str) {
        self.line(text);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::metrics;
    use super::*;

    #[test]
    fn steps_have_a_line_every_so_often_and_in_the_end() {
        let mut out = Vec::new();
        let mut display = Plain::new(&mut out, 5, 2);
        display.notice("goes on from step 1");
        (2..=5).for_each(|step| display.step(&metrics(step, 0)));
        display.evaluation(5, &Evaluation { loss: 0.9, accuracy: Some(0.25) });
        display.finish("done");
        let expected = "\
goes on from step 1
step 2 of 5, 6.0 s left: loss 2.000, rate 1.000e-4, gradient norm 1.500, 50.00 tokens/s
step 4 of 5, 2.0 s left: loss 1.000, rate 1.000e-4, gradient norm 1.500, 50.00 tokens/s
step 5 of 5: loss 0.8000, rate 1.000e-4, gradient norm 1.500, 50.00 tokens/s
evaluation after step 5: loss 0.9000, accuracy 0.2500
done
";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn a_reader_that_went_away_stops_nothing() {
        let mut display = Plain::new(&mut [][..], 5, 1);
        display.step(&metrics(1, 0));
        display.finish("done");
    }
}
