//! Distillation of the attention into the indexer that selects for it.

use burn::tensor::{Bool, IndexingUpdateOp, Int, Tensor, TensorData, activation::relu, backend::Backend};
use dsv41::{Indexing, NONE};
use dsv41_ops::{CustomOps, constant, into_primitive, is_tracked, with_gradients};

use super::{LossError, Sequences};

/// Scores that stand for "not listed" before the softmax. Finite, so that a share of zero times one of them is zero.
const MASKED: f64 = -1e30;

/// Below this, a share counts as this in its logarithm; times the share itself, that is nothing.
const SMALLEST_SHARE: f64 = 1e-30;

/// How far an indexer's scores are from the attention it selects for: the mean over queries of
/// `KL(p || softmax(I)) = sum_t p_t (ln p_t - ln q_t)` over the compressed positions t that the query attended.
///
/// From the sparse training of [DeepSeek-V3.2](https://arxiv.org/abs/2512.02556), equation 4: `I_t = sum_h w_h
/// relu(q_h . k_t)` are the index scores, and the teacher p is the attention's weights summed over its heads, divided by
/// their sum over the listed positions. Window and sink are in the denominator of each head's weights, so a head that
/// looks elsewhere has little say. Padding does not count, nor does a query that lists no position, or gives none of
/// them any weight: it has no teacher.
///
/// With n queries that count, the gradient of a score is `g_t = (q_t - p_t) / n`, and with it
///
/// - of a head's weight, `sum_t g_t relu(q_h . k_t)`;
/// - of an index query, `w_h sum_t g_t [q_h . k_t > 0] k_t`;
/// - of an index key, the sum over the queries that list it of `g_t sum_h w_h [q_h . k_t > 0] q_h`.
///
/// They are at hand as soon as the scores are, so they are computed together with the value, some queries at a time, and
/// no product of queries and keys is kept for a backward pass. Scores are not rounded, whatever the call rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexerLoss {
    /// About how many numbers of a kind exist at a time: keys gathered, or their products with queries.
    pub tile_elements: usize,
}

impl Default for IndexerLoss {
    /// 64 MiB of each kind in f32.
    fn default() -> Self {
        Self { tile_elements: 1 << 24 }
    }
}

impl IndexerLoss {
    /// The loss of one layer, of one element.
    ///
    /// # Errors
    /// When there are more or fewer queries than `sequences` has tokens.
    pub fn forward<B: CustomOps>(
        &self,
        indexing: Indexing<'_, B>,
        sequences: &Sequences,
    ) -> Result<Tensor<B, 1>, LossError> {
        let Indexing { query, weights, keys, selected, attended } = indexing;
        let [batch, seq, width] = attended.dims();
        sequences.check(batch * seq)?;
        let lists = Lists { selected, width, seq, positions: keys.dims()[1] };
        let queries: Vec<usize> = lists.with_entries(sequences).collect();
        let operands = Operands::new(&query, &weights, &keys);
        let mut gradients = Gradients::new(&query, &weights, &keys);
        let mut value = attended.zeros_like().sum();
        if !queries.is_empty() {
            let teacher = Teacher::new(constant(attended).reshape([batch * seq, width]), &queries);
            let [heads, head_dim] = [query.dims()[2], query.dims()[3]];
            let step = (self.tile_elements / (width * heads.max(head_dim))).max(1);
            for (tile, queries) in queries.chunks(step).enumerate() {
                let tile = Tile::new(&operands, &lists, queries, teacher.rows(tile * step, queries.len()));
                value = value + tile.divergence();
                gradients.add(tile);
            }
        }
        let Gradients { query: of_query, weights: of_weights, keys: of_keys } = gradients;
        let of_query = of_query.map(|gradient| into_primitive(gradient.reshape(query.dims())));
        let of_weights = of_weights.map(|gradient| into_primitive(gradient.reshape(weights.dims())));
        let of_keys = of_keys.map(|gradient| into_primitive(gradient.reshape(keys.dims())));
        Ok(with_gradients(
            value,
            [(into_primitive(query), of_query), (into_primitive(weights), of_weights), (into_primitive(keys), of_keys)],
        ))
    }
}

