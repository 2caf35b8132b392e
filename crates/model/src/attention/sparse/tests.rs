use burn::{
    backend::{Autodiff, Flex, NdArray, autodiff::checkpoint::strategy::BalancedCheckpointing},
    tensor::{
        DType, TensorData,
        backend::{AutodiffBackend, Backend},
    },
};

use super::*;
use crate::selections::NONE;

const BATCH: usize = 2;
const SEQ: usize = 5;
const HEADS: usize = 3;
const WIDTH: usize = 8;
const KEYS: usize = 90;
/// More than a block of the released kernel, so that maxima grow from one to the next.
const LISTED: usize = 70;

/// The query whose list is empty.
const WITHOUT_KEYS: usize = 3;

/// Two queries a tile.
const SMALL_TILES: usize = 2 * LISTED * WIDTH;

/// Numbers from -1 to 1 that repeat nothing obvious.
fn numbers(count: usize, seed: u64) -> Vec<f64> {
    let mut state = seed;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f64 / (1u64 << 23) as f64 - 1.0
    };
    std::iter::repeat_with(next).take(count).collect()
}

/// Lists that repeat keys and have absent entries; that of one query has no others, that of another a first block
/// without any.
fn lists() -> KeyLists {
    let random = numbers(BATCH * SEQ * LISTED, 17);
    let rows = random.iter().enumerate().map(|(index, x)| {
        let (query, entry) = (index / LISTED, index % LISTED);
        let row = ((x + 1.0) * KEYS as f64 / 2.0) as i64;
        match query {
            WITHOUT_KEYS => NONE,
            4 if entry < 64 => NONE,
            _ if row % 5 == 0 => NONE,
            _ => row,
        }
    });
    KeyLists { rows: rows.collect(), width: LISTED }
}

fn attention(numerics: Numerics, round_probs: bool) -> SparseAttention {
    SparseAttention { lists: lists(), numerics, round_probs, tile_elements: SMALL_TILES }
}

/// Leaves of the graph, scaled so that a few weights stand out.
fn inputs<B: Backend>(dtype: DType) -> (Tensor<B, 4>, Tensor<B, 3>, Tensor<B, 1>) {
    fn tensor<B: Backend, const D: usize>(values: Vec<f64>, shape: [usize; D], dtype: DType) -> Tensor<B, D> {
        Tensor::from_data(TensorData::new(values, shape), (&B::Device::default(), dtype))
    }
    let query = numbers(BATCH * SEQ * HEADS * WIDTH, 3).iter().map(|x| 3.0 * x).collect();
    (
        tensor(query, [BATCH, SEQ, HEADS, WIDTH], dtype),
        tensor(numbers(BATCH * KEYS * WIDTH, 5), [BATCH, KEYS, WIDTH], dtype),
        tensor(vec![0.5, -1.0, 2.0], [HEADS], dtype),
    )
}

/// Gradients of query, keys and sink through cheap operations on either side.
fn gradients<B: AutodiffBackend + CustomOps>(
    dtype: DType,
    attend: impl Fn(Tensor<B, 4>, Tensor<B, 3>, Tensor<B, 1>) -> Tensor<B, 4>,
) -> [Vec<f64>; 3] {
    let (query, keys, sink) = inputs::<B>(dtype);
    let (query, keys, sink) = (query.require_grad(), keys.require_grad(), sink.require_grad());
    let heads = attend(query.clone().mul_scalar(1.25), keys.clone().tanh(), sink.clone().mul_scalar(0.5));
    let gradients = (heads.clone().exp() * heads.cos()).sum().backward();
    let host = |data: TensorData| data.iter::<f64>().collect();
    [
        query.grad(&gradients).map(|gradient| host(gradient.into_data())),
        keys.grad(&gradients).map(|gradient| host(gradient.into_data())),
        sink.grad(&gradients).map(|gradient| host(gradient.into_data())),
    ]
    .map(|gradient| gradient.expect("the leaf takes a gradient"))
}

fn assert_close(found: &[f64], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(0.0, |largest: f64, x| largest.max(x.abs()));
    assert!(largest > 0.0, "{what}: a gradient of zeros shows nothing");
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let bound = tolerance * largest;
        assert!((found - expected).abs() <= bound, "{what} {index}: {found}, expected {expected} within {bound:e}");
    }
}

