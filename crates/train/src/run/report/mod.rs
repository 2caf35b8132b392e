//! The report of a run: one HTML file with plots, which needs nothing else and runs nothing.
//!
//! A report is gathered step by step in bounded memory, however long the run: curves are [`Series`].

mod page;
mod panel;
mod plot;

use serde::Serialize;
use serde_json::Value;

use self::panel::Panel;
use super::{RunError, Series, StepMetrics};

/// A report that is being gathered.
#[derive(Debug)]
pub struct Report {
    config: Value,
    loss: Panel,
    auxiliary_losses: Panel,
    accuracy: Panel,
    learning_rates: Panel,
    gradient_norm: Panel,
    tokens_per_second: Panel,
    max_load: Panel,
    idle: Panel,
    entropy: Panel,
    /// Seconds of all steps.
    seconds: f64,
    last: Option<StepMetrics>,
    /// Step and loss of the last and of the best evaluation.
    evaluated: Option<(u64, f64)>,
    best: Option<(u64, f64)>,
}

impl Report {
    /// Begins a report of a run with these settings.
    ///
    /// # Errors
    /// When the settings are nothing that JSON can tell.
    pub fn new<C: Serialize>(config: &C) -> Result<Self, serde_json::Error> {
        Ok(Self {
            config: serde_json::to_value(config)?,
            loss: Panel::new("Loss", "mean over tokens, in nats"),
            auxiliary_losses: Panel::new("Auxiliary losses", "unweighted"),
            accuracy: Panel::new("Evaluation accuracy", "share of tokens predicted right"),
            learning_rates: Panel::new("Learning rate", "by group of parameters"),
            gradient_norm: Panel::new("Gradient norm", "all gradients together, before clipping"),
            tokens_per_second: Panel::new("Speed", "tokens a second"),
            max_load: Panel::new("Expert load", "tokens of a layer's busiest expert, by those of its mean expert"),
            idle: Panel::new("Idle experts", "share of a layer's experts that got no token"),
            entropy: Panel::new("Router entropy", "of a layer's distribution over experts, in nats"),
            seconds: 0.0,
            last: None,
            evaluated: None,
            best: None,
        })
    }

    /// Adds a step, which has to be after all others.
    pub fn add(&mut self, metrics: &StepMetrics) {
        let StepMetrics { step, routers, .. } = metrics;
        let step = *step;
        self.loss.push("training", step, [metrics.loss]);
        for (name, loss) in &metrics.auxiliary_losses {
            self.auxiliary_losses.push(name, step, [*loss]);
        }
        for (group, rate) in &metrics.learning_rates {
            self.learning_rates.push(group, step, [*rate]);
        }
        self.gradient_norm.push("all parameters", step, [metrics.gradient_norm]);
        self.tokens_per_second.push("training", step, [metrics.tokens_per_second]);
        if !routers.is_empty() {
            self.max_load.push("mean of layers", step, routers.iter().map(|router| router.max_load));
            self.idle.push("mean of layers", step, routers.iter().map(|router| router.idle));
            self.entropy.push("mean of layers", step, routers.iter().map(|router| router.entropy));
        }
        if let Some(evaluation) = metrics.evaluation {
            self.loss.push("evaluation", step, [evaluation.loss]);
            self.evaluated = Some((step, evaluation.loss));
            if evaluation.loss.is_finite() && self.best.is_none_or(|(_, best)| evaluation.loss < best) {
                self.best = self.evaluated;
            }
            if let Some(accuracy) = evaluation.accuracy {
                self.accuracy.push("evaluation", step, [accuracy]);
            }
        }
        self.seconds += metrics.seconds;
        self.last = Some(metrics.clone());
    }

    /// The page of all that was added.
    ///
    /// # Errors
    /// When a plot cannot be drawn.
    pub fn html(&self) -> Result<String, RunError> {
        page::page(self)
    }

