//! How far a run is, and how long it still takes.

use dsv41_train::run::StepMetrics;
use dsv41_train::run::units::duration;

/// The time of a step is the mean of about so many, so that it follows changes and does not jump.
const MEMORY: f64 = 20.0;

/// How far a run is.
#[derive(Debug)]
pub(super) struct Pace {
    steps: u64,
    done: u64,
    /// The moving mean of a step's time, and what it is the mean of.
    seconds: f64,
    seen: f64,
}

impl Pace {
    /// Of a run that ends with step `steps`.
    pub(super) fn new(steps: u64) -> Self {
        Self { steps, done: 0, seconds: 0.0, seen: 0.0 }
    }

    pub(super) fn add(&mut self, metrics: &StepMetrics) {
        self.done = metrics.step;
        self.seen = (self.seen + 1.0).min(MEMORY);
        self.seconds += (metrics.seconds - self.seconds) / self.seen;
    }

    /// The share of steps that are done.
    pub(super) fn share(&self) -> f64 {
        (self.done as f64 / self.steps.max(1) as f64).min(1.0)
    }

    pub(super) fn is_last(&self) -> bool {
        self.done >= self.steps
    }

    /// Steps, and the time left.
    pub(super) fn text(&self) -> String {
        let Self { steps, done, seconds, .. } = self;
        match steps.saturating_sub(*done) {
            0 => format!("step {done} of {steps}"),
            _ if *done == 0 => format!("step 0 of {steps}"),
            left => format!("step {done} of {steps}, {} left", duration(left as f64 * seconds)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::metrics;
    use super::*;

    #[test]
    fn time_left_follows_from_the_last_steps() {
        let mut pace = Pace::new(500);
        assert_eq!(pace.text(), "step 0 of 500");
        for step in 101..=300 {
            let seconds = if step > 200 { 1.0 } else { 9.0 };
            pace.add(&StepMetrics { seconds, ..metrics(step, 0) });
        }
        assert_eq!(pace.share(), 0.6);
        // 1 + 8 * 0.95^100 = 1.047 seconds a step.
        assert_eq!(pace.text(), "step 300 of 500, 3 min 29 s left");
        pace.add(&metrics(500, 0));
        assert_eq!((pace.text().as_str(), pace.is_last()), ("step 500 of 500", true));
    }
}
