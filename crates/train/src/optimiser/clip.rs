//! Clipping by the norm of all gradients together. Burn's clipping is of each tensor by itself.

use burn::{
    module::{AutodiffModule, ModuleVisitor, Param},
    optim::GradientsParams,
    tensor::{
        DType, Tensor, Transaction,
        backend::{AutodiffBackend, Backend},
    },
};

use super::OptimiserError;

/// The norm of all gradients, and what was done about it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GradientNorm {
    /// Before clipping.
    pub norm: f64,
    /// What gradients were multiplied by, 1 where nothing was clipped. Gradients kept on the host are for the caller to
    /// multiply.
    pub scale: f64,
}

/// Scales all gradients so that their norm is at most `max_norm`.
///
/// `host_squares` is the sum of squares of gradients that are kept elsewhere, of table rows for example, and count in
/// the norm. Without a `max_norm` the norm is only measured.
///
/// # Errors
/// [`OptimiserError::NonFiniteNorm`] when a gradient is infinite or not a number; the gradients are left as they were.
pub fn clip_gradients<B: AutodiffBackend, M: AutodiffModule<B>>(
    module: &M,
    gradients: &mut GradientsParams,
    host_squares: f64,
    max_norm: Option<f64>,
) -> Result<GradientNorm, OptimiserError> {
    let norm = (sum_of_squares(module, gradients)? + host_squares).sqrt();
    if !norm.is_finite() {
        return Err(OptimiserError::NonFiniteNorm { norm });
    }
    let scale = match max_norm {
        Some(max_norm) if norm > max_norm => max_norm / norm,
        _ => 1.0,
    };
    if scale != 1.0 {
        scale_gradients(module, gradients, scale);
    }
    Ok(GradientNorm { norm, scale })
}

/// The sum of the squares of all gradients of a module.
///
/// Each row (the last axis) is summed on the device in the gradient's own type, at least f32, and all rows in f64.
///
/// # Errors
/// When the device fails.
pub fn sum_of_squares<B: AutodiffBackend, M: AutodiffModule<B>>(
    module: &M,
    gradients: &GradientsParams,
) -> Result<f64, OptimiserError> {
    let mut visitor = RowSquares { gradients, sums: Transaction::<B::InnerBackend>::default() };
    module.visit(&mut visitor);
    let sums = visitor.sums.try_execute().map_err(|error| OptimiserError::Device(error.to_string()))?;
    Ok(sums.iter().flat_map(|sums| sums.iter::<f64>()).sum())
}

/// Multiplies all gradients of a module by a factor.
pub fn scale_gradients<B: AutodiffBackend, M: AutodiffModule<B>>(
    module: &M,
    gradients: &mut GradientsParams,
    factor: f64,
) {
    module.visit(&mut Scale { gradients, factor });
}

struct RowSquares<'a, B: Backend> {
    gradients: &'a GradientsParams,
    sums: Transaction<B>,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for RowSquares<'_, B::InnerBackend> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let Some(gradient) = self.gradients.get::<B::InnerBackend, D>(param.id) else { return };
        let gradient = match gradient.dtype() {
            DType::F64 => gradient,
            _ => gradient.cast(DType::F32),
        };
        let [rows, width] = rows_and_width(gradient.dims());
        let squares = gradient.reshape([rows, width]).square().sum_dim(1);
        self.sums = std::mem::take(&mut self.sums).register(squares);
    }
}

struct Scale<'a> {
    gradients: &'a mut GradientsParams,
    factor: f64,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Scale<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if let Some(gradient) = self.gradients.remove::<B::InnerBackend, D>(param.id) {
            self.gradients.register(param.id, gradient.mul_scalar(self.factor));
        }
    }
}

fn rows_and_width<const D: usize>(dims: [usize; D]) -> [usize; 2] {
    let (rows, width) = dims.split_at(D.saturating_sub(1));
    [rows.iter().product(), width.iter().product()]
}

#[cfg(test)]
mod tests {
    use burn::backend::Flex;

    use super::*;
    use crate::optimiser::testing::{gradients, id, toy};

    fn squares(gradients: &GradientsParams) -> f64 {
        let sum = |tensor: Tensor<Flex, 1>| tensor.into_data().iter::<f64>().map(|x| x * x).sum::<f64>();
        let flat = |place| match place {
            2 => gradients.get::<Flex, 3>(id(place)).unwrap().flatten(0, 2),
            3 => gradients.get::<Flex, 1>(id(place)).unwrap(),
            _ => gradients.get::<Flex, 2>(id(place)).unwrap().flatten(0, 1),
        };
        (0..4).map(|place| sum(flat(place))).sum()
    }

    #[test]
    fn gradients_are_scaled_together_to_the_largest_norm_allowed() {
        for (dtype, tolerance) in [(DType::F64, 1e-12), (DType::F32, 1e-6)] {
            let toy = toy(dtype);
            let mut gradients = gradients(1, dtype);
            let host_squares = 2.5;
            let expected = (squares(&gradients) + host_squares).sqrt();
            let GradientNorm { norm, scale } = clip_gradients(&toy, &mut gradients, host_squares, Some(0.5)).unwrap();
            assert!((norm - expected).abs() < tolerance * expected, "{norm}, expected {expected}");
            assert!((scale - 0.5 / norm).abs() < 1e-12);
            let after = (squares(&gradients) + host_squares * scale * scale).sqrt();
            assert!((after - 0.5).abs() < tolerance, "{after}");
        }
    }

    #[test]
    fn gradients_within_the_norm_are_left_as_they_are() {
        let toy = toy(DType::F32);
        let mut gradients = gradients(1, DType::F32);
        let before = gradients.get::<Flex, 2>(id(0)).unwrap().into_data();
        for max_norm in [Some(100.0), None] {
            let found = clip_gradients(&toy, &mut gradients, 0.0, max_norm).unwrap();
            assert_eq!(found.scale, 1.0);
            assert!(found.norm > 1.0);
        }
        assert_eq!(gradients.get::<Flex, 2>(id(0)).unwrap().into_data(), before);
    }

    #[test]
    fn small_rows_count_beside_a_large_one() {
        // In f32 the sum would stay at 2^24.
        let toy = toy(DType::F32);
        let mut gradients = GradientsParams::new();
        gradients.register(id(3), Tensor::<Flex, 1>::from_data([4096.0, 0.0], &Default::default()));
        gradients.register(id(0), Tensor::<Flex, 2>::ones([3, 1], &Default::default()));
        assert_eq!(sum_of_squares(&toy, &gradients).unwrap(), 16_777_219.0);
    }

    #[test]
    fn a_gradient_that_is_no_number_is_an_error_and_nothing_is_scaled() {
        let toy = toy(DType::F32);
        let mut gradients = gradients(1, DType::F32);
        gradients.register(id(3), Tensor::<Flex, 1>::from_data([f32::NAN, 0.0], &Default::default()));
        let before = gradients.get::<Flex, 2>(id(0)).unwrap().into_data();
        let error = clip_gradients(&toy, &mut gradients, 0.0, Some(0.1)).unwrap_err();
        assert_eq!(error.to_string(), "the norm of all gradients is NaN");
        assert_eq!(gradients.get::<Flex, 2>(id(0)).unwrap().into_data(), before);
    }
}