/// Which compressed positions each query attended.
struct Lists<'a> {
    /// `[N, K]`
    selected: &'a [i64],
    /// K
    width: usize,
    /// S, the queries of a row.
    seq: usize,
    /// T, the compressed positions of a row.
    positions: usize,
}

impl Lists<'_> {
    fn of_query(&self, query: usize) -> &[i64] {
        &self.selected[query * self.width..(query + 1) * self.width]
    }

    /// The queries that are not padding and list a position.
    fn with_entries(&self, sequences: &Sequences) -> impl Iterator<Item = usize> {
        let counts = |&query: &usize| {
            sequences.of_tokens()[query].is_some() && self.of_query(query).iter().any(|&position| position != NONE)
        };
        (0..sequences.positions()).filter(counts)
    }

    /// The rows of all keys that some queries list, any for an absent entry, and which entries are absent: `[n*K]` and
    /// `[n, K]`.
    fn tensors<B: Backend>(&self, queries: &[usize], device: &B::Device) -> (Tensor<B, 1, Int>, Tensor<B, 2, Bool>) {
        let entries = || queries.iter().flat_map(|&query| self.of_query(query).iter().map(move |&t| (query, t)));
        let rows: Vec<i64> =
            entries().map(|(query, t)| (query / self.seq * self.positions) as i64 + t.max(0)).collect();
        let absent: Vec<bool> = entries().map(|(_, t)| t == NONE).collect();
        let count = rows.len();
        (
            Tensor::from_data(TensorData::new(rows, [count]), device),
            Tensor::from_data(TensorData::new(absent, [queries.len(), self.width]), device),
        )
    }
}

/// What scores are made of, outside of every graph.
struct Operands<B: Backend> {
    /// `[N, heads, index_head_dim]`
    query: Tensor<B, 3>,
    /// `[N, heads, 1]`
    weights: Tensor<B, 3>,
    /// `[B*T, index_head_dim]`
    keys: Tensor<B, 2>,
}

impl<B: Backend> Operands<B> {
    fn new(query: &Tensor<B, 4>, weights: &Tensor<B, 3>, keys: &Tensor<B, 3>) -> Self {
        Self {
            query: constant(query.clone()).flatten(0, 1),
            weights: constant(weights.clone()).flatten::<2>(0, 1).unsqueeze_dim(2),
            keys: constant(keys.clone()).flatten(0, 1),
        }
    }
}

/// What scores are to be like.
struct Teacher<B: Backend> {
    /// p, zeros where a query has no teacher, `[n, K]`.
    shares: Tensor<B, 2>,
    /// What each query counts for: 1/n, or 0 where it has no teacher, `[n, 1]`.
    weights: Tensor<B, 2>,
}

impl<B: Backend> Teacher<B> {
    /// From the weights `[N, K]` of all queries, for some of them. How many of those count stays on the device.
    fn new(attended: Tensor<B, 2>, queries: &[usize]) -> Self {
        let attended = attended.clone().select(0, indices(queries, &attended.device()));
        let mass = attended.clone().sum_dim(1);
        let nothing = mass.clone().lower_equal_elem(0.0);
        let counts = mass.ones_like().mask_fill(nothing.clone(), 0.0);
        let number = counts.clone().sum_dim(0).clamp_min(1.0);
        Self { shares: attended / mass.mask_fill(nothing, 1.0), weights: counts / number }
    }

    fn rows(&self, start: usize, length: usize) -> Self {
        let rows = |all: &Tensor<B, 2>| all.clone().narrow(0, start, length);
        Self { shares: rows(&self.shares), weights: rows(&self.weights) }
    }
}

/// Some queries with what they list.
struct Tile<B: Backend> {
    /// Which of the N queries these n are, `[n]`.
    queries: Tensor<B, 1, Int>,
    /// Which of the `B*T` keys they list, `[n*K]`.
    rows: Tensor<B, 1, Int>,
    /// `[n, heads, index_head_dim]`
    query: Tensor<B, 3>,
    /// `[n, heads, 1]`
    weights: Tensor<B, 3>,
    /// `[n, K, index_head_dim]`
    keys: Tensor<B, 3>,
    /// `q_h . k_t`, `[n, heads, K]`.
    products: Tensor<B, 3>,
    /// `ln q_t`, `[n, K]`.
    log_shares: Tensor<B, 2>,
    teacher: Teacher<B>,
}

