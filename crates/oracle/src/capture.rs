//! Intermediate results under the names of golden files, and how those lay out the attended keys.

use dsv41_golden::{Captures, MASKED, Recorded};

use crate::Real;
use crate::call::Step;
use crate::rows::Rows;

/// Collects captures, or nothing.
pub(crate) struct Recorder {
    captures: Option<Captures>,
}

impl Recorder {
    pub(crate) fn new(capture: bool) -> Self {
        Self { captures: capture.then(Captures::new) }
    }

    pub(crate) fn float<F: Real>(&mut self, name: String, shape: &[usize], values: &[F]) {
        if let Some(captures) = &mut self.captures {
            captures.insert(name, Recorded::float(shape, values.iter().copied()));
        }
    }

    pub(crate) fn int(&mut self, name: String, shape: &[usize], values: impl IntoIterator<Item = i64>) {
        if let Some(captures) = &mut self.captures {
            captures.insert(name, Recorded::int(shape, values));
        }
    }

    /// A result that is kept elsewhere too.
    pub(crate) fn copy(&mut self, name: String, recorded: &Recorded) {
        if let Some(captures) = &mut self.captures {
            captures.insert(name, recorded.clone());
        }
    }

    pub(crate) fn into_captures(self) -> Captures {
        self.captures.unwrap_or_default()
    }
}

/// Scores with minus infinity written as golden files have it.
pub(crate) fn masked_scores<F: Real>(shape: &[usize], scores: &[F]) -> Recorded {
    let stored = |&score: &F| if score == F::NEG_INFINITY { MASKED } else { score.into() };
    Recorded::float(shape, scores.iter().map(stored))
}

/// How `sa_kv` and `sa_topk_idxs` lay out the attended keys, which the released code decides by the kind of call:
///
/// - a prefill (position 0 first): the keys of the call; a query's window is oldest first, -1 at the end, no wider than
///   the call is long;
/// - a decode step (one token, later): the whole ring, slot = position mod window, unwritten slots zero; a query's window
///   is oldest first, -1 for what is unwritten at the beginning;
/// - any other call, which the released code does not have: as a prefill, over the `window - 1` keys before the call
///   (fewer near the start) and those of the call.
///
/// Compressed keys follow the window keys.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeyLayout {
    window: usize,
    end: usize,
    kind: Kind,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Ring,
    /// Keys from this position on.
    From(usize),
}

impl KeyLayout {
    pub(crate) fn new(step: &Step, window: usize) -> Self {
        let kind = if step.start > 0 && step.tokens == 1 {
            Kind::Ring
        } else {
            Kind::From(step.start.saturating_sub(window - 1))
        };
        Self { window, end: step.end(), kind }
    }

    /// Window keys in `sa_kv`: what compressed indices are offset by.
    pub(crate) fn offset(&self) -> usize {
        match self.kind {
            Kind::Ring => self.window,
            Kind::From(first) => self.end - first,
        }
    }

    /// The window keys of `sa_kv`, given those of every position.
    pub(crate) fn keys<F: Real>(&self, keys: &Rows<F>) -> Vec<F> {
        match self.kind {
            Kind::Ring => {
                let newest = self.end - 1;
                (0..self.window)
                    .flat_map(|slot| {
                        let age = (newest % self.window + self.window - slot) % self.window;
                        match newest.checked_sub(age) {
                            Some(position) => keys.row(position).to_vec(),
                            None => vec![F::ZERO; keys.width()],
                        }
                    })
                    .collect()
            }
            Kind::From(first) => (first..self.end).flat_map(|position| keys.row(position)).copied().collect(),
        }
    }

    /// The window part of a query's indices.
    pub(crate) fn indices(&self, position: usize) -> Vec<i64> {
        let seen = (position + 1).saturating_sub(self.window)..position + 1;
        match self.kind {
            Kind::Ring => {
                let unwritten = std::iter::repeat_n(-1, self.window - seen.len());
                unwritten.chain(seen.map(|position| (position % self.window) as i64)).collect()
            }
            Kind::From(first) => {
                let mut indices: Vec<i64> = seen.map(|position| (position - first) as i64).collect();
                indices.resize(self.window.min(self.offset()), -1);
                indices
            }
        }
    }

    /// A selection of compressed positions as indices into `sa_kv`.
    pub(crate) fn compressed<'a>(&self, topk: &'a [i64]) -> impl Iterator<Item = i64> + 'a {
        let offset = self.offset() as i64;
        topk.iter().map(move |&t| if t < 0 { t } else { t + offset })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(start: usize, tokens: usize) -> KeyLayout {
        KeyLayout::new(&Step { batch: 1, tokens, start }, 4)
    }

    fn keys(len: usize) -> Rows<f32> {
        Rows::new(1, (0..len).map(|position| position as f32 + 1.0).collect())
    }

    #[test]
    fn prefill() {
        assert_eq!(layout(0, 3).keys(&keys(3)), [1.0, 2.0, 3.0]);
        assert_eq!(layout(0, 3).indices(1), [0, 1, -1]);
        assert_eq!(layout(0, 6).indices(2), [0, 1, 2, -1]);
        assert_eq!(layout(0, 6).indices(5), [2, 3, 4, 5]);
        assert_eq!(layout(0, 6).compressed(&[0, 2, -1]).collect::<Vec<_>>(), [6, 8, -1]);
        assert_eq!(layout(0, 1).indices(0), [0]);
    }

    #[test]
    fn decode() {
        assert_eq!(layout(2, 1).keys(&keys(3)), [1.0, 2.0, 3.0, 0.0]);
        assert_eq!(layout(2, 1).indices(2), [-1, 0, 1, 2]);
        assert_eq!(layout(5, 1).keys(&keys(6)), [5.0, 6.0, 3.0, 4.0]);
        assert_eq!(layout(5, 1).indices(5), [2, 3, 0, 1]);
        assert_eq!(layout(5, 1).compressed(&[1]).collect::<Vec<_>>(), [5]);
    }

    #[test]
    fn chunk() {
        assert_eq!(layout(5, 2).keys(&keys(7)), [3.0, 4.0, 5.0, 6.0, 7.0]);
        assert_eq!(layout(5, 2).indices(5), [0, 1, 2, 3]);
        assert_eq!(layout(5, 2).indices(6), [1, 2, 3, 4]);
        assert_eq!(layout(1, 2).keys(&keys(3)), [1.0, 2.0, 3.0]);
        assert_eq!(layout(1, 2).indices(1), [0, 1, -1]);
    }
}
