//! The three checks of every golden.
//!
//! The oracle sums in order, torch in its own: that is all that separates them. What that comes to was measured, and is
//! held here tighter than the bounds that any implementation is judged by.

use dsv41_golden::{Check, Golden, MASKED, Recorded, SelectionRule, Selections, compare_regime, compare_streams};
use dsv41_oracle::{Call, Oracle, Output};

use crate::support::{columns, config, golden, oracle};

/// Runs every call of a golden; `inspect` sees each regime's output.
fn play(golden: &Golden, oracle: &Oracle<f32>, check: Check, mut inspect: impl FnMut(&str, &Selections, &Output)) {
    let inputs = golden.inputs().unwrap().expect("every text golden has its inputs beside it");
    let ids = golden.fixture.input_ids();
    let mut cache = oracle.cache(golden.fixture.batch, 0);
    for call in golden.fixture.calls() {
        let chosen = golden.selections(&call.name, Some(&inputs)).unwrap().selections;
        let forced = match (check, golden.fixture.selection) {
            (Check::Fed | Check::Forced, _) => Some(chosen.clone()),
            (Check::Free, SelectionRule::Stable) => None,
            // Equal scores were left to torch: its picks are taken, its experts are not.
            (Check::Free, SelectionRule::Torch) => {
                let mut picks = chosen.clone();
                picks.layers.values_mut().for_each(|layer| layer.experts = None);
                Some(picks)
            }
        };
        let feed = (check == Check::Fed).then(|| inputs.regime(&call.name));
        let ids = columns(&ids, call.start..call.start + call.length);
        let call_of = Call { selections: forced.as_ref(), feed: feed.as_ref(), capture: true };
        let output = oracle.forward(&ids, &mut cache, call_of).unwrap();
        inspect(&call.name, &chosen, &output);
    }
}

/// Compares a run with its golden by the bounds of `check` and returns the largest error in bf16 steps.
fn worst_steps(name: &str, check: Check) -> f64 {
    let golden = golden(name);
    let inputs = golden.inputs().unwrap().expect("every text golden has its inputs beside it");
    let mut worst: f64 = 0.0;
    play(&golden, &oracle(&golden), check, |regime, chosen, output| {
        let captures = &output.captures;
        assert!(golden.regime(regime).unwrap().keys().eq(captures.keys()), "{name} {regime}: names and their order");
        let mut comparisons = compare_regime(&golden, regime, captures, check).unwrap();
        if check == Check::Fed {
            comparisons.extend(compare_streams(&inputs, regime, captures));
            check_choices(&golden, regime, chosen, output);
        }
        for comparison in comparisons {
            assert!(comparison.passed(), "{name} {check:?} {regime} {comparison} {:?}", comparison.breaches);
            if !comparison.integer {
                worst = worst.max(comparison.steps);
            }
        }
    });
    worst
}

/// What a fed run's own scores choose is what the golden chose; where torch decided among equal scores, it is as good.
fn check_choices(golden: &Golden, regime: &str, chosen: &Selections, output: &Output) {
    let config = config(golden);
    for (&layer, chosen) in &chosen.layers {
        let at = format!("{} {regime} L{layer}", golden.fixture.name);
        let own = output.own.layer(layer).unwrap();
        if chosen.experts.is_some() {
            assert_eq!(own.experts, chosen.experts, "{at}");
        }
        let Some(topk) = &chosen.topk else { continue };
        if golden.fixture.selection == SelectionRule::Stable {
            assert_eq!(own.topk.as_ref(), Some(topk), "{at}");
            assert!(chosen.candidates.is_none() || own.candidates == chosen.candidates, "{at}");
            continue;
        }
        let scores = &output.index_scores[&layer];
        let positions = scores.shape[2];
        let value_of = |topk: &[i64]| picked_scores(scores, topk, positions);
        assert_eq!(value_of(own.topk.as_ref().unwrap()), value_of(topk), "{at}");
        if let Some(candidates) = &chosen.candidates {
            let value_of = |mask: &[bool]| candidate_scores(scores, mask, positions, config.candidate_block_size);
            assert_eq!(value_of(own.candidates.as_ref().unwrap()), value_of(candidates), "{at}");
        }
    }
}

/// The scores of each query's picks, in order of size; no pick counts as a masked one.
fn picked_scores(scores: &Recorded, topk: &[i64], positions: usize) -> Vec<Vec<f64>> {
    let width = topk.len() / (scores.len() / positions);
    let score = |query: usize, t: i64| usize::try_from(t).map_or(MASKED, |t| scores.get(query * positions + t));
    let queries = topk.chunks(width).enumerate();
    queries.map(|(query, picks)| sorted(picks.iter().map(|&t| score(query, t)).collect())).collect()
}

/// The best score in each of a query's candidate blocks, in order of size.
fn candidate_scores(scores: &Recorded, mask: &[bool], positions: usize, block: usize) -> Vec<Vec<f64>> {
    let best = |query: usize, block: usize, inside: &[bool]| {
        let scores = (0..inside.len()).map(|t| scores.get(query * positions + block + t));
        inside[0].then(|| scores.fold(MASKED, f64::max))
    };
    let queries = mask.chunks(positions).enumerate();
    queries
        .map(|(query, mask)| {
            let blocks = mask.chunks(block).enumerate();
            sorted(blocks.filter_map(|(index, inside)| best(query, index * block, inside)).collect())
        })
        .collect()
}

fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

#[test]
fn fed() {
    let measured = [
        ("tiny", 0.0001),
        ("released", 0.0001),
        ("published", 0.004),
        ("short", 0.002),
        ("batch", 0.5),
        ("fp8", 1.125),
        ("long", 0.5),
    ];
    for (name, steps) in measured {
        let worst = worst_steps(name, Check::Fed);
        assert!(worst <= steps, "{name}: {worst} steps");
    }
}

#[test]
fn forced() {
    for name in ["tiny", "released", "published", "short", "batch", "fp8", "long"] {
        worst_steps(name, Check::Forced);
    }
}

/// In the others one rounding that differs leads to other picks, and with them to another run.
#[test]
fn free() {
    for (name, steps) in [("tiny", 0.0001), ("released", 0.0001), ("published", 0.004), ("short", 0.0002)] {
        let worst = worst_steps(name, Check::Free);
        assert!(worst <= steps, "{name}: {worst} steps");
    }
}
