//! Muon over matrices and stacks of matrices.

use burn::{
    optim::{AdjustLrFn, Muon, MuonConfig, SimpleOptimizer, decay::WeightDecayConfig, momentum::MomentumConfig},
    tensor::{Tensor, backend::Backend},
};

use super::MuonSettings;

/// One step: the parameter and the momentum after it, from the momentum before it (none at the first step).
///
/// ```text
/// m <- momentum * m + g        u = g + momentum * m
/// W <- (1 - rate * weight_decay) W - rate * 0.2 sqrt(max(rows, columns)) * orthogonal(u)
/// ```
///
/// The momentum is kept here, because the one in Burn's Muon cannot be read and so not be stored by name: Burn's is set
/// to nothing, and orthogonalises, scales and decays. (A running mean, as other implementations keep, differs from this
/// sum by a factor, which orthogonalising removes.) `orthogonal` is five Newton-Schulz steps in the parameter's own
/// type; it commutes with transposition, so the order of a matrix's axes does not matter. Burn's takes matrices only,
/// so those of a stack go one by one.
pub(super) fn step<B: Backend, const D: usize>(
    settings: &MuonSettings,
    weight_decay: f32,
    rate: f64,
    weight: Tensor<B, D>,
    gradient: Tensor<B, D>,
    momentum: Option<Tensor<B, D>>,
) -> (Tensor<B, D>, Tensor<B, D>) {
    let momentum = match momentum {
        Some(momentum) => momentum.mul_scalar(settings.momentum) + gradient.clone(),
        None => gradient.clone(),
    };
    let update = gradient + momentum.clone().mul_scalar(settings.momentum);

    let dims = weight.dims();
    let [rows, columns] = [dims[D - 2], dims[D - 1]];
    let stack = [dims[..D - 2].iter().product(), rows, columns];
    let orthogonal: Muon<B> = MuonConfig::new()
        .with_momentum(MomentumConfig { momentum: 0.0, dampening: 0.0, nesterov: false })
        .with_weight_decay(Some(WeightDecayConfig { penalty: weight_decay }))
        .with_adjust_lr_fn(AdjustLrFn::MatchRmsAdamW)
        .build();
    let matrices = |tensor: Tensor<B, D>| tensor.reshape(stack).iter_dim(0).map(|slice| slice.squeeze_dim::<2>(0));
    let updated = matrices(weight)
        .zip(matrices(update))
        .map(|(weight, update)| orthogonal.step(rate, weight, update, None).0)
        .collect();
    (Tensor::stack::<3>(updated, 0).reshape(dims), momentum)
}

#[cfg(test)]
mod tests {
    use burn::{
        backend::Flex,
        tensor::{DType, TensorData},
    };

    use super::*;

    type Matrix = Vec<Vec<f64>>;

    fn product(a: &Matrix, b: &Matrix) -> Matrix {
        let cell = |row: &Vec<f64>, column: usize| row.iter().zip(b).map(|(x, y)| x * y[column]).sum();
        a.iter().map(|row| (0..b[0].len()).map(|column| cell(row, column)).collect()).collect()
    }

    fn transposed(a: &Matrix) -> Matrix {
        (0..a[0].len()).map(|column| a.iter().map(|row| row[column]).collect()).collect()
    }

    fn combined(parts: &[(f64, &Matrix)]) -> Matrix {
        let cell = |i: usize, j: usize| parts.iter().map(|(factor, a)| factor * a[i][j]).sum();
        (0..parts[0].1.len()).map(|i| (0..parts[0].1[0].len()).map(|j| cell(i, j)).collect()).collect()
    }

    /// The nearest matrix with orthogonal rows or columns, as Newton-Schulz has it, whichever are fewer.
    fn orthogonal(update: &Matrix) -> Matrix {
        if update.len() > update[0].len() {
            return transposed(&orthogonal(&transposed(update)));
        }
        let norm = update.iter().flatten().map(|x| x * x).sum::<f64>().sqrt().max(1e-7);
        let mut x = combined(&[(1.0 / norm, update)]);
        for _ in 0..5 {
            let gram = product(&x, &transposed(&x));
            let polynomial = combined(&[(-4.775, &gram), (2.0315, &product(&gram, &gram))]);
            x = combined(&[(3.4445, &x), (1.0, &product(&polynomial, &x))]);
        }
        x
    }

    /// Two steps of Muon on one matrix.
    fn reference(weight: &Matrix, gradients: [&Matrix; 2], rate: f64, decay: f64) -> Matrix {
        let scale = rate * 0.2 * (weight.len().max(weight[0].len()) as f64).sqrt();
        let momentum = combined(&[(0.95, gradients[0]), (1.0, gradients[1])]);
        let first = orthogonal(&combined(&[(1.95, gradients[0])]));
        let second = orthogonal(&combined(&[(1.0, gradients[1]), (0.95, &momentum)]));
        let kept = 1.0 - rate * decay;
        combined(&[(kept * kept, weight), (-kept * scale, &first), (-scale, &second)])
    }

    fn values(seed: f64, [rows, columns]: [usize; 2]) -> Matrix {
        let value = |i: usize, j: usize| (seed + 1.7 * i as f64 + 0.6 * (j * j) as f64).sin();
        (0..rows).map(|i| (0..columns).map(|j| value(i, j)).collect()).collect()
    }

    fn tensor(stack: &[Matrix], dtype: DType) -> Tensor<Flex, 3> {
        let dims = [stack.len(), stack[0].len(), stack[0][0].len()];
        let values: Vec<_> = stack.iter().flatten().flatten().copied().collect();
        Tensor::from_data(TensorData::new(values, dims), (&Default::default(), dtype))
    }

    fn largest_difference(found: Tensor<Flex, 3>, expected: &[Matrix]) -> f64 {
        let found = found.into_data();
        let pairs = found.iter::<f64>().zip(expected.iter().flatten().flatten());
        pairs.map(|(found, expected)| (found - expected).abs()).fold(0.0, f64::max)
    }

    #[test]
    fn two_steps_on_stacks_of_wide_tall_and_square_matrices_equal_a_plain_reference() {
        let (rate, decay) = (0.02, 0.1);
        for shape in [[3, 5], [6, 4], [4, 4]] {
            let stacks: Vec<Vec<_>> =
                [0.3, 1.9, 4.1].map(|seed| vec![values(seed, shape), values(seed + 0.4, shape)]).into();
            let expected: Vec<_> = (0..2)
                .map(|i| reference(&stacks[0][i], [&stacks[1][i], &stacks[2][i]], rate, f64::from(decay)))
                .collect();
            for (dtype, tolerance) in [(DType::F64, 1e-7), (DType::F32, 1e-5)] {
                let [weight, first, second] = [0, 1, 2].map(|i| tensor(&stacks[i], dtype));
                let settings = MuonSettings::default();
                let (weight, momentum) = step(&settings, decay, rate, weight, first, None);
                let (weight, _) = step(&settings, decay, rate, weight, second, Some(momentum));
                let difference = largest_difference(weight, &expected);
                assert!(difference < tolerance, "{shape:?} in {dtype:?}: {difference}");
            }
        }
    }

    #[test]
    fn a_gradient_of_zeros_only_decays() {
        let weight = values(0.5, [3, 4]);
        let zeros = combined(&[(0.0, &weight)]);
        let [before, gradient] = [&weight, &zeros].map(|matrix| tensor(std::slice::from_ref(matrix), DType::F64));
        let (after, _) = step(&MuonSettings::default(), 0.5, 0.1, before, gradient, None);
        assert!(largest_difference(after, &[combined(&[(0.95, &weight)])]) < 1e-12);
    }
}