impl<B: Backend> Tile<B> {
    fn new(operands: &Operands<B>, lists: &Lists<'_>, queries: &[usize], teacher: Teacher<B>) -> Self {
        let device = operands.keys.device();
        let (rows, absent) = lists.tensors::<B>(queries, &device);
        let queries = indices(queries, &device);
        let query = operands.query.clone().select(0, queries.clone());
        let weights = operands.weights.clone().select(0, queries.clone());
        let [count, _, head_dim] = query.dims();
        let keys = operands.keys.clone().select(0, rows.clone()).reshape([count, lists.width, head_dim]);
        let products = query.clone().matmul(keys.clone().swap_dims(1, 2));
        let scores = (relu(products.clone()) * weights.clone()).sum_dim(1).squeeze_dim::<2>(1);
        let scores = scores.mask_fill(absent, MASKED);
        let shifted = scores.clone() - scores.max_dim(1);
        let log_shares = shifted.clone() - shifted.exp().sum_dim(1).log();
        Self { queries, rows, query, weights, keys, products, log_shares, teacher }
    }

    /// The tile's share of the mean divergence.
    fn divergence(&self) -> Tensor<B, 1> {
        let Teacher { shares, weights } = &self.teacher;
        let nats = shares.clone() * (shares.clone().clamp_min(SMALLEST_SHARE).log() - self.log_shares.clone());
        (nats.sum_dim(1) * weights.clone()).sum()
    }

    /// The gradient of the scores, `[n, 1, K]`.
    fn gradient(&self) -> Tensor<B, 3> {
        let Teacher { shares, weights } = &self.teacher;
        ((self.log_shares.clone().exp() - shares.clone()) * weights.clone()).unsqueeze_dim(1)
    }
}

/// Gradients of the inputs that take one, from the tiles so far.
struct Gradients<B: Backend> {
    /// `[N, heads, index_head_dim]`
    query: Option<Tensor<B, 3>>,
    /// `[N, heads]`
    weights: Option<Tensor<B, 2>>,
    /// `[B*T, index_head_dim]`
    keys: Option<Tensor<B, 2>>,
}

impl<B: CustomOps> Gradients<B> {
    fn new(query: &Tensor<B, 4>, weights: &Tensor<B, 3>, keys: &Tensor<B, 3>) -> Self {
        Self {
            query: is_tracked(query).then(|| constant(query.clone()).zeros_like().flatten(0, 1)),
            weights: is_tracked(weights).then(|| constant(weights.clone()).zeros_like().flatten(0, 1)),
            keys: is_tracked(keys).then(|| constant(keys.clone()).zeros_like().flatten(0, 1)),
        }
    }

    /// Adds a tile's share.
    fn add(&mut self, tile: Tile<B>) {
        let scores = tile.gradient();
        if let Some(sum) = self.weights.take() {
            let share = (relu(tile.products.clone()) * scores.clone()).sum_dim(2).squeeze_dim::<2>(2);
            self.weights = Some(sum.select_assign(0, tile.queries.clone(), share, IndexingUpdateOp::Add));
        }
        if self.query.is_none() && self.keys.is_none() {
            return;
        }
        let off = tile.products.lower_equal_elem(0.0);
        let products = (tile.weights * scores).mask_fill(off, 0.0);
        if let Some(sum) = self.query.take() {
            let share = products.clone().matmul(tile.keys);
            self.query = Some(sum.select_assign(0, tile.queries, share, IndexingUpdateOp::Add));
        }
        if let Some(sum) = self.keys.take() {
            let share = products.swap_dims(1, 2).matmul(tile.query).flatten::<2>(0, 1);
            self.keys = Some(sum.select_assign(0, tile.rows, share, IndexingUpdateOp::Add));
        }
    }
}

