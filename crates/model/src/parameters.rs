//! The parameters of a model under the reference's names and in the layouts of its files.

use std::collections::HashMap;

use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId},
    optim::GradientsParams,
    tensor::{
        DType, Element, Tensor, TensorData,
        backend::{AutodiffBackend, Backend},
    },
};

/// What is known of a parameter besides its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// Follows from the name, so it is the same in every process.
    pub id: ParamId,
    /// The reference's name, `layers.0.attn.wq_a.weight`.
    pub name: String,
    /// Axes of the tensor in memory.
    pub dims: Vec<usize>,
    /// How the file's axes become those in memory.
    pub layout: Layout,
}

/// How a stored tensor lies in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// With the same axes.
    AsStored,
    /// `[out, in]` as `[in, out]`.
    Transposed,
    /// `[groups * out, in]` as `[groups, in, out]`.
    Grouped,
}

impl Parameter {
    /// A parameter with axes `dims` in memory.
    pub fn new(name: String, dims: &[usize], layout: Layout) -> Self {
        Self { id: id_of(&name), name, dims: dims.to_vec(), layout }
    }

    /// Axes of the tensor in a file.
    pub fn stored_dims(&self) -> Vec<usize> {
        match (self.layout, self.dims.as_slice()) {
            (Layout::Transposed, &[d_input, d_output]) => vec![d_output, d_input],
            (Layout::Grouped, &[groups, d_input, d_output]) => vec![groups * d_output, d_input],
            _ => self.dims.clone(),
        }
    }

    /// A tensor that lies in memory as this parameter, its values or its gradient, as a file holds it.
    pub fn to_stored<B: Backend, const D: usize>(&self, tensor: Tensor<B, D>) -> TensorData {
        let stored = match self.layout {
            Layout::AsStored => tensor,
            Layout::Transposed | Layout::Grouped => tensor.swap_dims(D - 2, D - 1),
        };
        let mut data = stored.into_data();
        data.shape = self.stored_dims().into();
        data
    }

    /// What [`Self::to_stored`] gave, as it lies in memory: not a view of it, so that products sum in the same order as
    /// before.
    ///
    /// # Panics
    /// When the axes are not [`Self::stored_dims`], or values are no floats.
    pub fn from_stored<B: Backend, const D: usize>(&self, data: TensorData, device: &B::Device) -> Tensor<B, D> {
        assert_eq!(*data.shape, self.stored_dims(), "`{}` in the axes of its file", self.name);
        let dtype = data.dtype;
        let data = match dtype {
            DType::F64 => self.in_memory::<f64>(&data),
            _ => self.in_memory::<f32>(&data),
        };
        Tensor::from_data(data, (device, dtype))
    }

    fn in_memory<T: Element>(&self, stored: &TensorData) -> TensorData {
        let values: Vec<T> = stored.iter().collect();
        let values = match (self.layout, self.dims.as_slice()) {
            (Layout::Transposed, &[columns, _]) => transpose(&values, columns),
            (Layout::Grouped, &[_, columns, rows]) => {
                values.chunks_exact(rows * columns).flat_map(|group| transpose(group, columns)).collect()
            }
            _ => values,
        };
        TensorData::new(values, self.dims.clone())
    }
}

/// A matrix whose rows have so many `columns`, column by column.
pub(crate) fn transpose<T: Copy>(stored: &[T], columns: usize) -> Vec<T> {
    (0..columns).flat_map(|column| stored[column..].iter().step_by(columns).copied()).collect()
}

/// FNV-1a of the name's bytes, 64 bits.
fn id_of(name: &str) -> ParamId {
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    ParamId::from(hash)
}

/// Shows every parameter of `module` that `parameters` lists, its values as a file holds them.
pub fn visit_values<B: Backend, M: Module<B>>(
    module: &M,
    parameters: &[Parameter],
    visit: impl FnMut(&Parameter, TensorData),
) {
    module.visit(&mut Values { by_id: by_id(parameters), visit });
}

/// Gives parameters of `module` that `parameters` lists other values, as a file holds them, where `value` has some.
///
/// # Panics
/// When values have other axes than [`Parameter::stored_dims`].
pub fn map_values<B: Backend, M: Module<B>>(
    module: M,
    parameters: &[Parameter],
    value: impl FnMut(&Parameter) -> Option<TensorData>,
) -> M {
    module.map(&mut NewValues { by_id: by_id(parameters), value })
}

