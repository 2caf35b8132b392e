//! Values made from names: what stands in for a checkpoint, bit for bit, in any language.
//!
//! Element `i` of the tensor called `name` under a fixture's salt comes from
//! `splitmix64(fnv1a64(salt + name) ^ (i * 0x9E3779B97F4A7C15))`; how the 64 bits become a stored value is the tensor's
//! [`Kind`].

use crate::error::{GoldenError, WeightFault};
use crate::rounding;
use crate::weights::{Dtype, Kind, WeightMeta};

/// The most elements one tensor may declare: golden fixtures are small models, and a corrupt shape must not ask for
/// memory by the gigabyte.
pub const MAX_ELEMENTS: usize = 1 << 28;

/// 2^64 divided by the golden ratio, odd.
const GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

/// FNV-1a, 64 bits.
pub fn fnv1a64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3))
}

/// The output of the SplitMix64 generator whose state is `state`.
pub fn splitmix64(state: u64) -> u64 {
    let mixed = state.wrapping_add(GAMMA);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// The 64 bits behind element `index` of the tensor called `name`.
pub fn raw(salt: &str, name: &str, index: u64) -> u64 {
    element(seed(salt, name), index)
}

/// The first `count` integers called `name`, each `raw % modulus`. Token ids are the ones called `input_ids`, modulo
/// the vocabulary, over the whole run (prompt and decoded tokens) of sequence 0, then of sequence 1, and so on.
///
/// # Panics
/// When `modulus` is zero.
pub fn integers(salt: &str, name: &str, count: usize, modulus: u64) -> Vec<u64> {
    let seed = seed(salt, name);
    (0..count as u64).map(|index| element(seed, index) % modulus).collect()
}

/// The stored values of the tensor called `name`, widened to f32 (packed fp4: its bytes, 0 to 255).
///
/// # Errors
/// [`GoldenError::Weight`] when the recipe contradicts itself or declares more than [`MAX_ELEMENTS`].
pub fn fill(salt: &str, name: &str, meta: &WeightMeta) -> Result<Vec<f32>, GoldenError> {
    let count = check(meta).map_err(|fault| GoldenError::Weight { name: name.to_owned(), fault })?;
    let seed = seed(salt, name);
    let stored = |bits: u64| match (meta.kind, meta.dtype) {
        (Kind::F32, Dtype::Bfloat16) => rounding::bf16(uniform(bits, meta.scale, meta.offset)),
        (Kind::F32, _) => uniform(bits, meta.scale, meta.offset),
        (Kind::Fp8, _) => rounding::e4m3(uniform(bits, meta.scale, meta.offset)),
        (Kind::E8m0, _) => rounding::e8m0(uniform(bits, meta.scale, meta.offset)),
        // `check` bounds both summands by the exponents of e8m0.
        (Kind::Pow2, _) => rounding::exp2(meta.lo as i32 + (bits % meta.span) as i32),
        (Kind::Fp4x2, _) => f32::from(bits as u8),
    };
    Ok((0..count as u64).map(|index| stored(element(seed, index))).collect())
}

/// Writes some elements of the f32 tensor called `name` to `out`, from the one numbered `first` on: of a tensor too large
/// to be made at once.
pub(crate) fn fill_part(salt: &str, name: &str, (scale, offset): (f64, f64), first: u64, out: &mut [f32]) {
    let seed = seed(salt, name);
    for (index, value) in (first..).zip(out) {
        *value = uniform(element(seed, index), scale, offset);
    }
}

fn seed(salt: &str, name: &str) -> u64 {
    fnv1a64([salt, name].concat().as_bytes())
}

fn element(seed: u64, index: u64) -> u64 {
    splitmix64(seed ^ index.wrapping_mul(GAMMA))
}

/// The 24 high bits as a number in [-1, 1), scaled and shifted in f64, then rounded to f32.
fn uniform(bits: u64, scale: f64, offset: f64) -> f32 {
    let unit = 2.0 * ((bits >> 40) as f64 / (1 << 24) as f64) - 1.0;
    (unit * scale + offset) as f32
}

/// The number of elements of a recipe that can be carried out.
fn check(meta: &WeightMeta) -> Result<usize, WeightFault> {
    let stores = match meta.kind {
        Kind::F32 => matches!(meta.dtype, Dtype::Float32 | Dtype::Bfloat16),
        Kind::Fp8 => meta.dtype == Dtype::Float8E4m3fn,
        Kind::E8m0 | Kind::Pow2 => meta.dtype == Dtype::Float8E8m0fnu,
        Kind::Fp4x2 => meta.dtype == Dtype::Float4E2m1fnX2,
    };
    if !stores {
        return Err(WeightFault::KindOfDtype { kind: meta.kind, dtype: meta.dtype });
    }
    if meta.kind == Kind::Pow2 {
        const EXPONENTS: std::ops::RangeInclusive<i64> = -127..=127;
        let highest = i64::try_from(meta.span).ok().and_then(|span| meta.lo.checked_add(span - 1));
        if meta.span == 0 || !EXPONENTS.contains(&meta.lo) || !highest.is_some_and(|high| EXPONENTS.contains(&high)) {
            return Err(WeightFault::Exponents { lo: meta.lo, span: meta.span });
        }
    }
    let elements = meta.shape.iter().try_fold(1_usize, |product, &axis| product.checked_mul(axis));
    elements
        .filter(|&elements| elements <= MAX_ELEMENTS)
        .ok_or_else(|| WeightFault::TooLarge { shape: meta.shape.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_match_their_published_vectors() {
        assert_eq!(fnv1a64(b""), 0xCBF2_9CE4_8422_2325);
        assert_eq!(fnv1a64(b"foobar"), 0x8594_4171_F739_67E8);
        // The generator's first outputs from seed 0.
        assert_eq!(splitmix64(0), 0xE220_A839_7B1D_CDAF);
        assert_eq!(splitmix64(GAMMA), 0x6E78_9E6A_A1B9_65F4);
    }

    #[test]
    fn integers_follow_the_salt_and_the_modulus() {
        // The first token ids of the fixture `tiny`, whose salt is empty.
        assert_eq!(integers("", "input_ids", 12, 64), [2, 17, 47, 13, 32, 59, 39, 29, 42, 31, 36, 6]);
        assert_eq!(integers("a", "b", 5, 7), integers("", "ab", 5, 7));
    }

    fn meta(kind: Kind, dtype: Dtype) -> WeightMeta {
        WeightMeta { shape: vec![4, 3], kind, dtype, scale: 1.0, offset: 0.0, lo: -2, span: 3, ck: 0.0 }
    }

    #[test]
    fn each_kind_yields_values_of_its_dtype() {
        let fill = |kind, dtype| fill("", "w", &meta(kind, dtype)).expect("a sound recipe");
        assert_eq!(fill(Kind::F32, Dtype::Float32).len(), 12);
        assert!(fill(Kind::F32, Dtype::Bfloat16).iter().all(|&v| rounding::bf16(v) == v));
        assert!(fill(Kind::Fp8, Dtype::Float8E4m3fn).iter().all(|&v| rounding::e4m3(v) == v));
        assert!(fill(Kind::E8m0, Dtype::Float8E8m0fnu).iter().all(|&v| rounding::e8m0(v) == v));
        assert!(fill(Kind::Pow2, Dtype::Float8E8m0fnu).iter().all(|v| [0.25, 0.5, 1.0].contains(v)));
        assert!(fill(Kind::Fp4x2, Dtype::Float4E2m1fnX2).iter().all(|&v| f32::from(v as u8) == v));
    }

    #[test]
    fn unsound_recipes_are_refused() {
        let fault = |meta: &WeightMeta| match fill("", "w", meta) {
            Err(GoldenError::Weight { name, fault }) if name == "w" => fault,
            other => panic!("{other:?}"),
        };
        let contradiction = meta(Kind::Fp8, Dtype::Bfloat16);
        assert!(matches!(fault(&contradiction), WeightFault::KindOfDtype { .. }));
        for (lo, span) in [(0, 0), (i64::MAX, 3), (126, 3), (-128, 3), (0, u64::MAX)] {
            let exponents = WeightMeta { lo, span, ..meta(Kind::Pow2, Dtype::Float8E8m0fnu) };
            assert!(matches!(fault(&exponents), WeightFault::Exponents { .. }), "{lo} {span}");
        }
        for shape in [vec![MAX_ELEMENTS, 2], vec![usize::MAX, usize::MAX], vec![usize::MAX, 3]] {
            let huge = WeightMeta { shape, ..meta(Kind::F32, Dtype::Float32) };
            assert!(matches!(fault(&huge), WeightFault::TooLarge { .. }));
        }
    }
}
