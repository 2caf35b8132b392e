//! The golden files of this repository: all of them read, regenerate, rewrite and agree with themselves.

use std::path::{Path, PathBuf};

use dsv41_golden::{
    Bound, Bounds, Capture, Captures, EngramHashGolden, Golden, Inputs, Recorded, StoredTensor, WeightSet,
    compare_whole, filler, recipes,
};

const NAMES: [&str; 7] = ["batch", "fp8", "long", "published", "released", "short", "tiny"];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../goldens")
}

fn goldens() -> impl Iterator<Item = Golden> {
    NAMES.iter().map(|name| Golden::read(&folder().join(format!("{name}.json"))).expect("a sound golden"))
}

fn inputs_of(golden: &Golden) -> Inputs {
    golden.inputs().expect("sound inputs").expect("every golden has them")
}

#[test]
fn every_weight_regenerates_to_its_checksum() {
    for golden in goldens() {
        let salt = &golden.fixture.salt;
        let weights = WeightSet::generate(salt, &golden.weights).expect("checksums hold");
        let embed = weights.get("embed.weight").expect("every model has it");
        assert_eq!(embed.shape, golden.weights["embed.weight"].shape);
        // Equal, not just close: the handed sums are exact, or in the same order.
        for (name, meta) in &golden.weights {
            let values = filler::fill(salt, name, meta).expect("a sound recipe");
            assert_eq!(Recorded::float([values.len()], values).checksum(), meta.ck, "{name}");
        }
    }
}

#[test]
fn recipes_follow_from_names_and_storage() {
    for golden in goldens() {
        let tensors = golden.weights.iter().map(|(name, meta)| StoredTensor {
            name: name.clone(),
            shape: meta.shape.clone(),
            dtype: meta.dtype,
        });
        let made = recipes(&golden.fixture.salt, tensors).expect("sound tensors");
        assert!(made.keys().eq(golden.weights.keys()));
        assert_eq!(made, golden.weights, "{}", golden.fixture.name);
    }
}

#[test]
fn token_ids_are_made_from_their_name() {
    for golden in goldens() {
        let inputs = inputs_of(&golden);
        let ids = golden.fixture.input_ids();
        for call in golden.fixture.calls() {
            let of_call = ids.iter().flat_map(|row| &row[call.start..][..call.length]).copied();
            let made = Recorded::int([golden.fixture.batch, call.length], of_call);
            let handed = golden.whole(&call.name, "input_ids", Some(&inputs)).expect("every regime has ids");
            assert_eq!(handed, Some(made), "{}", call.name);
        }
    }
}

#[test]
fn rewriting_gives_the_same_bytes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for golden in goldens() {
        let name = &golden.fixture.name;
        let handed = std::fs::read(&golden.path).expect("it was read before");
        assert!(golden.to_bytes().expect("finite") == handed, "{name}.json");

        let inputs = inputs_of(&golden);
        let path = folder.path().join("rewritten.inputs.safetensors");
        let mut rewritten = Inputs::new(&path);
        for regime in golden.regimes.keys() {
            rewritten.keep(regime, &inputs.regime(regime));
        }
        rewritten.write().expect("writable");
        let handed = std::fs::read(golden.inputs_path()).expect("it was read before");
        assert!(std::fs::read(&path).expect("just written") == handed, "{name}.inputs.safetensors");
    }
}

#[test]
fn sampling_a_whole_tensor_gives_the_handed_capture() {
    for golden in goldens() {
        let inputs = inputs_of(&golden);
        for regime in golden.regimes.keys() {
            for (name, whole) in inputs.regime(regime) {
                let handed = golden.capture(regime, &name).expect("inputs were checked");
                let sampled = Capture::sample(&whole);
                assert_eq!(sampled.ck, handed.ck, "{regime}/{name}");
                // The three smallest goldens hold some prefill captures in whole.
                if handed.stride > 1 {
                    assert_eq!(&sampled, handed, "{regime}/{name}");
                }
            }
        }
    }
}

#[test]
fn every_sample_has_the_stride_of_its_size() {
    for golden in goldens() {
        for capture in golden.regimes.values().flat_map(|captures| captures.values()) {
            let zeros = match capture.is_integer() {
                true => Recorded::int([capture.n], vec![0_i64; capture.n]),
                false => Recorded::float([capture.n], vec![0.0_f32; capture.n]),
            };
            assert!(capture.stride == Capture::sample(&zeros).stride || capture.stride == 1);
        }
    }
}

#[test]
fn every_choice_of_every_regime_is_known_in_whole() {
    for golden in goldens() {
        let inputs = inputs_of(&golden);
        for call in golden.fixture.calls() {
            let chosen = golden.selections(&call.name, Some(&inputs)).expect("sound choices");
            assert_eq!(chosen.left_out, [""; 0]);
            let mut layers = chosen.selections.layers.values();
            assert!(layers.all(|layer| layer.experts.is_some()));
        }
    }
}

#[test]
fn published_rows_are_the_attended_ones() {
    for golden in goldens() {
        let inputs = inputs_of(&golden);
        for call in golden.fixture.calls() {
            let published = golden.selections(&call.name, Some(&inputs)).expect("sound choices").selections;
            let mut thin = golden.clone();
            for (name, capture) in &mut thin.regimes[&call.name] {
                if name.ends_with(".topk_idxs") {
                    capture.stride = 2;
                }
            }
            let attended_only = inputs.regime(&call.name);
            let mut without = Inputs::default();
            without.keep(&call.name, &attended_only.into_iter().filter(|(n, _)| !n.ends_with(".topk_idxs")).collect());
            let attended = thin.selections(&call.name, Some(&without)).expect("sound choices").selections;
            assert_eq!(attended, published, "{} {}", golden.fixture.name, call.name);
        }
    }
}

#[test]
fn each_layer_hands_on_what_the_next_one_got() {
    let exact = Bounds { value: Some(Bound::Exact), checksum: None };
    for golden in goldens() {
        let inputs = inputs_of(&golden);
        for (regime, captures) in &golden.regimes {
            let run = Captures::from_iter(captures.keys().filter_map(|name| {
                let layer: usize = name.strip_prefix('L')?.strip_suffix(".pre_mix_out")?.parse().ok()?;
                let next = inputs.get(regime, &format!("L{}.pre_mix_in", layer + 1))?;
                Some((name.clone(), next.clone()))
            }));
            for (name, next) in &run {
                let handed = golden.capture(regime, name).expect("it was listed");
                let sampled = Capture::sample(next);
                assert_eq!((sampled.ck, &sampled.data), (handed.ck, &handed.data), "{regime}/{name}");
                assert!(compare_whole(name, next, next, exact).passed());
            }
        }
    }
}

#[test]
fn the_engram_hash_golden_reads() {
    let golden = EngramHashGolden::read(&folder().join("engram-hash.json")).expect("a sound golden");
    assert_eq!(golden.primes.concat().concat().len(), 48);
    assert_eq!(golden.table_rows, [384_006_168, 384_016_682]);
}
