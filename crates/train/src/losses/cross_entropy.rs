//! Cross entropy of a linear head whose logits never exist at once.

use std::ops::AddAssign;

use burn::tensor::{IndexingUpdateOp, Int, Tensor, TensorData, backend::Backend};
use dsv41::{LinearWeight, ModelBackend, PackedWeight};
use dsv41_ops::{constant, into_primitive, is_tracked, with_gradients};

use super::LossError;

/// The cross entropy of a head's logits with one target a position,
/// `sum_i (L_i - l_i[t_i] + z L_i^2) / denominator`, where `l_i = x_i W` are the logits of a position, `L_i` is the
/// logarithm of the sum of their exponentials, and `t_i` is the target.
///
/// The gradient of a logit is `(exp(l_i[v] - L_i) (1 + 2 z L_i) - [v = t_i]) / denominator`. It is at hand as soon as the
/// logit is, so the gradients of x and W are computed together with the value, some positions at a time, and logits are
/// neither kept for a backward pass nor computed twice. Positions without a target count for nothing and cost nothing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CrossEntropy {
    /// The coefficient z of the squared logarithm, which keeps logits from drifting; 0 for none.
    pub z_loss: f64,
    /// What the sum is divided by; without one, the number of targets, which makes it a mean. Micro-batches of one step
    /// need a common one.
    pub denominator: Option<f64>,
    /// About how many logits exist at a time.
    pub chunk_logits: usize,
}

impl Default for CrossEntropy {
    /// A plain mean; 128 MiB of logits in f32, and about twice that while they are worked on.
    fn default() -> Self {
        Self { z_loss: 0.0, denominator: None, chunk_logits: 1 << 25 }
    }
}

/// A loss and what a report says of it.
#[derive(Debug)]
pub struct Loss<B: Backend> {
    /// The value, of one element, with its gradients.
    pub value: Tensor<B, 1>,
    /// Sums over positions, from which means over many batches follow.
    pub totals: Totals,
}

/// Sums over the positions that have targets, in f64.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Totals {
    /// `L - l[t]`, the negative logarithms of the targets' probabilities, in nats.
    pub nats: f64,
    /// `L^2`, what the coefficient of the z-loss multiplies.
    pub squares: f64,
    /// Positions that have a target.
    pub targets: usize,
    /// Targets that have the largest logit of their position.
    pub correct: usize,
}

impl CrossEntropy {
    /// Takes positions `[n, D]`, a head `[D, V]`, and n targets.
    ///
    /// Under autodiff the gradient goes to the positions, and to the head where it is a parameter; a packed head takes
    /// none.
    ///
    /// # Errors
    /// When shapes do not fit each other, a target is not below V, or the denominator is not a positive number.
    pub fn forward<B: ModelBackend>(
        &self,
        x: Tensor<B, 2>,
        head: &LinearWeight<B>,
        targets: &[Option<u32>],
    ) -> Result<Loss<B>, LossError> {
        self.check(x.dims(), head.dims(), targets)?;
        let (device, dtype) = (x.device(), x.dtype());
        let targets: Vec<(i64, i64)> =
            (0..).zip(targets).filter_map(|(row, target)| target.map(|target| (row, i64::from(target)))).collect();
        let denominator = self.denominator.unwrap_or(targets.len().max(1) as f64);

        let head = Head::of(head);
        let constants = constant(x.clone());
        let mut gradients = Gradients::new(&x, &head);
        let mut statistics = Vec::new();
        for targets in targets.chunks((self.chunk_logits / head.vocab()).max(1)) {
            let rows = indices(targets.iter().map(|(row, _)| *row), &device);
            let targets = indices(targets.iter().map(|(_, target)| *target), &device);
            let positions = constants.clone().select(0, rows.clone());
            let chunk = Chunk::new(head.product(positions.clone()), targets);
            statistics.push(chunk.statistics());
            if gradients.wanted() {
                gradients.add(&head, rows, positions, chunk.gradient(self.z_loss, denominator));
            }
        }

        let totals = Totals::read(statistics);
        let value = (totals.nats + self.z_loss * totals.squares) / denominator;
        let value = Tensor::from_data(TensorData::new(vec![value], [1]), (&device, dtype));
        let x = (into_primitive(x), gradients.x.map(into_primitive));
        let value = match head {
            Head::Float { weight, .. } => {
                with_gradients(value, [x, (into_primitive(weight), gradients.weight.map(into_primitive))])
            }
            Head::Packed(_) => with_gradients(value, [x]),
        };
        Ok(Loss { value, totals })
    }

