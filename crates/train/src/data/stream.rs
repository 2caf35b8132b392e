//! Batches one after the other, epoch after epoch.

use serde::{Deserialize, Serialize};

use super::{Batch, BatchLayout, DataError, Example, Examples, Packer, Shuffle};

/// Where a stream is: enough to go on from there, given the same examples.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamState {
    /// What the order of examples follows from, together with the epoch.
    pub seed: u64,
    /// Examples of an epoch.
    pub examples: usize,
    /// The epoch that the next batch belongs to, from 0.
    pub epoch: u64,
    /// The position in the epoch of the next example to be taken up.
    pub next: usize,
    /// Positions of examples that were taken up and found no room yet, the oldest first.
    pub waiting: Vec<usize>,
}

impl StreamState {
    /// The beginning of a stream over so many examples.
    pub fn begin(seed: u64, examples: usize) -> Self {
        Self { seed, examples, epoch: 0, next: 0, waiting: Vec::new() }
    }

    fn check(&self, examples: usize) -> Result<(), DataError> {
        if self.examples != examples {
            return Err(DataError::OtherExamples { found: self.examples, expected: examples });
        }
        let Self { next, waiting, .. } = self;
        let ascending = waiting.is_sorted_by(|one, other| one < other) && waiting.last().is_none_or(|last| last < next);
        // A stream whose epoch is used up is in the next one.
        let within = *next < examples || *next == examples && !waiting.is_empty();
        if ascending && within {
            Ok(())
        } else {
            Err(DataError::InvalidState { next: *next, waiting: waiting.clone(), examples })
        }
    }
}

/// Batches without end: every epoch has each example once, in an order of its own.
///
/// A batch takes the examples that wait, then those that follow in the epoch's order, each into the first row with room
/// for it. What finds no room waits for the next batch, and the oldest is the first to be placed there, so that nothing
/// waits for ever. An epoch's last batch can have fewer rows; no batch has examples of two epochs.
///
/// After an error the stream is where it was before, and the next call tries the same batch.
#[derive(Debug)]
pub struct BatchStream<E> {
    examples: E,
    layout: BatchLayout,
    seed: u64,
    epoch: u64,
    order: Shuffle,
    next: usize,
    waiting: Vec<Waiting>,
}

/// An example that was taken up.
#[derive(Debug)]
struct Waiting {
    position: usize,
    example: Example,
}

impl<E: Examples> BatchStream<E> {
    /// A stream from the beginning.
    ///
    /// # Errors
    /// There are no examples, or the layout makes no batches.
    pub fn new(examples: E, layout: BatchLayout, seed: u64) -> Result<Self, DataError> {
        let state = StreamState::begin(seed, examples.count());
        Self::resume(examples, layout, &state)
    }

    /// A stream that goes on from a state. With the same examples and layout it gives the batches that the stream with
    /// that state would have given next; with another layout it still gives each example once an epoch.
    ///
    /// # Errors
    /// There are no examples, the layout makes no batches, the state is of other examples or of no stream, or an example
    /// that waits cannot be read.
    pub fn resume(examples: E, layout: BatchLayout, state: &StreamState) -> Result<Self, DataError> {
        let count = examples.count();
        if count == 0 {
            return Err(DataError::NoExamples);
        }
        layout.check()?;
        state.check(count)?;
        let &StreamState { seed, epoch, next, .. } = state;
        let order = Shuffle::new(count, seed, epoch);
        let mut stream = Self { examples, layout, seed, epoch, order, next, waiting: Vec::new() };
        for &position in &state.waiting {
            stream.take_up(position)?;
        }
        Ok(stream)
    }

    /// Where it is.
    pub fn state(&self) -> StreamState {
        StreamState {
            seed: self.seed,
            examples: self.examples.count(),
            epoch: self.epoch,
            next: self.next,
            waiting: self.waiting.iter().map(|waiting| waiting.position).collect(),
        }
    }

    /// The epoch that the next batch belongs to, from 0.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Where the examples come from.
    pub fn examples(&self) -> &E {
        &self.examples
    }

    fn batch(&mut self) -> Result<Batch, DataError> {
        let mut packer = Packer::new(self.layout);
        // For each example that waits whether it found room.
        let mut placed: Vec<bool> = Vec::new();
        while !packer.is_full() {
            if placed.len() == self.waiting.len() {
                let left = placed.iter().filter(|&&placed| !placed).count();
                if left >= self.layout.look_ahead() || self.next == self.examples.count() {
                    break;
                }
                self.take_up(self.next)?;
                self.next += 1;
            }
            placed.push(packer.offer(&self.waiting[placed.len()].example));
        }
        let mut placed = placed.into_iter();
        self.waiting.retain(|_| placed.next() != Some(true));
        if self.waiting.is_empty() && self.next == self.examples.count() {
            self.epoch += 1;
            self.next = 0;
            self.order = Shuffle::new(self.examples.count(), self.seed, self.epoch);
        }
        Ok(packer.finish())
    }

