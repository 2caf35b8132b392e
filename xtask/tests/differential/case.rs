//! Random models and what is asked of them.

use std::{fmt, path::Path};

use dsv41_config::{Config, ExpertStorage, ScoreFunc, Storage, engram::EngramConstants};
use dsv41_golden::{Fixture, RegimeCall, filler};
use proptest::{
    collection::vec,
    option,
    prelude::{Just, Strategy, any},
    prop_oneof,
    sample::{Index, select},
};
use serde_json::{Value, json};

/// Widths of quantised matrices are multiples of this.
const GROUP: usize = 32;
/// Tokens of a script, those taken back included.
const SCRIPT_TOKENS: usize = 28;
/// The most that a script takes back.
const ROLLBACK: usize = 9;
/// The longest of the short windows.
const WINDOW: usize = 12;
/// What a long window has more: with it, attention takes its lists in blocks.
const LONGER_WINDOW: usize = 56;
/// What first calls have more where the window is long, so that it is full from then on. Which blocks a list falls into
/// while a window is not full is the one thing in which the implementations differ: the model lists the keys that there
/// are, as the released prefill does, and the oracle counts the places of those to come, so that its results do not
/// depend on how a sequence is cut into calls.
const LONGER_CALL: usize = WINDOW + LONGER_WINDOW + ROLLBACK;

/// A model and two uses of it.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    /// The model, and the run of a golden file: a prefill, then single tokens.
    pub(crate) fixture: Fixture,
    script: Script,
}

/// Calls of any length, with tokens taken back in between.
#[derive(Debug, Clone)]
struct Script {
    /// How far back the caches have to be able to go.
    rollback: usize,
    moves: Vec<Move>,
}

#[derive(Debug, Clone, Copy)]
enum Move {
    /// A call of that many tokens.
    Append(usize),
    /// Only the first so many tokens stay.
    Truncate(usize),
}

/// A use of a model.
pub(crate) struct Run {
    /// The model and its switches.
    pub(crate) fixture: Fixture,
    /// How far back the caches have to be able to go.
    pub(crate) rollback: usize,
    /// What is done, in order.
    pub(crate) steps: Vec<Step>,
}

/// One step of a run.
pub(crate) enum Step {
    /// A call with the next tokens of each sequence.
    Append(Vec<Vec<u32>>),
    /// Only the first so many tokens of each sequence stay.
    Truncate(usize),
}

impl Case {
    /// The configuration of the model.
    pub(crate) fn config(&self) -> Config {
        Config::from_value(&self.fixture.name, &Value::Object(self.fixture.config.clone()))
            .expect("the fixture was made from a configuration")
    }

    /// The run of a golden file, and one that no golden file can hold.
    pub(crate) fn runs(&self) -> [Run; 2] {
        [self.golden_run(), self.script_run()]
    }

    fn golden_run(&self) -> Run {
        let tokens = self.fixture.input_ids();
        let call = |call: RegimeCall| {
            Step::Append(tokens.iter().map(|row| row[call.start..call.start + call.length].to_vec()).collect())
        };
        Run { fixture: self.fixture.clone(), rollback: 0, steps: self.fixture.calls().into_iter().map(call).collect() }
    }

