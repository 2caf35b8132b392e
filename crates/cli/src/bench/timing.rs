use std::time::{Duration, Instant};

/// Time that repeats of one measurement fill at least.
const AT_LEAST: Duration = Duration::from_millis(300);

/// Repeats of one measurement, however long each takes.
const REPEATS: usize = 5;

/// The middle of several measurements, and their spread.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timing {
    pub(crate) median: Duration,
    pub(crate) fastest: Duration,
    pub(crate) slowest: Duration,
}

/// Times `work` again and again, once it has run without being timed.
pub(crate) fn time(mut work: impl FnMut()) -> Timing {
    work();
    let mut times = Vec::new();
    let begin = Instant::now();
    while times.len() < REPEATS || begin.elapsed() < AT_LEAST {
        let start = Instant::now();
        work();
        times.push(start.elapsed());
    }
    times.sort_unstable();
    Timing { median: times[times.len() / 2], fastest: times[0], slowest: times[times.len() - 1] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_runs_once_more_than_it_is_timed() {
        let mut runs = 0;
        let timing = time(|| {
            runs += 1;
            std::thread::sleep(Duration::from_millis(if runs == 1 { 500 } else { 70 }));
        });
        assert_eq!(runs, 1 + REPEATS);
        assert!(timing.fastest <= timing.median && timing.median <= timing.slowest);
        assert!(timing.fastest >= Duration::from_millis(70));
    }
}
