use std::convert::Infallible;
use std::time::{Duration, Instant};

/// Time that each repeat of a measurement stands for at least: shorter ones are more.
const AT_LEAST: Duration = Duration::from_millis(60);

/// Repeats of one measurement where nothing else is said, however long each takes.
pub(super) const REPEATS: u32 = 5;

/// The middle of several measurements, and their spread.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timing {
    pub(super) median: Duration,
    pub(super) fastest: Duration,
    pub(super) slowest: Duration,
    pub(super) repeats: usize,
}

impl Timing {
    /// What there is to say of these times, of which there is at least one.
    pub(super) fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let repeats = times.len();
        Self { median: times[repeats / 2], fastest: times[0], slowest: times[repeats - 1], repeats }
    }
}

/// Does `work` again and again, once before it counts: `repeats` times, or more where those are shorter than 60 ms
/// on average. It says itself how long it took, so that it can prepare and clean up untimed.
pub(super) fn repeat<E>(repeats: u32, mut work: impl FnMut() -> Result<Duration, E>) -> Result<Timing, E> {
    work()?;
    let repeats = repeats.max(1);
    let mut times = Vec::new();
    let begin = Instant::now();
    while times.len() < repeats as usize || begin.elapsed() < AT_LEAST * repeats {
        times.push(work()?);
    }
    Ok(Timing::of(times))
}

/// Times `work` that cannot fail, as [`repeat`].
pub(super) fn time(repeats: u32, mut work: impl FnMut()) -> Timing {
    let timed = repeat(repeats, || {
        let start = Instant::now();
        work();
        Ok::<_, Infallible>(start.elapsed())
    });
    match timed {
        Ok(timing) => timing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_runs_once_more_than_it_is_timed() {
        let mut runs = 0;
        let timing = time(REPEATS, || {
            runs += 1;
            std::thread::sleep(Duration::from_millis(if runs == 1 { 500 } else { 70 }));
        });
        assert_eq!((runs, timing.repeats), (1 + REPEATS, REPEATS as usize));
        assert!(timing.fastest <= timing.median && timing.median <= timing.slowest);
        assert!(timing.fastest >= Duration::from_millis(70));
    }

    #[test]
    fn short_work_is_repeated_until_it_can_be_told() {
        let timing = time(2, || std::thread::sleep(Duration::from_millis(10)));
        assert!(timing.repeats > 2 && timing.repeats <= 12, "{}", timing.repeats);
    }

    #[test]
    fn work_that_fails_ends_it() {
        let mut runs = 0;
        let failed = repeat(5, || {
            runs += 1;
            if runs == 3 { Err("broken") } else { Ok(Duration::ZERO) }
        });
        assert_eq!((failed.unwrap_err(), runs), ("broken", 3));
    }
}
