//! The page around the plots.

use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde_json::Value;

use super::Report;
use super::panel::Panel;
use super::plot::{self, CURVES, GRID, INK, hex};
use crate::run::units::{bytes, duration, number};
use crate::run::{RouterMetrics, RunError};

/// The page of a report.
pub(super) fn page(report: &Report) -> Result<String, RunError> {
    let figures = report.panels().map(figure).collect::<Result<Vec<Markup>, _>>()?;
    let routers = report.last.as_ref().map(|last| &last.routers[..]).unwrap_or_default();
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "Training run" }
                style { (PreEscaped(style())) }
            }
            body {
                h1 { "Training run" }
                @if let Some(rows) = last_numbers(report) {
                    section { h2 { "At the last step" } (table(&rows)) }
                }
                section class="figures" { @for figure in &figures { (figure) } }
                @if !routers.is_empty() {
                    section { h2 { "Routers at the last step" } (router_table(routers)) }
                }
                section { h2 { "Settings" } (table(&settings(&report.config))) }
            }
        }
    };
    Ok(page.into_string())
}

/// A plot with its title, the names of its curves and what has to be known of it.
fn figure(panel: &Panel) -> Result<Markup, RunError> {
    let svg = plot::draw(panel)?;
    let remarks = panel.remarks().join(" ");
    Ok(html! {
        figure {
            figcaption {
                b { (panel.title) } " " span class="unit" { (panel.unit) }
                div class="names" {
                    @for (index, (name, _)) in panel.curves().iter().enumerate() {
                        span class={ "name c" (index % CURVES.len()) } { (name) }
                    }
                }
            }
            (PreEscaped(svg))
            @if !remarks.is_empty() { p class="remarks" { (remarks) } }
        }
    })
}

/// Names and values.
fn table(rows: &[(String, String)]) -> Markup {
    html! {
        table { @for (name, value) in rows { tr { th scope="row" { (name) } td { (value) } } } }
    }
}

fn router_table(routers: &[RouterMetrics]) -> Markup {
    html! {
        table {
            tr { @for title in ["layer", "busiest expert, by the mean", "idle experts", "entropy"] { th { (title) } } }
            @for router in routers {
                tr {
                    th scope="row" { (router.layer) }
                    td { (number(router.max_load)) }
                    td { (number(router.idle)) }
                    td { (number(router.entropy)) }
                }
            }
        }
    }
}

/// What the last step found; nothing before the first.
fn last_numbers(report: &Report) -> Option<Vec<(String, String)>> {
    let last = report.last.as_ref()?;
    let row = |name: &str, value: String| (name.to_owned(), value);
    let mut rows = vec![
        row("step", last.step.to_string()),
        row("tokens", last.tokens.to_string()),
        row("time of all steps", duration(report.seconds)),
        row("loss", number(last.loss)),
    ];
    rows.extend(last.auxiliary_losses.iter().map(|(name, loss)| (format!("auxiliary loss {name}"), number(*loss))));
    let evaluations = [("last evaluation loss", report.evaluated), ("best evaluation loss", report.best)];
    for (name, evaluation) in evaluations {
        rows.extend(evaluation.map(|(step, loss)| row(name, format!("{} at step {step}", number(loss)))));
    }
    rows.extend(last.learning_rates.iter().map(|(group, rate)| (format!("learning rate of {group}"), number(*rate))));
    rows.push(row("gradient norm", number(last.gradient_norm)));
    rows.push(row("tokens a second", number(last.tokens_per_second)));
    rows.extend(last.peak_memory.map(|peak| row("most memory in use", bytes(peak))));
    Some(rows)
}

/// Settings by the path of their keys.
fn settings(config: &Value) -> Vec<(String, String)> {
    let mut rows = Vec::new();
    flatten(String::new(), config, &mut rows);
    rows
}

fn flatten(path: String, value: &Value, rows: &mut Vec<(String, String)>) {
    match value {
        Value::Object(entries) => {
            for (key, value) in entries {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                flatten(path, value, rows);
            }
        }
        Value::String(text) => rows.push((path, text.clone())),
        _ => rows.push((path, value.to_string())),
    }
}

/// The style sheet, with each colour of the plots replaced by its counterpart where the reader's pages are dark.
fn style() -> String {
    let mut names = String::new();
    let mut dark = String::new();
    for (index, shade) in CURVES.iter().enumerate() {
        names += &format!(".c{index}::before{{background:{}}}\n", hex(shade.light));
        dark += &format!(".c{index}::before{{background:{}}}\n", hex(shade.dark));
    }
    for shade in CURVES.iter().chain([&INK, &GRID]) {
        let (light, on_dark) = (hex(shade.light), hex(shade.dark));
        dark += &format!("svg [fill=\"{light}\"]{{fill:{on_dark}}} svg [stroke=\"{light}\"]{{stroke:{on_dark}}}\n");
    }
    let (ink, grid, dark_ink, dark_grid) = (hex(INK.light), hex(GRID.light), hex(INK.dark), hex(GRID.dark));
    format!(
        "\
:root{{--ink:{ink};--line:{grid};--page:#FFFFFF;color-scheme:light dark}}
body{{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--page);max-width:96rem;margin:auto;padding:1rem}}
.figures{{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,34rem),1fr));gap:1.5rem}}
section{{margin-bottom:2rem}} figure{{margin:0}} svg{{width:100%;height:auto}}
.unit,.remarks{{opacity:.75}} .remarks{{font-size:13px;margin:0}}
.names{{display:flex;flex-wrap:wrap;gap:0 1rem}}
.name::before{{content:\"\";display:inline-block;width:1em;height:.25em;margin-right:.4em;vertical-align:middle}}
table{{border-collapse:collapse}} th,td{{border-top:1px solid var(--line);padding:.15rem .75rem .15rem 0;text-align:left}}
th{{font-weight:normal}} td{{font-variant-numeric:tabular-nums;overflow-wrap:anywhere}}
{names}@media (prefers-color-scheme:dark){{
:root{{--ink:{dark_ink};--line:{dark_grid};--page:#15181C}}
{dark}}}
"
    )
}
