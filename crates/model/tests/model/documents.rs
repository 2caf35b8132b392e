//! Several documents in one row give what each would give alone.

use burn::{
    backend::{Autodiff, NdArray},
    optim::GradientsParams,
    tensor::{DType, Tensor, TensorData},
};
use dsv41::{
    BlockCall, Call, Indexing, ModelError, Objective, Routing, Transformer,
    parameters::{self, Parameter},
};

use crate::common::{config, model, tokens};

type Inner = NdArray<f64>;
type B = Autodiff<Inner>;

/// Where the documents of two rows of 40 tokens start.
fn starts() -> Vec<Vec<usize>> {
    vec![vec![0, 14, 22], vec![0, 30]]
}

#[test]
fn no_document_sees_another() {
    let config = config("tiny.json");
    let model: Transformer<Inner> = model(&config, DType::F64);
    let rows = tokens(2, 40, config.vocab_size);
    let starts = starts();
    let call = Call { documents: Some(&starts), ..Call::default() };
    let packed = model.forward(&rows, None, call).expect("a valid call").logits;
    for (row, starts) in starts.iter().enumerate() {
        for (document, &start) in starts.iter().enumerate() {
            let end = starts.get(document + 1).copied().unwrap_or(40);
            let alone = model.forward(&[rows[row][start..end].to_vec()], None, Call::default()).expect("a valid call");
            let there = packed.clone().slice([row..row + 1, start..end]);
            let off = (there - alone.logits).abs().max().into_scalar();
            // Rotary angles are f32, and differ by their rounding at another position.
            assert!(off < 1e-5, "row {row}, document {document}: {off:e}");
        }
    }
}

#[test]
fn starts_that_do_not_fit_are_refused() {
    let config = config("tiny.json");
    let model: Transformer<Inner> = model(&config, DType::F64);
    let rows = tokens(1, 8, config.vocab_size);
    for (starts, problem) in [
        (vec![], "starts of 0 rows for 1 rows of tokens"),
        (vec![vec![2]], "the first document starts at Some(2), not at 0"),
        (vec![vec![0, 4, 4]], "a document at 4 follows one at 4"),
        (vec![vec![0, 8]], "a document starts at 8 of 8 tokens"),
        (vec![vec![0, 3]], "a document starts at 3, within a group of 2 compressed tokens"),
    ] {
        let call = Call { documents: Some(&starts), ..Call::default() };
        let error = model.forward(&rows, None, call).expect_err("starts that do not fit");
        assert!(matches!(error, ModelError::Documents { .. }));
        assert_eq!(error.to_string(), format!("documents of row 0: {problem}"));
    }
}

/// Adds terms that depend on everything an objective sees.
#[derive(Default)]
struct Everything {
    loss: Option<Tensor<B, 1>>,
    calls: usize,
    rows: Vec<Tensor<B, 2>>,
    row_gradients: usize,
}

impl Everything {
    fn add(&mut self, term: Tensor<B, 1>) {
        self.calls += 1;
        self.loss = Some(match self.loss.take() {
            Some(loss) => loss + term,
            None => term,
        });
    }
}

impl Objective<B> for Everything {
    fn routing(&mut self, _: usize, routing: Routing<'_, B>) {
        self.add(routing.scores.square().mean() + routing.logits.mean());
    }

    fn wants_indexing(&self) -> bool {
        true
    }

    fn indexing(&mut self, _: usize, indexing: Indexing<'_, B>) {
        let [batch, seq, width] = indexing.attended.dims();
        assert_eq!(indexing.selected.len(), batch * seq * width);
        let [heads, head_dim] = [indexing.query.dims()[2], indexing.query.dims()[3]];
        let query = indexing.query.reshape([batch, seq * heads, head_dim]);
        let dots = query.matmul(indexing.keys.swap_dims(1, 2));
        self.add(dots.square().mean() + indexing.weights.square().mean());
    }

    fn engram_rows(&mut self, _: usize, _: &[i64], values: Tensor<B, 2>) -> Tensor<B, 2> {
        self.rows.push(values.clone());
        values
    }

    fn backward(&mut self, _: &dyn Fn(&Tensor<B, 2>) -> Option<TensorData>) {
        self.row_gradients += 1;
    }

    fn take_loss(&mut self) -> Option<Tensor<B, 1>> {
        self.loss.take()
    }
}

fn by_name(model: &Transformer<B>, gradients: &GradientsParams) -> Vec<(String, Option<Vec<f64>>)> {
    let mut found = Vec::new();
    parameters::visit_gradients(model, model.parameters(), gradients, |parameter: &Parameter, gradient| {
        found.push((parameter.name.clone(), gradient.map(|gradient| gradient.iter::<f64>().collect())));
    });
    found
}

#[test]
fn gradients_block_by_block_are_those_of_one_graph() {
    let config = config("tiny.json");
    let model: Transformer<B> = model(&config, DType::F64);
    let rows = tokens(2, 40, config.vocab_size);
    let starts = starts();

    let mut objective = Everything::default();
    let call = Call { documents: Some(&starts), objective: Some(&mut objective), ..Call::default() };
    let x = model.forward_states(&rows, None, call).expect("a valid call").x;
    let terms = objective.calls;
    let loss = x.square().mean() + objective.take_loss().expect("terms of every layer");
    let whole = by_name(&model, &GradientsParams::from_grads(loss.backward(), &model));

    let mut objective = Everything::default();
    let call = BlockCall { documents: Some(&starts), ..BlockCall::default() };
    let gradients = model
        .gradients_by_block::<ModelError>(&rows, call, &mut objective, |x| Ok(x.square().mean()))
        .expect("a valid call");
    assert_eq!(objective.calls, terms, "an objective sees every layer once");
    assert_eq!(objective.row_gradients, config.n_layers);
    let blocks = by_name(&model, &gradients);
    assert_eq!(whole.len(), blocks.len());
    for ((name, whole), (_, block)) in whole.iter().zip(&blocks) {
        let (Some(whole), Some(block)) = (whole, block) else {
            assert_eq!(whole.is_some(), block.is_some(), "{name}");
            continue;
        };
        let largest = whole.iter().fold(0.0_f64, |largest, value| largest.max(value.abs()));
        for (whole, block) in whole.iter().zip(block) {
            assert!((whole - block).abs() <= 1e-10 * largest, "{name}: {block:e}, expected {whole:e}");
        }
    }
    let trains_indexers = blocks.iter().any(|(name, gradient)| name.contains("indexer.wk") && gradient.is_some());
    assert!(trains_indexers, "the keys of an index are reached across layers");
}