fn indices<B: Backend>(indices: &[usize], device: &B::Device) -> Tensor<B, 1, Int> {
    let indices: Vec<i64> = indices.iter().map(|&index| index as i64).collect();
    let count = indices.len();
    Tensor::from_data(TensorData::new(indices, [count]), device)
}

#[cfg(test)]
mod tests {
    use burn::backend::{Autodiff, Flex};

    use super::*;
    use crate::{
        data::Batch,
        losses::testing::{assert_close, assert_gradient, numbers, tensor, values},
    };

    type B = Autodiff<Flex>;

    /// Rows of `length` tokens, of which the last one is padding.
    fn padded(rows: usize, length: usize) -> Sequences {
        Sequences::of_batch(&Batch {
            tokens: vec![vec![0; length]; rows],
            documents: vec![vec![0]; rows],
            lengths: vec![vec![length - 1]; rows],
            targets: vec![vec![None; length]; rows],
            lines: (0..rows).collect(),
        })
    }

    fn tracked<const D: usize>(values: &[f64], shape: [usize; D]) -> Tensor<B, D> {
        tensor::<B, D>(values, shape).require_grad()
    }

    /// Two heads and two positions: scores 1 and 1 + ln 3, so shares 1/4 and 3/4, where the attention's are halves. Of
    /// the other queries one lists nothing, one has no weight on what it lists, one lists a single position, which
    /// diverges by nothing, and one is padding. So two count.
    #[test]
    fn a_query_is_as_computed_by_hand() {
        let ln3 = 3f64.ln();
        let second = (1.0 + ln3) / 3.0;
        let mut query = [2.0, -5.0, -1.0, 3.0].repeat(5);
        query[12..16].copy_from_slice(&[4.0, 1.0, 1.0, 1.0]);
        let query = tracked(&query, [1, 5, 2, 2]);
        let weights = tracked(&[0.5, second].repeat(5), [1, 5, 2]);
        let keys = tracked(&[1.0, 0.0, 0.0, 1.0], [1, 2, 2]);
        let indexing = Indexing {
            query: query.clone(),
            weights: weights.clone(),
            keys: keys.clone(),
            selected: &[0, 1, -1, -1, 0, 1, 1, -1, 0, 1],
            attended: tensor(&[0.3, 0.3, 0.0, 0.0, 0.0, 0.0, 0.7, 0.0, 0.9, 0.1], [1, 5, 2]),
        };
        let loss = IndexerLoss::default().forward(indexing, &padded(1, 5)).expect("shapes that fit");
        assert_close(&values(&loss), &[0.5 * (4.0 / 3f64).ln() / 2.0], 1e-15);

        let gradients = loss.backward();
        let of_scores = [-0.25 / 2.0, 0.25 / 2.0];
        let mut of_query = [0.0; 20];
        of_query[..4].copy_from_slice(&[0.5 * of_scores[0], 0.0, 0.0, second * of_scores[1]]);
        assert_close(&values(&query.grad(&gradients).expect("tracked")), &of_query, 1e-15);
        let mut of_weights = [0.0; 10];
        of_weights[..2].copy_from_slice(&[2.0 * of_scores[0], 3.0 * of_scores[1]]);
        assert_close(&values(&weights.grad(&gradients).expect("tracked")), &of_weights, 1e-15);
        let [first, second] = [0.5 * of_scores[0], second * of_scores[1]];
        let of_keys = [2.0 * first, -5.0 * first, -second, 3.0 * second];
        assert_close(&values(&keys.grad(&gradients).expect("tracked")), &of_keys, 1e-15);
    }

    const SHAPES: ([usize; 4], [usize; 3], [usize; 3]) = ([2, 4, 2, 3], [2, 4, 2], [2, 5, 3]);

    /// Two rows of three queries and one of padding: all, two and no positions of five.
    const SELECTED: [i64; 24] = [0, 2, 4, 1, 3, -1, -1, -1, -1, 0, 1, 2, 1, 2, 3, 0, 4, -1, 2, 3, 4, 0, 1, 2];

