//! The recipe of a weight, and the set of all weights of one model made from its recipes.

use std::collections::HashMap;
use std::fmt;

use indexmap::IndexMap;

use crate::error::{GoldenError, WeightFault};
use crate::filler::fill;
use crate::recorded::checksum;
use crate::rounding::e2m1x2;

/// Elements that share a scale: of a row, and for fp8 matrices of a column too.
const SCALE_BLOCK: usize = 32;

/// How raw values become stored ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Cast to the dtype.
    F32,
    /// Cast to e4m3.
    Fp8,
    /// Rounded to a power of two as torch casts.
    E8m0,
    /// `2^(lo + raw % span)`.
    Pow2,
    /// Two e2m1 to a byte, `raw % 256`.
    Fp4x2,
}

impl Kind {
    pub(crate) const ALL: [Self; 5] = [Self::F32, Self::Fp8, Self::E8m0, Self::Pow2, Self::Fp4x2];

    /// The name in golden files.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Fp8 => "fp8",
            Self::E8m0 => "e8m0",
            Self::Pow2 => "pow2",
            Self::Fp4x2 => "fp4x2",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The stored type of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dtype {
    /// `float32`
    Float32,
    /// `bfloat16`
    Bfloat16,
    /// `float8_e4m3fn`
    Float8E4m3fn,
    /// `float8_e8m0fnu`
    Float8E8m0fnu,
    /// `float4_e2m1fn_x2`
    Float4E2m1fnX2,
}

impl Dtype {
    pub(crate) const ALL: [Self; 5] =
        [Self::Float32, Self::Bfloat16, Self::Float8E4m3fn, Self::Float8E8m0fnu, Self::Float4E2m1fnX2];

    /// Torch's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Float32 => "float32",
            Self::Bfloat16 => "bfloat16",
            Self::Float8E4m3fn => "float8_e4m3fn",
            Self::Float8E8m0fnu => "float8_e8m0fnu",
            Self::Float4E2m1fnX2 => "float4_e2m1fn_x2",
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The recipe of one stored tensor: an entry of `weights_meta`.
#[derive(Debug, Clone, PartialEq)]
pub struct WeightMeta {
    /// Stored axes, outermost first (bytes for packed fp4).
    pub shape: Vec<usize>,
    /// How its values are made.
    pub kind: Kind,
    /// What they are stored as.
    pub dtype: Dtype,
    /// Factor of the raw value in [-1, 1).
    pub scale: f64,
    /// Added to it.
    pub offset: f64,
    /// Lowest exponent of [`Kind::Pow2`].
    pub lo: i64,
    /// Exponents of [`Kind::Pow2`].
    pub span: u64,
    /// Checksum of the stored values (bytes for packed fp4).
    pub ck: f64,
}

impl WeightMeta {
    /// A recipe that leaves raw values as they are, with no checksum yet.
    pub(crate) fn unscaled(shape: Vec<usize>, kind: Kind, dtype: Dtype) -> Self {
        Self { shape, kind, dtype, scale: 1.0, offset: 0.0, lo: 0, span: 1, ck: 0.0 }
    }
}

/// How the checkpoint holds a logical weight, which decides how its input is treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredAs {
    /// float32: inputs are taken as they are.
    F32,
    /// bfloat16.
    Bf16,
    /// e4m3 with a power-of-two scale for each 32x32 tile (or each 32 of a row, for tables).
    Fp8,
    /// Packed e2m1 with a power-of-two scale for each 32 of a row.
    Fp4,
}

/// A weight as the graph uses it: scales applied, nibbles unpacked. Exact, since scales are powers of two.
#[derive(Debug, Clone, PartialEq)]
pub struct LogicalWeight {
    /// Logical axes, outermost first.
    pub shape: Vec<usize>,
    /// Row-major values.
    pub values: Vec<f32>,
    /// How the checkpoint holds it.
    pub stored_as: StoredAs,
}

/// All weights of one model under the reference's names (`layers.0.attn.wq_a.weight`, ..., without the `.scale`s).
#[derive(Debug, Clone, Default)]
pub struct WeightSet {
    weights: HashMap<String, LogicalWeight>,
}

impl WeightSet {
    /// Makes every weight of `recipes` under `salt` and checks each stored tensor's checksum.
    ///
    /// # Errors
    /// A shape that does not fit its scales, or a checksum that does not hold.
    pub fn generate(salt: &str, recipes: &IndexMap<String, WeightMeta>) -> Result<Self, GoldenError> {
        let mut weights = HashMap::with_capacity(recipes.len());
        for (name, meta) in recipes {
            if let Some(owner) = scaled_weight(name) {
                if recipes.contains_key(&owner) {
                    continue;
                }
                return Err(GoldenError::MissingWeight { name: owner });
            }
            let stored = fill_checked(salt, name, meta)?;
            let weight = match meta.dtype {
                Dtype::Float32 | Dtype::Float8E8m0fnu => {
                    LogicalWeight { shape: meta.shape.clone(), values: stored, stored_as: StoredAs::F32 }
                }
                Dtype::Bfloat16 => {
                    LogicalWeight { shape: meta.shape.clone(), values: stored, stored_as: StoredAs::Bf16 }
                }
                Dtype::Float8E4m3fn | Dtype::Float4E2m1fnX2 => {
                    let scale_name = scale_of(name);
                    let scale_meta = recipes
                        .get(&scale_name)
                        .ok_or_else(|| GoldenError::MissingWeight { name: scale_name.clone() })?;
                    let blocks = Blocks::of(name, meta, &scale_meta.shape).map_err(|fault| of(name, fault))?;
                    blocks.dequantise(&stored, &fill_checked(salt, &scale_name, scale_meta)?)
                }
            };
            weights.insert(name.clone(), weight);
        }
        Ok(Self { weights })
    }

