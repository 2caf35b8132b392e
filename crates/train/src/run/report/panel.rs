//! One plot of a report: a few curves over the same steps, of the same unit.

use super::Series;

/// Curves that share their axes.
#[derive(Debug)]
pub(super) struct Panel {
    pub(super) title: &'static str,
    /// What the vertical axis is.
    pub(super) unit: &'static str,
    curves: Vec<(String, Series)>,
}

impl Panel {
    pub(super) fn new(title: &'static str, unit: &'static str) -> Self {
        Self { title, unit, curves: Vec::new() }
    }

    /// Adds the values of a step to the curve of a name.
    pub(super) fn push(&mut self, name: &str, step: u64, values: impl IntoIterator<Item = f64>) {
        let index = self.curves.iter().position(|(known, _)| known == name).unwrap_or_else(|| {
            self.curves.push((name.to_owned(), Series::default()));
            self.curves.len() - 1
        });
        self.curves[index].1.push_all(step, values);
    }

    /// Names and curves, in the order in which they came.
    pub(super) fn curves(&self) -> &[(String, Series)] {
        &self.curves
    }

    /// What a reader has to know of how the curves were made.
    pub(super) fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        if let Some(span) = self.curves.iter().map(|(_, series)| series.span()).max().filter(|&span| span > 1) {
            remarks.push(format!("Each point is the mean of {span} steps."));
        }
        let has_band = |(_, series): &(String, Series)| {
            series.points().iter().filter_map(|point| point.range()).any(|(lowest, highest)| lowest < highest)
        };
        if self.curves.iter().any(has_band) {
            remarks.push("The band goes from the lowest to the highest, as far as the frame does.".to_owned());
        }
        match self.curves.iter().map(|(_, series)| series.not_finite()).sum::<usize>() {
            0 => {}
            1 => remarks.push("1 value was not finite and is left out.".to_owned()),
            count => remarks.push(format!("{count} values were not finite and are left out.")),
        }
        remarks
    }
}
