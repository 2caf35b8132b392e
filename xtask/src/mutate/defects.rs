//! The defects, in the order of the graph.

use super::Defect;

pub(super) const DEFECTS: &[Defect] = &[
    Defect {
        name: "comb-transposed",
        what: "the expansion sums over comb's second axis",
        file: "hyper_connection/stream.rs",
        from: "comb.clone().narrow(2, j, 1).swap_dims(2, 3)",
        to: "comb.clone().narrow(3, j, 1)",
    },
    Defect {
        name: "sinkhorn-extra-pass",
        what: "one pass too many over rows and columns",
        file: "hyper_connection/sinkhorn.rs",
        from: "(1..self.iterations)",
        to: "(0..self.iterations)",
    },
    Defect {
        name: "sinkhorn-without-eps",
        what: "hc_eps left out of the denominators",
        file: "hyper_connection/sinkhorn.rs",
        from: "matrix.clone().sum_dim(axis).add_scalar(self.eps)",
        to: "matrix.clone().sum_dim(axis)",
    },
    Defect {
        name: "wrong-eps-in-mixer",
        what: "norm_eps in place of hc_eps in the collapse weights",
        file: "hyper_connection/mod.rs",
        from: "sigmoid(part(0, 0, copies)).add_scalar(self.sinkhorn.eps)",
        to: "sigmoid(part(0, 0, copies)).add_scalar(self.norm_eps)",
    },
    Defect {
        name: "mixer-norm-per-copy",
        what: "the mixer's statistic is taken for each copy, not for the whole stream",
        file: "hyper_connection/mod.rs",
        from: "let flat = h.reshape([batch * seq, copies * dim]);",
        to: "let flat = (h.clone() * inverse_rms(h, self.norm_eps, numerics)).reshape([batch * seq, copies * dim]);",
    },
    Defect {
        name: "attention-lag-dropped",
        what: "attention collapses with its own mixer's weights",
        file: "block.rs",
        from: "self.attn_norm.forward(collapse(h.clone(), pre_mix, numerics), numerics)",
        to: "self.attn_norm.forward(collapse(h.clone(), mix.pre.clone(), numerics), numerics)",
    },
    Defect {
        name: "ffn-lag-dropped",
        what: "the feed-forward collapses with its own mixer's weights",
        file: "block.rs",
        from: "self.ffn_norm.forward(collapse(h.clone(), pre_mix, numerics), numerics)",
        to: "self.ffn_norm.forward(collapse(h.clone(), mix.pre.clone(), numerics), numerics)",
    },
    Defect {
        name: "head-takes-mean",
        what: "the head collapses with the mean of the copies",
        file: "transformer.rs",
        from: "let x = collapse(h, pre_mix, numerics);",
        to: "let x = collapse(h.clone(), pre_mix.full_like(1.0 / h.dims()[2] as f64), numerics);",
    },
    Defect {
        name: "norm-one-plus-w",
        what: "norm weights taken as 1 + w",
        file: "norm/mod.rs",
        from: "into_primitive(self.weight.val())",
        to: "into_primitive(self.weight.val().add_scalar(1.0))",
    },
    Defect {
        name: "norm-eps-corrected",
        what: "the usual 1e-6 whatever norm_eps says",
        file: "norm/mod.rs",
        from: "Normalise { eps: self.eps,",
        to: "Normalise { eps: 1e-6,",
    },
    Defect {
        name: "query-normed-per-head",
        what: "a norm of each head after wq_b",
        file: "attention/mod.rs",
        from: "let query = numerics.bf16(rotation.apply(query));",
        to: "let query = numerics.bf16(rotation.apply(query.clone() * crate::norm::inverse_rms(query, 1e-20, numerics)));",
    },
    Defect {
        name: "rope-halves",
        what: "channels i and i + r/2 rotate together, not 2i and 2i + 1",
        file: "attention/rope/op.rs",
        from: ".reshape([batch, seq, heads, pairs, 2]);
    let even = rotating.clone().narrow(4, 0, 1);
    let odd = rotating.narrow(4, 1, 1);
    let cos = cos.reshape([1, seq, 1, pairs, 1]);
    let sin = sin.reshape([1, seq, 1, pairs, 1]);
    let rotated = Tensor::cat(vec![even.clone() * cos.clone() - odd.clone() * sin.clone(), even * sin + odd * cos], 4)",
        to: ".reshape([batch, seq, heads, 2, pairs]);
    let even = rotating.clone().narrow(3, 0, 1);
    let odd = rotating.narrow(3, 1, 1);
    let cos = cos.reshape([1, seq, 1, 1, pairs]);
    let sin = sin.reshape([1, seq, 1, 1, pairs]);
    let rotated = Tensor::cat(vec![even.clone() * cos.clone() - odd.clone() * sin.clone(), even * sin + odd * cos], 3)",
    },
    Defect {
        name: "one-rope-table",
        what: "compressed layers rotate by the plain frequencies",
        file: "attention/mod.rs",
        from: "if self.place.ratio == 0 { pass.rotations.plain.clone() } else { pass.rotations.compressed.clone() }",
        to: "pass.rotations.plain.clone()",
    },
    Defect {
        name: "yarn-left-out",
        what: "compressed layers' low frequencies are not divided",
        file: "attention/rope/mod.rs",
        from: "if config.original_seq_len > 0 {",
        to: "if config.original_seq_len == usize::MAX {",
    },
    Defect {
        name: "inverse-rotation-forgotten",
        what: "the output of attention is not turned back",
        file: "attention/mod.rs",
        from: "rotation.apply_inverse(heads)",
        to: "heads",
    },
    Defect {
        name: "keys-quantised-before-rope",
        what: "window keys go through fp8 before the rotation",
        file: "attention/mod.rs",
        from: "let kv = numerics.bf16(rotation.apply(kv.unsqueeze_dim::<4>(2))).squeeze_dim::<3>(2);
        let window_keys = self.window_keys(numerics.fp8(kv), pass);",
        to: "let kv = numerics.bf16(rotation.apply(numerics.fp8(kv).unsqueeze_dim::<4>(2))).squeeze_dim::<3>(2);
        let window_keys = self.window_keys(kv, pass);",
    },
    Defect {
        name: "window-too-short",
        what: "each query sees window_size - 1 positions",
        file: "attention/window.rs",
        from: "(query + 1).saturating_sub(window)",
        to: "(query + 2).saturating_sub(window).min(query)",
    },
    Defect {
        name: "old-keys-after-new",
        what: "a call's own keys join the cache before those that it holds",
        file: "cache.rs",
        from: "Tensor::cat(vec![held, new], 1)",
        to: "Tensor::cat(vec![new, held], 1)",
    },
    Defect {
        name: "sink-scaled",
        what: "the sink is multiplied by d^-0.5 like a score",
        file: "attention/sparse/softmax.rs",
        from: "output / (denominator + (self.sink.clone() - max).exp())",
        to: "output / (denominator + (self.sink.clone().mul_scalar(scale(width)) - max).exp())",
    },
    Defect {
        name: "sink-left-out",
        what: "the denominator has no sink",
        file: "attention/sparse/softmax.rs",
        from: "output / (denominator + (self.sink.clone() - max).exp())",
        to: "output / denominator",
    },
    Defect {
        name: "probabilities-not-rounded",
        what: "attention probabilities stay in f32",
        file: "attention/sparse/softmax.rs",
        from: "if self.round_probs { self.numerics.bf16(probs) } else { probs }",
        to: "probs",
    },
    Defect {
        name: "output-groups-swapped",
        what: "wo_a's groups are in reverse order",
        file: "attention/output.rs",
        from: "self.wo_a.product(grouped)",
        to: "self.wo_a.product(grouped.flip([1])).flip([1])",
    },
    Defect {
        name: "pooling-over-whole-latents",
        what: "one weight for a token of a group, not one for each channel",
        file: "attention/compressor.rs",
        from: "softmax(by_group(scores), 2)",
        to: "softmax(by_group(scores).mean_dim(3), 2)",
    },
    Defect {
        name: "group-tail-lost",
        what: "an unfinished group's tokens are zeros in the next call",
        file: "attention/compressor.rs",
        from: "values = inputs.values.extend(values, waiting);",
        to: "values = inputs.values.extend(values, waiting);
            if waiting > 0 {
                values = values.slice_fill([0..pass.batch, 0..waiting], 0.0);
            }",
    },
    Defect {
        name: "compressed-positions-by-number",
        what: "latent j rotates by j, not by its first token's position",
        file: "attention/compressor.rs",
        from: ".map(|group| group * self.ratio)",
        to: ".map(|group| group)",
    },
    Defect {
        name: "index-key-of-rotated-latent",
        what: "the index key is made after the latent's rotation and fp4",
        file: "attention/compressor.rs",
        from: "self.wk.forward(constant(latents.clone()), numerics)",
        to: "self.wk.forward(constant(numerics.latent_fp4(rotate(latents.clone()))), numerics)",
    },
    Defect {
        name: "latent-seen-early",
        what: "a compressed position is visible from its first token on",
        file: "attention/select.rs",
        from: "let visible = (self.start + query % self.seq + 1) / self.ratio;",
        to: "let visible = ((self.start + query % self.seq + self.ratio) / self.ratio).min(self.positions());",
    },
    Defect {
        name: "hidden-positions-picked",
        what: "with fewer visible positions than index_topk, hidden ones are attended",
        file: "attention/select.rs",
        from: "selected.resize(width, NONE);",
        to: "let hidden: Vec<i64> = (0..).filter(|t| !selected.contains(t)).take(width - selected.len()).collect();
        selected.extend(hidden);
        selected.sort_unstable();",
    },
    Defect {
        name: "newest-block-not-pinned",
        what: "the newest block competes for its place among candidates",
        file: "attention/select.rs",
        from: "Some(newest) if newest == block => f64::INFINITY,",
        to: "Some(newest) if newest < block => f64::NEG_INFINITY,",
    },
    Defect {
        name: "candidates-ignored",
        what: "index sources after the candidate source score every position",
        file: "attention/indexer.rs",
        from: "candidates: layer.candidate_source.and(pass.candidates.clone()),",
        to: "candidates: None,",
    },
    Defect {
        name: "ties-to-the-highest",
        what: "equal scores go to the highest index",
        file: "topk.rs",
        from: ".then(a.cmp(&b))",
        to: ".then(b.cmp(&a))",
    },
    Defect {
        name: "router-in-bf16",
        what: "router scores are rounded to bf16",
        file: "moe/router.rs",
        from: "self.gate.forward_unrounded(x, Numerics::Full)",
        to: "self.gate.forward(x, Numerics::Reference)",
    },
    Defect {
        name: "router-bias-in-weights",
        what: "the bias scales experts too",
        file: "moe/router.rs",
        from: "scores.scores.clone().gather(",
        to: "(scores.scores.clone() + self.bias.val().unsqueeze::<2>()).gather(",
    },
    Defect {
        name: "route-scale-before-normalisation",
        what: "the scale is applied before the division by the sum, which cancels it",
        file: "moe/router.rs",
        from: "weights.mul_scalar(scale)",
        to: "if normalise && activated > 1 { weights } else { weights.mul_scalar(scale) }",
    },
    Defect {
        name: "gate-clamped-below",
        what: "the expert's gate is clamped on both sides",
        file: "moe/expert.rs",
        from: "gate.clamp_max(self.limit)",
        to: "gate.clamp(-self.limit, self.limit)",
    },
    Defect {
        name: "clamp-after-product",
        what: "the product of gate and up is clamped, not its factors",
        file: "moe/expert.rs",
        from: "if self.limit > 0.0 {
            gate = gate.clamp_max(self.limit);
            up = up.clamp(-self.limit, self.limit);
        }
        let mut hidden = silu(gate) * up;",
        to: "let mut hidden = silu(gate) * up;
        if self.limit > 0.0 {
            hidden = hidden.clamp(-self.limit, self.limit);
        }",
    },
    Defect {
        name: "shared-expert-unclamped",
        what: "the limit holds for routed experts alone",
        file: "moe/expert.rs",
        from: "if self.limit > 0.0 {",
        to: "if self.limit > 0.0 && weight.is_some() {",
    },
    Defect {
        name: "engram-history-lost",
        what: "n-grams do not reach into earlier calls",
        file: "transformer.rs",
        from: "&cache.history[row]",
        to: "&cache.history[row][..0]",
    },
    Defect {
        name: "engram-history-of-another-row",
        what: "every sequence of a batch looks back into the first one",
        file: "transformer.rs",
        from: "&cache.history[row]",
        to: "&cache.history[row - row]",
    },
    Defect {
        name: "engram-pad-is-zero",
        what: "before the start of a sequence n-grams read token 0",
        file: "engram/hash.rs",
        from: "map_or(self.pad, ",
        to: "map_or(0, ",
    },
    Defect {
        name: "engram-multipliers-in-32-bits",
        what: "the hash multiplies in 32 bits",
        file: "engram/hash.rs",
        from: "value ^= id * multiplier;",
        to: "value ^= i64::from((id as u32).wrapping_mul(*multiplier as u32));",
    },
    Defect {
        name: "engram-gate-without-sign",
        what: "the gate takes the root of the product's magnitude without its sign",
        file: "engram/gate.rs",
        from: "root.clone().mask_where(negative, root.neg())",
        to: "root.clone().mask_where(negative, root)",
    },
    Defect {
        name: "linear-input-not-quantised",
        what: "fp8 and fp4 layers multiply their input as it is",
        file: "linear.rs",
        from: "LinearInput::Fp8 => numerics.fp8(x)",
        to: "LinearInput::Fp8 => x",
    },
    Defect {
        name: "scale-rounded-to-nearest",
        what: "power-of-two scales are the nearest ones, not those above",
        file: "rounding.rs",
        from: "power.clone().mask_where(too_small, power.mul_scalar(2.0))",
        to: "power.clone().mask_where(too_small, power)",
    },
    Defect {
        name: "fp4-ties-away",
        what: "e2m1 rounds ties away from zero",
        file: "rounding.rs",
        from: "x.clone().abs().clamp_max(E2M1_MAX)",
        to: "x.clone().abs().clamp_max(E2M1_MAX).mul_scalar(1.0 + 2f64.powi(-20))",
    },
];
