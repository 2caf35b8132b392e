//! How a training run is shown while it goes on.

mod live;
mod pace;
mod plain;

use std::io::{self, IsTerminal};

use dsv41_train::run::{Evaluation, StepMetrics};

pub use live::Live;
pub use plain::Plain;

/// Shows a training run. Training goes on where nobody sees it, so nothing here fails.
pub trait Display {
    /// A step is done. Its evaluation, if there was one, is told by [`Self::evaluation`].
    fn step(&mut self, metrics: &StepMetrics);

    /// An evaluation after a step is done.
    fn evaluation(&mut self, step: u64, evaluation: &Evaluation);

    /// Something that the user should know, on a line of its own.
    fn notice(&mut self, text: &str);

    /// The run is over, or broken off; what there is to say in the end.
    fn finish(&mut self, text: &str);
}

/// A display on standard output: live on a terminal, elsewhere a line every so many steps.
pub fn open(steps: u64, every: u64) -> Box<dyn Display> {
    let stdout = io::stdout();
    if stdout.is_terminal()
        && let Ok(live) = Live::open(steps)
    {
        return Box::new(live);
    }
    Box::new(Plain::new(stdout, steps, every))
}

/// The highest of the groups' learning rates, which stands for all where there is no room.
fn highest_rate(metrics: &StepMetrics) -> Option<f64> {
    metrics.learning_rates.values().copied().max_by(f64::total_cmp)
}

#[cfg(test)]
mod testing {
    use std::collections::BTreeMap;

    use dsv41_train::run::{RouterMetrics, StepMetrics};

    /// A step of a run, with routers of so many layers.
    pub(super) fn metrics(step: u64, layers: usize) -> StepMetrics {
        StepMetrics {
            step,
            tokens: 100 * step,
            loss: 4.0 / step as f64,
            learning_rates: BTreeMap::from([("adapters".into(), 1e-4), ("router".into(), 2e-5)]),
            gradient_norm: 1.5,
            tokens_per_second: 50.0,
            seconds: 2.0,
            routers: (0..layers).map(|layer| RouterMetrics::from_counts(layer, &[1, 3], 0.5)).collect(),
            ..StepMetrics::default()
        }
    }
}
