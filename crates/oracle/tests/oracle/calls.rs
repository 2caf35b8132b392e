//! However a sequence is cut into calls, batched, rolled back or copied, its results are the same bits.

use dsv41_golden::Selections;
use dsv41_oracle::{Call, Numerics, OracleError};

use crate::support::{Model, NUMERICS, columns, joined_logit_bits, logit_bits, run_chunks};

const TOKENS: usize = 23;

/// Cuts of [`TOKENS`] that meet the edges of groups (ratios 2, 3 and 4) and windows (5 and 8).
fn cuts() -> Vec<Vec<usize>> {
    let mut cuts: Vec<Vec<usize>> =
        [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 22].map(|first| vec![first, TOKENS - first]).to_vec();
    cuts.push(vec![1; TOKENS]);
    cuts.push(vec![7, 1, 1, 8, 2, 4]);
    cuts.push(vec![3, 2, 1, 5, 1, 9, 2]);
    cuts
}

#[test]
fn any_chunking_equals_one_prefill() {
    for model in [Model::tiny(), Model::odd()] {
        let ids = model.ids(2, TOKENS);
        for numerics in NUMERICS {
            let oracle = model.oracle::<f32>(numerics);
            let whole = run_chunks(&oracle, &mut oracle.cache(2, 0), &ids, &[TOKENS]);
            for cut in cuts() {
                let chunks = run_chunks(&oracle, &mut oracle.cache(2, 0), &ids, &cut);
                assert!(joined_logit_bits(&chunks) == logit_bits(&whole[0].logits), "{numerics:?} {cut:?}");
            }
        }
    }
}

#[test]
fn a_truncated_cache_equals_a_fresh_one() {
    for model in [Model::tiny(), Model::odd()] {
        let ids = model.ids(1, TOKENS);
        let other = model.ids(3, TOKENS)[2..].to_vec();
        for numerics in NUMERICS {
            let oracle = model.oracle::<f32>(numerics);
            let whole = run_chunks(&oracle, &mut oracle.cache(1, 0), &ids, &[TOKENS]);
            for kept in [0, 1, 2, 3, 4, 7, 8, 9, 11, 16, 22] {
                let mut cache = oracle.cache(1, TOKENS);
                // Tokens that are taken back, some of them alone, then those that stay.
                run_chunks(&oracle, &mut cache, &columns(&ids, 0..kept), &[kept][usize::from(kept == 0)..]);
                run_chunks(&oracle, &mut cache, &other, &[TOKENS - kept - 1, 1][usize::from(kept == TOKENS - 1)..]);
                cache.truncate(kept).unwrap();
                assert_eq!(cache.len(), kept);
                let rest = run_chunks(&oracle, &mut cache, &columns(&ids, kept..TOKENS), &[TOKENS - kept]);
                assert!(
                    logit_bits(&rest[0].logits)[0] == logit_bits(&whole[0].logits)[0][kept..],
                    "{numerics:?} {kept}"
                );
            }
        }
    }
}

#[test]
fn a_reset_cache_equals_a_fresh_one() {
    let model = Model::odd();
    let ids = model.ids(2, 9);
    let oracle = model.oracle::<f32>(Numerics::Reference);
    let mut cache = oracle.cache(2, 3);
    let first = run_chunks(&oracle, &mut cache, &ids, &[9]);
    cache.reset();
    assert!(cache.is_empty());
    assert_eq!(cache.batch(), 2);
    assert!(run_chunks(&oracle, &mut cache, &ids, &[9]) == first);
}

#[test]
fn a_batch_row_equals_the_same_row_alone() {
    for model in [Model::tiny(), Model::odd()] {
        // The first n-grams of a row look back before its start: into the pad, not into the row before.
        let ids = model.ids(3, TOKENS);
        for numerics in NUMERICS {
            let oracle = model.oracle::<f32>(numerics);
            let cut = [TOKENS - 6, 1, 5];
            let batch = joined_logit_bits(&run_chunks(&oracle, &mut oracle.cache(3, 0), &ids, &cut));
            for (row, ids) in ids.chunks(1).enumerate() {
                let alone = run_chunks(&oracle, &mut oracle.cache(1, 0), ids, &cut);
                assert!(joined_logit_bits(&alone)[0] == batch[row], "{numerics:?} {row}");
            }
        }
    }
}

