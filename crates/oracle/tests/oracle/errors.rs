//! Calls that do not fit are refused by name, and leave the cache as it was.

use dsv41_config::Config;
use dsv41_golden::{Captures, GoldenError, Recorded, Selections, WeightSet};
use dsv41_oracle::{Call, Numerics, Oracle, OracleError, Switches};

use crate::support::{Model, columns, run_chunks};

#[test]
fn unfit_calls_leave_the_cache_as_it_was() {
    let model = Model::tiny();
    let oracle = model.oracle::<f32>(Numerics::Reference);
    let ids = model.ids(2, 12);
    let mut cache = oracle.cache(2, 0);
    run_chunks(&oracle, &mut cache, &columns(&ids, 0..9), &[9]);
    let mut untouched = cache.clone();

    let mut forward = |ids: &[Vec<u32>], selections: Option<&Selections>, feed: Option<&Captures>| {
        oracle.forward(ids, &mut cache, Call { selections, feed, capture: true }).unwrap_err().to_string()
    };
    let next = columns(&ids, 9..10);
    let select = |layer: usize, part: &str, entries: Vec<i64>| {
        let mut selections = Selections::default();
        let choices = selections.layer_mut(layer);
        match part {
            "topk" => choices.topk = Some(entries),
            "experts" => choices.experts = Some(entries),
            _ => choices.candidates = Some(entries.into_iter().map(|entry| entry == 1).collect()),
        }
        selections
    };
    let errors = [
        (forward(&ids[..1], None, None), "1 rows of ids for a cache of 2 sequences"),
        (forward(&[vec![], vec![]], None, None), "a call needs at least one sequence and one token"),
        (forward(&[vec![1], vec![]], None, None), "row 1 has 0 ids, row 0 has 1"),
        (forward(&[vec![1], vec![64]], None, None), "id 64 at row 1, column 0 is not below vocab_size = 64"),
        (forward(&model.ids(2, 56), None, None), "9 cached and 56 new tokens exceed max_seq_len = 64"),
        (forward(&next, Some(&select(2, "topk", vec![0; 9])), None), "forced topk of layer 2: 9 entries, expected 10"),
        (
            forward(&next, Some(&select(2, "topk", vec![5; 10])), None),
            "forced topk of layer 2: 5 at entry 0 is not in -1..5",
        ),
        (
            forward(&next, Some(&select(4, "candidates", vec![1; 19])), None),
            "forced candidates of layer 4: 19 entries, expected 20",
        ),
        (
            forward(&next, Some(&select(0, "experts", vec![0; 3])), None),
            "forced experts of layer 0: 3 entries, expected 4",
        ),
        (
            forward(&next, Some(&select(0, "experts", vec![0, 1, 4, -1])), None),
            "forced experts of layer 0: 4 at entry 2 is not in 0..4",
        ),
    ];
    for (found, expected) in errors {
        assert_eq!(found, expected);
    }
    let feed = Captures::from_iter([("L3.h_in".to_owned(), Recorded::float([2, 1, 64], vec![0.0; 128]))]);
    assert_eq!(forward(&next, None, Some(&feed)), "fed `L3.h_in` has shape [2, 1, 64], expected [2, 1, 4, 64]");

    let rest = columns(&ids, 9..12);
    assert!(run_chunks(&oracle, &mut cache, &rest, &[3]) == run_chunks(&oracle, &mut untouched, &rest, &[3]));
}

#[test]
fn choices_that_a_layer_does_not_make_are_not_read() {
    let model = Model::tiny();
    let oracle = model.oracle::<f32>(Numerics::Reference);
    let ids = model.ids(1, 5);
    let mut selections = Selections::default();
    selections.layer_mut(3).topk = Some(vec![7]);
    selections.layer_mut(2).candidates = Some(vec![true]);
    let forced = Call { selections: Some(&selections), ..Call::default() };
    let forced = oracle.forward(&ids, &mut oracle.cache(1, 0), forced).unwrap();
    assert!(forced == oracle.forward(&ids, &mut oracle.cache(1, 0), Call::default()).unwrap());
}

#[test]
fn caches_of_other_models_are_refused() {
    let (tiny, odd) = (Model::tiny(), Model::odd());
    let mut cache = odd.oracle::<f32>(Numerics::Reference).cache(1, 0);
    let oracle = tiny.oracle::<f32>(Numerics::Reference);
    let error = oracle.forward(&tiny.ids(1, 2), &mut cache, Call::default()).unwrap_err();
    assert!(matches!(error, OracleError::ForeignCache), "{error}");

    let mut none = oracle.cache(0, 0);
    let error = oracle.forward(&[], &mut none, Call::default()).unwrap_err();
    assert!(matches!(error, OracleError::Empty), "{error}");
}

#[test]
fn models_that_cannot_be_built_are_refused() {
    let model = Model::tiny();
    let build = |config: &Config, weights: &WeightSet| {
        Oracle::<f32>::new(config, weights, Numerics::Full, Switches::default()).err().unwrap()
    };

    let error = build(&model.config, &WeightSet::default());
    assert!(
        matches!(&error, OracleError::Weight(GoldenError::MissingWeight { name }) if name == "embed.weight"),
        "{error}"
    );

    let mut config = model.config.clone();
    config.moe_inter_dim = 8;
    assert_eq!(
        build(&config, &model.weights).to_string(),
        "weight `layers.0.ffn.experts.0.w1.weight` has shape [24, 64], expected [8, 64]"
    );

    let mut config = model.config.clone();
    config.engram_compressed_vocab_size = 63;
    let error = build(&config, &model.weights);
    assert!(matches!(error, OracleError::TokenMap { compressed: 63, vocab: 64 }), "{error}");

    let mut config = model.config.clone();
    config.window_size = 0;
    let error = build(&config, &model.weights);
    assert!(matches!(error, OracleError::Config(_)), "{error}");
}
