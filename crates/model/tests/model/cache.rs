//! The state of a sequence: chunks, truncation, clones, rows of a batch.

use crate::common::{config, model, tokens};
use burn::{
    backend::{Flex, NdArray},
    tensor::{DType, backend::Backend},
};
use dsv41::{Cache, Call, ModelBackend, ModelError, Transformer};

const LENGTH: usize = 29;
const ROLLBACK: usize = 10;

struct Sequence<B: Backend> {
    model: Transformer<B>,
    tolerance: f64,
}

impl<B: ModelBackend> Sequence<B> {
    fn new(dtype: DType, tolerance: f64) -> Self {
        Self { model: model(&config("tiny.json"), dtype), tolerance }
    }

    fn cache(&self, batch: usize) -> Cache<B> {
        Cache::new(self.model.config(), batch, 64, ROLLBACK).expect("fits the context")
    }

    fn run(&self, tokens: &[Vec<u32>], cache: &mut Cache<B>) -> Vec<Vec<f64>> {
        let logits = self.model.forward(tokens, Some(cache), Call::default()).expect("a valid call").logits;
        let values: Vec<f64> = logits.into_data().iter().collect();
        let row = values.len() / tokens.len();
        values.chunks_exact(row).map(<[f64]>::to_vec).collect()
    }

    fn run_chunks(&self, tokens: &[Vec<u32>], chunks: &[usize], cache: &mut Cache<B>) -> Vec<Vec<f64>> {
        let mut start = 0;
        let mut logits = vec![Vec::new(); tokens.len()];
        for &chunk in chunks {
            let part: Vec<Vec<u32>> = tokens.iter().map(|row| row[start..start + chunk].to_vec()).collect();
            for (all, new) in logits.iter_mut().zip(self.run(&part, cache)) {
                all.extend(new);
            }
            start += chunk;
        }
        logits
    }

    fn assert_close(&self, got: &[Vec<f64>], want: &[Vec<f64>], what: &str) {
        for (got, want) in got.iter().flatten().zip(want.iter().flatten()) {
            assert!((got - want).abs() <= self.tolerance, "{what}: {got} and {want}");
        }
        assert_eq!(got.iter().map(Vec::len).sum::<usize>(), want.iter().map(Vec::len).sum::<usize>(), "{what}");
    }

    fn check(&self) {
        let all = tokens(2, LENGTH, self.model.config().vocab_size);
        let vocab = self.model.config().vocab_size;
        let whole = self.run(&all, &mut self.cache(2));

        // Lengths around the window (8), a group (2) and one token at a time.
        for chunks in [vec![1; LENGTH], vec![7, 8, 9, 5], vec![2, 1, 20, 6], vec![28, 1], vec![3; 9], vec![8, 8, 8]] {
            let length = chunks.iter().sum::<usize>();
            let chunked = self.run_chunks(&all, &chunks, &mut self.cache(2));
            let want: Vec<Vec<f64>> = whole.iter().map(|row| row[..length * vocab].to_vec()).collect();
            self.assert_close(&chunked, &want, &format!("chunks {chunks:?}"));
        }

        let uncached = self.model.forward(&all, None, Call::default()).expect("a valid call").logits;
        let uncached: Vec<f64> = uncached.into_data().iter().collect();
        self.assert_close(&[uncached], &[whole.concat()], "without a cache");

        for row in 0..2 {
            let alone = self.run(&all[row..=row], &mut self.cache(1));
            self.assert_close(&alone, &whole[row..=row], "a row alone");
        }

        self.check_truncation(&all, &whole);
        self.check_clones(&all, &whole);
    }

