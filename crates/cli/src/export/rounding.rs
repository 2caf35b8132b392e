//! What rounding matrices to the types of a file has cost.

use std::collections::BTreeMap;

use dsv41_config::{Part, TensorSpec};
use dsv41_gguf::{ModelError, ModelFile, TensorStore as _};
use dsv41_quant::{GgmlType, PackedMatrix};

use super::MergedModel;

/// Values compared at a time.
const CHUNK: usize = 1 << 22;

/// What rounding the matrices of one part to one type has cost, in sums of squares.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PartRounding {
    /// The part of the model.
    pub part: Part,
    /// The type in the written file.
    pub ty: GgmlType,
    /// Matrices of the reference.
    pub tensors: usize,
    sums: Sums,
}

/// Sums of squares.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Sums {
    base: f64,
    merged: f64,
    /// Of merged values less the base's.
    change: f64,
    /// Of written values less the merged.
    error: f64,
    /// Of the base's values, rounded to the type of the written, less the base's.
    base_error: f64,
}

impl PartRounding {
    /// Root mean square of what adapters add, of the base's values.
    pub fn change(&self) -> f64 {
        ratio(self.sums.change, self.sums.base)
    }

    /// Root mean square of the error that rounding adds to the merged values, of theirs.
    pub fn rounded(&self) -> f64 {
        ratio(self.sums.error, self.sums.merged)
    }

    /// Root mean square of the error that rounding adds to the base's values, of theirs.
    pub fn base(&self) -> f64 {
        ratio(self.sums.base_error, self.sums.base)
    }
}

fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { (part / whole).sqrt() } else { 0.0 }
}

/// Compares a file with the model that was written to it, tensor by tensor of those that were not copied, by part and type.
///
/// # Errors
/// As [`TensorStore::rows`](dsv41_gguf::TensorStore::rows), [`ModelError::Quant`].
pub fn rounding(merged: &MergedModel<'_>, written: &ModelFile) -> Result<Vec<PartRounding>, ModelError> {
    let mut parts = BTreeMap::new();
    for spec in written.tensors() {
        let ty = written.ty(&spec.name)?;
        if !merged.changes(&spec.name) && merged.base().ty(&spec.name)? == ty {
            continue;
        }
        let empty = PartRounding { part: spec.part, ty, tensors: 0, sums: Sums::default() };
        let part = parts.entry((spec.part, ty)).or_insert(empty);
        part.tensors += 1;
        add(&mut part.sums, spec, ty, merged, written)?;
    }
    Ok(parts.into_values().collect())
}

/// Adds the values of one tensor.
fn add(
    sums: &mut Sums,
    spec: &TensorSpec,
    ty: GgmlType,
    merged: &MergedModel<'_>,
    written: &ModelFile,
) -> Result<(), ModelError> {
    let columns = spec.shape.last().copied().unwrap_or(1);
    let rows: usize = spec.shape.iter().rev().skip(1).product();
    let step = (CHUNK / columns.max(1)).clamp(1, rows.max(1));
    for start in (0..rows).step_by(step) {
        let range = start..rows.min(start + step);
        let mut of = [(); 3].map(|()| vec![0.0; range.len() * columns]);
        merged.base().rows(&spec.name, range.clone(), &mut of[0])?;
        merged.rows(&spec.name, range.clone(), &mut of[1])?;
        written.rows(&spec.name, range.clone(), &mut of[2])?;
        let [base, merged, written] = of;
        let rounded = PackedMatrix::quantise(ty, &base, [range.len(), columns], None);
        let rounded = rounded.map_err(|source| ModelError::Quant { tensor: spec.name.clone(), source })?.dequantise();
        for (((base, merged), written), rounded) in base.iter().zip(&merged).zip(&written).zip(&rounded) {
            let [base, merged, written, rounded] = [base, merged, written, rounded].map(|&value| f64::from(value));
            sums.base += base * base;
            sums.merged += merged * merged;
            sums.change += (merged - base).powi(2);
            sums.error += (written - merged).powi(2);
            sums.base_error += (rounded - base).powi(2);
        }
    }
    Ok(())
}
