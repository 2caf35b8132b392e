//! A few lines at the end of the terminal that are drawn anew with each step, below all that was said before.
//!
//! The terminal stays as it is: no other screen, no raw input, and the cursor stays to be seen, on the empty line at the
//! end. So there is nothing to restore, however the process ends: what comes next, such as the message of a panic or the
//! shell's prompt, begins on that line.

use std::io::{self, Stdout};
use std::mem;
use std::time::{Duration, Instant};

use dsv41_train::run::units::number;
use dsv41_train::run::{Evaluation, Point, RouterMetrics, Series, StepMetrics};
use ratatui::backend::{Backend, CrosstermBackend};
use ratatui::layout::{Constraint, Layout, Position, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::symbols::Marker;
use ratatui::text::Span;
use ratatui::widgets::{Axis, Block, Chart, Dataset, GraphType, LineGauge, Paragraph, Sparkline, Widget};
use ratatui::{Frame, Terminal, TerminalOptions, Viewport};

use super::{Display, highest_rate, pace::Pace};

/// Lines of the terminal: progress, numbers, plots, and an empty one for the cursor.
const HEIGHT: u16 = 14;
/// Steps can be faster than anyone reads.
const INTERVAL: Duration = Duration::from_millis(100);

/// Draws a run on a terminal.
#[derive(Debug)]
pub struct Live<B: Backend> {
    terminal: Terminal<B>,
    view: View,
    interval: Duration,
    drawn: Option<Instant>,
}

impl Live<CrosstermBackend<Stdout>> {
    /// Takes the last lines of the terminal on standard output, for a run that ends with step `steps`.
    ///
    /// # Errors
    /// When the terminal does not tell its size or where its cursor is.
    pub fn open(steps: u64) -> io::Result<Self> {
        Self::on(CrosstermBackend::new(io::stdout()), steps, INTERVAL)
    }
}

impl<B: Backend> Live<B> {
    /// Takes the last lines of a terminal, and draws them at most once an interval.
    fn on(backend: B, steps: u64, interval: Duration) -> Result<Self, B::Error> {
        let options = TerminalOptions { viewport: Viewport::Inline(HEIGHT) };
        let terminal = Terminal::with_options(backend, options)?;
        Ok(Self { terminal, view: View::new(steps), interval, drawn: None })
    }

    fn draw(&mut self) {
        self.drawn = Some(Instant::now());
        // A terminal that went away is none to be told.
        let _ = self.terminal.draw(|frame| self.view.draw(frame));
    }

    /// Puts text above the lines that are drawn, where it stays.
    fn say(&mut self, text: &str) {
        let Ok(size) = self.terminal.size() else { return };
        let lines = wrapped(text, size.width.into());
        let _ = self.terminal.insert_before(lines.len().try_into().unwrap_or(u16::MAX), |buffer| {
            for (y, line) in (0..buffer.area.height).zip(&lines) {
                buffer.set_string(0, y, line, Style::new());
            }
        });
        self.draw();
    }
}

impl<B: Backend> Display for Live<B> {
    fn step(&mut self, metrics: &StepMetrics) {
        self.view.step(metrics);
        if self.drawn.is_none_or(|drawn| drawn.elapsed() >= self.interval) {
            self.draw();
        }
    }

    fn evaluation(&mut self, step: u64, evaluation: &Evaluation) {
        self.view.evaluation.push(step, evaluation.loss);
        self.view.evaluated = Some((step, *evaluation));
        self.draw();
    }

    fn notice(&mut self, text: &str) {
        self.say(text);
    }

    fn finish(&mut self, text: &str) {
        self.say(text);
    }
}

/// What is drawn.
#[derive(Debug)]
struct View {
    pace: Pace,
    loss: Series,
    evaluation: Series,
    last: Option<StepMetrics>,
    evaluated: Option<(u64, Evaluation)>,
}

impl View {
    fn new(steps: u64) -> Self {
        Self {
            pace: Pace::new(steps),
            loss: Series::default(),
            evaluation: Series::default(),
            last: None,
            evaluated: None,
        }
    }

    fn step(&mut self, metrics: &StepMetrics) {
        self.pace.add(metrics);
        self.loss.push(metrics.step, metrics.loss);
        self.last = Some(metrics.clone());
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        let rows = [Constraint::Length(1), Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)];
        let [progress, numbers, plots, end] = frame.area().layout(&Layout::vertical(rows));
        let gauge = LineGauge::default().ratio(self.pace.share()).label(self.pace.text()).filled_style(Color::Cyan);
        frame.render_widget(gauge, progress);
        frame.render_widget(Paragraph::new(self.numbers()), numbers);
        let routers = self.last.as_ref().map(|last| &last.routers[..]).unwrap_or_default();
        // A column a layer and the frame, within reason.
        let columns = if routers.is_empty() { 0 } else { (routers.len() + 2).clamp(24, 64) as u16 };
        let [chart, loads] =
            plots.layout(&Layout::horizontal([Constraint::Fill(1), Constraint::Max(columns.min(plots.width / 2))]));
        self.draw_losses(frame, chart);
        draw_loads(frame, loads, routers);
        frame.set_cursor_position(Position::new(end.x, end.y));
    }

    /// The numbers of the last step on one line.
    fn numbers(&self) -> String {
        let Some(last) = &self.last else { return String::new() };
        let mut text = format!("loss {}", number(last.loss));
        if let Some((step, evaluation)) = &self.evaluated {
            text += &format!("  evaluation {} (step {step})", number(evaluation.loss));
        }
        if let Some(rate) = highest_rate(last) {
            text += &format!("  rate {}", number(rate));
        }
        let (norm, speed) = (number(last.gradient_norm), number(last.tokens_per_second));
        text + &format!("  gradient norm {norm}  {speed} tokens/s")
    }

    fn draw_losses(&self, frame: &mut Frame<'_>, area: Rect) {
        let points = |series: &Series| -> Vec<Vec<(f64, f64)>> {
            let point = |point: &Point| Some((point.step(), point.mean()?));
            series.pieces().map(|piece| piece.iter().filter_map(point).collect()).collect()
        };
        let curves = [(points(&self.loss), Color::Cyan), (points(&self.evaluation), Color::Yellow)];
        let all = || curves.iter().flat_map(|(pieces, _)| pieces).flatten();
        let (x, y) = (bounds(all().map(|point| point.0)), bounds(all().map(|point| point.1)));
        let pieces = curves.iter().flat_map(|(pieces, colour)| pieces.iter().map(move |piece| (piece, *colour)));
        let datasets = pieces.map(|(piece, colour)| {
            let kind = if piece.len() == 1 { GraphType::Scatter } else { GraphType::Line };
            Dataset::default().data(piece).graph_type(kind).marker(Marker::Braille).style(colour)
        });
        let title = if self.evaluated.is_some() { " loss, evaluation in yellow " } else { " loss " };
        let chart = Chart::new(datasets.collect())
            .block(Block::bordered().title(title))
            .x_axis(Axis::default().bounds(x).labels(x.map(|step| format!("{step:.0}"))))
            .y_axis(Axis::default().bounds(y).labels(y.map(|loss| Span::raw(number(loss)).dim())));
        frame.render_widget(chart, area);
    }
}