    fn check(
        &self,
        [rows, width]: [usize; 2],
        [expected, vocab]: [usize; 2],
        targets: &[Option<u32>],
    ) -> Result<(), LossError> {
        if width != expected {
            return Err(LossError::Width { found: width, expected });
        }
        if targets.len() != rows {
            return Err(LossError::TargetCount { found: targets.len(), expected: rows });
        }
        let beyond = |target: u32| usize::try_from(target).map_or(true, |target| target >= vocab);
        for (position, target) in targets.iter().enumerate() {
            if let Some(target) = *target
                && beyond(target)
            {
                return Err(LossError::TargetOutOfRange { target, position, vocab });
            }
        }
        match self.denominator {
            Some(found) if !(found.is_finite() && found > 0.0) => Err(LossError::Denominator { found }),
            _ => Ok(()),
        }
    }
}

impl AddAssign for Totals {
    fn add_assign(&mut self, other: Self) {
        self.nats += other.nats;
        self.squares += other.squares;
        self.targets += other.targets;
        self.correct += other.correct;
    }
}

impl Totals {
    /// The mean over all targets, in nats: 0 where there are none.
    pub fn mean(&self) -> f64 {
        self.nats / self.targets.max(1) as f64
    }

    /// From `[n, 3]` of each chunk, as [`Chunk::statistics`] has them: read all at once, after every chunk is under way.
    fn read<B: Backend>(statistics: Vec<Tensor<B, 2>>) -> Self {
        let mut totals = Self::default();
        if statistics.is_empty() {
            return totals;
        }
        let numbers: Vec<f64> = Tensor::cat(statistics, 0).into_data().iter::<f64>().collect();
        for row in numbers.as_chunks::<3>().0 {
            let [nats, log_sum_exp, below_largest] = *row;
            totals.nats += nats;
            totals.squares += log_sum_exp * log_sum_exp;
            totals.targets += 1;
            totals.correct += usize::from(below_largest == 0.0);
        }
        totals
    }
}

/// A head, and its weight without a gradient.
enum Head<'a, B: Backend> {
    Float { weight: Tensor<B, 2>, constant: Tensor<B, 2> },
    Packed(&'a PackedWeight<B>),
}

impl<'a, B: ModelBackend> Head<'a, B> {
    fn of(head: &'a LinearWeight<B>) -> Self {
        match head {
            LinearWeight::Float(weight) => Self::Float { weight: weight.val(), constant: constant(weight.val()) },
            LinearWeight::Packed(weight) => Self::Packed(weight),
        }
    }

    /// V
    fn vocab(&self) -> usize {
        match self {
            Self::Float { weight, .. } => weight.dims()[1],
            Self::Packed(weight) => weight.matrix().rows(),
        }
    }

    /// `[n, D]` to `[n, V]`.
    fn product(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        match self {
            Self::Float { constant, .. } => x.matmul(constant.clone()),
            Self::Packed(weight) => weight.product(x),
        }
    }

    /// `[n, V]` to `[n, D]`.
    fn product_transposed(&self, logits: Tensor<B, 2>) -> Tensor<B, 2> {
        match self {
            Self::Float { constant, .. } => logits.matmul(constant.clone().transpose()),
            Self::Packed(weight) => weight.product_transposed(logits),
        }
    }
}

