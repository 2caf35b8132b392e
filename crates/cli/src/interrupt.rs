//! Ending at Ctrl-C with what was done so far.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result};

/// A flag that Ctrl-C sets. The second Ctrl-C ends the program at once.
///
/// # Errors
/// When the system does not let interrupts be caught.
pub(crate) fn interruption() -> Result<&'static AtomicBool> {
    static INTERRUPTED: AtomicBool = AtomicBool::new(false);
    ctrlc::set_handler(|| {
        if INTERRUPTED.swap(true, Ordering::Relaxed) {
            // What a shell reports of a program that ended by an interrupt.
            std::process::exit(130);
        }
    })
    .context("interrupts cannot be caught")?;
    Ok(&INTERRUPTED)
}