#[test]
fn a_clone_diverges_without_touching_its_source() {
    let model = Model::tiny();
    let ids = model.ids(2, TOKENS);
    let oracle = model.oracle::<f32>(Numerics::Reference);
    let whole = run_chunks(&oracle, &mut oracle.cache(1, 0), &ids[..1], &[TOKENS]);
    let mut cache = oracle.cache(1, 4);
    run_chunks(&oracle, &mut cache, &columns(&ids[..1], 0..11), &[11]);

    let mut clone = cache.clone();
    let diverged = run_chunks(&oracle, &mut clone, &columns(&ids[1..], 11..TOKENS), &[TOKENS - 11]);
    assert_eq!((clone.len(), cache.len()), (TOKENS, 11));
    let rest = run_chunks(&oracle, &mut cache, &columns(&ids[..1], 11..TOKENS), &[TOKENS - 11]);
    assert!(logit_bits(&rest[0].logits)[0] == logit_bits(&whole[0].logits)[0][11..]);
    assert!(diverged != rest);
}

#[test]
fn rollback_is_held_to_its_margin() {
    let model = Model::tiny();
    let oracle = model.oracle::<f32>(Numerics::Reference);
    let mut cache = oracle.cache(1, 4);
    run_chunks(&oracle, &mut cache, &model.ids(1, 10), &[10]);

    let refused = |result| matches!(result, Err(OracleError::Rollback { len: 10, lowest: 6, .. }));
    assert!(refused(cache.truncate(5)));
    assert!(refused(cache.truncate(11)));
    assert_eq!(cache.len(), 10, "a refused truncation changes nothing");
    cache.truncate(6).unwrap();
    // What the margin held is spent: a ring of window + 4 has overwritten the keys before.
    assert!(matches!(cache.truncate(5), Err(OracleError::Rollback { len: 6, target: 5, lowest: 6 })));
}

#[test]
fn forcing_its_own_choices_changes_nothing() {
    for model in [Model::tiny(), Model::odd()] {
        let ids = model.ids(2, TOKENS);
        let oracle = model.oracle::<f32>(Numerics::Reference);
        let free = run_chunks(&oracle, &mut oracle.cache(2, 0), &ids, &[TOKENS]).remove(0);
        assert!(free.own == free.used);
        let call = Call { selections: Some(&free.own), ..Call::default() };
        assert!(oracle.forward(&ids, &mut oracle.cache(2, 0), call).unwrap() == free);
    }
}

#[test]
fn forced_choices_are_used_and_own_ones_still_told() {
    let model = Model::tiny();
    let ids = model.ids(1, TOKENS);
    let oracle = model.oracle::<f32>(Numerics::Reference);
    let free = oracle.forward(&ids, &mut oracle.cache(1, 0), Call::default()).unwrap();

    let source = 2;
    let mut forced = Selections::default();
    let nothing = vec![-1; free.own.layer(source).unwrap().topk.as_ref().unwrap().len()];
    forced.layer_mut(source).topk = Some(nothing.clone());
    let call = Call { selections: Some(&forced), ..Call::default() };
    let run = oracle.forward(&ids, &mut oracle.cache(1, 0), call).unwrap();
    assert_eq!(run.used.layer(source).unwrap().topk.as_ref(), Some(&nothing));
    assert_eq!(run.index_scores[&source], free.index_scores[&source], "its scores come before the choice");
    assert_eq!(run.own.layer(source).unwrap().topk, free.own.layer(source).unwrap().topk);
    // Position 0 of ratio 2 sees no compressed position anyway; the last sees some.
    let (run, free) = (logit_bits(&run.logits), logit_bits(&free.logits));
    assert!(run[0][0] == free[0][0]);
    assert!(run[0][TOKENS - 1] != free[0][TOKENS - 1]);
}

#[test]
fn captures_do_not_change_a_run() {
    let model = Model::odd();
    let ids = model.ids(2, 7);
    let oracle = model.oracle::<f32>(Numerics::Reference);
    let bare = oracle.forward(&ids, &mut oracle.cache(2, 0), Call::default()).unwrap();
    assert!(bare.captures.is_empty());
    let call = Call { capture: true, ..Call::default() };
    let mut captured = oracle.forward(&ids, &mut oracle.cache(2, 0), call).unwrap();
    assert_eq!(captured.captures["logits_full"], bare.logits);

    // Feeding a run its own streams changes nothing either.
    let streams = captured.captures.clone();
    let call = Call { feed: Some(&streams), ..Call::default() };
    assert!(oracle.forward(&ids, &mut oracle.cache(2, 0), call).unwrap() == bare);
    captured.captures.clear();
    assert!(captured == bare);
}