/// The softmax of some positions' logits.
struct Chunk<B: Backend> {
    /// `[n, 1]`
    targets: Tensor<B, 2, Int>,
    /// `exp(l - max)`, `[n, V]`.
    exp: Tensor<B, 2>,
    /// The sum of those, `[n, 1]`.
    sum: Tensor<B, 2>,
    /// `l[t] - max`, `[n, 1]`.
    at_target: Tensor<B, 2>,
    /// L, `[n, 1]`.
    log_sum_exp: Tensor<B, 2>,
}

impl<B: Backend> Chunk<B> {
    /// Logits `[n, V]` and targets `[n]`.
    fn new(logits: Tensor<B, 2>, targets: Tensor<B, 1, Int>) -> Self {
        let targets = targets.unsqueeze_dim::<2>(1);
        let max = logits.clone().max_dim(1);
        let shifted = logits - max.clone();
        let at_target = shifted.clone().gather(1, targets.clone());
        let exp = shifted.exp();
        let sum = exp.clone().sum_dim(1);
        let log_sum_exp = sum.clone().log() + max;
        Self { targets, exp, sum, at_target, log_sum_exp }
    }

    /// `L - l[t]`, L and `l[t] - max` of each position, `[n, 3]`.
    fn statistics(&self) -> Tensor<B, 2> {
        let nats = self.sum.clone().log() - self.at_target.clone();
        Tensor::cat(vec![nats, self.log_sum_exp.clone(), self.at_target.clone()], 1)
    }

    /// The gradient of the logits, `[n, V]`.
    fn gradient(self, z_loss: f64, denominator: f64) -> Tensor<B, 2> {
        let slope = self.log_sum_exp.mul_scalar(2.0 * z_loss).add_scalar(1.0) / self.sum.mul_scalar(denominator);
        let at_target = self.at_target.full_like(-1.0 / denominator);
        (self.exp * slope).scatter(1, self.targets, at_target, IndexingUpdateOp::Add)
    }
}

/// Gradients of the inputs that take one, from the chunks so far.
struct Gradients<B: Backend> {
    /// `[n, D]`
    x: Option<Tensor<B, 2>>,
    /// `[D, V]`
    weight: Option<Tensor<B, 2>>,
}

impl<B: ModelBackend> Gradients<B> {
    fn new(x: &Tensor<B, 2>, head: &Head<'_, B>) -> Self {
        let zeros = |like: &Tensor<B, 2>| is_tracked(like).then(|| constant(like.clone()).zeros_like());
        let weight = match head {
            Head::Float { weight, .. } => zeros(weight),
            Head::Packed(_) => None,
        };
        Self { x: zeros(x), weight }
    }

    fn wanted(&self) -> bool {
        self.x.is_some() || self.weight.is_some()
    }

    /// Adds the share of some rows of x, `positions`, given the gradient of their logits.
    fn add(&mut self, head: &Head<'_, B>, rows: Tensor<B, 1, Int>, positions: Tensor<B, 2>, logits: Tensor<B, 2>) {
        if let Some(sum) = self.x.take() {
            let share = head.product_transposed(logits.clone());
            self.x = Some(sum.select_assign(0, rows, share, IndexingUpdateOp::Add));
        }
        if let Some(sum) = self.weight.take() {
            self.weight = Some(sum + positions.transpose().matmul(logits));
        }
    }
}

fn indices<B: Backend>(indices: impl Iterator<Item = i64>, device: &B::Device) -> Tensor<B, 1, Int> {
    let indices: Vec<i64> = indices.collect();
    let count = indices.len();
    Tensor::from_data(TensorData::new(indices, [count]), device)
}

#[cfg(test)]
mod tests {
    use burn::{
        backend::{Autodiff, Flex, NdArray, autodiff::checkpoint::strategy::BalancedCheckpointing},
        module::Param,
        tensor::{DType, activation::log_softmax, backend::AutodiffBackend},
    };
    use dsv41_quant::{GgmlType, PackedMatrix, kernel::Activations};

