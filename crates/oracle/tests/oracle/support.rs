//! Models, tokens and goldens of the tests.

use std::path::{Path, PathBuf};

use dsv41_config::{Config, ScoreFunc};
use dsv41_golden::{Dtype, Golden, ProbsDtype, Recorded, StoredTensor, WeightSet, filler, recipes};
use dsv41_oracle::{Cache, Call, Numerics, Oracle, Output, Real, Switches};
use serde_json::Value;

/// A file of the repository's `goldens`.
pub(crate) fn golden_path(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../goldens").join(file)
}

pub(crate) fn golden(name: &str) -> Golden {
    Golden::read(&golden_path(&format!("{name}.json"))).unwrap()
}

/// The configuration of a golden.
pub(crate) fn config(golden: &Golden) -> Config {
    Config::from_value(&golden.fixture.name, &Value::Object(golden.fixture.config.clone())).unwrap()
}

/// The oracle of a golden, with its switches.
pub(crate) fn oracle(golden: &Golden) -> Oracle<f32> {
    let fixture = &golden.fixture;
    let switches = Switches {
        stale_index_keys: fixture.stale_index_keys,
        keep_masked_picks: fixture.keep_masked_picks,
        probs_dtype: fixture.probs_dtype,
    };
    let weights = WeightSet::generate(&fixture.salt, &golden.weights).unwrap();
    Oracle::new(&config(golden), &weights, Numerics::Reference, switches).unwrap()
}

/// A model whose shape has nothing in common with another's that could hide a mistake.
pub(crate) struct Model {
    pub(crate) config: Config,
    pub(crate) weights: WeightSet,
}

impl Model {
    fn new(config: Config) -> Self {
        let dtypes =
            [Dtype::Float32, Dtype::Bfloat16, Dtype::Float8E4m3fn, Dtype::Float8E8m0fnu, Dtype::Float4E2m1fnX2];
        let stored = config.tensors().into_iter().flat_map(|tensor| tensor.stored()).map(|tensor| StoredTensor {
            dtype: dtypes.into_iter().find(|dtype| dtype.name() == tensor.dtype.torch_name()).unwrap(),
            name: tensor.name,
            shape: tensor.shape,
        });
        let weights = WeightSet::generate("test/", &recipes("test/", stored).unwrap()).unwrap();
        Self { config, weights }
    }

    /// The shape of `tiny.json`: window 8, ratios 2 and 1, candidates.
    pub(crate) fn tiny() -> Self {
        Self::new(config(&golden("tiny")))
    }

    /// Two copies, a window of 5, ratios 4, 3 and 1, a compressed layer at the front, fp8 and fp4 storage, few candidates.
    pub(crate) fn odd() -> Self {
        let mut config = config(&golden("fp8"));
        config.n_layers = 6;
        config.hc_mult = 2;
        config.window_size = 5;
        config.compress_ratios = vec![4, 0, 3, 3, 1, 1];
        config.kv_source_layers = vec![0, 2, 4];
        config.index_source_layers = vec![0, 2, 3, 4, 5];
        config.candidate_source_layer = Some(4);
        config.candidate_topk_blocks = 2;
        config.candidate_block_size = 3;
        config.index_topk = 4;
        config.score_func = ScoreFunc::Sigmoid;
        config.swiglu_limit = 0.5;
        config.engram_layer_ids = vec![0, 4];
        config.original_seq_len = 0;
        config.engram_num_embeddings = dsv41_config::engram::EngramConstants::new(&config)
            .unwrap()
            .layers
            .iter()
            .map(|layer| layer.rows)
            .collect();
        Self::new(config)
    }

    pub(crate) fn oracle<F: Real>(&self, numerics: Numerics) -> Oracle<F> {
        self.oracle_with(numerics, Switches::default())
    }

    pub(crate) fn oracle_with<F: Real>(&self, numerics: Numerics, switches: Switches) -> Oracle<F> {
        Oracle::new(&self.config, &self.weights, numerics, switches).unwrap()
    }

    /// `[batch][tokens]` ids.
    pub(crate) fn ids(&self, batch: usize, tokens: usize) -> Vec<Vec<u32>> {
        let ids = filler::integers("test/", "input_ids", batch * tokens, self.config.vocab_size as u64);
        ids.chunks(tokens).map(|row| row.iter().map(|&id| id as u32).collect()).collect()
    }
}

/// Columns `range` of each row.
pub(crate) fn columns(ids: &[Vec<u32>], range: std::ops::Range<usize>) -> Vec<Vec<u32>> {
    ids.iter().map(|row| row[range.clone()].to_vec()).collect()
}

/// Runs `ids` in calls of these lengths.
pub(crate) fn run_chunks<F: Real>(
    oracle: &Oracle<F>,
    cache: &mut Cache<F>,
    ids: &[Vec<u32>],
    lengths: &[usize],
) -> Vec<Output> {
    let mut start = 0;
    lengths
        .iter()
        .map(|&length| {
            let chunk = columns(ids, start..start + length);
            start += length;
            oracle.forward(&chunk, cache, Call::default()).unwrap()
        })
        .collect()
}

/// The logits of one call, bit for bit: `[row][position]`.
pub(crate) fn logit_bits(logits: &Recorded) -> Vec<Vec<Vec<u64>>> {
    let &[_, tokens, vocab] = logits.shape.as_slice() else { panic!("logits have three axes") };
    let bits: Vec<u64> = (0..logits.len()).map(|index| logits.get(index).to_bits()).collect();
    bits.chunks(tokens * vocab).map(|row| row.chunks(vocab).map(<[u64]>::to_vec).collect()).collect()
}

/// The logits of consecutive calls, as of one.
pub(crate) fn joined_logit_bits(outputs: &[Output]) -> Vec<Vec<Vec<u64>>> {
    let calls: Vec<_> = outputs.iter().map(|output| logit_bits(&output.logits)).collect();
    (0..calls[0].len()).map(|row| calls.iter().flat_map(|call| call[row].clone()).collect()).collect()
}

pub(crate) const NUMERICS: [Numerics; 2] = [Numerics::Reference, Numerics::Full];

/// `probs_dtype` of the published kernels.
pub(crate) const F32_PROBS: Switches =
    Switches { stale_index_keys: false, keep_masked_picks: false, probs_dtype: ProbsDtype::F32 };
