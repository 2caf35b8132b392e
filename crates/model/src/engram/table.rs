use burn::{
    module::{Module, Param},
    tensor::{Tensor, TensorData, backend::Backend},
};

use crate::{ModelError, weights::Loader};

/// The rows that n-grams look up.
#[derive(Module, Debug)]
pub struct EngramTable<B: Backend> {
    /// `[rows, width]`
    pub weight: Param<Tensor<B, 2>>,
}

impl<B: Backend> EngramTable<B> {
    pub(crate) fn load(from: &Loader<'_, B>, name: &str, rows: usize, width: usize) -> Result<Self, ModelError> {
        Ok(Self { weight: from.param(&format!("{name}.weight"), [rows, width])? })
    }

    /// `[rows.len(), width]`
    pub fn look_up(&self, rows: &[i64]) -> Tensor<B, 2> {
        let weight = self.weight.val();
        let rows = Tensor::from_data(TensorData::new(rows.to_vec(), [rows.len()]), &weight.device());
        weight.select(0, rows)
    }
}