    use super::*;
    use crate::losses::testing::{assert_close, numbers};

    const WIDTH: usize = 6;
    const VOCAB: usize = 11;
    const TARGETS: [Option<u32>; 8] = [Some(3), None, Some(0), Some(10), None, Some(3), Some(7), None];

    /// A mean over three chunks, the last one of a single position.
    const BY_CHUNKS: CrossEntropy = CrossEntropy { z_loss: 0.0, denominator: None, chunk_logits: 2 * VOCAB + 1 };

    fn tensor<B: Backend>(values: Vec<f32>, shape: [usize; 2], dtype: DType) -> Tensor<B, 2> {
        Tensor::from_data(TensorData::new(values, shape), (&B::Device::default(), dtype))
    }

    fn positions<B: Backend>(dtype: DType) -> Tensor<B, 2> {
        tensor(numbers(TARGETS.len() * WIDTH, 3), [TARGETS.len(), WIDTH], dtype).mul_scalar(4.0)
    }

    fn weight<B: Backend>(dtype: DType) -> Tensor<B, 2> {
        tensor(numbers(WIDTH * VOCAB, 5), [WIDTH, VOCAB], dtype)
    }

    fn float<B: Backend>(weight: Tensor<B, 2>) -> LinearWeight<B> {
        LinearWeight::Float(Param::from_tensor(weight))
    }

    /// The same formula as a graph of tensor operations.
    fn composed<B: Backend>(loss: CrossEntropy, x: Tensor<B, 2>, weight: Tensor<B, 2>) -> Tensor<B, 1> {
        let rows: Vec<usize> = (0..TARGETS.len()).filter(|row| TARGETS[*row].is_some()).collect();
        let logits = x.matmul(weight);
        let terms = rows.iter().map(|&row| {
            let logits = logits.clone().narrow(0, row, 1);
            let target = TARGETS[row].map_or(0, |target| target as usize);
            let log_probability = log_softmax(logits.clone(), 1).narrow(1, target, 1);
            let log_sum_exp = (logits.narrow(1, target, 1) - log_probability.clone()).square();
            (log_sum_exp.mul_scalar(loss.z_loss) - log_probability).flatten::<1>(0, 1)
        });
        let denominator = loss.denominator.unwrap_or(rows.len() as f64);
        // The gradient of a division by a number goes through f32 in Burn; that of a product does not.
        Tensor::cat(terms.collect(), 0).sum().mul_scalar(denominator.recip())
    }

    /// A loss and its gradients where the value passes on a gradient other than one.
    fn gradients<B: AutodiffBackend>(
        dtype: DType,
        loss: impl FnOnce(Tensor<B, 2>, Tensor<B, 2>) -> Tensor<B, 1>,
    ) -> Vec<f64> {
        let (x, weight) = (positions::<B>(dtype).require_grad(), weight::<B>(dtype).require_grad());
        let value = loss(x.clone().tanh(), weight.clone());
        let mut numbers: Vec<f64> = value.to_data().iter::<f64>().collect();
        let gradients = value.square().backward();
        for gradient in [x.grad(&gradients), weight.grad(&gradients)] {
            numbers.extend(gradient.expect("the leaf takes a gradient").into_data().iter::<f64>());
        }
        numbers
    }

    fn compare<B: AutodiffBackend + ModelBackend>(dtype: DType, tolerance: f64) {
        for (z_loss, denominator) in [(0.0, None), (0.01, None), (0.01, Some(20.0))] {
            let loss = CrossEntropy { z_loss, denominator, ..BY_CHUNKS };
            let found = gradients::<B>(dtype, |x, weight| {
                loss.forward(x, &float(weight), &TARGETS).expect("shapes that fit").value
            });
            let expected = gradients::<B>(dtype, |x, weight| composed(loss, x, weight));
            assert_close(&found, &expected, tolerance);
        }
    }

    #[test]
    fn value_and_gradients_are_those_of_the_composed_form() {
        compare::<Autodiff<NdArray<f64>>>(DType::F64, 1e-13);
    }

