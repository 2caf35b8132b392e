//! Recipes for the weights of any fixture, by name and storage.

use indexmap::IndexMap;

use crate::error::GoldenError;
use crate::filler::{fill, fill_part};
use crate::recorded::checksum;
use crate::weights::{Dtype, Kind, WeightMeta, is_table, scaled_weight};

/// A tensor as a checkpoint stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredTensor {
    /// The reference's name.
    pub name: String,
    /// Stored axes, outermost first (bytes for packed fp4).
    pub shape: Vec<usize>,
    /// The stored type.
    pub dtype: Dtype,
}

/// The recipes of all tensors of a model, checksums included. A weight's name and storage decide how it is filled: large
/// enough to matter, small enough that a few layers stay in range.
///
/// # Errors
/// [`GoldenError::MissingWeight`] for scales without their weight, [`GoldenError::Weight`] for a shape that cannot be
/// filled.
pub fn recipes(
    salt: &str,
    tensors: impl IntoIterator<Item = StoredTensor>,
) -> Result<IndexMap<String, WeightMeta>, GoldenError> {
    let tensors: IndexMap<String, StoredTensor> =
        tensors.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect();
    tensors
        .values()
        .map(|tensor| {
            let mut meta = match scaled_weight(&tensor.name) {
                Some(owner) => match tensors.get(&owner) {
                    Some(weight) => scale_recipe(tensor, weight),
                    None => return Err(GoldenError::MissingWeight { name: owner }),
                },
                None => weight_recipe(tensor),
            };
            let values = fill(salt, &tensor.name, &meta)?;
            meta.ck = checksum(values.iter().map(|&value| f64::from(value))).sum;
            Ok((tensor.name.clone(), meta))
        })
        .collect()
}

/// Writes some elements of a weight to `out`, from the one numbered `first` on, as the recipe of a weight stored in f32
/// makes them; of a table, unscaled and unrounded. Any tensor can be made so, whatever its size.
pub fn weight_part(salt: &str, name: &str, shape: &[usize], first: u64, out: &mut [f32]) {
    let spread = if is_table(name) { (0.5, 0.0) } else { spread(name, shape) };
    fill_part(salt, name, spread, first, out);
}

fn weight_recipe(tensor: &StoredTensor) -> WeightMeta {
    let kind = match tensor.dtype {
        Dtype::Float32 | Dtype::Bfloat16 => Kind::F32,
        Dtype::Float8E4m3fn => Kind::Fp8,
        Dtype::Float8E8m0fnu => Kind::E8m0,
        Dtype::Float4E2m1fnX2 => Kind::Fp4x2,
    };
    let mut meta = WeightMeta::unscaled(tensor.shape.clone(), kind, tensor.dtype);
    (meta.scale, meta.offset) = match kind {
        Kind::F32 => spread(&tensor.name, &tensor.shape),
        Kind::Fp8 if is_table(&tensor.name) => (0.5, 0.0),
        _ => (meta.scale, meta.offset),
    };
    meta
}

/// Scale and offset of an unquantised weight.
fn spread(name: &str, shape: &[usize]) -> (f64, f64) {
    let (stem, last) = name.rsplit_once('.').unwrap_or(("", name));
    let part = if last == "weight" { stem.rsplit_once('.').map_or(stem, |(_, part)| part) } else { last };
    let hyper_connection = |suffix| last.starts_with("hc_") && last.ends_with(suffix);

    if name == "embed.weight" || last.starts_with("image_") {
        (0.5, 0.0)
    } else if last == "attn_sink" || hyper_connection("_base") {
        (0.1, 0.0)
    } else if hyper_connection("_scale") || matches!(last, "q_weight" | "k_weight") || part.contains("norm") {
        (0.05, 1.0)
    } else {
        match shape {
            [.., columns] if shape.len() > 1 => (inverse_root(*columns as f64), 0.0),
            _ => (0.05, 0.0),
        }
    }
}

/// The scales of a block-quantised weight: near one for the table, and for a matrix powers of two that bring its
/// elements (of typical magnitude `m` before scaling) near `K^-0.5` for rows of `K`.
fn scale_recipe(tensor: &StoredTensor, weight: &StoredTensor) -> WeightMeta {
    const SPAN: u64 = 3;

    let shape = tensor.shape.clone();
    if is_table(&weight.name) {
        return WeightMeta { offset: 1.0, ..WeightMeta::unscaled(shape, Kind::E8m0, tensor.dtype) };
    }
    let stored_columns = weight.shape.last().copied().unwrap_or(1) as f64;
    let (columns, m) =
        if weight.dtype == Dtype::Float4E2m1fnX2 { (2.0 * stored_columns, 3.0) } else { (stored_columns, 0.5) };
    let lo = (inverse_root(columns) / m / 1.7).log2().round() as i64 - 1;
    WeightMeta { lo, span: SPAN, ..WeightMeta::unscaled(shape, Kind::Pow2, tensor.dtype) }
}

/// `x^-0.5` rounded to nearest, on every machine: one Newton step with the residual `1 - x*r*r` in twice the precision.
fn inverse_root(x: f64) -> f64 {
    let r = x.sqrt().recip();
    let square = r * r;
    let square_error = r.mul_add(r, -square);
    let residual = -(x.mul_add(square, -1.0) + x * square_error);
    (0.5 * r).mul_add(residual, r)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_those_of_the_whole_recipe() {
        let tensor =
            StoredTensor { name: "layers.0.attn.wq_a.weight".to_owned(), shape: vec![4, 6], dtype: Dtype::Float32 };
        let whole = fill("s", &tensor.name, &weight_recipe(&tensor)).unwrap();
        let mut part = [0.0; 7];
        weight_part("s", &tensor.name, &tensor.shape, 5, &mut part);
        assert_eq!(part, whole[5..12]);
    }

    #[test]
    fn inverse_roots_are_rounded_to_nearest() {
        // From arithmetic with fifty digits.
        let roots = [
            (1.0, 1.0),
            (3.0, 0.577_350_269_189_625_7),
            (24.0, 0.204_124_145_231_931_5),
            (32.0, 0.176_776_695_296_636_9),
            (80.0, 0.111_803_398_874_989_48),
            (96.0, 0.102_062_072_615_965_75),
            (160.0, 0.079_056_941_504_209_49),
            (192.0, 0.072_168_783_648_703_22),
            (288.0, 0.058_925_565_098_878_96),
            (320.0, 0.055_901_699_437_494_74),
            (1536.0, 0.025_515_518_153_991_44),
            (7168.0, 0.011_811_389_781_538_352),
            (12288.0, 0.009_021_097_956_087_902),
        ];
        for (x, root) in roots {
            assert_eq!(inverse_root(x), root, "{x}");
        }
    }
}
