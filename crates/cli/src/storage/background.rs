use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

/// Requests that may wait; more are dropped, since what is not fetched early is fetched when it is needed.
const QUEUE: usize = 64;

type Job = Box<dyn FnOnce() + Send>;

/// One thread that fetches what will be needed soon. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Background {
    queue: SyncSender<Job>,
}

impl Background {
    /// Starts the thread.
    pub(crate) fn start() -> std::io::Result<Self> {
        let (queue, jobs) = sync_channel::<Job>(QUEUE);
        thread::Builder::new().name("prefetch".to_owned()).spawn(move || jobs.into_iter().for_each(|job| job()))?;
        Ok(Self { queue })
    }

    /// Runs `job` when the thread gets to it, or never where too much waits already.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) {
        // A full queue is the case that the drop is meant for.
        let _ = self.queue.try_send(Box::new(job));
    }
}
