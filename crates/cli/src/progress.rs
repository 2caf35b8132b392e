//! Progress on standard error, where that is a terminal; silent elsewhere.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Turns while something of unknown length goes on.
pub fn spinner(what: &'static str) -> ProgressBar {
    let spinner = ProgressBar::new_spinner().with_message(what);
    spinner.enable_steady_tick(Duration::from_millis(100));
    spinner
}

/// Fills while `total` bytes are worked through.
pub fn bytes(what: &'static str, total: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {bar:30} {bytes}/{total_bytes}, {bytes_per_sec}, {eta} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(total).with_style(style).with_message(what)
}