    fn numbers_of(shape: &[usize], seed: u64) -> Vec<f64> {
        numbers(shape.iter().product(), seed).into_iter().map(f64::from).collect()
    }

    fn loss(tile_elements: usize, query: Tensor<B, 4>, weights: Tensor<B, 3>, keys: Tensor<B, 3>) -> Tensor<B, 1> {
        let attended = numbers(SELECTED.len(), 13).into_iter().zip(SELECTED).map(|(weight, position)| match position {
            NONE => 0.0,
            _ => f64::from(weight) + 1.0,
        });
        let attended = tensor(&attended.collect::<Vec<_>>(), [2, 4, 3]);
        let indexing = Indexing { query, weights, keys, selected: &SELECTED, attended };
        IndexerLoss { tile_elements }.forward(indexing, &padded(2, 4)).expect("shapes that fit")
    }

    #[test]
    fn gradients_are_those_of_finite_differences() {
        let (query, weights, keys) = (numbers_of(&SHAPES.0, 3), numbers_of(&SHAPES.1, 5), numbers_of(&SHAPES.2, 8));
        let (q, w, k) = (tensor(&query, SHAPES.0), tensor(&weights, SHAPES.1), tensor(&keys, SHAPES.2));
        assert_gradient(&query, SHAPES.0, |query| loss(24, query, w.clone(), k.clone()));
        assert_gradient(&weights, SHAPES.1, |weights| loss(24, q.clone(), weights, k.clone()));
        assert_gradient(&keys, SHAPES.2, |keys| loss(24, q.clone(), w.clone(), keys));
    }

    #[test]
    fn tiles_change_nothing() {
        let all = |tile_elements| {
            let query = tracked(&numbers_of(&SHAPES.0, 3), SHAPES.0);
            let weights = tracked(&numbers_of(&SHAPES.1, 5), SHAPES.1);
            let keys = tracked(&numbers_of(&SHAPES.2, 8), SHAPES.2);
            let loss = loss(tile_elements, query.clone(), weights.clone(), keys.clone());
            let mut found = values(&loss);
            let gradients = loss.square().backward();
            found.extend(values(&query.grad(&gradients).expect("tracked")));
            found.extend(values(&weights.grad(&gradients).expect("tracked")));
            found.extend(values(&keys.grad(&gradients).expect("tracked")));
            found
        };
        let whole = all(1 << 24);
        for tile_elements in [0, 9, 20, 30] {
            assert_close(&all(tile_elements), &whole, 1e-15);
        }
    }

    #[test]
    fn without_queries_that_count_the_loss_is_zero_and_so_are_gradients() {
        for (selected, attended) in [([-1, -1], [0.0, 0.0]), ([0, 1], [0.0, 0.0])] {
            let query = tracked(&[1.0, 2.0], [1, 1, 1, 2]);
            let indexing = Indexing {
                query: query.clone(),
                weights: tensor(&[1.0], [1, 1, 1]),
                keys: tensor(&[1.0, 0.0, 0.0, 1.0], [1, 2, 2]),
                selected: &selected,
                attended: tensor(&attended, [1, 1, 2]),
            };
            let loss = IndexerLoss::default().forward(indexing, &Sequences::of_rows(1, 1)).expect("shapes that fit");
            assert_eq!(values(&loss), [0.0]);
            assert_eq!(values(&query.grad(&loss.backward()).expect("tracked")), [0.0, 0.0]);
        }
    }

    #[test]
    fn another_number_of_queries_is_refused() {
        let indexing = Indexing {
            query: tensor::<Flex, 4>(&[1.0, 2.0], [1, 2, 1, 1]),
            weights: tensor(&[1.0, 1.0], [1, 2, 1]),
            keys: tensor(&[1.0], [1, 1, 1]),
            selected: &[0, 0],
            attended: tensor(&[1.0, 1.0], [1, 2, 1]),
        };
        let refused = IndexerLoss::default().forward(indexing, &Sequences::of_rows(3, 1)).expect_err("refused");
        assert_eq!(refused, LossError::TokenCount { found: 2, expected: 3 });
    }
}
