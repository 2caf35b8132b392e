//! Small models for the tests of this module.

use std::path::Path;
use std::sync::Arc;

use burn::{
    backend::{Autodiff, Flex},
    tensor::DType,
};
use dsv41::{LoadOptions, ModelBackend, ModelError, RowSource, Transformer, WeightSource};
use dsv41_config::Config;
use dsv41_quant::{GgmlType, PackedMatrix};

use super::Base;

pub(super) type TrainBackend = Autodiff<Flex>;

/// Weights made from their names: floats, or matrices packed where they are in files.
struct Named {
    packed: bool,
}

impl WeightSource for Named {
    fn weight(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        let mut values = vec![0.0; shape.iter().product()];
        dsv41_golden::weight_part("adapters", name, shape, 0, &mut values);
        Ok(values)
    }

    fn packed(&self, name: &str, [rows, columns]: [usize; 2]) -> Result<Option<PackedMatrix>, ModelError> {
        let is_block = columns.is_multiple_of(GgmlType::Q8_0.block_len());
        let ty = if is_block { GgmlType::Q8_0 } else { GgmlType::F16 };
        let values = self.weight(name, &[rows, columns])?;
        Ok(self.packed.then(|| PackedMatrix::quantise(ty, &values, [rows, columns], None).unwrap()))
    }

    fn rows(&self, name: &str, shape: [usize; 2]) -> Result<Option<Arc<dyn RowSource>>, ModelError> {
        Ok(self.packed(name, shape)?.map(|matrix| Arc::new(matrix) as Arc<dyn RowSource>))
    }
}

pub(super) fn config() -> Config {
    Config::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/tiny.json")).unwrap()
}

pub(super) fn model() -> Transformer<TrainBackend> {
    load(false, DType::F32)
}

pub(super) fn packed_model<B: ModelBackend>(dtype: DType) -> Transformer<B> {
    load(true, dtype)
}

fn load<B: ModelBackend>(packed: bool, dtype: DType) -> Transformer<B> {
    let options = LoadOptions { dtype, ..LoadOptions::default() };
    Transformer::load(&config(), &Named { packed }, None, &Default::default(), options).unwrap()
}

pub(super) fn base() -> Base {
    Base { name: "tiny".to_owned(), fingerprint: "0123".to_owned() }
}
