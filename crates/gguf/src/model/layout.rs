//! What a file of a model holds, before there is one: every tensor with its name, shape, type and size.

use dsv41_config::{Part, TensorSpec};
use dsv41_quant::{GgmlType, QuantError};
use indexmap::IndexMap;

use super::error::ModelError;
use super::names::GgufName;
use super::plan::{Types, fitting};
use super::sizes::{PartSize, by_part};

/// One tensor of a file and what it is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaidTensor {
    /// The name in the file.
    pub name: String,
    /// The shape, slowest axis first: a stack of experts is `[experts, rows, columns]`.
    pub shape: Vec<usize>,
    /// The type.
    pub ty: GgmlType,
    /// The type that the plan asked for, which rows of this length may not divide into.
    pub wanted: GgmlType,
    /// The part of the model.
    pub part: Part,
    /// Bytes in the file, without padding.
    pub bytes: u64,
    /// The tensors of the reference that it holds one after another: an expert's each, or just one.
    pub sources: Vec<TensorSpec>,
}

/// Every tensor of a file, in the order of the reference's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// The tensors.
    pub tensors: Vec<LaidTensor>,
}

impl Layout {
    /// The file that holds these tensors of the reference in the types that a plan gives them.
    ///
    /// # Errors
    /// [`ModelError::UnknownTensor`] for a tensor that has no name in GGUF, [`ModelError::Stack`] where a layer's experts
    /// are not alike, [`ModelError::Quant`] where a size overflows; those of the plan.
    pub fn new(tensors: &[TensorSpec], types: &dyn Types) -> Result<Self, ModelError> {
        let mut laid: IndexMap<String, Vec<TensorSpec>> = IndexMap::new();
        for spec in tensors {
            let unknown = || ModelError::UnknownTensor { name: spec.name.clone() };
            let place = GgufName::of(&spec.name).ok_or_else(unknown)?;
            let sources = laid.entry(place.tensor).or_default();
            let next = place.expert.unwrap_or(0);
            if next != sources.len() || sources.first().is_some_and(|first| first.shape != spec.shape) {
                return Err(ModelError::Stack { name: spec.name.clone(), place: sources.len() });
            }
            sources.push(spec.clone());
        }
        let tensors = laid.into_iter().map(|(name, sources)| LaidTensor::new(name, sources, types));
        Ok(Self { tensors: tensors.collect::<Result<_, _>>()? })
    }

    /// What each part of the model takes in each type.
    pub fn sizes(&self) -> Vec<PartSize> {
        by_part(self.tensors.iter().map(|tensor| (Some(tensor.part), tensor.ty, tensor.bytes)))
    }

    /// Bytes of all tensors, without padding.
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().fold(0, |sum, tensor| sum.saturating_add(tensor.bytes))
    }
}

impl LaidTensor {
    fn new(name: String, sources: Vec<TensorSpec>, types: &dyn Types) -> Result<Self, ModelError> {
        let [first, ..] = sources.as_slice() else {
            return Err(ModelError::UnknownTensor { name });
        };
        let stacked = GgufName { tensor: name.clone(), expert: None }.reference().is_none();
        let axis = stacked.then_some(sources.len());
        let shape: Vec<usize> = axis.into_iter().chain(first.shape.iter().copied()).collect();
        let wanted = types.of(first)?;
        let ty = fitting(wanted, columns(&shape));
        let bytes = byte_size(ty, &shape).map_err(|source| ModelError::Quant { tensor: name.clone(), source })?;
        Ok(Self { part: first.part, name, shape, ty, wanted, bytes, sources })
    }
}

/// The length of a row.
pub(crate) fn columns(shape: &[usize]) -> usize {
    shape.last().copied().unwrap_or(1)
}

/// The number of rows: the product of all axes but the last, saturating.
pub(crate) fn rows(shape: &[usize]) -> usize {
    shape.iter().rev().skip(1).fold(1, |product, &axis| product.saturating_mul(axis))
}