/// The load of each layer's busiest expert, by the mean, as a bar a layer; where there are more layers than columns, as one
/// for the highest of some neighbours.
fn draw_loads(frame: &mut Frame<'_>, area: Rect, routers: &[RouterMetrics]) {
    let loads = || routers.iter().map(|router| router.max_load).filter(|load| load.is_finite());
    let Some(highest) = loads().max_by(f64::total_cmp) else { return };
    let block = Block::bordered().title(format!(" expert load to {highest:.1}x "));
    let inner = block.inner(area);
    block.render(area, frame.buffer_mut());
    let columns = usize::from(inner.width).max(1);
    let bars = routers.chunks(routers.len().div_ceil(columns)).map(|layers| {
        // In hundredths; what is not finite has no bar.
        layers.iter().map(|router| (100.0 * router.max_load) as u64).max().unwrap_or_default()
    });
    let bars: Vec<u64> = bars.collect();
    frame.render_widget(Sparkline::default().data(&bars).style(Color::Green), inner);
}

/// From the lowest to the highest, and never nothing.
fn bounds(values: impl Iterator<Item = f64> + Clone) -> [f64; 2] {
    let lowest = values.clone().min_by(f64::total_cmp).unwrap_or(0.0);
    let highest = values.max_by(f64::total_cmp).unwrap_or(1.0);
    let margin = if lowest < highest { 0.0 } else { 0.1 * lowest.abs().max(1.0) };
    [lowest - margin, highest + margin]
}