/// The operation's gradients are those that the composed form takes automatically.
fn compare<B: AutodiffBackend + CustomOps>(dtype: DType, tolerance: f64) {
    for (numerics, round_probs) in [(Numerics::Full, true), (Numerics::Qat, true), (Numerics::Qat, false)] {
        let attention = || {
            let mut attention = attention(numerics, round_probs);
            if numerics.rounds() {
                // Of a query without keys, the sink's gradient in the composed form by blocks is infinity times zero.
                attention.lists.rows[WITHOUT_KEYS * LISTED] = 1;
            }
            attention
        };
        let found = gradients::<B>(dtype, |query, keys, sink| {
            let inputs = [into_primitive(query), into_primitive(keys), into_primitive(sink)];
            numerics.bf16(custom(attention(), inputs))
        });
        let expected = gradients::<B>(dtype, |query, keys, sink| numerics.bf16(attention().attend(query, keys, sink)));
        for ((found, expected), what) in found.iter().zip(&expected).zip(["query", "keys", "sink"]) {
            assert_close(found, expected, tolerance, &format!("{numerics:?} {round_probs} {what}"));
        }
    }
}

#[test]
fn gradients_are_those_of_the_composed_form() {
    compare::<Autodiff<NdArray<f64>>>(DType::F64, 1e-10);
}

#[test]
fn gradients_are_those_of_the_composed_form_under_checkpointing() {
    compare::<Autodiff<Flex, BalancedCheckpointing>>(DType::F64, 1e-10);
    compare::<Autodiff<Flex, BalancedCheckpointing>>(DType::F32, 1e-5);
}

/// By central differences along a direction in all inputs.
#[test]
fn gradients_are_those_of_finite_differences() {
    type B = Autodiff<NdArray<f64>>;
    let value = |query: Tensor<B, 4>, keys: Tensor<B, 3>, sink: Tensor<B, 1>| {
        sparse_attention(query, keys, &lists(), sink, Numerics::Full, true)
    };
    let loss = |step: f64| {
        let (query, keys, sink) = inputs::<B>(DType::F64);
        let moved = (query.sin().mul_scalar(step), keys.cos().mul_scalar(step), sink.sin().mul_scalar(step));
        let (query, keys, sink) = inputs::<B>(DType::F64);
        value(query + moved.0, keys + moved.1, sink + moved.2).powi_scalar(3).sum().into_scalar()
    };
    let step = 1e-5;
    let expected = (loss(step) - loss(-step)) / (2.0 * step);

    let (query, keys, sink) = inputs::<B>(DType::F64);
    let (query, keys, sink) = (query.require_grad(), keys.require_grad(), sink.require_grad());
    let gradients = value(query.clone(), keys.clone(), sink.clone()).powi_scalar(3).sum().backward();
    let along = |gradient: Option<Tensor<NdArray<f64>, 1>>, direction: Tensor<B, 1>| {
        (gradient.expect("the leaf takes a gradient") * direction.inner()).sum().into_scalar()
    };
    let found = along(query.grad(&gradients).map(|g| g.flatten(0, 3)), query.clone().sin().flatten(0, 3))
        + along(keys.grad(&gradients).map(|g| g.flatten(0, 2)), keys.clone().cos().flatten(0, 2))
        + along(sink.grad(&gradients), sink.clone().sin());
    assert!((found - expected).abs() <= 1e-7 * expected.abs(), "{found}, expected {expected}");
}

#[test]
fn tiles_change_nothing() {
    for (numerics, round_probs) in [(Numerics::Full, true), (Numerics::Reference, true), (Numerics::Reference, false)] {
        let (query, keys, sink) = inputs::<Flex>(DType::F32);
        let tiled = attention(numerics, round_probs);
        let whole = SparseAttention { tile_elements: TILE_ELEMENTS, lists: lists(), ..tiled };
        let whole = whole.attend(query.clone(), keys.clone(), sink.clone());
        let tiled = tiled.attend(query, keys, sink);
        tiled.into_data().assert_eq(&whole.into_data(), true);
    }
}

#[test]
fn a_query_without_keys_gives_zeros_and_takes_a_gradient_of_zeros() {
    type B = Autodiff<Flex, BalancedCheckpointing>;
    for numerics in [Numerics::Full, Numerics::Qat] {
        let (query, keys, sink) = inputs::<B>(DType::F32);
        let (query, keys, sink) = (query.require_grad(), keys.require_grad(), sink.require_grad());
        let nothing = KeyLists { rows: vec![NONE; BATCH * SEQ * LISTED], width: LISTED };
        let heads = sparse_attention(query.clone(), keys.clone(), &nothing, sink.clone(), numerics, true);
        assert!(heads.to_data().iter::<f32>().all(|x| x == 0.0), "{numerics:?}");
        let gradients = (heads + 1.0).powi_scalar(2).sum().backward();
        let zeros = |gradient: TensorData| gradient.iter::<f32>().all(|x| x == 0.0);
        assert!(query.grad(&gradients).is_some_and(|g| zeros(g.into_data())), "{numerics:?}: query");
        assert!(keys.grad(&gradients).is_some_and(|g| zeros(g.into_data())), "{numerics:?}: keys");
        assert!(sink.grad(&gradients).is_some_and(|g| zeros(g.into_data())), "{numerics:?}: sink");
    }
}