    #[test]
    fn value_and_gradients_are_those_of_the_composed_form_under_checkpointing() {
        compare::<Autodiff<Flex, BalancedCheckpointing>>(DType::F32, 2e-6);
    }

    /// Logits 0 and ln 3: probabilities 1/4 and 3/4.
    #[test]
    fn a_position_of_two_logits_is_as_computed_by_hand() {
        type B = Autodiff<NdArray<f64>>;
        let ln = f64::ln;
        let options = (&Default::default(), DType::F64);
        let x = Tensor::<B, 2>::from_data(TensorData::from([[1.0, 0.0]]), options).require_grad();
        let weight = Tensor::<B, 2>::from_data(TensorData::from([[0.0, ln(3.0)], [2.0, 5.0]]), options).require_grad();
        let head = float(weight);
        let loss = CrossEntropy { z_loss: 0.5, ..CrossEntropy::default() };
        let Loss { value, totals } = loss.forward(x.clone(), &head, &[Some(0)]).expect("shapes that fit");
        assert_close(&[totals.nats, totals.squares], &[ln(4.0), ln(4.0) * ln(4.0)], 1e-15);
        assert_eq!((totals.targets, totals.correct), (1, 0));
        assert_close(&[value.clone().into_scalar()], &[ln(4.0) + 0.5 * ln(4.0) * ln(4.0)], 1e-15);

        let gradients = value.backward();
        let slope = 1.0 + ln(4.0);
        let logits = [slope / 4.0 - 1.0, slope * 3.0 / 4.0];
        let x: Vec<f64> = x.grad(&gradients).expect("tracked").into_data().iter().collect();
        assert_close(&x, &[logits[1] * ln(3.0), 2.0 * logits[0] + 5.0 * logits[1]], 1e-15);
        let LinearWeight::Float(weight) = head else { unreachable!("made of floats") };
        let weight: Vec<f64> = weight.val().grad(&gradients).expect("tracked").into_data().iter().collect();
        assert_close(&weight, &[logits[0], logits[1], 0.0, 0.0], 1e-15);
    }

    #[test]
    fn gradients_are_those_of_finite_differences() {
        type B = Autodiff<NdArray<f64>>;
        let loss = CrossEntropy { z_loss: 0.1, ..BY_CHUNKS };
        let moved = |step: f64| {
            let (x, weight) = (positions::<B>(DType::F64), weight::<B>(DType::F64));
            (x.clone() + x.sin().mul_scalar(step), weight.clone() + weight.cos().mul_scalar(step))
        };
        let value = |step: f64| {
            let (x, weight) = moved(step);
            loss.forward(x, &float(weight), &TARGETS).expect("shapes that fit").value.into_scalar()
        };
        let step = 1e-5;
        let expected = (value(step) - value(-step)) / (2.0 * step);

        let (x, weight) = moved(0.0);
        let (x, head) = (x.detach().require_grad(), float(weight.detach().require_grad()));
        let gradients = loss.forward(x.clone(), &head, &TARGETS).expect("shapes that fit").value.backward();
        let LinearWeight::Float(weight) = head else { unreachable!("made of floats") };
        let weight = weight.val();
        let along_x = x.grad(&gradients).expect("tracked") * x.inner().sin();
        let along_weight = weight.grad(&gradients).expect("tracked") * weight.inner().cos();
        let found = along_x.sum().into_scalar() + along_weight.sum().into_scalar();
        assert!((found - expected).abs() <= 1e-8 * expected.abs(), "{found}, expected {expected}");
    }

