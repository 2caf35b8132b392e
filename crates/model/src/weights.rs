//! Where parameters come from.

use burn::{
    module::Param,
    tensor::{DType, Tensor, TensorData, backend::Backend},
};

use crate::ModelError;

/// Something that has a model's weights by name: a golden file's recipes, a checkpoint, a random generator.
pub trait WeightSource {
    /// The values of the weight called `name` (the reference's names), row-major, with the axes `shape`.
    ///
    /// # Errors
    /// When there is no such weight or it has other axes.
    fn weight(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError>;
}

/// A source seen from one place of the module tree, with where its tensors go.
#[derive(Clone)]
pub(crate) struct Loader<'a, B: Backend> {
    source: &'a dyn WeightSource,
    prefix: String,
    device: &'a B::Device,
    dtype: DType,
}

impl<'a, B: Backend> Loader<'a, B> {
    pub(crate) fn new(source: &'a dyn WeightSource, device: &'a B::Device, dtype: DType) -> Self {
        Self { source, prefix: String::new(), device, dtype }
    }

    /// The loader of a submodule.
    pub(crate) fn at(&self, name: impl std::fmt::Display) -> Self {
        Self { prefix: format!("{}{name}.", self.prefix), ..self.clone() }
    }

    /// A parameter with the axes it is stored with.
    pub(crate) fn param<const D: usize>(
        &self,
        name: &str,
        shape: [usize; D],
    ) -> Result<Param<Tensor<B, D>>, ModelError> {
        let values = self.values(name, &shape)?;
        Ok(self.to_param(values, shape))
    }

    /// A matrix stored as `[rows, columns]`, transposed.
    pub(crate) fn transposed(
        &self,
        name: &str,
        [rows, columns]: [usize; 2],
    ) -> Result<Param<Tensor<B, 2>>, ModelError> {
        let stored = self.values(name, &[rows, columns])?;
        Ok(self.to_param(transpose(&stored, columns), [columns, rows]))
    }

    /// Matrices stored one below the other, `[groups * rows, columns]`, each transposed: `[groups, columns, rows]`.
    pub(crate) fn grouped_transposed(
        &self,
        name: &str,
        [groups, rows, columns]: [usize; 3],
    ) -> Result<Param<Tensor<B, 3>>, ModelError> {
        let stored = self.values(name, &[groups * rows, columns])?;
        let values = stored.chunks_exact(rows * columns).flat_map(|group| transpose(group, columns)).collect();
        Ok(self.to_param(values, [groups, columns, rows]))
    }

    fn values(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        let name = format!("{}{name}", self.prefix);
        let values = self.source.weight(&name, shape)?;
        if values.len() != shape.iter().product::<usize>() {
            return Err(ModelError::WeightShape { name, found: values.len(), expected: shape.to_vec() });
        }
        Ok(values)
    }

    fn to_param<const D: usize>(&self, values: Vec<f32>, shape: [usize; D]) -> Param<Tensor<B, D>> {
        Param::from_tensor(Tensor::from_data(TensorData::new(values, shape), (self.device, self.dtype)))
    }
}

fn transpose(stored: &[f32], columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|column| stored[column..].iter().step_by(columns).copied()).collect()
}
