//! The weights that a run trains, in a file.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    path::Path,
};

use burn::{
    module::{Module, ModuleVisitor, Param, ParamId},
    tensor::{Tensor, TensorData, backend::Backend},
};
use dsv41::{ModelBackend, Transformer, parameters, parameters::Parameter};
use safetensors::{Dtype, View};

use crate::optimiser::{OptimiserError, file};

/// What the metadata of a file says.
const KIND: &str = "trained weights";

/// Writes the parameters that are trained, and the router biases where their layers are: under the reference's names, in
/// the axes and types of its files. What is frozen is left out.
///
/// # Errors
/// When the file cannot be written.
pub fn save_trained<B: ModelBackend>(model: &Transformer<B>, path: &Path) -> Result<(), OptimiserError> {
    let mut tensors = Vec::new();
    parameters::visit_values(model, &trained(model), |parameter, data| {
        tensors.push(file::stored_dtype(data.dtype).map(|dtype| (parameter.name.clone(), Stored { data, dtype })));
    });
    let tensors = tensors.into_iter().collect::<Result<Vec<_>, _>>();
    file::replace(path, tensors.map_err(|fault| OptimiserError::file(path, fault))?, KIND.to_owned())
}

/// Reads what [`save_trained`] wrote of a model with the same parameters.
///
/// # Errors
/// When the file cannot be read, or holds other tensors, axes or types than the model trains; the model is left as it is.
pub fn restore_trained<B: ModelBackend>(model: Transformer<B>, path: &Path) -> Result<Transformer<B>, OptimiserError> {
    let bytes = file::map(path)?;
    let (tensors, _) = file::parse(path, &bytes)?;
    let trained = trained(&model);
    let refuse = |fault| Err(OptimiserError::file(path, fault));
    if let Some(name) =
        tensors.names().into_iter().filter(|name| trained.iter().all(|parameter| parameter.name != **name)).min()
    {
        return refuse(format!("tensor `{name}` is none of the parameters that the model trains"));
    }
    let mut values = HashMap::new();
    for parameter in &trained {
        let Ok(tensor) = tensors.tensor(&parameter.name) else {
            return refuse(format!("tensor `{}` is missing", parameter.name));
        };
        let expected = parameter.stored_dims();
        if tensor.shape() != expected {
            return refuse(format!("tensor `{}` has axes {:?}, expected {expected:?}", parameter.name, tensor.shape()));
        }
        let Some(dtype) = file::loaded_dtype(tensor.dtype()) else {
            return refuse(format!("tensor `{}` is of {:?}, expected floats", parameter.name, tensor.dtype()));
        };
        values.insert(parameter.id, TensorData::from_bytes_vec(tensor.data().to_vec(), expected, dtype));
    }
    let parameters = model.parameters().to_vec();
    Ok(parameters::map_values(model, &parameters, |parameter| values.remove(&parameter.id)))
}

/// The parameters of a model that are trained: those that require gradients, and so the router's biases, although a rule
/// of their own moves them.
pub(crate) fn trained<B: ModelBackend>(model: &Transformer<B>) -> Vec<Parameter> {
    let mut ids = TrainedIds(HashSet::new());
    model.visit(&mut ids);
    model.parameters().iter().filter(|parameter| ids.0.contains(&parameter.id)).cloned().collect()
}

struct TrainedIds(HashSet<ParamId>);

impl<B: Backend> ModuleVisitor<B> for TrainedIds {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if param.is_require_grad() {
            self.0.insert(param.id);
        }
    }
}

/// A tensor on its way to a file.
struct Stored {
    data: TensorData,
    dtype: Dtype,
}

impl View for Stored {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.data.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        self.data.as_bytes().into()
    }

    fn data_len(&self) -> usize {
        self.data.as_bytes().len()
    }
}
