use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dsv41::ExpertResidency;
use dsv41_gguf::Advice;
use lru::LruCache;

use super::background::Background;

/// Tells the system about the bytes of `(layer, expert)`.
type Advise = dyn Fn((usize, usize), Advice) + Send + Sync;

/// Keeps the experts used last within a number of bytes. They live in the mapped file: one that is dropped gives its pages
/// back, and is read again when it is used again.
pub(crate) struct Experts {
    shared: Arc<Shared>,
    background: Arc<Background>,
}

struct Shared {
    /// Bytes of the experts of each layer.
    expert_bytes: Vec<u64>,
    limit: Option<u64>,
    kept: Mutex<Kept>,
    advise: Box<Advise>,
}

/// Experts in memory, the one used last first.
struct Kept {
    experts: LruCache<(usize, usize), ()>,
    bytes: u64,
}

impl Experts {
    /// Keeps at most `limit` bytes of experts, or all of them. `expert_bytes` are those of one expert of each layer.
    pub(crate) fn new(
        expert_bytes: Vec<u64>,
        limit: Option<u64>,
        advise: Box<Advise>,
        background: Arc<Background>,
    ) -> Self {
        let kept = Mutex::new(Kept { experts: LruCache::unbounded(), bytes: 0 });
        Self { shared: Arc::new(Shared { expert_bytes, limit, kept, advise }), background }
    }
}

impl Shared {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        // A panic elsewhere can leave the count of bytes behind the list, which the next eviction mends.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that an expert is in memory, and drops others to make room. True where it was not there before.
    fn keep(&self, key @ (layer, _): (usize, usize)) -> bool {
        let mut kept = self.kept();
        if kept.experts.put(key, ()).is_some() {
            return false;
        }
        kept.bytes += self.expert_bytes[layer];
        while self.limit.is_some_and(|limit| kept.bytes > limit) && kept.experts.len() > 1 {
            if let Some((dropped, ())) = kept.experts.pop_lru() {
                kept.bytes -= self.expert_bytes[dropped.0];
                (self.advise)(dropped, Advice::DontNeed);
            }
        }
        true
    }
}

impl ExpertResidency for Experts {
    fn touch(&self, layer: usize, expert: usize) {
        if self.shared.keep((layer, expert)) {
            (self.shared.advise)((layer, expert), Advice::WillNeed);
        }
    }

    fn prefetch(&self, layer: usize, experts: &[usize]) {
        let shared = Arc::clone(&self.shared);
        let experts = experts.to_vec();
        self.background.run(move || {
            for expert in experts {
                if shared.keep((layer, expert)) {
                    (shared.advise)((layer, expert), Advice::WillNeed);
                }
            }
        });
    }
}

impl fmt::Debug for Experts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kept = self.shared.kept();
        write!(f, "Experts({} kept, {} bytes)", kept.experts.len(), kept.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Told = Arc<Mutex<Vec<((usize, usize), Advice)>>>;

    /// Layer 0 has experts of 10 bytes, layer 1 of 20.
    fn experts(limit: Option<u64>) -> (Experts, Told) {
        let told = Told::default();
        let advise = {
            let told = Arc::clone(&told);
            move |key, advice| told.lock().unwrap().push((key, advice))
        };
        let background = Arc::new(Background::start().unwrap());
        (Experts::new(vec![10, 20], limit, Box::new(advise), background), told)
    }

    fn dropped(told: &Told) -> Vec<(usize, usize)> {
        let told = told.lock().unwrap();
        told.iter().filter(|(_, advice)| *advice == Advice::DontNeed).map(|(key, _)| *key).collect()
    }

    #[test]
    fn the_experts_used_longest_ago_make_room() {
        let (experts, told) = experts(Some(40));
        for (layer, expert) in [(0, 1), (1, 1), (0, 2), (0, 1)] {
            experts.touch(layer, expert);
        }
        assert_eq!(dropped(&told), []);
        experts.touch(0, 3);
        assert_eq!(dropped(&told), [(1, 1)]);
        experts.touch(1, 7);
        assert_eq!(dropped(&told), [(1, 1), (0, 2)]);
        assert_eq!(format!("{experts:?}"), "Experts(3 kept, 40 bytes)");
    }

    #[test]
    fn without_a_limit_all_stay() {
        let (experts, told) = experts(None);
        for expert in 0..100 {
            experts.touch(1, expert);
        }
        assert_eq!(dropped(&told), []);
        assert_eq!(told.lock().unwrap().len(), 100);
    }

    #[test]
    fn the_one_in_use_stays_whatever_the_limit() {
        let (experts, told) = experts(Some(5));
        experts.touch(1, 0);
        experts.touch(0, 4);
        assert_eq!(dropped(&told), [(1, 0)]);
        assert_eq!(format!("{experts:?}"), "Experts(1 kept, 10 bytes)");
    }

    #[test]
    fn prefetched_experts_are_kept_and_asked_for_once() {
        let (experts, told) = experts(None);
        experts.prefetch(0, &[3, 4]);
        let (done, wait) = std::sync::mpsc::channel();
        experts.background.run(move || done.send(()).unwrap());
        wait.recv().unwrap();
        experts.touch(0, 4);
        let told: Vec<_> = told.lock().unwrap().clone();
        assert_eq!(told, [((0, 3), Advice::WillNeed), ((0, 4), Advice::WillNeed)]);
    }
}