    /// Without the slip of the released code that depends on how a sequence is cut into calls, and which is defined for
    /// its own kinds of calls alone.
    fn script_run(&self) -> Run {
        let Fixture { salt, batch, vocab_size, .. } = &self.fixture;
        let step = |(step, &what): (usize, &Move)| match what {
            Move::Append(length) => {
                // Named after the step, so that what replaces tokens taken back are others.
                let ids = filler::integers(salt, &format!("script{step}"), batch * length, *vocab_size as u64);
                Step::Append(ids.chunks_exact(length).map(|row| row.iter().map(|&id| id as u32).collect()).collect())
            }
            Move::Truncate(len) => Step::Truncate(len),
        };
        Run {
            fixture: Fixture { stale_index_keys: false, ..self.fixture.clone() },
            rollback: self.script.rollback,
            steps: self.script.moves.iter().enumerate().map(step).collect(),
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fixture { prefill_len, decode_steps, batch, .. } = self.fixture;
        write!(f, "batch {batch}; golden run: prefill {prefill_len}, decode {decode_steps}; script: ")?;
        for step in &self.script.moves {
            match step {
                Move::Append(length) => write!(f, "append {length}, ")?,
                Move::Truncate(len) => write!(f, "truncate to {len}, ")?,
            }
        }
        write!(f, "rollback margin {}", self.script.rollback)
    }
}

/// All cases. What a valid configuration demands (widths that fit quantisers, ratios that fit their sources) is brought
/// about by rounding and choosing, so that nothing is rejected and everything shrinks.
pub(crate) fn cases() -> impl Strategy<Value = Case> {
    let model = (layers(), widths(), storages(), experts(), indexers(), streams(), engrams(), ropes());
    // Short runs first, then small models: parts shrink in this order, and the shorter the runs the faster.
    (scripts(), golden_runs(), model).prop_map(
        |(script, run, (layers, widths, storage, experts, indexer, stream, engram, rope))| {
            Model { layers, widths, storage, experts, indexer, stream, engram, rope }.case(&run, script)
        },
    )
}

/// What a configuration is put together from.
struct Model {
    layers: Layers,
    widths: Widths,
    storage: (Storage, Option<ExpertStorage>),
    experts: Experts,
    indexer: Indexer,
    stream: Stream,
    engram: Engram,
    rope: Rope,
}

#[derive(Debug, Clone)]
struct Layers {
    kinds: Vec<Layer>,
    window: usize,
    /// Which of the possible candidate sources, if any.
    candidates: Option<Index>,
}

/// What a layer attends to. Without a source before it, a layer has its window alone.
#[derive(Debug, Clone, Copy)]
enum Layer {
    Window,
    /// Starts a stream of that ratio.
    Source(usize),
    /// Selects from the stream.
    Selector,
    /// Reads what was selected before.
    Reader,
}

fn layers() -> impl Strategy<Value = Layers> {
    let kind = prop_oneof![
        2 => Just(Layer::Window),
        2 => (1..=4_usize).prop_map(Layer::Source),
        1 => Just(Layer::Reader),
        2 => Just(Layer::Selector),
    ];
    (vec(kind, 2..=5), 1..=WINDOW, option::of(any::<Index>())).prop_map(|(kinds, window, candidates)| Layers {
        kinds,
        window,
        candidates,
    })
}

#[derive(Debug, Clone)]
struct Widths {
    vocab: usize,
    /// In units of 8.
    dim: usize,
    heads_of_group: usize,
    groups: usize,
    head_dim: usize,
    /// In units of 8.
    q_lora_rank: usize,
    /// In units of 8.
    o_lora_rank: usize,
}

fn widths() -> impl Strategy<Value = Widths> {
    (5..=64_usize, 4..=8_usize, 1..=3_usize, 1..=3_usize, select(vec![32, 64]), 1..=4_usize, 1..=4_usize).prop_map(
        |(vocab, dim, heads_of_group, groups, head_dim, q_lora_rank, o_lora_rank)| Widths {
            vocab,
            dim,
            heads_of_group,
            groups,
            head_dim,
            q_lora_rank,
            o_lora_rank,
        },
    )
}

fn storages() -> impl Strategy<Value = (Storage, Option<ExpertStorage>)> {
    (
        select(vec![Storage::Bf16, Storage::Fp8]),
        select(vec![None, None, Some(ExpertStorage::Fp8), Some(ExpertStorage::Fp4)]),
    )
}

#[derive(Debug, Clone)]
struct Experts {
    routed: usize,
    activated: Index,
    /// In units of 8.
    inter_dim: usize,
    score_func: ScoreFunc,
    gate_temp: f64,
    normalise: bool,
    route_scale: f64,
    limit: f64,
}

fn experts() -> impl Strategy<Value = Experts> {
    (
        1..=8_usize,
        any::<Index>(),
        2..=5_usize,
        select(vec![ScoreFunc::SqrtSoftplus, ScoreFunc::Sigmoid, ScoreFunc::Softmax]),
        select(vec![1.0, 0.5, 2.0]),
        any::<bool>(),
        select(vec![1.0, 1.5, 2.5]),
        // Branches are about 0.6 large: the smaller limits bite often and all the time.
        select(vec![0.0, 0.5, 0.1, 10.0]),
    )
        .prop_map(|(routed, activated, inter_dim, score_func, gate_temp, normalise, route_scale, limit)| Experts {
            routed,
            activated,
            inter_dim,
            score_func,
            gate_temp,
            normalise,
            route_scale,
            limit,
        })
}

#[derive(Debug, Clone)]
struct Indexer {
    heads: usize,
    head_dim: usize,
    topk: usize,
    candidate_blocks: usize,
    candidate_block_size: usize,
}

fn indexers() -> impl Strategy<Value = Indexer> {
    let topk = prop_oneof![4 => 1..=8_usize, 1 => Just(100)];
    (1..=3_usize, select(vec![32, 64]), topk, 1..=4_usize, 1..=4_usize).prop_map(
        |(heads, head_dim, topk, candidate_blocks, candidate_block_size)| Indexer {
            heads,
            head_dim,
            topk,
            candidate_blocks,
            candidate_block_size,
        },
    )
}

#[derive(Debug, Clone)]
struct Stream {
    copies: usize,
    sinkhorn_iters: usize,
    hc_eps: f64,
    norm_eps: f64,
}

fn streams() -> impl Strategy<Value = Stream> {
    let iters = select(vec![1, 2, 20]);
    (1..=4_usize, iters, select(vec![1e-6, 1e-2]), select(vec![1e-20, 1e-6]))
        .prop_map(|(copies, sinkhorn_iters, hc_eps, norm_eps)| Stream { copies, sinkhorn_iters, hc_eps, norm_eps })
}

#[derive(Debug, Clone)]
struct Engram {
    /// Whether each of the layers has one.
    layers: Vec<bool>,
    max_ngram: usize,
    heads: usize,
    vocab: u64,
    pad: Index,
}

fn engrams() -> impl Strategy<Value = Engram> {
    let layers = prop_oneof![1 => Just(vec![false; 5]), 3 => vec(proptest::bool::weighted(0.4), 5)];
    (layers, 2..=4_usize, 1..=2_usize, 5..=80_u64, any::<Index>())
        .prop_map(|(layers, max_ngram, heads, vocab, pad)| Engram { layers, max_ngram, heads, vocab, pad })
}

#[derive(Debug, Clone)]
struct Rope {
    width: usize,
    theta: f64,
    compress_theta: f64,
    original_seq_len: usize,
    factor: f64,
    beta_fast: f64,
}

fn ropes() -> impl Strategy<Value = Rope> {
    (
        select(vec![8, 2, 6, 16, 32]),
        select(vec![1e4, 100.0]),
        select(vec![4e4, 160.0]),
        select(vec![0, 16, 32]),
        select(vec![2.0, 1.0, 4.0]),
        select(vec![32.0, 2.0]),
    )
        .prop_map(|(width, theta, compress_theta, original_seq_len, factor, beta_fast)| Rope {
            width,
            theta,
            compress_theta,
            original_seq_len,
            factor,
            beta_fast,
        })
}

#[derive(Debug, Clone)]
struct GoldenRun {
    salt: u32,
    batch: usize,
    prefill_len: usize,
    decode_steps: usize,
    /// Whether the window is long.
    long: bool,
    unrounded_probs: bool,
    stale_index_keys: bool,
    keep_masked_picks: bool,
    /// Whether the context ends with the run.
    tight: bool,
}

fn golden_runs() -> impl Strategy<Value = GoldenRun> {
    (
        any::<u32>(),
        1..=3_usize,
        1..=24_usize,
        0..=5_usize,
        proptest::bool::weighted(0.04),
        proptest::bool::weighted(0.25),
        proptest::bool::weighted(0.25),
        proptest::bool::weighted(0.25),
        any::<bool>(),
    )
        .prop_map(
            |(
                salt,
                batch,
                prefill_len,
                decode_steps,
                long,
                unrounded_probs,
                stale_index_keys,
                keep_masked_picks,
                tight,
            )| GoldenRun {
                salt,
                batch,
                prefill_len,
                decode_steps,
                long,
                unrounded_probs,
                stale_index_keys,
                keep_masked_picks,
                tight,
            },
        )
}

/// A first call, then short ones and truncations.
fn scripts() -> impl Strategy<Value = Script> {
    let length = prop_oneof![2 => Just(1), 3 => 1..=6_usize];
    let rest = vec((proptest::bool::weighted(0.3), length), 1..=8);
    (0..=ROLLBACK, 1..=16_usize, rest).prop_map(|(rollback, first, rest)| {
        let mut script = Script { rollback, moves: vec![Move::Append(first)] };
        let mut spare = SCRIPT_TOKENS - first;
        for (back, amount) in rest {
            let len = script.len();
            if back {
                let lowest = script.longest().saturating_sub(rollback);
                script.moves.push(Move::Truncate(len.saturating_sub(amount).max(lowest)));
            } else if amount <= spare {
                spare -= amount;
                script.moves.push(Move::Append(amount));
            }
        }
        script
    })
}

impl Script {
    /// Tokens after each move.
    fn lens(&self) -> impl Iterator<Item = usize> {
        self.moves.iter().scan(0, |len, step| {
            *len = match step {
                Move::Append(length) => *len + length,
                Move::Truncate(target) => *target,
            };
            Some(*len)
        })
    }

