//! Draws a panel as SVG.
//!
//! Colours are those of a light page; the page's style sheet replaces each by its counterpart on a dark one. Curves are
//! named by the page, which can wrap, and the fonts are the reader's.

use std::error::Error;
use std::iter::once;
use std::ops::Range;

use plotters::prelude::*;

use super::panel::Panel;
use crate::run::{Point, RunError};

const SIZE: (u32, u32) = (720, 270);
const FONT: (&str, i32) = ("sans-serif", 12);

/// A colour on a light page and on a dark one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shade {
    pub(super) light: RGBColor,
    pub(super) dark: RGBColor,
}

const fn shade(light: (u8, u8, u8), dark: (u8, u8, u8)) -> Shade {
    Shade { light: RGBColor(light.0, light.1, light.2), dark: RGBColor(dark.0, dark.1, dark.2) }
}

pub(super) const INK: Shade = shade((0x24, 0x29, 0x2F), (0xE1, 0xE4, 0xE8));
pub(super) const GRID: Shade = shade((0xD0, 0xD7, 0xDE), (0x3A, 0x40, 0x48));
/// In turn for the curves of a panel. The light ones have a contrast of at least 3 to white, the dark ones to near black.
pub(super) const CURVES: [Shade; 6] = [
    shade((0x1F, 0x6F, 0xB4), (0x6C, 0xB2, 0xF0)),
    shade((0xC2, 0x54, 0x0A), (0xF5, 0x9E, 0x5B)),
    shade((0x2A, 0x7F, 0x3F), (0x6F, 0xCB, 0x84)),
    shade((0xB3, 0x26, 0x6E), (0xEE, 0x86, 0xBD)),
    shade((0x6B, 0x4F, 0xBB), (0xB0, 0x9C, 0xF2)),
    shade((0x0B, 0x7C, 0x80), (0x5F, 0xC9, 0xCC)),
];

/// A colour as SVG and style sheets write it.
pub(super) fn hex(colour: RGBColor) -> String {
    format!("#{:02X}{:02X}{:02X}", colour.0, colour.1, colour.2)
}

/// The panel as an `<svg>` element.
pub(super) fn draw(panel: &Panel) -> Result<String, RunError> {
    let mut svg = String::new();
    draw_into(&mut svg, panel).map_err(|source| RunError::Plot { title: panel.title, source })?;
    Ok(svg)
}

fn draw_into(svg: &mut String, panel: &Panel) -> Result<(), Box<dyn Error + Send + Sync>> {
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    let (x, y) = (x_axis(panel), y_axis(panel));
    // Between two steps there is none.
    let steps = (x.end - x.start + 1.0).min(8.0) as usize;
    let mut chart = ChartBuilder::on(&root)
        .margin(8)
        .margin_right(24)
        .x_label_area_size(36)
        .y_label_area_size(56)
        .build_cartesian_2d(x, y.clone())?;
    chart
        .configure_mesh()
        .max_light_lines(0)
        .bold_line_style(GRID.light)
        .axis_style(GRID.light)
        .label_style(FONT.into_font().color(&INK.light))
        .x_desc("step")
        .x_labels(steps)
        .y_labels(6)
        .x_label_formatter(&|step| format!("{step:.0}"))
        .y_label_formatter(&|value| tick(*value, &y))
        .draw()?;
    for ((_, series), shade) in panel.curves().iter().zip(CURVES.iter().cycle()) {
        for piece in series.pieces() {
            let upper = piece.iter().filter_map(|point| Some((point.step(), point.range()?.1.min(y.end))));
            let lower = piece.iter().rev().filter_map(|point| Some((point.step(), point.range()?.0.max(y.start))));
            if piece.iter().filter_map(Point::range).any(|(lowest, highest)| lowest < highest) {
                let band: Vec<_> = upper.chain(lower).collect();
                chart.draw_series(once(Polygon::new(band, shade.light.mix(0.2))))?;
            }
            let line: Vec<_> = piece.iter().filter_map(|point| Some((point.step(), point.mean()?))).collect();
            match line[..] {
                [dot] => chart.draw_series(once(Circle::new(dot, 3, shade.light.filled())))?,
                _ => chart.draw_series(LineSeries::new(line, shade.light.stroke_width(2)))?,
            };
        }
    }
    root.present()?;
    Ok(())
}

/// From the first step to the last.
fn x_axis(panel: &Panel) -> Range<f64> {
    let steps = panel.curves().iter().flat_map(|(_, series)| series.points()).map(Point::step);
    let (first, last) = extent(steps).unwrap_or((0.0, 0.0));
    if first < last { first..last } else { first - 1.0..last + 1.0 }
}

/// Where all lines and nine tenths of their bands are: a single outlier would flatten all else.
fn y_axis(panel: &Panel) -> Range<f64> {
    let points = || panel.curves().iter().flat_map(|(_, series)| series.points());
    let (mut lowest, mut highest): (Vec<f64>, Vec<f64>) = points().filter_map(Point::range).unzip();
    lowest.sort_by(|a, b| b.total_cmp(a));
    highest.sort_by(f64::total_cmp);
    let band = [lowest, highest].into_iter().filter_map(|ends| ends.get(ends.len() * 9 / 10).copied());
    let (lowest, highest) = extent(points().filter_map(Point::mean).chain(band)).unwrap_or((0.0, 1.0));
    // A line that is flat but for rounding is to look so.
    let margin = (0.05 * (highest - lowest)).max(1e-3 * lowest.abs().max(highest.abs()));
    let margin = if margin > 0.0 { margin } else { 1.0 };
    lowest - margin..highest + margin
}

fn extent(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |extent, value| {
        let (lowest, highest) = extent.unwrap_or((value, value));
        Some((value.min(lowest), value.max(highest)))
    })
}

/// The label of a value on an axis, with as many digits as tell its ticks apart.
fn tick(value: f64, axis: &Range<f64>) -> String {
    let largest = axis.start.abs().max(axis.end.abs());
    // Ticks are at least a tenth of the axis apart.
    let apart = (axis.end - axis.start) / 10.0;
    // They are sums, and zero comes out as a rounding error.
    if value.abs() < 1e-6 * apart {
        return "0".into();
    }
    let digits = |of: f64| of.log10().floor() as i32;
    if (1e-2..1e5).contains(&largest) {
        let decimals = (-digits(apart)).clamp(0, 8) as usize;
        format!("{value:.decimals$}")
    } else {
        let decimals = (digits(largest) - digits(apart)).clamp(0, 3) as usize;
        format!("{value:.decimals$e}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_have_the_digits_that_tell_them_apart() {
        assert_eq!(tick(2.0, &(0.0..10.0)), "2");
        assert_eq!(tick(0.5, &(0.0..2.0)), "0.5");
        assert_eq!(tick(2.004, &(2.0..2.02)), "2.004");
        assert_eq!(tick(40.0, &(0.0..100.0)), "40");
        assert_eq!(tick(2e-4, &(0.0..1e-3)), "2.0e-4");
        assert_eq!(tick(3e-21, &(0.0..1e-3)), "0");
        assert_eq!(tick(2e6, &(0.0..4e6)), "2.0e6");
    }
}