    #[test]
    fn a_packed_head_passes_the_same_gradient_to_its_input() {
        type B = Autodiff<NdArray<f64>>;
        let by_columns: Vec<f32> = weight::<NdArray<f64>>(DType::F64).transpose().into_data().iter().collect();
        let matrix = PackedMatrix::quantise(GgmlType::F32, &by_columns, [VOCAB, WIDTH], None).expect("rows of floats");
        let packed = LinearWeight::Packed(PackedWeight::new(matrix, Activations::F32, &Default::default()));
        let gradient = |head: &LinearWeight<B>| {
            let x = positions::<B>(DType::F64).require_grad();
            let loss = BY_CHUNKS.forward(x.clone(), head, &TARGETS).expect("shapes that fit");
            let gradient = x.grad(&loss.value.backward()).expect("the input is tracked");
            (loss.totals, gradient.into_data().iter::<f64>().collect::<Vec<_>>())
        };
        let (found_totals, found) = gradient(&packed);
        let (expected_totals, expected) = gradient(&float(weight(DType::F64)));
        assert_close(&[found_totals.nats], &[expected_totals.nats], 1e-14);
        assert_close(&found, &expected, 1e-14);
    }

    #[test]
    fn chunks_and_a_graph_change_no_totals() {
        let loss = |chunk_logits| CrossEntropy { chunk_logits, ..CrossEntropy::default() };
        let head = float(weight::<Flex>(DType::F32));
        let totals = |loss: CrossEntropy| loss.forward(positions(DType::F32), &head, &TARGETS).expect("fits").totals;
        let whole = totals(CrossEntropy::default());
        assert_eq!(whole.targets, 5);
        assert!(whole.nats > 0.0 && whole.squares > 0.0);
        for chunk_logits in [1, VOCAB, 3 * VOCAB] {
            assert_eq!(totals(loss(chunk_logits)), whole);
        }
        let head = float(weight::<Autodiff<Flex>>(DType::F32).require_grad());
        let tracked = loss(1).forward(positions(DType::F32), &head, &TARGETS).expect("fits");
        assert_eq!(tracked.totals, whole);
    }

    #[test]
    fn correct_are_targets_with_the_largest_logit() {
        let head = float(tensor::<Flex>(vec![1.0, 2.0, 3.0], [1, 3], DType::F32));
        let x = tensor(vec![1.0, -1.0, 1.0, 1.0], [4, 1], DType::F32);
        let targets = [Some(2), Some(0), Some(1), None];
        let totals = CrossEntropy::default().forward(x, &head, &targets).expect("fits").totals;
        assert_eq!((totals.targets, totals.correct), (3, 2));
    }

    #[test]
    fn without_targets_the_loss_is_zero_and_so_are_gradients() {
        type B = Autodiff<Flex>;
        let head = float(weight::<B>(DType::F32).require_grad());
        let x = positions::<B>(DType::F32).require_grad();
        let loss = CrossEntropy::default().forward(x.clone(), &head, &[None; TARGETS.len()]).expect("fits");
        assert_eq!(loss.totals, Totals::default());
        assert_eq!(loss.value.to_data().iter::<f32>().collect::<Vec<_>>(), [0.0]);
        let gradients = loss.value.backward();
        assert!(x.grad(&gradients).expect("tracked").into_data().iter::<f32>().all(|x| x == 0.0));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let head = float(weight::<Flex>(DType::F32));
        let refuse = |loss: CrossEntropy, width, targets: &[Option<u32>]| {
            let x = Tensor::zeros([2, width], &Default::default());
            loss.forward(x, &head, targets).expect_err("refused")
        };
        let plain = CrossEntropy::default();
        assert_eq!(refuse(plain, 5, &[None; 2]), LossError::Width { found: 5, expected: WIDTH });
        assert_eq!(refuse(plain, WIDTH, &[None]), LossError::TargetCount { found: 1, expected: 2 });
        let beyond = LossError::TargetOutOfRange { target: 11, position: 1, vocab: VOCAB };
        assert_eq!(refuse(plain, WIDTH, &[Some(10), Some(11)]), beyond);
        let by_zero = CrossEntropy { denominator: Some(0.0), ..plain };
        assert_eq!(refuse(by_zero, WIDTH, &[None; 2]), LossError::Denominator { found: 0.0 });
    }
}