    /// Puts so many tokens before the rest.
    fn lengthen(&mut self, tokens: usize) {
        for (step, what) in self.moves.iter_mut().enumerate() {
            match what {
                Move::Append(length) if step == 0 => *length += tokens,
                Move::Append(_) => {}
                Move::Truncate(len) => *len += tokens,
            }
        }
    }

    fn len(&self) -> usize {
        self.lens().last().unwrap_or(0)
    }

    fn longest(&self) -> usize {
        self.lens().max().unwrap_or(0)
    }
}

impl Model {
    fn case(&self, run: &GoldenRun, mut script: Script) -> Case {
        let (mut window, mut prefill_len, mut batch) = (self.layers.window, run.prefill_len, run.batch);
        if run.long {
            window += LONGER_WINDOW;
            prefill_len += LONGER_CALL;
            script.lengthen(LONGER_CALL);
            batch = 1;
        }
        let mut config = self.config(window);
        let longest = script.longest().max(prefill_len + run.decode_steps).max(4);
        config.max_seq_len = longest + if run.tight { 0 } else { 17 };
        config.engram_num_embeddings = EngramConstants::new(&config)
            .expect("engram sizes are in range")
            .layers
            .iter()
            .map(|layer| layer.rows)
            .collect();
        config.validate().expect("the configuration is valid by construction");

        let mut keys = serde_json::to_value(&config).expect("a configuration serialises");
        let keys = keys.as_object_mut().expect("a configuration is an object");
        let name = format!("differential-{:08x}", run.salt);
        for (key, value) in [
            ("name", json!(name)),
            ("salt", json!(format!("{name}/"))),
            ("batch", json!(batch)),
            ("prefill_len", json!(prefill_len)),
            ("decode_steps", json!(run.decode_steps)),
            ("probs_dtype", json!(if run.unrounded_probs { "f32" } else { "bf16" })),
            ("stale_index_keys", json!(run.stale_index_keys)),
            ("keep_masked_picks", json!(run.keep_masked_picks)),
        ] {
            keys.insert(key.to_owned(), value);
        }
        let fixture = Fixture::from_map(Path::new(&name), keys.clone()).expect("the fixture is complete");
        Case { fixture, script }
    }

