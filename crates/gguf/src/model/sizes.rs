//! What the parts of a model take in a file.

use std::collections::BTreeMap;

use dsv41_config::Part;
use dsv41_quant::GgmlType;

/// What one part of the model takes in one type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartSize {
    /// The part, or none for what no text model has.
    pub part: Option<Part>,
    /// The type.
    pub ty: GgmlType,
    /// Tensors of the file.
    pub tensors: usize,
    /// Their bytes, without padding.
    pub bytes: u64,
}

/// Adds tensors up by part and type, in the order of [`Part::ALL`], what is of no part last.
pub(crate) fn by_part(tensors: impl Iterator<Item = (Option<Part>, GgmlType, u64)>) -> Vec<PartSize> {
    let mut sizes: BTreeMap<_, PartSize> = BTreeMap::new();
    for (part, ty, bytes) in tensors {
        let empty = PartSize { part, ty, tensors: 0, bytes: 0 };
        let size = sizes.entry((part.is_none(), part, ty)).or_insert(empty);
        size.tensors += 1;
        size.bytes = size.bytes.saturating_add(bytes);
    }
    sizes.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_add_up_in_the_order_of_the_model() {
        let tensors = [
            (None, GgmlType::F32, 1),
            (Some(Part::Head), GgmlType::F32, 2),
            (Some(Part::Attention), GgmlType::Q2K, 4),
            (Some(Part::Attention), GgmlType::F32, 8),
            (Some(Part::Attention), GgmlType::Q2K, 16),
        ];
        let size = |part, ty, tensors, bytes| PartSize { part, ty, tensors, bytes };
        let expected = [
            size(Some(Part::Attention), GgmlType::F32, 1, 8),
            size(Some(Part::Attention), GgmlType::Q2K, 2, 20),
            size(Some(Part::Head), GgmlType::F32, 1, 2),
            size(None, GgmlType::F32, 1, 1),
        ];
        assert_eq!(by_part(tensors.into_iter()), expected);
    }
}
