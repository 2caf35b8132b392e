//! Custom operations against the same arithmetic left to automatic differentiation.

use burn::{
    backend::{
        Autodiff, Flex, NdArray,
        autodiff::checkpoint::strategy::{BalancedCheckpointing, CheckpointStrategy, NoCheckpointing},
    },
    tensor::{DType, Tensor, TensorData, backend::AutodiffBackend, ops::FloatTensor},
};
use dsv41_ops::{CustomOp, CustomOps, constant, custom, from_primitive, into_primitive, is_tracked, with_gradients};

/// `scale * x * y^2`, where `y` is `[n]` and `x` `[m, n]`.
#[derive(Debug)]
struct Cubic {
    scale: f64,
}

impl CustomOp<2> for Cubic {
    fn forward<B: CustomOps>(&self, [x, y]: [FloatTensor<B>; 2]) -> FloatTensor<B> {
        into_primitive(cubic::<B>(from_primitive(x), from_primitive(y), self.scale))
    }

    fn backward<B: CustomOps>(
        &self,
        [x, y]: [FloatTensor<B>; 2],
        gradient: FloatTensor<B>,
        wanted: [bool; 2],
    ) -> [Option<FloatTensor<B>>; 2] {
        let (x, y, gradient) = (from_primitive::<B, 2>(x), from_primitive::<B, 1>(y), from_primitive::<B, 2>(gradient));
        let y = y.unsqueeze_dim::<2>(0);
        let dx = (gradient.clone() * y.clone().square()).mul_scalar(self.scale);
        let dy = (gradient * x * y).sum_dim(0).mul_scalar(2.0 * self.scale).squeeze_dim::<1>(0);
        [wanted[0].then(|| into_primitive(dx)), wanted[1].then(|| into_primitive(dy))]
    }
}

fn cubic<B: CustomOps>(x: Tensor<B, 2>, y: Tensor<B, 1>, scale: f64) -> Tensor<B, 2> {
    (x * y.square().unsqueeze_dim::<2>(0)).mul_scalar(scale)
}

/// How a graph takes the cubic: as one operation, or composed.
#[derive(Clone, Copy)]
enum As {
    Operation,
    Composed,
}

impl As {
    fn cubic<B: CustomOps>(self, x: Tensor<B, 2>, y: Tensor<B, 1>, scale: f64) -> Tensor<B, 2> {
        match self {
            Self::Operation => custom(Cubic { scale }, [into_primitive(x), into_primitive(y)]),
            Self::Composed => cubic(x, y, scale),
        }
    }
}

fn vector<B: CustomOps>(values: &[f64], dtype: DType) -> Tensor<B, 1> {
    Tensor::from_data(TensorData::new(values.to_vec(), [values.len()]), (&B::Device::default(), dtype))
}

/// Gradients of two leaves, `[2, 3]` and `[3]`, in a graph that a function makes of them.
fn gradients<B: AutodiffBackend + CustomOps>(
    dtype: DType,
    graph: impl FnOnce(Tensor<B, 2>, Tensor<B, 1>) -> Tensor<B, 1>,
) -> [Vec<f64>; 2] {
    let x = vector::<B>(&[0.5, -1.25, 2.0, 0.75, 1.5, -0.25], dtype).reshape([2, 3]).require_grad();
    let y = vector::<B>(&[1.5, -0.5, 0.25], dtype).require_grad();
    let gradients = graph(x.clone(), y.clone()).backward();
    let host = |data: TensorData| data.iter::<f64>().collect();
    [x.grad(&gradients).map(|x| host(x.into_data())), y.grad(&gradients).map(|y| host(y.into_data()))]
        .map(|gradient| gradient.expect("the leaf takes a gradient"))
}

fn assert_equal(found: [Vec<f64>; 2], expected: [Vec<f64>; 2], tolerance: f64, what: &str) {
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found.len(), expected.len(), "{what}");
        assert!(expected.iter().any(|x| *x != 0.0), "{what}: a gradient of zeros shows nothing");
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() <= tolerance * expected.abs(), "{what}: {found}, expected {expected}");
        }
    }
}

/// Every way an operation can stand in a graph.
fn graphs<B: AutodiffBackend + CustomOps>(dtype: DType, tolerance: f64) {
    let compare = |what: &str, graph: &dyn Fn(As, Tensor<B, 2>, Tensor<B, 1>) -> Tensor<B, 1>| {
        let found = gradients::<B>(dtype, |x, y| graph(As::Operation, x, y));
        let expected = gradients::<B>(dtype, |x, y| graph(As::Composed, x, y));
        assert_equal(found, expected, tolerance, what);
    };
    compare("leaves", &|how, x, y| how.cubic(x, y, 0.5).sum());
    compare("cheap results of leaves", &|how, x, y| {
        how.cubic(x.exp().mul_scalar(0.25), y.cos() + 1.0, 2.0).tanh().sum()
    });
    compare("used twice", &|how, x, y| {
        let (x, y) = (x.tanh(), y.sin());
        (how.cubic(x.clone(), y.clone(), 2.0) * how.cubic(x, y, 0.5)).exp().sum()
    });
    compare("the result used twice", &|how, x, y| {
        let cubic = how.cubic(x.tanh(), y, 2.0);
        (cubic.clone().exp() * cubic.cos()).sum()
    });
    compare("one after another", &|how, x, y| {
        let first = how.cubic(x.tanh(), y.clone().exp(), 0.5);
        how.cubic(first.sin(), y, 2.0).exp().sum()
    });
    compare("one tensor as both inputs", &|how, x, y| {
        let row = x.clone().narrow(0, 0, 1).squeeze_dim::<1>(0).exp();
        (how.cubic(row.clone().unsqueeze(), row, 0.5).sum() * y.sum()) + x.sum()
    });
    compare("an input that is a constant", &|how, x, y| {
        let constant = vector::<B>(&[2.0, 3.0, -1.0], dtype);
        let by_constant = how.cubic(x.clone().exp(), constant.clone().exp(), 0.5).tanh();
        let of_constant = how.cubic((constant.clone() + 1.0).unsqueeze(), y.exp(), 0.5).tanh();
        by_constant.sum() + of_constant.sum()
    });
}