    fn config(&self, window_size: usize) -> Config {
        let Self { layers, widths, storage, experts, indexer, stream, engram, rope } = self;
        let n_layers = layers.kinds.len();
        let topology = layers.topology();
        let (dtype, expert_dtype) = *storage;
        let width = |units: usize, quantised: bool| (8 * units).next_multiple_of(if quantised { GROUP } else { 8 });
        let linears = dtype == Storage::Fp8;
        let any = linears || expert_dtype.is_some();
        let engram_layer_ids: Vec<usize> = (0..n_layers).filter(|&layer| engram.layers[layer]).collect();
        Config {
            vocab_size: widths.vocab,
            dim: width(widths.dim, any),
            n_layers,
            n_heads: widths.heads_of_group * widths.groups,
            head_dim: widths.head_dim,
            rope_head_dim: rope.width,
            q_lora_rank: width(widths.q_lora_rank, linears),
            o_lora_rank: width(widths.o_lora_rank, linears),
            o_groups: widths.groups,
            moe_inter_dim: width(experts.inter_dim, any),
            n_routed_experts: experts.routed,
            n_shared_experts: 1,
            n_activated_experts: experts.activated.index(experts.routed.min(3)) + 1,
            score_func: experts.score_func,
            gate_temp: experts.gate_temp,
            norm_topk_prob: experts.normalise,
            route_scale: experts.route_scale,
            swiglu_limit: experts.limit,
            window_size,
            compress_ratios: topology.ratios,
            kv_source_layers: topology.kv_sources,
            index_source_layers: topology.index_sources,
            candidate_source_layer: topology.candidate_source,
            candidate_topk_blocks: indexer.candidate_blocks,
            candidate_block_size: indexer.candidate_block_size,
            index_n_heads: indexer.heads,
            index_head_dim: indexer.head_dim,
            index_topk: indexer.topk,
            hc_mult: stream.copies,
            hc_sinkhorn_iters: stream.sinkhorn_iters,
            hc_eps: stream.hc_eps,
            engram_layer_ids,
            engram_max_ngram_size: engram.max_ngram,
            engram_vocab_size: engram.vocab,
            engram_n_heads: engram.heads,
            engram_head_dim: 32,
            engram_pad_id: engram.pad.index(widths.vocab),
            engram_compressed_vocab_size: widths.vocab,
            engram_num_embeddings: Vec::new(),
            rope_theta: rope.theta,
            compress_rope_theta: rope.compress_theta,
            rope_factor: rope.factor,
            original_seq_len: rope.original_seq_len,
            beta_fast: rope.beta_fast,
            beta_slow: 1.0,
            norm_eps: stream.norm_eps,
            dtype,
            expert_dtype,
            max_seq_len: 0,
            n_mtp_layers: 0,
            dspark_block_size: 0,
            vision_n_layers: 0,
            image_token_id: None,
        }
    }
}

#[derive(Default)]
struct Topology {
    ratios: Vec<usize>,
    kv_sources: Vec<usize>,
    index_sources: Vec<usize>,
    candidate_source: Option<usize>,
}

impl Layers {
    fn topology(&self) -> Topology {
        let mut topology = Topology::default();
        let mut stream = 0;
        for (layer, kind) in self.kinds.iter().enumerate() {
            let ratio = match *kind {
                Layer::Window => 0,
                Layer::Source(ratio) => {
                    stream = ratio;
                    topology.kv_sources.push(layer);
                    ratio
                }
                Layer::Selector | Layer::Reader => stream,
            };
            if ratio > 0 && matches!(kind, Layer::Source(_) | Layer::Selector) {
                topology.index_sources.push(layer);
            }
            topology.ratios.push(ratio);
        }
        // A mask limits every later index source, so they must all have its source's ratio.
        let possible: Vec<usize> = topology
            .index_sources
            .iter()
            .copied()
            .filter(|&source| {
                let later = topology.index_sources.iter().filter(|&&layer| layer > source);
                later.copied().all(|layer| topology.ratios[layer] == topology.ratios[source])
            })
            .collect();
        topology.candidate_source =
            self.candidates.filter(|_| !possible.is_empty()).map(|index| possible[index.index(possible.len())]);
        topology
    }
}
