use burn::module::ParamId;

/// A parameter of a model as optimisers know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedParameter {
    /// By which gradients are found.
    pub id: ParamId,
    /// The reference's name of the tensor, by which the parameter has its group and its state is stored.
    pub name: String,
    /// Its axes in the module.
    pub dims: Vec<usize>,
}
