//! A golden small enough to read at a glance, for the tests of this crate.

use std::path::Path;

use serde_json::{Value, json};

use crate::file::Golden;

/// One layer, a window of two, a prompt of three tokens and one decoded.
pub(crate) fn value() -> Value {
    json!({
        "fixture": {
            "vocab_size": 8, "window_size": 2, "n_routed_experts": 2, "name": "test", "salt": "", "batch": 1,
            "prefill_len": 3, "decode_steps": 1, "regimes": ["prefill3", "decode3"], "probs_dtype": "bf16",
            "selection": "stable", "image": null, "stale_index_keys": false, "keep_masked_picks": true,
        },
        "weights_meta": {
            "embed.weight": {
                "shape": [8, 2], "n": 16, "kind": "f32", "dtype": "bfloat16", "scale": 0.5, "offset": 0.0, "ck": 1.0,
            },
            "layers.0.w.scale": {
                "shape": [2], "n": 2, "kind": "pow2", "dtype": "float8_e8m0fnu", "lo": -2, "span": 3, "ck": 1.0,
            },
        },
        "prefill3": {
            "L0.h_in": { "shape": [1, 3, 5], "n": 15, "stride": 2, "ck": 3.5, "data": [0.5, 1.0, 0.25, 0.0, 0.5, 1.0, -1.0, 2.0] },
        },
        "decode3": {
            "L0.sa_kv": { "shape": [1, 3, 2], "n": 6, "stride": 1, "ck": 21.0, "data": [1.0, 1.0, 1.0, 1.0, 1.0, 1.0] },
            "L0.sa_topk_idxs": { "shape": [1, 1, 4], "n": 4, "stride": 1, "ck": 3.0, "data": [1, 0, 2, -1] },
            "shared.L0.topk_idxs": { "shape": [1, 1, 2], "n": 2, "stride": 1, "ck": 0.0, "data": [2, -1] },
            "shared.L0.candidates": { "shape": [1, 1, 1], "n": 1, "stride": 1, "ck": 1.0, "data": [1] },
            "L0.moe_indices": { "shape": [1, 1], "n": 1, "stride": 1, "ck": 1.0, "data": [1] },
            "logits": { "shape": [1, 3], "n": 3, "stride": 1, "ck": 0.5, "data": [0.5, 0.0, 0.0] },
            "next_ids": { "shape": [1], "n": 1, "stride": 1, "ck": 0.0, "data": [0] },
        },
    })
}

/// [`value`] as read.
pub(crate) fn golden() -> Golden {
    Golden::from_str(Path::new("test.json"), &value().to_string()).expect("the test golden is sound")
}
