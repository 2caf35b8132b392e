//! Full numerics: nothing is rounded.

use dsv41_oracle::{Call, Numerics, Oracle, Real};

use crate::support::{F32_PROBS, Model, config, golden};

/// The largest difference of two runs' logits.
fn difference<F: Real, G: Real>(model: &Model, a: &Oracle<F>, b: &Oracle<G>) -> f64 {
    let ids = model.ids(2, 19);
    let a = a.forward(&ids, &mut a.cache(2, 0), Call::default()).unwrap().logits;
    let b = b.forward(&ids, &mut b.cache(2, 0), Call::default()).unwrap().logits;
    (0..a.len()).map(|index| (a.get(index) - b.get(index)).abs()).fold(0.0, f64::max)
}

/// Every 67th logit that DeepSeek's code gives for these tokens with the weights of `tiny.json`, computed in f64 with
/// its quantisers switched off.
const IDS: [u32; 12] = [2, 17, 47, 13, 32, 59, 39, 29, 42, 31, 36, 6];
const LOGITS: [f64; 12] = [
    -0.304832722,
    -0.0355062207,
    0.579457762,
    -0.00245329392,
    -0.555816091,
    0.914880615,
    0.368580051,
    -1.25646711,
    0.0160142216,
    0.981644764,
    -0.282158943,
    -0.964686573,
];

#[test]
fn full_numerics_are_deepseeks_without_rounding() {
    let golden = golden("tiny");
    let weights = dsv41_golden::WeightSet::generate(&golden.fixture.salt, &golden.weights).unwrap();
    let model = Model { config: config(&golden), weights };

    fn check<F: Real>(model: &Model, tolerance: f64) {
        let oracle = model.oracle::<F>(Numerics::Full);
        let output = oracle.forward(&[IDS.to_vec()], &mut oracle.cache(1, 0), Call::default()).unwrap();
        for (sample, want) in LOGITS.into_iter().enumerate() {
            let found = output.logits.get(sample * 67);
            assert!((found - want).abs() < tolerance, "{sample}: {found} {want}");
        }
    }
    // The stored values are f32, so half a step of those is left in f64. Measured: 3.9e-8 and 4.7e-7.
    check::<f64>(&model, 6e-8);
    check::<f32>(&model, 2e-6);
}

#[test]
fn both_precisions_agree() {
    for model in [Model::tiny(), Model::odd()] {
        let difference = difference(&model, &model.oracle::<f32>(Numerics::Full), &model.oracle::<f64>(Numerics::Full));
        assert!(difference < 1e-5, "{difference:e}");
    }
}

#[test]
fn the_type_of_probabilities_concerns_reference_numerics_alone() {
    let model = Model::tiny();
    for (numerics, changes) in [(Numerics::Full, false), (Numerics::Reference, true)] {
        let difference =
            difference(&model, &model.oracle::<f32>(numerics), &model.oracle_with::<f32>(numerics, F32_PROBS));
        assert_eq!(difference > 0.0, changes, "{numerics:?}");
    }
}
