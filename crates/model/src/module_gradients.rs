//! Gradients of modules that are no single operation, of their input and of every parameter, against finite differences
//! in f64.

use burn::{
    backend::{Autodiff, Flex},
    module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId},
    tensor::{DType, Tensor, TensorData, backend::AutodiffBackend},
};
use dsv41_config::{Config, ScoreFunc};

use crate::{
    Call, LoadOptions, ModelError, Transformer, WeightSource, attention::Compressor, moe::Router, testing::numbers,
};

type B = Autodiff<Flex>;

const STEP: f64 = 1e-5;
const TOKENS: usize = 6;

/// Matrices of about unit gain, everything else near one.
struct Weights;

impl WeightSource for Weights {
    fn weight(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        let salt = name.bytes().map(f64::from).sum();
        let values = numbers(shape, salt);
        let value = |value: f64| match shape {
            &[_, inputs] => value * (2.0 / inputs as f64).sqrt(),
            _ => 1.0 + 0.1 * value,
        };
        Ok(values.iter::<f64>().map(|it| value(it) as f32).collect())
    }
}

fn model(change: impl FnOnce(&mut Config)) -> Transformer<B> {
    let mut config = Config::from_json("tiny.json", include_str!("../../../configs/tiny.json")).unwrap();
    change(&mut config);
    let options = LoadOptions { dtype: DType::F64, ..LoadOptions::default() };
    Transformer::load(&config, &Weights, None, &Default::default(), options).unwrap()
}

fn tensor<const D: usize>(data: TensorData) -> Tensor<B, D> {
    Tensor::from_data(data, (&Default::default(), DType::F64))
}

/// Compares the gradients of `forward`, each of whose elements counts with a factor of its own.
fn check<M: Module<B>, const D: usize>(
    module: &M,
    forward: impl Fn(&M, Tensor<B, D>) -> Tensor<B, 1>,
    shape: [usize; D],
) {
    let objective = |module: &M, x| {
        let result = forward(module, x);
        let factors = tensor::<1>(numbers(&result.dims(), 0.5));
        (result * factors).sum()
    };
    let value = |module: &M, x: Tensor<B, D>| objective(module, x).into_data().iter::<f64>().next().unwrap();

    let (at, along) = (numbers(&shape, 0.1), numbers(&shape, 0.9));
    let x = tensor::<D>(at.clone()).require_grad();
    let gradients = objective(module, x.clone()).backward();
    let slope = |gradient: TensorData, along: &TensorData| -> f64 {
        gradient.iter::<f64>().zip(along.iter::<f64>()).map(|(gradient, along)| gradient * along).sum()
    };
    let found = slope(x.grad(&gradients).expect("the input takes a gradient").into_data(), &along);
    let moved = |by: f64| value(module, tensor::<D>(at.clone()) + tensor::<D>(along.clone()).mul_scalar(by));
    assert_close("the input", found, (moved(STEP) - moved(-STEP)) / (2.0 * STEP));

    let mut of_parameters = Gradients { of: &gradients, found: Vec::new() };
    module.visit(&mut of_parameters);
    for (id, gradient) in of_parameters.found {
        let along = numbers(&gradient.shape, 0.7);
        let moved = |by| value(&module.clone().map(&mut Moved { id, by }), tensor::<D>(at.clone()));
        let expected = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
        assert_close(&format!("a parameter of axes {:?}", gradient.shape), slope(gradient, &along), expected);
    }
}

fn assert_close(what: &str, found: f64, expected: f64) {
    assert!(
        expected != 0.0 && (found - expected).abs() <= 1e-7 * expected.abs(),
        "{what}: {found:e}, by differences {expected:e}"
    );
}

/// The gradients of parameters that have one.
struct Gradients<'a> {
    of: &'a <B as AutodiffBackend>::Gradients,
    found: Vec<(ParamId, TensorData)>,
}

impl ModuleVisitor<B> for Gradients<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        self.found.extend(param.val().grad(self.of).map(|gradient| (param.id, gradient.into_data())));
    }
}

/// Moves one parameter.
struct Moved {
    id: ParamId,
    by: f64,
}

impl ModuleMapper<B> for Moved {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        if param.id != self.id {
            return param;
        }
        let (id, value, mapper) = param.consume();
        let along = tensor::<D>(numbers(&value.dims(), 0.7)).mul_scalar(self.by);
        Param::from_mapped_value(id, value + along, mapper)
    }
}

#[test]
fn routers_weights() {
    for score_func in [ScoreFunc::Softmax, ScoreFunc::Sigmoid, ScoreFunc::SqrtSoftplus] {
        for norm_topk_prob in [false, true] {
            let model = model(|config| {
                (config.score_func, config.norm_topk_prob, config.gate_temp) = (score_func, norm_topk_prob, 0.7);
            });
            let router = &model.layers[0].block.ffn.router;
            let weights = |router: &Router<B>, x: Tensor<B, 2>| {
                let scores = router.score(x);
                let experts = router.choose(&scores);
                router.weigh(scores, &experts).flatten(0, 1)
            };
            check(router, weights, [TOKENS, model.config().dim]);
        }
    }
}

#[test]
fn compressors_latents() {
    let model = model(|_| ());
    let tokens = vec![(0..TOKENS as u32).collect::<Vec<_>>()];
    for layer in [2, 4] {
        let compressor = model.layers[layer].block.attn.compressor.as_ref().expect("the layer owns a stream");
        let latents = |compressor: &Compressor<B>, x: Tensor<B, 3>| {
            let mut pass = model.pass(&tokens, None, Call::default()).unwrap();
            compressor.forward(x, layer, &mut pass).expect("groups are complete").latents.flatten(0, 2)
        };
        check(compressor, latents, [1, TOKENS, model.config().dim]);
    }
}

#[test]
fn compressors_index_keys_reach_their_own_parameters_alone() {
    let model = model(|_| ());
    let tokens = vec![(0..TOKENS as u32).collect::<Vec<_>>()];
    let compressor = model.layers[2].block.attn.compressor.as_ref().expect("the layer owns a stream");
    let x = tensor::<3>(numbers(&[1, TOKENS, model.config().dim], 0.1)).require_grad();
    let mut pass = model.pass(&tokens, None, Call::default()).unwrap();
    let keys = compressor.forward(x.clone(), 2, &mut pass).expect("groups are complete").keys;
    let gradients = keys.powi_scalar(3).sum().backward();
    assert!(x.grad(&gradients).is_none());
    let mut of_parameters = Gradients { of: &gradients, found: Vec::new() };
    compressor.visit(&mut of_parameters);
    assert_eq!(of_parameters.found.len(), 2, "wk and k_norm");
}