/// Shows every parameter of `module` that `parameters` lists with its gradient as a file would hold it, `None` where none
/// flowed.
pub fn visit_gradients<B: AutodiffBackend, M: Module<B>>(
    module: &M,
    parameters: &[Parameter],
    gradients: &GradientsParams,
    visit: impl FnMut(&Parameter, Option<TensorData>),
) {
    module.visit(&mut Gradients { by_id: by_id(parameters), gradients, visit });
}

fn by_id(parameters: &[Parameter]) -> HashMap<ParamId, &Parameter> {
    parameters.iter().map(|parameter| (parameter.id, parameter)).collect()
}

struct Values<'a, F> {
    by_id: HashMap<ParamId, &'a Parameter>,
    visit: F,
}

impl<B: Backend, F: FnMut(&Parameter, TensorData)> ModuleVisitor<B> for Values<'_, F> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if let Some(&parameter) = self.by_id.get(&param.id) {
            (self.visit)(parameter, parameter.to_stored(param.val()));
        }
    }
}

struct NewValues<'a, F> {
    by_id: HashMap<ParamId, &'a Parameter>,
    value: F,
}

impl<B: Backend, F: FnMut(&Parameter) -> Option<TensorData>> ModuleMapper<B> for NewValues<'_, F> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let parameter = self.by_id.get(&param.id);
        let Some((parameter, data)) = parameter.and_then(|&parameter| Some((parameter, (self.value)(parameter)?)))
        else {
            return param;
        };
        let (id, before, mapper) = param.consume();
        let value = parameter.from_stored(data, &before.device()).set_require_grad(before.is_require_grad());
        Param::from_mapped_value(id, value, mapper)
    }
}

struct Gradients<'a, F> {
    by_id: HashMap<ParamId, &'a Parameter>,
    gradients: &'a GradientsParams,
    visit: F,
}

impl<B: AutodiffBackend, F: FnMut(&Parameter, Option<TensorData>)> ModuleVisitor<B> for Gradients<'_, F> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if let Some(&parameter) = self.by_id.get(&param.id) {
            let gradient = self.gradients.get::<B::InnerBackend, D>(param.id);
            (self.visit)(parameter, gradient.map(|gradient| parameter.to_stored(gradient)));
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::backend::Flex;

    use super::*;

    #[test]
    fn groups_are_stored_one_below_the_other() {
        let parameter = Parameter::new("wo_a.weight".into(), &[2, 3, 1], Layout::Grouped);
        let tensor = Tensor::<Flex, 3>::from_data([[[1.0], [2.0], [3.0]], [[4.0], [5.0], [6.0]]], &Default::default());
        let data = parameter.to_stored(tensor);
        assert_eq!(data, TensorData::from([[1.0_f32, 2.0, 3.0], [4.0, 5.0, 6.0]]));
    }

    #[test]
    fn what_is_stored_comes_back() {
        for (layout, dims) in
            [(Layout::AsStored, vec![2, 3, 2]), (Layout::Grouped, vec![2, 3, 2]), (Layout::Transposed, vec![4, 3])]
        {
            let parameter = Parameter::new("p".into(), &dims, layout);
            let values: Vec<f32> = (0..12).map(|value| value as f32).collect();
            let data = TensorData::new(values, parameter.stored_dims());
            let back = match dims.len() {
                2 => parameter.to_stored(parameter.from_stored::<Flex, 2>(data.clone(), &Default::default())),
                _ => parameter.to_stored(parameter.from_stored::<Flex, 3>(data.clone(), &Default::default())),
            };
            assert_eq!(back, data, "{layout:?}");
        }
    }

    #[test]
    fn matrices_are_stored_transposed() {
        let parameter = Parameter::new("wq_a.weight".into(), &[2, 3], Layout::Transposed);
        assert_eq!(parameter.stored_dims(), [3, 2]);
        let tensor = Tensor::<Flex, 2>::from_data([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], &Default::default());
        assert_eq!(parameter.to_stored(tensor), TensorData::from([[1.0_f32, 4.0], [2.0, 5.0], [3.0, 6.0]]));
    }
}