    fn check_truncation(&self, all: &[Vec<u32>], whole: &[Vec<f64>]) {
        let vocab = self.model.config().vocab_size;
        for back in [1, 2, 5, ROLLBACK] {
            let mut cache = self.cache(2);
            let split = LENGTH - ROLLBACK;
            self.run_chunks(all, &[split, ROLLBACK], &mut cache);
            let wrong = tokens(2, 3, 17);
            cache.truncate(LENGTH - back).expect("within the margin");
            if (3..ROLLBACK).contains(&back) {
                // Other tokens over the truncated ones, taken back again, must leave no trace.
                self.run(&wrong, &mut cache);
                cache.truncate(LENGTH - back).expect("within the margin");
            }
            let rest: Vec<Vec<u32>> = all.iter().map(|row| row[LENGTH - back..].to_vec()).collect();
            let got = self.run(&rest, &mut cache);
            let want: Vec<Vec<f64>> = whole.iter().map(|row| row[(LENGTH - back) * vocab..].to_vec()).collect();
            self.assert_close(&got, &want, &format!("after a truncation by {back}"));
        }

        let mut cache = self.cache(2);
        self.run(all, &mut cache);
        let error = cache.truncate(LENGTH - ROLLBACK - 1).expect_err("beyond the margin");
        assert!(matches!(error, ModelError::Rollback { len: LENGTH, margin: ROLLBACK, .. }), "{error}");
        assert!(cache.truncate(LENGTH + 1).is_err(), "cannot grow by truncation");
        assert_eq!(cache.len(), LENGTH, "a failed truncation changes nothing");

        cache.reset();
        self.assert_close(&self.run(all, &mut cache), whole, "after a reset");
    }

    fn check_clones(&self, all: &[Vec<u32>], whole: &[Vec<f64>]) {
        let vocab = self.model.config().vocab_size;
        let mut source = self.cache(2);
        self.run_chunks(all, &[15], &mut source);
        let mut clone = source.clone();
        self.run(&tokens(2, 9, 13), &mut clone);
        let rest: Vec<Vec<u32>> = all.iter().map(|row| row[15..].to_vec()).collect();
        let want: Vec<Vec<f64>> = whole.iter().map(|row| row[15 * vocab..].to_vec()).collect();
        self.assert_close(&self.run(&rest, &mut source), &want, "the source of a clone");
        clone.truncate(15).expect("within the margin");
        self.assert_close(&self.run(&rest, &mut clone), &want, "a clone taken back");
    }
}

#[test]
fn f64_state_is_exact() {
    Sequence::<NdArray<f64>>::new(DType::F64, 1e-9).check();
    Sequence::<Flex>::new(DType::F64, 1e-9).check();
}

#[test]
fn f32_state_is_exact() {
    Sequence::<NdArray>::new(DType::F32, 1e-5).check();
    Sequence::<Flex>::new(DType::F32, 1e-5).check();
}

#[test]
fn calls_that_cannot_be_made_change_nothing() {
    let sequence = Sequence::<Flex>::new(DType::F32, 0.0);
    let vocab = sequence.model.config().vocab_size as u32;
    let mut cache = sequence.cache(1);
    sequence.run(&[vec![1, 2, 3]], &mut cache);
    let mut fails = |tokens: &[Vec<u32>]| {
        let error = sequence.model.forward(tokens, Some(&mut cache), Call::default()).expect_err("a bad call");
        assert_eq!(cache.len(), 3);
        error
    };
    assert!(matches!(fails(&[]), ModelError::NoTokens));
    assert!(matches!(fails(&[vec![]]), ModelError::NoTokens));
    assert!(matches!(fails(&[vec![1, vocab]]), ModelError::TokenOutOfRange { position: 1, .. }));
    assert!(matches!(fails(&[vec![1], vec![1]]), ModelError::BatchMismatch { found: 2, expected: 1 }));
    assert!(matches!(fails(&[vec![1, 2], vec![1]]), ModelError::RaggedBatch { row: 1, .. }));
    assert!(matches!(fails(&[vec![1; 62]]), ModelError::ContextExceeded { asked: 65, capacity: 64 }));

    let mut selections = dsv41::Selections::default();
    selections.layer_mut(2).topk = Some(vec![99]);
    let call = Call { selections: Some(&selections), ..Call::default() };
    let error = sequence.model.forward(&[vec![1]], Some(&mut cache), call).expect_err("no such position");
    assert!(matches!(error, ModelError::Selection { layer: 2, part: "topk", .. }), "{error}");
    assert!(matches!(
        Cache::<Flex>::new(sequence.model.config(), 1, 1 << 20, 0),
        Err(ModelError::ContextExceeded { .. })
    ));
}