    /// What there is to plot, in the order of the page.
    fn panels(&self) -> impl Iterator<Item = &Panel> {
        [
            &self.loss,
            &self.auxiliary_losses,
            &self.accuracy,
            &self.learning_rates,
            &self.gradient_norm,
            &self.tokens_per_second,
            &self.max_load,
            &self.idle,
            &self.entropy,
        ]
        .into_iter()
        .filter(|panel| !panel.curves().is_empty())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::run::{Evaluation, RouterMetrics};

    fn metrics(step: u64) -> StepMetrics {
        let loss = 3.0 / (step as f64).sqrt();
        StepMetrics {
            step,
            tokens: 512 * step,
            loss,
            auxiliary_losses: BTreeMap::from([("balance".into(), 0.1 * loss)]),
            learning_rates: BTreeMap::from([("adapters".into(), 1e-4), ("<router> & co".into(), 1e-5)]),
            gradient_norm: 1.0 + (step % 10) as f64,
            tokens_per_second: 100.0,
            seconds: 0.5,
            routers: (0..4).map(|layer| RouterMetrics::from_counts(layer, &[1, step, 3], 1.0)).collect(),
            evaluation: step.is_multiple_of(10).then_some(Evaluation { loss: loss + 0.1, accuracy: Some(0.5) }),
            peak_memory: Some(3 << 30),
        }
    }

    fn html(steps: impl IntoIterator<Item = StepMetrics>) -> String {
        let config = json!({ "model": "<tiny>", "optimiser": { "name": "AdamW", "betas": [0.9, 0.95] } });
        let mut report = Report::new(&config).unwrap();
        steps.into_iter().for_each(|metrics| report.add(&metrics));
        report.html().unwrap()
    }

    fn count(html: &str, part: &str) -> usize {
        html.matches(part).count()
    }

    #[test]
    fn a_run_has_a_plot_of_each_quantity_and_its_settings_and_numbers() {
        let html = html((1..=50).map(metrics));
        assert_eq!(count(&html, "<svg"), 9);
        for part in ["&lt;tiny&gt;", "optimiser.betas", "[0.9,0.95]", "&lt;router&gt; &amp; co", "3.00 GiB", "25.0 s"] {
            assert!(html.contains(part), "{part}");
        }
        for outside in ["<script", "http://", "https://", "<link", "<img", "@import", "url("] {
            let known = if outside == "http://" { count(&html, "xmlns=\"http://www.w3.org/2000/svg\"") } else { 0 };
            assert_eq!(count(&html, outside), known, "{outside}");
        }
    }

    #[test]
    fn one_step_is_drawn_as_dots() {
        let html = html([metrics(1)]);
        assert_eq!(count(&html, "<svg"), 8, "no evaluation yet");
        // The loss, the auxiliary loss, two rates, norm, speed, load, idle experts and entropy.
        assert_eq!(count(&html, "<circle"), 9);
    }

    #[test]
    fn a_run_without_a_step_has_a_page_of_its_settings() {
        let html = html([]);
        assert_eq!(count(&html, "<svg"), 0);
        assert!(html.contains("AdamW"));
    }

    #[test]
    fn a_long_run_is_thinned_and_says_so() {
        let html = html((1..=100_000).map(metrics));
        assert!(html.len() < 400_000, "{} bytes", html.len());
        assert!(html.contains("Each point is the mean of 256 steps."));
    }

    #[test]
    fn a_gap_parts_the_line_and_is_told() {
        let gapped = |step| match step {
            5 => StepMetrics { loss: f64::NAN, ..metrics(step) },
            _ => metrics(step),
        };
        let whole = html((1..=9).map(metrics));
        let parted = html((1..=9).map(gapped));
        assert_eq!(count(&parted, "<polyline"), count(&whole, "<polyline") + 1);
        assert!(parted.contains("1 value was not finite") && !whole.contains("not finite"));
        // What never was finite has no line, and no plot breaks.
        html((1..=9).map(|step| StepMetrics { gradient_norm: f64::INFINITY, ..metrics(step) }));
    }
}