    /// The weight called `name`.
    ///
    /// # Errors
    /// [`GoldenError::MissingWeight`] when there is none.
    pub fn get(&self, name: &str) -> Result<&LogicalWeight, GoldenError> {
        self.weights.get(name).ok_or_else(|| GoldenError::MissingWeight { name: name.to_owned() })
    }
}

/// The name of the scales of a block-quantised weight.
pub(crate) fn scale_of(weight: &str) -> String {
    format!("{}.scale", weight.strip_suffix(".weight").unwrap_or(weight))
}

/// The weight that tensor `name` holds the scales of, if it is one that holds scales.
pub(crate) fn scaled_weight(name: &str) -> Option<String> {
    name.strip_suffix(".scale").map(|stem| format!("{stem}.weight"))
}

/// Whether a weight is an engram table, whose rows are looked up one at a time and scaled alone.
pub(crate) fn is_table(weight: &str) -> bool {
    weight.ends_with("engram.embed.weight")
}

fn of(name: &str, fault: WeightFault) -> GoldenError {
    GoldenError::Weight { name: name.to_owned(), fault }
}

/// The stored values of one tensor, if they have the recipe's checksum.
fn fill_checked(salt: &str, name: &str, meta: &WeightMeta) -> Result<Vec<f32>, GoldenError> {
    let values = fill(salt, name, meta)?;
    let found = checksum(values.iter().map(|&value| f64::from(value)));
    if found.agrees_with(meta.ck) {
        Ok(values)
    } else {
        Err(of(name, WeightFault::Checksum { found: found.sum, expected: meta.ck }))
    }
}

/// How the elements of a block-quantised matrix find their scales.
struct Blocks {
    rows: usize,
    /// Logical: two for each byte of packed fp4.
    columns: usize,
    rows_per_scale: usize,
    packed: bool,
}

impl Blocks {
    fn of(name: &str, meta: &WeightMeta, scales: &[usize]) -> Result<Self, WeightFault> {
        let misfit = || WeightFault::Scales { shape: meta.shape.clone(), dtype: meta.dtype, scales: scales.to_owned() };
        let &[rows, stored_columns] = meta.shape.as_slice() else {
            return Err(misfit());
        };
        let packed = meta.dtype == Dtype::Float4E2m1fnX2;
        let columns = if packed { 2 * stored_columns } else { stored_columns };
        let rows_per_scale = if packed || is_table(name) { 1 } else { SCALE_BLOCK };
        if scales != [rows.div_ceil(rows_per_scale), columns.div_ceil(SCALE_BLOCK)] {
            return Err(misfit());
        }
        Ok(Self { rows, columns, rows_per_scale, packed })
    }