#[test]
fn an_operation_takes_the_gradients_of_its_composed_form() {
    graphs::<Autodiff<NdArray<f64>>>(DType::F64, 1e-13);
}

#[test]
fn an_operation_takes_its_gradients_under_checkpointing() {
    graphs::<Autodiff<Flex, BalancedCheckpointing>>(DType::F64, 1e-13);
    graphs::<Autodiff<Flex, BalancedCheckpointing>>(DType::F32, 1e-5);
}

/// The sum, with no gradient to its first input.
#[derive(Debug)]
struct SecondAlone;

impl CustomOp<2> for SecondAlone {
    fn forward<B: CustomOps>(&self, [x, y]: [FloatTensor<B>; 2]) -> FloatTensor<B> {
        B::float_add(x, y)
    }

    fn backward<B: CustomOps>(
        &self,
        _: [FloatTensor<B>; 2],
        gradient: FloatTensor<B>,
        _: [bool; 2],
    ) -> [Option<FloatTensor<B>>; 2] {
        [None, Some(gradient)]
    }
}

#[test]
fn no_gradient_is_one_of_zeros() {
    type B = Autodiff<Flex>;
    let leaf = vector::<B>(&[1.0, 2.0], DType::F32).require_grad();
    // The first input is itself the result of a step, which expects a gradient.
    let inputs = [into_primitive(leaf.clone().exp()), into_primitive(leaf.clone().mul_scalar(3.0))];
    let gradients = custom::<B, _, 2, 1>(SecondAlone, inputs).sum().backward();
    let gradient = leaf.grad(&gradients).expect("the leaf takes a gradient").into_data();
    gradient.assert_eq(&TensorData::from([3.0f32, 3.0]), true);
}

/// Mean of squares and its gradient at once.
fn mean_square<B: CustomOps>(x: Tensor<B, 2>) -> Tensor<B, 1> {
    let values = constant(x.clone());
    let count = values.shape().num_elements() as f64;
    let gradient = is_tracked(&x).then(|| into_primitive(values.clone().mul_scalar(2.0 / count)));
    with_gradients(values.square().mean(), [(into_primitive(x), gradient)])
}

fn values_with_gradients<C: CheckpointStrategy>() {
    type B<C> = Autodiff<Flex, C>;
    // The gradient of the value is not one: a backward pass has to multiply by it.
    let found = gradients::<B<C>>(DType::F64, |x, y| mean_square(x.exp()).exp() * y.exp().sum());
    let expected = gradients::<B<C>>(DType::F64, |x, y| x.exp().square().mean().exp() * y.exp().sum());
    assert_equal(found, expected, 1e-13, "mean of squares");
}

#[test]
fn gradients_given_with_a_value_are_multiplied_by_its_own() {
    values_with_gradients::<NoCheckpointing>();
    values_with_gradients::<BalancedCheckpointing>();
}

#[test]
fn a_tracked_input_without_a_gradient_takes_zeros() {
    type B = Autodiff<Flex>;
    let leaf = vector::<B>(&[1.0, 2.0], DType::F32).require_grad();
    let value = with_gradients(constant(leaf.clone()).sum(), [(into_primitive(leaf.clone().exp()), None)]);
    let gradient = leaf.grad(&value.backward()).expect("the leaf takes a gradient").into_data();
    gradient.assert_eq(&TensorData::from([0.0f32, 0.0]), true);
}

#[test]
fn tracked_is_what_a_backward_pass_reaches() {
    type B = Autodiff<Flex>;
    let leaf = vector::<B>(&[1.0, 2.0], DType::F32);
    assert!(!is_tracked(&leaf));
    assert!(!is_tracked(&mean_square(leaf.clone().unsqueeze())));
    let leaf = leaf.require_grad();
    assert!(is_tracked(&leaf));
    assert!(is_tracked(&leaf.clone().exp()));
    assert!(is_tracked(&mean_square(leaf.clone().unsqueeze())));
    assert!(!is_tracked(&constant(leaf.clone().exp())));
    assert!(!is_tracked(&constant(leaf)));
    assert!(!is_tracked(&vector::<Flex>(&[1.0], DType::F32)));
}

#[test]
fn without_autodiff_operations_only_compute() {
    let x = vector::<Flex>(&[1.0, 2.0], DType::F32);
    let product = As::Operation.cubic(x.clone().unsqueeze(), x.clone(), 0.5);
    product.into_data().assert_eq(&TensorData::from([[0.5f32, 4.0]]), true);
    mean_square(x.unsqueeze()).into_data().assert_eq(&TensorData::from([2.5f32]), true);
}
