//! Markdown tables of what was measured.

use std::fmt::Write;

use super::case::{Measured, Times};
use super::contestant::Name;

/// The products' least times and their errors, and the ratios of the times.
pub(crate) fn tables(results: &[Measured]) -> String {
    let mut text = String::new();
    let header = ["matrix, vectors", "f32", "8 bits", "candle", "dense f32", "copy", "f32 error", "8 bits", "candle"];
    table(&mut text, &header, results, |result| {
        let time = |name| cell(result.find(name).map(|times| 1e3 * least(&times.seconds)), |ms| format!("{ms:.3} ms"));
        let error = |name| cell(result.find(name).and_then(|times| times.error), |error| format!("{error:.1e}"));
        let times = [Name::F32, Name::Int8, Name::Candle, Name::Dense, Name::Copy].map(time);
        times.into_iter().chain([Name::F32, Name::Int8, Name::Candle].map(error)).collect()
    });
    text.push('\n');
    let header = [
        "matrix, vectors",
        "candle / 8 bits",
        "candle / f32",
        "dense f32 / f32",
        "copy / f32",
        "copy / 8 bits",
        "copied GB/s",
        "f32 GB/s",
        "8 bits GB/s",
    ];
    table(&mut text, &header, results, |result| {
        let ratio =
            |over, under| cell(result.ratio(over, under), |[least, median]| format!("{least:.2} ({median:.2})"));
        let speed = |name| cell(result.speed(name), |speed| format!("{speed:.1}"));
        vec![
            ratio(Name::Candle, Name::Int8),
            ratio(Name::Candle, Name::F32),
            ratio(Name::Dense, Name::F32),
            ratio(Name::Copy, Name::F32),
            ratio(Name::Copy, Name::Int8),
            speed(Name::Copy),
            speed(Name::F32),
            speed(Name::Int8),
        ]
    });
    text
}

fn table(text: &mut String, header: &[&str], results: &[Measured], cells: impl Fn(&Measured) -> Vec<String>) {
    line(text, header.iter().copied());
    line(text, header.iter().map(|_| "---"));
    for result in results {
        let case = result.case.to_string();
        let cells = cells(result);
        line(text, std::iter::once(case.as_str()).chain(cells.iter().map(String::as_str)));
    }
}

fn line<'a>(text: &mut String, cells: impl Iterator<Item = &'a str>) {
    for cell in cells {
        // Writing to a string cannot fail.
        let _ = write!(text, "| {cell} ");
    }
    text.push_str("|\n");
}

/// A dash for who did not take part.
fn cell<T>(value: Option<T>, show: impl Fn(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), show)
}

impl Measured {
    fn find(&self, name: Name) -> Option<&Times> {
        self.contestants.iter().find(|times| times.name == name)
    }

    /// How much longer one contestant takes than another: by the least times, and the median of the rounds.
    fn ratio(&self, over: Name, under: Name) -> Option<[f64; 2]> {
        let (over, under) = (self.find(over)?, self.find(under)?);
        let ratios: Vec<f64> = over.seconds.iter().zip(&under.seconds).map(|(over, under)| over / under).collect();
        Some([least(&over.seconds) / least(&under.seconds), median(&ratios)])
    }

    /// Packed bytes in a second of the least time, in units of 10^9.
    fn speed(&self, name: Name) -> Option<f64> {
        self.find(name).map(|times| self.packed_bytes as f64 / least(&times.seconds) / 1e9)
    }
}

fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