fn byte_size(ty: GgmlType, shape: &[usize]) -> Result<u64, QuantError> {
    let (rows, columns) = (rows(shape), columns(shape));
    let bytes = ty.row_bytes(columns)?.checked_mul(rows);
    // No platform of Rust has a `usize` of more than 64 bits.
    bytes.map(|bytes| bytes as u64).ok_or(QuantError::TooLarge { ty, rows, columns })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::TypePlan;
    use crate::model::testing::released;

    const GIB: f64 = (1_u64 << 30) as f64;

    fn published() -> Layout {
        Layout::new(&released("v4.1-flash").tensors(), &TypePlan::PUBLISHED).unwrap()
    }

    /// The figures of the published seven shards.
    #[test]
    fn the_published_plan_gives_the_published_sizes() {
        let layout = published();
        let sizes = layout.sizes();
        let of = |part, ty| {
            let size = sizes.iter().find(|size| (size.part, size.ty) == (Some(part), ty)).unwrap();
            (size.tensors, (size.bytes as f64 / GIB * 10.0).round() / 10.0)
        };
        assert_eq!(of(Part::RoutedExperts, GgmlType::Q2K), (80, 110.7));
        assert_eq!(of(Part::RoutedExperts, GgmlType::Q3K), (40, 72.5));
        assert_eq!(of(Part::EngramTables, GgmlType::Q2K), (2, 60.1));
        assert_eq!((layout.bytes() as f64 / 1e8).round() / 10.0, 264.5);
        let large = [Part::RoutedExperts, Part::EngramTables].map(Some);
        let rest: u64 = sizes.iter().filter(|size| !large.contains(&size.part)).map(|size| size.bytes).sum();
        assert_eq!((rest as f64 / GIB).round(), 3.0);
        assert_eq!(layout.tensors.len(), 1046);
    }

    #[test]
    fn one_expert_takes_12_2_mib() {
        let layout = published();
        let stacks = layout.tensors.iter().filter(|t| t.name.starts_with("blk.7.") && t.name.ends_with("_exps.weight"));
        let expert: u64 = stacks.map(|stack| stack.bytes / stack.shape[0] as u64).sum();
        assert_eq!((expert as f64 / (1 << 20) as f64 * 10.0).round() / 10.0, 12.2);
    }

    #[test]
    fn stacks_have_the_experts_slowest() {
        let layout = published();
        let down = layout.tensors.iter().find(|tensor| tensor.name == "blk.3.ffn_down_exps.weight").unwrap();
        assert_eq!(down.shape, [384, 5120, 2304]);
        assert_eq!(down.sources[17].name, "layers.3.ffn.experts.17.w2.weight");
    }

    /// The shape of 128-wide rows that the published types do not fit.
    #[test]
    fn a_type_that_does_not_fit_says_what_was_wanted() {
        let layout = Layout::new(&released("mid").tensors(), &TypePlan::Q2K_MIX).unwrap();
        let keys = layout.tensors.iter().find(|tensor| tensor.name == "blk.2.indexer.attn_k.weight").unwrap();
        assert_eq!((keys.wanted, keys.ty, keys.shape.as_slice()), (GgmlType::Q2K, GgmlType::Q8_0, &[128, 128][..]));
        assert_eq!(keys.bytes, 128 * 4 * 34);
    }

    #[test]
    fn one_expert_alone_is_a_stack_too() {
        let mut config = released("tiny");
        (config.n_routed_experts, config.n_activated_experts) = (1, 1);
        let layout = Layout::new(&config.tensors(), &TypePlan::uniform(GgmlType::F32)).unwrap();
        let stack = layout.tensors.iter().find(|tensor| tensor.name == "blk.0.ffn_up_exps.weight").unwrap();
        assert_eq!(stack.shape, [1, 24, 64]);
    }

    #[test]
    fn tensors_that_make_no_file_are_named() {
        let plan = TypePlan::uniform(GgmlType::F32);
        let mut tensors = released("tiny").tensors();
        let second = tensors.iter().position(|tensor| tensor.name == "layers.0.ffn.experts.1.w3.weight").unwrap();
        let removed = tensors.remove(second);
        let error = Layout::new(&tensors, &plan).unwrap_err();
        assert!(error.to_string().starts_with("tensor `layers.0.ffn.experts.2.w3.weight` cannot"), "{error}");
        tensors.insert(second, TensorSpec { shape: vec![64, 24], ..removed });
        assert!(matches!(Layout::new(&tensors, &plan), Err(ModelError::Stack { place: 1, .. })));
        tensors[0].name = "mtp.0.norm.weight".to_owned();
        assert!(matches!(Layout::new(&tensors, &plan), Err(ModelError::UnknownTensor { .. })));
    }
}