    fn dequantise(&self, stored: &[f32], scales: &[f32]) -> LogicalWeight {
        let mut values =
            if self.packed { stored.iter().flat_map(|&byte| e2m1x2(byte as u8)).collect() } else { stored.to_vec() };
        let scales_per_row = self.columns.div_ceil(SCALE_BLOCK);
        for (index, value) in values.iter_mut().enumerate() {
            let (row, column) = (index / self.columns, index % self.columns);
            *value *= scales[row / self.rows_per_scale * scales_per_row + column / SCALE_BLOCK];
        }
        let stored_as = if self.packed { StoredAs::Fp4 } else { StoredAs::Fp8 };
        LogicalWeight { shape: vec![self.rows, self.columns], values, stored_as }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A recipe with the checksum that its values have.
    fn sound(name: &str, meta: WeightMeta) -> (String, WeightMeta) {
        let values = fill("", name, &meta).expect("a sound recipe");
        let ck = checksum(values.iter().map(|&value| f64::from(value))).sum;
        (name.to_owned(), WeightMeta { ck, ..meta })
    }

    fn block_quantised(
        stem: &str,
        shape: [usize; 2],
        dtype: Dtype,
        scales: [usize; 2],
    ) -> IndexMap<String, WeightMeta> {
        let kind = if dtype == Dtype::Float8E4m3fn { Kind::Fp8 } else { Kind::Fp4x2 };
        let pow2 = WeightMeta::unscaled(scales.to_vec(), Kind::Pow2, Dtype::Float8E8m0fnu);
        [
            sound(&format!("{stem}.weight"), WeightMeta::unscaled(shape.to_vec(), kind, dtype)),
            sound(&format!("{stem}.scale"), WeightMeta { lo: -3, span: 6, ..pow2 }),
        ]
        .into()
    }

    /// Stored values and scales of one weight, and what the set makes of them.
    fn dequantised(stem: &str, recipes: &IndexMap<String, WeightMeta>) -> (Vec<f32>, Vec<f32>, LogicalWeight) {
        let (weight, scale) = (format!("{stem}.weight"), format!("{stem}.scale"));
        let stored = |name: &str| fill("", name, &recipes[name]).expect("a sound recipe");
        let set = WeightSet::generate("", recipes).expect("a sound set");
        (stored(&weight), stored(&scale), set.get(&weight).expect("it was made").clone())
    }

    #[test]
    fn fp8_matrices_have_a_scale_for_each_tile() {
        let recipes = block_quantised("w", [40, 96], Dtype::Float8E4m3fn, [2, 3]);
        let (stored, scales, logical) = dequantised("w", &recipes);
        assert_eq!((logical.shape.as_slice(), logical.stored_as), ([40, 96].as_slice(), StoredAs::Fp8));
        for (row, column, scale) in [(0, 0, 0), (31, 64, 2), (32, 31, 3), (39, 95, 5)] {
            assert_eq!(logical.values[row * 96 + column], stored[row * 96 + column] * scales[scale]);
        }
    }

    #[test]
    fn tables_have_scales_for_each_row() {
        let stem = "layers.1.engram.embed";
        let (stored, scales, logical) = dequantised(stem, &block_quantised(stem, [5, 64], Dtype::Float8E4m3fn, [5, 2]));
        assert_eq!(logical.values[4 * 64 + 33], stored[4 * 64 + 33] * scales[4 * 2 + 1]);
    }

    #[test]
    fn packed_matrices_unpack_the_low_nibble_first() {
        let (stored, scales, logical) = dequantised("w", &block_quantised("w", [3, 32], Dtype::Float4E2m1fnX2, [3, 2]));
        assert_eq!((logical.shape.as_slice(), logical.stored_as), ([3, 64].as_slice(), StoredAs::Fp4));
        let [even, odd] = e2m1x2(stored[2 * 32 + 17] as u8);
        assert_eq!(logical.values[2 * 64 + 34..][..2], [even * scales[5], odd * scales[5]]);
    }

    #[test]
    fn scales_and_weights_come_in_pairs() {
        for absent in ["w.scale", "w.weight"] {
            let mut recipes = block_quantised("w", [32, 32], Dtype::Float8E4m3fn, [1, 1]);
            recipes.shift_remove(absent);
            let error = WeightSet::generate("", &recipes).expect_err("half is missing");
            assert!(matches!(error, GoldenError::MissingWeight { name } if name == absent));
        }
        assert!(WeightSet::default().get("w.weight").is_err());
    }

    #[test]
    fn scales_must_fit_their_weight() {
        for (shape, scales) in [([64, 32], [1, 1]), ([32, 64], [1, 1]), ([32, 32], [32, 1])] {
            let recipes = block_quantised("w", shape, Dtype::Float8E4m3fn, scales);
            let error = WeightSet::generate("", &recipes).expect_err("a misfit");
            assert!(matches!(error, GoldenError::Weight { fault: WeightFault::Scales { .. }, .. }), "{error}");
        }
    }

    #[test]
    fn checksums_must_hold() {
        let mut recipes = block_quantised("w", [32, 32], Dtype::Float8E4m3fn, [1, 1]);
        recipes["w.scale"].ck += 1e-6;
        let error = WeightSet::generate("", &recipes).expect_err("a false checksum");
        assert!(
            matches!(error, GoldenError::Weight { name, fault: WeightFault::Checksum { .. } } if name == "w.scale")
        );
    }
}
