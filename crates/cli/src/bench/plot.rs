//! Time against length, a curve for each device and step.

use std::error::Error;
use std::ops::Range;
use std::path::Path;

use anyhow::{Result, anyhow};
use maud::{DOCTYPE, PreEscaped, html};
use plotters::prelude::*;

use super::report::{Measurement, Report, write_whole};
use super::session::time_text;

const SIZE: (u32, u32) = (900, 480);
const FONT: (&str, i32) = ("sans-serif", 13);
/// In turn for the curves, with a contrast of at least 3 to white.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0x1F, 0x6F, 0xB4),
    RGBColor(0xC2, 0x54, 0x0A),
    RGBColor(0x2A, 0x7F, 0x3F),
    RGBColor(0xB3, 0x26, 0x6E),
    RGBColor(0x6B, 0x4F, 0xBB),
    RGBColor(0x0B, 0x7C, 0x80),
    RGBColor(0x7A, 0x5C, 0x00),
    RGBColor(0x55, 0x5F, 0x6B),
];

/// What the horizontal axis can be, by the names of cases.
const AXES: [&str; 3] = ["length", "context", "vectors"];

/// The times of one device and step.
#[derive(Debug, PartialEq)]
struct Curve {
    name: String,
    /// Length, and the median in seconds.
    points: Vec<(f64, f64)>,
}

/// Writes the plot, as an image or as a page with the image and the numbers, by the file's name.
pub(super) fn write(report: &Report, path: &Path) -> Result<()> {
    let svg = draw(report).map_err(|error| anyhow!("{}: cannot be drawn: {error}", path.display()))?;
    let text = match path.extension() {
        Some(extension) if extension == "svg" => svg,
        _ => page(report, &svg),
    };
    write_whole(path, text.as_bytes())
}

/// The name of the horizontal axis, and the curves over it.
fn curves(report: &Report) -> (&'static str, Vec<Curve>) {
    let has = |axis: &&str| report.measurements.iter().any(|one| one.case.number(axis).is_some());
    let axis = AXES.into_iter().find(has).unwrap_or(AXES[0]);
    let mut curves: Vec<Curve> = Vec::new();
    for Measurement { device, case, seconds, .. } in &report.measurements {
        let Some(length) = case.number(axis) else { continue };
        let rest = case.without(axis).to_string();
        let name = if rest.is_empty() { device.clone() } else { format!("{device}, {rest}") };
        let point = (length as f64, seconds.median);
        match curves.iter_mut().find(|curve| curve.name == name) {
            Some(curve) => curve.points.push(point),
            None => curves.push(Curve { name, points: vec![point] }),
        }
    }
    curves.iter_mut().for_each(|curve| curve.points.sort_by(|a, b| a.0.total_cmp(&b.0)));
    (axis, curves)
}

fn draw(report: &Report) -> Result<String, Box<dyn Error>> {
    let (axis, curves) = curves(report);
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let longest = points().map(|point| point.0).fold(1.0, f64::max);
    let times = around(points().map(|point| point.1));
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&root)
            .margin(12)
            .margin_right(24)
            .x_label_area_size(40)
            .y_label_area_size(80)
            .build_cartesian_2d(0.0..1.05 * longest, times.log_scale())?;
        chart
            .configure_mesh()
            .max_light_lines(0)
            .label_style(FONT)
            .x_desc(axis)
            .x_label_formatter(&|length| format!("{length:.0}"))
            .y_label_formatter(&|seconds| time_text(*seconds))
            .draw()?;
        for (Curve { name, points }, colour) in curves.iter().zip(COLOURS.into_iter().cycle()) {
            chart
                .draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)).point_size(3))?
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .border_style(RGBColor(0xD0, 0xD7, 0xDE))
            .label_font(FONT)
            .draw()?;
        root.present()?;
    }
    Ok(svg)
}

/// A range with some room around these times.
fn around(times: impl Iterator<Item = f64>) -> Range<f64> {
    let extent = times.fold(None, |extent: Option<(f64, f64)>, time| {
        let (lowest, highest) = extent.unwrap_or((time, time));
        Some((lowest.min(time), highest.max(time)))
    });
    let (lowest, highest) = extent.unwrap_or((1e-3, 1.0));
    lowest / 1.5..highest * 1.5
}

fn page(report: &Report, svg: &str) -> String {
    let title = format!("dsv41 bench {}", report.part);
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { (title) }
                @if let Some(model) = &report.model { p { (model) } }
                (PreEscaped(svg))
                table {
                    tr { @for head in ["device", "case", "median", "tokens a second"] { th { (head) } } }
                    @for one in &report.measurements {
                        tr {
                            td { (one.device) }
                            td { (one.case) }
                            td { (time_text(one.seconds.median)) }
                            td { @if let Some(rate) = one.rates.tokens_per_second { (format!("{rate:.0}")) } }
                        }
                    }
                }
                @for skipped in &report.skipped { p { "skipped: " (skipped.reason) } }
            }
        }
    };
    markup.into_string()
}

const STYLE: &str = "\
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:auto;padding:1rem;color:#24292F;background:#FFFFFF}
svg{width:100%;height:auto} table{border-collapse:collapse}
th,td{border-top:1px solid #D0D7DE;padding:.15rem .75rem .15rem 0;text-align:left;font-weight:normal}
td{font-variant-numeric:tabular-nums}
";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::report::tests::report;

    #[test]
    fn each_device_is_a_curve_over_lengths() {
        let (axis, found) = curves(&report(&[("flex", 512, 4.0), ("ndarray", 128, 9.0), ("flex", 128, 0.5)]));
        assert_eq!(axis, "length");
        let curve = |name: &str, points: &[(f64, f64)]| Curve { name: name.to_owned(), points: points.to_vec() };
        assert_eq!(found, [curve("flex", &[(128.0, 0.5), (512.0, 4.0)]), curve("ndarray", &[(128.0, 9.0)])]);
    }

    #[test]
    fn files_are_images_or_pages_and_need_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let report = report(&[("flex", 512, 4.0), ("<b>", 128, 9.0)]);
        let written = |name: &str| {
            let path = folder.path().join(name);
            write(&report, &path).unwrap();
            std::fs::read_to_string(&path).unwrap()
        };
        let (svg, html) = (written("a.svg"), written("a.html"));
        assert!(svg.starts_with("<svg") && svg.contains("&lt;b&gt;"), "{svg}");
        assert!(html.contains("<svg") && html.contains("&lt;b&gt;") && !html.contains("<b>"));
        assert!(html.contains("4.000 s") && !html.contains("<script"));
    }

    #[test]
    fn a_report_without_lengths_has_empty_axes() {
        assert!(draw(&report(&[])).unwrap().starts_with("<svg"));
    }
}