    fn take_up(&mut self, position: usize) -> Result<(), DataError> {
        let example = self.examples.example(self.order.at(position))?;
        let (length, limit) = (example.ids.len(), self.layout.length);
        if length > limit {
            return Err(DataError::LongExample { line: example.line, length, limit });
        }
        self.waiting.push(Waiting { position, example });
        Ok(())
    }
}

impl<E: Examples> Iterator for BatchStream<E> {
    type Item = Result<Batch, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.batch())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::data::{
        Manner,
        testing::{Listed, listed, numbered_example},
    };

    fn layouts(length: usize) -> impl Strategy<Value = BatchLayout> {
        let manner =
            prop_oneof![Just(Manner::Unpacked), (1_usize..6).prop_map(|look_ahead| Manner::Packed { look_ahead })];
        (1_usize..4, 1_usize..6, manner).prop_map(move |(rows, alignment, manner)| BatchLayout {
            rows,
            length,
            alignment,
            manner,
            padding: 0,
        })
    }

    /// The batches of an epoch, each with the state before it.
    fn epoch(stream: &mut BatchStream<Listed>) -> Vec<(StreamState, Batch)> {
        let epoch = stream.epoch();
        let mut batches = Vec::new();
        while stream.epoch() == epoch {
            let state = stream.state();
            batches.push((state, stream.next().unwrap().unwrap()));
        }
        batches
    }

    fn lines(batches: &[(StreamState, Batch)]) -> Vec<usize> {
        batches.iter().flat_map(|(_, batch)| batch.lines.clone()).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn an_epoch_has_every_example_once(examples in listed(9, 30), layout in layouts(12), seed: u64) {
            let mut stream = BatchStream::new(examples.clone(), layout, seed).unwrap();
            for _ in 0..2 {
                let batches = epoch(&mut stream);
                let mut found: Vec<Example> = batches.iter().flat_map(|(_, batch)| batch.examples()).collect();
                found.sort_by_key(|example| example.line);
                prop_assert_eq!(found.len(), examples.0.len());
                for (found, expected) in found.iter().zip(&examples.0) {
                    prop_assert_eq!(&found.ids, &expected.ids);
                    prop_assert_eq!(&found.learn[1..], &expected.learn[1..]);
                }
            }
        }

        #[test]
        fn a_stream_goes_on_from_any_state_as_if_unbroken(
            examples in listed(9, 20), layout in layouts(10), seed: u64, place: prop::sample::Index,
        ) {
            let mut stream = BatchStream::new(examples.clone(), layout, seed).unwrap();
            let batches = [epoch(&mut stream), epoch(&mut stream)].concat();
            let broken = place.index(batches.len());
            let state = serde_json::to_string(&batches[broken].0).unwrap();
            let state: StreamState = serde_json::from_str(&state).unwrap();
            let mut resumed = BatchStream::resume(examples, layout, &state).unwrap();
            for (state, batch) in &batches[broken..] {
                prop_assert_eq!(&resumed.state(), state);
                prop_assert_eq!(&resumed.next().unwrap().unwrap(), batch);
            }
        }

        #[test]
        fn another_layout_goes_on_with_each_example_once(
            examples in listed(9, 20), layouts in (layouts(10), layouts(10)), seed: u64, place: prop::sample::Index,
        ) {
            let mut stream = BatchStream::new(examples.clone(), layouts.0, seed).unwrap();
            let batches = epoch(&mut stream);
            let broken = place.index(batches.len());
            let mut resumed = BatchStream::resume(examples, layouts.1, &batches[broken].0).unwrap();
            let mut found = [lines(&batches[..broken]), lines(&epoch(&mut resumed))].concat();
            found.sort_unstable();
            prop_assert_eq!(found, (1..=stream.examples().count()).collect::<Vec<_>>());
        }
    }

    const LAYOUT: BatchLayout =
        BatchLayout { rows: 2, length: 10, alignment: 1, manner: Manner::Packed { look_ahead: 3 }, padding: 0 };

    fn of_lengths(lengths: &[usize]) -> Listed {
        Listed((1..).zip(lengths).map(|(line, &length)| numbered_example(line, vec![true; length])).collect())
    }

    #[test]
    fn epochs_and_seeds_have_their_own_order() {
        let examples = of_lengths(&[5; 40]);
        let mut stream = BatchStream::new(examples.clone(), LAYOUT, 1).unwrap();
        let orders = [lines(&epoch(&mut stream)), lines(&epoch(&mut stream))];
        let other = lines(&epoch(&mut BatchStream::new(examples, LAYOUT, 2).unwrap()));
        assert!(orders[0] != orders[1] && orders[0] != other && orders[1] != other);
    }

    /// Examples that come up in this order of lengths in the first epoch of seed 5; their lines are their positions.
    fn in_order(lengths: &[usize]) -> Listed {
        let order = Shuffle::new(lengths.len(), 5, 0);
        let mut examples: Vec<_> = (0..lengths.len()).map(|position| (order.at(position), position)).collect();
        examples.sort_unstable();
        let numbered = examples.into_iter().map(|(_, position)| position);
        Listed(numbered.map(|position| numbered_example(position, vec![true; lengths[position]])).collect())
    }

    #[test]
    fn shorter_examples_fill_what_those_that_wait_leave() {
        let placed = |look_ahead| -> Vec<Vec<usize>> {
            let layout = BatchLayout { rows: 1, manner: Manner::Packed { look_ahead }, ..LAYOUT };
            let mut stream = BatchStream::new(in_order(&[6, 7, 5, 4, 3, 4]), layout, 5).unwrap();
            epoch(&mut stream).into_iter().map(|(_, batch)| batch.lines).collect()
        };
        assert_eq!(placed(1), [vec![0], vec![1], vec![2, 3], vec![4, 5]]);
        assert_eq!(placed(2), [vec![0], vec![1], vec![2, 3], vec![4, 5]]);
        assert_eq!(placed(3), [vec![0, 3], vec![1, 4], vec![2, 5]]);
    }

    #[test]
    fn the_oldest_that_waits_comes_first_in_the_next_batch() {
        let mut stream = BatchStream::new(in_order(&[7, 7, 7, 7, 6, 3, 3]), LAYOUT, 5).unwrap();
        let batches = epoch(&mut stream);
        assert_eq!(lines(&batches), [0, 1, 2, 5, 3, 6, 4]);
        let waiting: Vec<_> = batches.into_iter().map(|(state, _)| state.waiting).collect();
        assert_eq!(waiting, [vec![], vec![2, 3, 4], vec![4]]);
    }

    #[test]
    fn an_example_that_no_row_holds_is_an_error_that_stays() {
        let mut stream = BatchStream::new(of_lengths(&[3, 3, 11]), LAYOUT, 0).unwrap();
        let before = stream.state();
        for _ in 0..2 {
            let error = stream.next().unwrap().unwrap_err();
            assert_eq!(error.to_string(), "example 3 has 11 tokens, a sequence holds 10");
        }
        assert_eq!(stream.state().epoch, before.epoch);
    }

    /// Examples that cannot be read at first.
    struct Failing {
        examples: Listed,
        failures: usize,
    }

    impl Examples for Failing {
        fn count(&self) -> usize {
            self.examples.count()
        }

        fn example(&mut self, index: usize) -> Result<Example, DataError> {
            match self.failures.checked_sub(1) {
                Some(left) if index % 2 == 1 => {
                    self.failures = left;
                    Err(DataError::NoExamples)
                }
                _ => self.examples.example(index),
            }
        }
    }

    #[test]
    fn after_an_error_the_same_batches_follow() {
        let examples = of_lengths(&[5, 4, 7, 2, 9, 3, 1, 6, 6, 2, 8]);
        let expected = epoch(&mut BatchStream::new(examples.clone(), LAYOUT, 4).unwrap());
        let failing = Failing { examples: examples.clone(), failures: 3 };
        let mut stream = BatchStream::new(failing, LAYOUT, 4).unwrap();
        let mut found = Vec::new();
        while stream.epoch() == 0 {
            match stream.next().unwrap() {
                Ok(batch) => found.push(batch),
                // What is saved after an error gives the same batch, too.
                Err(_) => {
                    let mut resumed = BatchStream::resume(examples.clone(), LAYOUT, &stream.state()).unwrap();
                    assert_eq!(resumed.next().unwrap().unwrap(), expected[found.len()].1);
                }
            }
        }
        assert_eq!(found, expected.into_iter().map(|(_, batch)| batch).collect::<Vec<_>>());
        assert_eq!(stream.examples().failures, 0);
    }

    #[test]
    fn nothing_to_stream_is_refused() {
        let error = BatchStream::new(Listed(vec![]), LAYOUT, 0).unwrap_err();
        assert_eq!(error.to_string(), "there are no examples to make batches of");
    }

    #[test]
    fn a_state_of_other_examples_or_of_no_stream_is_refused() {
        let examples = of_lengths(&[3, 3, 3]);
        let begin = StreamState::begin(0, 3);
        let resume = |state: StreamState| BatchStream::resume(examples.clone(), LAYOUT, &state).map(|_| ());
        resume(begin.clone()).unwrap();
        resume(StreamState { next: 3, waiting: vec![0, 2], ..begin.clone() }).unwrap();
        let error = resume(StreamState { examples: 4, ..begin.clone() }).unwrap_err();
        assert_eq!(error.to_string(), "the saved state is of a stream over 4 examples, expected 3");
        for (next, waiting) in
            [(3, vec![]), (4, vec![1]), (2, vec![2]), (2, vec![1, 1]), (2, vec![1, 0]), (0, vec![usize::MAX])]
        {
            let error = resume(StreamState { next, waiting: waiting.clone(), ..begin.clone() }).unwrap_err();
            let said = format!("the saved state has {next} as its next position and {waiting:?} waiting: expected ");
            assert!(error.to_string().starts_with(&said), "{error}");
        }
    }
}