#[test]
fn the_reference_passes_no_gradient() {
    let (query, keys, sink) = inputs::<Autodiff<Flex>>(DType::F32);
    let sink = sink.require_grad();
    let heads = sparse_attention(query.require_grad(), keys, &lists(), sink, Numerics::Reference, true);
    assert!(!dsv41_ops::is_tracked(&heads));
}

#[test]
fn weights_take_no_gradient() {
    let (query, keys, sink) = inputs::<Autodiff<Flex>>(DType::F32);
    let weights = attention_weights(query.require_grad(), keys.require_grad(), &lists(), sink.require_grad());
    assert!(!dsv41_ops::is_tracked(&weights));
}

/// Two queries of one head and two keys, with scores 0 and ln 3 and a sink of ln 4: 1, 3 and 4 of 8.
#[test]
fn weights_are_shares_of_lists_and_sink() {
    let device = Default::default();
    let query = Tensor::<NdArray<f64>, 4>::from_floats([[[[2.0]], [[2.0]]]], &device);
    let keys = Tensor::from_data(TensorData::from([[[0.0], [3f64.ln() / 2.0]]]), &device);
    let sink = Tensor::from_data(TensorData::from([4f64.ln()]), &device);
    let lists = KeyLists { rows: vec![1, NONE, 0, NONE, 1, 1], width: 3 };
    let weights = attention_weights(query, keys, &lists, sink).into_data();
    let expected = [3.0 / 8.0, 0.0, 1.0 / 8.0, 0.0, 3.0 / 10.0, 3.0 / 10.0];
    for (found, expected) in weights.iter::<f64>().zip(expected) {
        assert!((found - expected).abs() < 1e-15, "{found}, expected {expected}");
    }
}

/// Multiplying keys by one head's weights gives what that head attends.
#[test]
fn weights_of_one_head_make_its_result() {
    let (query, keys, sink) = inputs::<NdArray<f64>>(DType::F64);
    let (query, sink) = (query.narrow(2, 1, 1), sink.narrow(0, 1, 1));
    let lists = lists();
    let expected = sparse_attention(query.clone(), keys.clone(), &lists, sink.clone(), Numerics::Full, true);
    let weights = attention_weights(query, keys.clone(), &lists, sink);
    assert_eq!(weights.dims(), [BATCH * SEQ, LISTED]);

    let (weights, keys) = (weights.into_data(), keys.into_data());
    let (weights, keys): (Vec<f64>, Vec<f64>) = (weights.iter().collect(), keys.iter().collect());
    let mut found = vec![0.0; BATCH * SEQ * WIDTH];
    for (entry, (&row, weight)) in lists.rows.iter().zip(weights).enumerate().filter(|(_, (row, _))| **row != NONE) {
        let query = entry / LISTED;
        let key = (query / SEQ * KEYS + row as usize) * WIDTH;
        for (sum, key) in found[query * WIDTH..].iter_mut().zip(&keys[key..key + WIDTH]) {
            *sum += weight * key;
        }
    }
    assert_close(&found, &expected.into_data().iter::<f64>().collect::<Vec<_>>(), 1e-14, "result");
}

#[test]
fn kernels_and_gradients_are_those_of_the_composed_operations() {
    use crate::testing::{check_op, numbers};

    // An empty list, one that repeats a key, one with absent entries.
    let rows = vec![0, 2, 2, NONE, NONE, NONE, NONE, 4, 1, 3, NONE, 0, 4, 3, 2, 1, 0, 0];
    let attention = SparseAttention {
        lists: KeyLists { rows, width: 3 },
        numerics: Numerics::Full,
        round_probs: false,
        tile_elements: 8,
    };
    check_op(&attention, [numbers(&[2, 3, 2, 4], 0.1), numbers(&[2, 5, 4], 0.2), numbers(&[2], 0.3)]);
}

#[test]
fn the_kernel_of_the_weights_is_the_composed_operation() {
    use crate::testing::{check_op_of_none, numbers};

    let rows = vec![0, 2, 2, NONE, NONE, NONE, NONE, 4, 1, 3, NONE, 0, 4, 3, 2, 1, 0, 0];
    let weights = weights::SummedWeights { lists: KeyLists { rows, width: 3 }, tile_elements: 8 };
    check_op_of_none(&weights, [numbers(&[2, 3, 2, 4], 0.1), numbers(&[2, 5, 4], 0.2), numbers(&[2], 0.3)]);
}