/// Text in lines of at most so many columns.
fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for paragraph in text.lines() {
        let mut line = String::new();
        for character in paragraph.chars() {
            let mut longer = line.clone();
            longer.push(character);
            if Span::raw(&longer).width() > columns && !line.is_empty() {
                lines.push(mem::take(&mut line));
            }
            line.push(character);
        }
        lines.push(line);
    }
    lines
}

#[cfg(test)]
mod tests {
    use ratatui::backend::TestBackend;
    use ratatui::buffer::Buffer;

    use super::super::testing::metrics;
    use super::*;

    fn live(width: u16, height: u16) -> Live<TestBackend> {
        Live::on(TestBackend::new(width, height), 10, Duration::ZERO).unwrap()
    }

    fn text(buffer: &Buffer) -> String {
        let width = usize::from(buffer.area.width).max(1);
        let rows = buffer.content.chunks(width);
        rows.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned() + "\n").collect()
    }

    fn screen(live: &Live<TestBackend>) -> String {
        text(live.terminal.backend().buffer())
    }

    #[test]
    fn a_step_shows_progress_numbers_and_plots() {
        let mut live = live(100, 20);
        (1..=4).for_each(|step| live.step(&metrics(step, 8)));
        live.evaluation(4, &Evaluation { loss: 1.25, accuracy: None });
        let screen = screen(&live);
        for part in [
            "step 4 of 10, 12.0 s left",
            "loss 1.000  evaluation 1.250 (step 4)  rate 1.000e-4  gradient norm 1.500  50.00 tokens/s",
            " expert load to 1.5x ",
            "████████",
            "loss, evaluation in yellow",
            "4.000",
        ] {
            assert!(screen.contains(part), "{part}:\n{screen}");
        }
        assert!(screen.chars().any(|character| ('\u{2801}'..='\u{28FF}').contains(&character)), "a curve:\n{screen}");
    }

    #[test]
    fn the_cursor_stays_on_the_empty_line_below() {
        let mut live = live(60, 20);
        live.step(&metrics(1, 2));
        live.terminal.backend_mut().assert_cursor_position((0, HEIGHT - 1));
        assert!(live.terminal.backend().cursor_visible());
        assert_eq!(screen(&live).lines().nth(usize::from(HEIGHT) - 1), Some(""));
    }

    #[test]
    fn notices_stay_above_and_go_into_the_terminals_history() {
        let mut live = live(40, 20);
        live.step(&metrics(1, 0));
        for index in 0..8 {
            live.notice(&format!("notice {index}: {}", "x".repeat(35)));
        }
        let (history, screen) = (text(live.terminal.backend().scrollback()), screen(&live));
        assert!(history.starts_with("notice 0: xxx") && history.lines().nth(1) == Some("xxxxx"), "{history}");
        let lines: Vec<&str> = screen.lines().collect();
        assert!(lines[4].starts_with("notice 7: xxx") && lines[5] == "xxxxx", "{screen}");
        assert!(lines[6].starts_with("step 1 of 10"), "{screen}");
    }

    #[test]
    fn steps_faster_than_the_interval_are_drawn_with_the_next() {
        let mut live = Live::on(TestBackend::new(60, 20), 10, Duration::from_secs(3600)).unwrap();
        (1..=3).for_each(|step| live.step(&metrics(step, 0)));
        assert!(screen(&live).contains("step 1 of 10"), "{}", screen(&live));
        live.finish("done");
        assert!(screen(&live).contains("step 3 of 10") && screen(&live).starts_with("done\n"), "{}", screen(&live));
    }

    #[test]
    fn no_size_and_no_number_breaks_it() {
        for (width, height) in [(1, 1), (2, 3), (10, 5), (30, 40), (400, 60)] {
            let mut live = live(width, height);
            live.notice("a notice before the first step");
            for step in 1..=3 {
                let mut metrics = metrics(step, 100);
                metrics.routers[0].max_load = f64::NAN;
                metrics.loss = [f64::NAN, f64::INFINITY, 1e38][step as usize - 1];
                live.step(&metrics);
            }
            live.step(&metrics(20, 0));
            live.evaluation(20, &Evaluation { loss: f64::NAN, accuracy: None });
            live.finish("done");
        }
    }

    #[test]
    fn long_text_is_wrapped_by_columns() {
        assert_eq!(wrapped("abcdef\ngh", 4), ["abcd", "ef", "gh"]);
        assert_eq!(wrapped("数据文件", 5), ["数据", "文件"]);
        assert_eq!(wrapped("数据", 1), ["数", "据"]);
    }
}
