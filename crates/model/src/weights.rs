//! Where parameters come from.

use std::{cell::RefCell, fmt, rc::Rc, sync::Arc};

use burn::{
    module::Param,
    tensor::{DType, Tensor, TensorData, backend::Backend},
};
use dsv41_quant::{PackedMatrix, kernel::Activations, op::PackedOps};

use crate::{
    ModelError,
    linear::{GroupedWeight, LinearWeight, PackedWeight},
    parameters::{Layout, Parameter, transpose},
    table::RowSource,
};

/// Something that has a model's weights by name: a golden file's recipes, a checkpoint, a random generator.
pub trait WeightSource {
    /// The values of the weight called `name` (the reference's names), row-major, with the axes `shape`.
    ///
    /// # Errors
    /// When there is no such weight or it has other axes.
    fn weight(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError>;

    /// The matrix `[rows, columns]` called `name` as it is stored, where it is to stay packed.
    ///
    /// # Errors
    /// As [`WeightSource::weight`].
    fn packed(&self, _name: &str, _shape: [usize; 2]) -> Result<Option<PackedMatrix>, ModelError> {
        Ok(None)
    }

    /// The table `[rows, width]` called `name`, where it is to be read row by row.
    ///
    /// # Errors
    /// As [`WeightSource::weight`].
    fn rows(&self, _name: &str, _shape: [usize; 2]) -> Result<Option<Arc<dyn RowSource>>, ModelError> {
        Ok(None)
    }

    /// Who keeps the routed experts in memory, where not all of them stay there.
    fn residency(&self) -> Option<Arc<dyn ExpertResidency>> {
        None
    }
}

/// Keeps some routed experts in memory and drops others.
pub trait ExpertResidency: fmt::Debug + Send + Sync {
    /// Says that an expert is about to be used.
    fn touch(&self, layer: usize, expert: usize);

    /// Says that experts of a layer will probably be used soon.
    fn prefetch(&self, layer: usize, experts: &[usize]);
}

/// How a model takes its weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadOptions {
    /// Precision of parameters and results: f32, or f64 where the backend has it.
    pub dtype: DType,
    /// How activations enter products with packed matrices, where the backend has the choice.
    pub activations: Activations,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self { dtype: DType::F32, activations: Activations::F32 }
    }
}

/// A source seen from one place of the module tree, with where its tensors go.
#[derive(Clone)]
pub struct Loader<'a, B: Backend> {
    source: &'a dyn WeightSource,
    prefix: String,
    device: &'a B::Device,
    options: LoadOptions,
    parameters: Rc<RefCell<Vec<Parameter>>>,
}

impl<'a, B: Backend> Loader<'a, B> {
    /// The loader of a whole model.
    pub fn new(source: &'a dyn WeightSource, device: &'a B::Device, options: LoadOptions) -> Self {
        Self { source, prefix: String::new(), device, options, parameters: Rc::default() }
    }

    /// The parameters made so far, by any loader of the same model.
    pub(crate) fn parameters(&self) -> Vec<Parameter> {
        self.parameters.borrow().clone()
    }

    /// The loader of a submodule.
    pub fn at(&self, name: impl std::fmt::Display) -> Self {
        Self { prefix: format!("{}{name}.", self.prefix), ..self.clone() }
    }

    /// A parameter with the axes it is stored with.
    pub(crate) fn param<const D: usize>(
        &self,
        name: &str,
        shape: [usize; D],
    ) -> Result<Param<Tensor<B, D>>, ModelError> {
        let values = self.values(name, &shape)?;
        Ok(self.to_param(name, values, shape, Layout::AsStored))
    }

    /// A matrix stored as `[rows, columns]`, transposed.
    pub(crate) fn transposed(
        &self,
        name: &str,
        [rows, columns]: [usize; 2],
    ) -> Result<Param<Tensor<B, 2>>, ModelError> {
        let stored = self.values(name, &[rows, columns])?;
        Ok(self.to_param(name, transpose(&stored, columns), [columns, rows], Layout::Transposed))
    }

    /// The table stored as `[rows, width]`, where it is read row by row.
    pub(crate) fn rows(&self, name: &str, shape: [usize; 2]) -> Result<Option<Arc<dyn RowSource>>, ModelError> {
        self.source.rows(&self.full_name(name), shape)
    }

    /// Who keeps the routed experts in memory.
    pub(crate) fn residency(&self) -> Option<Arc<dyn ExpertResidency>> {
        self.source.residency()
    }

    fn values(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        let name = self.full_name(name);
        let values = self.source.weight(&name, shape)?;
        if values.len() != shape.iter().product::<usize>() {
            return Err(ModelError::WeightShape { name, found: values.len(), expected: shape.to_vec() });
        }
        Ok(values)
    }

    /// The reference's name of what is called `name` here.
    pub(crate) fn full_name(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn to_param<const D: usize>(
        &self,
        name: &str,
        values: Vec<f32>,
        shape: [usize; D],
        layout: Layout,
    ) -> Param<Tensor<B, D>> {
        let parameter = Parameter::new(self.full_name(name), &shape, layout);
        let tensor = Tensor::from_data(TensorData::new(values, shape), (self.device, self.options.dtype));
        let param = Param::initialized(parameter.id, tensor.require_grad());
        self.parameters.borrow_mut().push(parameter);
        param
    }
}

impl<B: PackedOps> Loader<'_, B> {
    /// The matrix of a linear layer, stored as `[out, in]`.
    pub(crate) fn linear(&self, name: &str, shape: [usize; 2]) -> Result<LinearWeight<B>, ModelError> {
        Ok(match self.source.packed(&self.full_name(name), shape)? {
            Some(matrix) => LinearWeight::Packed(self.packed_weight(matrix)),
            None => LinearWeight::Float(self.transposed(name, shape)?),
        })
    }

    /// Matrices of linear layers stored one below the other, `[groups * out, in]`.
    pub(crate) fn grouped_linear(
        &self,
        name: &str,
        [groups, d_output, d_input]: [usize; 3],
    ) -> Result<GroupedWeight<B>, ModelError> {
        let shape = [groups * d_output, d_input];
        if let Some(matrix) = self.source.packed(&self.full_name(name), shape)? {
            let rows = |group| group * d_output..(group + 1) * d_output;
            let packed = (0..groups).map(|group| self.packed_weight(matrix.slice_rows(rows(group)))).collect();
            return Ok(GroupedWeight::Packed(packed));
        }
        let stored = self.values(name, &shape)?;
        let values = stored.chunks_exact(d_output * d_input).flat_map(|group| transpose(group, d_input)).collect();
        Ok(GroupedWeight::Float(self.to_param(name, values, [groups, d_input, d_output], Layout::Grouped)))
    }

    fn packed_weight(&self, matrix: PackedMatrix) -> PackedWeight<B> {
        PackedWeight::new(matrix, self.options.activations, self.device)
    }
}
