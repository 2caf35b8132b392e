//! The threads that compute.

use anyhow::{Context as _, Result, ensure};

/// More than the largest machines have, and few enough to start.
const MOST: usize = 1024;
/// As much as a process's first thread usually has.
const STACK: usize = 8 << 20;

/// Runs `work` on one of the threads that compute, by default as many as there are cores.
///
/// From one of them work is shared out without a switch to another thread and back, which products of small matrices
/// would spend much of their time on.
///
/// # Errors
/// When the number is out of range or the threads cannot be started, and what `work` gives.
pub(crate) fn compute<T: Send>(threads: Option<usize>, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    if let Some(threads) = threads {
        ensure!((1..=MOST).contains(&threads), "--threads is {threads}: expected 1 to {MOST}");
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads.unwrap_or(0)).stack_size(STACK).build();
    pool.context("the threads cannot be started")?.install(work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_runs_on_the_threads_that_were_asked_for() {
        assert_eq!(compute(Some(3), || Ok(rayon::current_num_threads())).unwrap(), 3);
        assert!(compute(None, || Ok(rayon::current_thread_index().is_some())).unwrap());
    }

    #[test]
    fn numbers_of_threads_that_cannot_be_are_refused() {
        for threads in [0, MOST + 1] {
            let error = compute(Some(threads), || Ok(())).unwrap_err().to_string();
            assert_eq!(error, format!("--threads is {threads}: expected 1 to 1024"));
        }
    }
}
