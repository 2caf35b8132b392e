//! From values to stored blocks.

use rayon::prelude::*;

use crate::format::{float, mxfp4, q2_k, q3_k, q4_0, q4_k, q5_k, q6_k, q8_0};
use crate::{GgmlType, QuantError};

/// The part of the largest importance that columns of less count as: what nothing depended on in a calibration must still
/// not become noise.
const LEAST_IMPORTANCE: f32 = 1e-6;

/// The blocks of `values`, rows of `columns`, that minimise the sum of squared errors; with `importance`, a weight for
/// each column, of the squared errors times their column's weight.
///
/// Floats are rounded to the nearest, ties to even. Rows are converted in parallel.
///
/// # Errors
/// When rows do not divide into blocks or values into rows, when an importance is negative, not finite or missing, and
/// when a value is not finite or larger than the format can hold.
pub fn quantise(
    ty: GgmlType,
    values: &[f32],
    columns: usize,
    importance: Option<&[f32]>,
) -> Result<Vec<u8>, QuantError> {
    let row_bytes = ty.row_bytes(columns)?;
    let rows = values.len().checked_div(columns).unwrap_or(0);
    if rows * columns != values.len() {
        return Err(QuantError::ValueCount { rows: rows + 1, columns, found: values.len() });
    }
    check(ty, values, columns)?;
    let weights = weights(columns, importance)?;
    let mut bytes = vec![0; rows * row_bytes];
    // Values without columns have no chunks to cut.
    let rows = bytes.par_chunks_exact_mut(row_bytes.max(1)).zip(values.par_chunks_exact(columns.max(1)));
    rows.for_each(|(bytes, values)| quantise_row(ty, values, &weights, bytes));
    Ok(bytes)
}

/// Refuses the first value that is not finite or larger than the format can hold.
fn check(ty: GgmlType, values: &[f32], columns: usize) -> Result<(), QuantError> {
    let limit = largest(ty);
    let fits = |value: &f32| value.abs() <= limit;
    // Row by row without a branch for each value, which is many times faster.
    let row =
        values.par_chunks(columns.max(1)).position_first(|row| !row.iter().fold(true, |all, value| all & fits(value)));
    let refused = row.and_then(|row| {
        let values = &values[row * columns..][..columns];
        values.iter().position(|value| !fits(value)).map(|column| (row, column, values[column]))
    });
    match refused {
        Some((row, column, value)) => Err(QuantError::Value { ty, row, column, value, limit }),
        None => Ok(()),
    }
}

/// The largest magnitude that a format can hold whatever lies beside it.
fn largest(ty: GgmlType) -> f32 {
    const SCALE: f32 = 65_504.0;
    match ty {
        GgmlType::F32 => f32::MAX,
        // What rounds to the largest finite value, and not to infinity.
        GgmlType::F16 => f32::from_bits(65_520_f32.to_bits() - 1),
        GgmlType::Bf16 => f32::from_bits(0x7f7f_7fff),
        GgmlType::Q4_0 => SCALE * 7.0,
        GgmlType::Q8_0 => SCALE * 127.0,
        // The reach of the minima, which is shorter than that of the codes.
        GgmlType::Q2K => SCALE * 15.0,
        GgmlType::Q4K | GgmlType::Q5K => SCALE * 63.0,
        GgmlType::Q3K => SCALE * 31.0 * 3.0,
        GgmlType::Q6K => SCALE * 127.0 * 31.0,
        // Six times the largest power of two whose six-fold a float holds.
        GgmlType::Mxfp4 => 1.5 * f32::from_bits(0x7f00_0000),
    }
}

/// A weight for each column, the largest of which is one.
fn weights(columns: usize, importance: Option<&[f32]>) -> Result<Vec<f32>, QuantError> {
    let Some(importance) = importance else {
        return Ok(vec![1.0; columns]);
    };
    if importance.len() != columns {
        return Err(QuantError::ImportanceCount { columns, found: importance.len() });
    }
    if let Some(column) = importance.iter().position(|weight| !(0.0..f32::INFINITY).contains(weight)) {
        return Err(QuantError::Importance { column, value: importance[column] });
    }
    let most = importance.iter().copied().fold(0.0, f32::max);
    if most == 0.0 {
        return Ok(vec![1.0; columns]);
    }
    Ok(importance.iter().map(|weight| (weight / most).max(LEAST_IMPORTANCE)).collect())
}

/// Converts one row; `bytes` are as many as it takes.
fn quantise_row(ty: GgmlType, values: &[f32], weights: &[f32], bytes: &mut [u8]) {
    match ty {
        GgmlType::F32 => each_block(values, weights, bytes, |values, _| float::quantise_f32(values)),
        GgmlType::F16 => each_block(values, weights, bytes, |values, _| float::quantise_f16(values)),
        GgmlType::Bf16 => each_block(values, weights, bytes, |values, _| float::quantise_bf16(values)),
        GgmlType::Q4_0 => each_block(values, weights, bytes, q4_0::quantise_block),
        GgmlType::Q8_0 => each_block(values, weights, bytes, q8_0::quantise_block),
        GgmlType::Q2K => each_block(values, weights, bytes, q2_k::quantise_block),
        GgmlType::Q3K => each_block(values, weights, bytes, q3_k::quantise_block),
        GgmlType::Q4K => each_block(values, weights, bytes, q4_k::quantise_block),
        GgmlType::Q5K => each_block(values, weights, bytes, q5_k::quantise_block),
        GgmlType::Q6K => each_block(values, weights, bytes, q6_k::quantise_block),
        GgmlType::Mxfp4 => each_block(values, weights, bytes, mxfp4::quantise_block),
    }
}

fn each_block<const BYTES: usize, const LEN: usize>(
    values: &[f32],
    weights: &[f32],
    bytes: &mut [u8],
    quantise: impl Fn(&[f32; LEN], &[f32; LEN]) -> [u8; BYTES],
) {
    let blocks = values.as_chunks().0.iter().zip(weights.as_chunks().0);
    for (block, (values, weights)) in bytes.as_chunks_mut().0.iter_mut().zip(blocks) {
        *block = quantise(values, weights);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::dequantise;

    /// The types under scales, with the number of their codes.
    const SCALED: [(GgmlType, f32); 8] = [
        (GgmlType::Q4_0, 16.0),
        (GgmlType::Q8_0, 255.0),
        (GgmlType::Q2K, 4.0),
        (GgmlType::Q3K, 8.0),
        (GgmlType::Q4K, 16.0),
        (GgmlType::Q5K, 32.0),
        (GgmlType::Q6K, 64.0),
        // Its largest codes, 4 and 6, lie as far apart as those of seven evenly spread ones from -6 to 6.
        (GgmlType::Mxfp4, 7.0),
    ];

    /// The smallest f16.
    const SMALLEST_UNIT: f32 = 5.960_464_5e-8;

    fn round_trip(ty: GgmlType, values: &[f32], importance: Option<&[f32]>) -> Vec<f32> {
        let bytes = quantise(ty, values, values.len(), importance).expect("values that the format holds");
        let mut back = vec![f32::NAN; values.len()];
        dequantise(ty, &bytes, &mut back).expect("as many bytes as the values take");
        back
    }

    fn root_mean_square(values: impl ExactSizeIterator<Item = f64>) -> f64 {
        let count = values.len() as f64;
        (values.map(|value| value * value).sum::<f64>() / count).sqrt()
    }

    fn error(values: &[f32], back: &[f32]) -> f64 {
        root_mean_square(values.iter().zip(back).map(|(&value, &back)| f64::from(value) - f64::from(back)))
    }

    /// The error when every value is half a step from a code and steps cover twice the largest magnitude, with a tenth
    /// for the rounding of the scales, or half of the smallest unit.
    fn bound(values: &[f32], codes: f32) -> f64 {
        let largest = values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
        f64::from(largest) / f64::from(codes - 1.0) * 1.1 + f64::from(SMALLEST_UNIT / 2.0)
    }

    #[test]
    fn values_that_are_not_finite_are_refused_with_their_place() {
        for ty in GgmlType::ALL {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut values = vec![0.5; 3 * 256];
                (values[2 * 256 + 7], values[2 * 256 + 9]) = (bad, bad);
                match quantise(ty, &values, 256, None) {
                    Err(QuantError::Value { row: 2, column: 7, value, .. }) => {
                        assert_eq!(value.to_bits(), bad.to_bits())
                    }
                    other => panic!("{ty}: {other:?}"),
                }
            }
        }
        let error = quantise(GgmlType::Q8_0, &[1e9; 32], 32, None).unwrap_err().to_string();
        assert_eq!(error, "the value in row 0, column 0 is 1e9, and q8_0 holds magnitudes up to 8.319008e6");
    }

    #[test]
    fn shapes_and_importances_that_do_not_fit_are_refused() {
        let message = |values: &[f32], columns, importance: Option<&[f32]>| {
            quantise(GgmlType::Q2K, values, columns, importance).expect_err("unsound").to_string()
        };
        assert_eq!(message(&[0.0; 128], 128, None), "q2_k holds blocks of 256, and a row has 128 values");
        assert_eq!(message(&[0.0; 300], 256, None), "2 rows of 256 values were expected, and there are 300 values");
        assert_eq!(message(&[0.0; 256], 256, Some(&[1.0; 3])), "3 importances were given for 256 columns");
        for bad in [-1.0, f32::NAN, f32::INFINITY] {
            let mut importance = [1.0; 256];
            importance[9] = bad;
            let expected = format!("the importance of column 9 is {bad:e}, and it must be finite and not negative");
            assert_eq!(message(&[0.0; 256], 256, Some(&importance)), expected);
        }
    }

    #[test]
    fn zeros_stay_zeros_and_nothing_stays_nothing() {
        for ty in GgmlType::ALL {
            assert_eq!(round_trip(ty, &[0.0; 256], None), [0.0; 256], "{ty}");
            assert_eq!(quantise(ty, &[], 256, None), Ok(vec![]));
            assert_eq!(quantise(ty, &[], 0, None), Ok(vec![]));
        }
    }

    #[test]
    fn constants_keep_the_precision_of_their_scale() {
        // Half a step of f16, and of e2m1 between two and three.
        for (ty, _) in SCALED {
            let tolerance = if ty == GgmlType::Mxfp4 { 0.2 } else { 1.0 / 2048.0 };
            for value in [1.0, -1.0, 1.0 / 3.0, -1.0 / 3.0, 96.0, -5.0] {
                for back in round_trip(ty, &[value; 256], None) {
                    assert!((back / value - 1.0).abs() <= tolerance, "{ty}: {value} became {back}");
                }
            }
        }
    }

    #[test]
    fn values_far_above_zero_use_their_codes_for_what_differs() {
        let values: Vec<f32> = (0..256).map(|index| 1.0 + 0.001 * (index * 7 % 32) as f32).collect();
        for (ty, codes) in [(GgmlType::Q2K, 4.0), (GgmlType::Q4K, 16.0), (GgmlType::Q5K, 32.0)] {
            let error = error(&values, &round_trip(ty, &values, None));
            assert!(error <= 0.5 * 0.032 / (codes - 1.0), "{ty}: {error}");
        }
    }

    #[test]
    fn the_largest_values_are_held_and_larger_ones_refused() {
        for (ty, codes) in SCALED {
            let limit = largest(ty);
            for pattern in [[1.0, 1.0], [-1.0, -1.0], [1.0, -1.0], [1.0, 0.0], [-0.5, 0.0], [-1.0, 0.25]] {
                let values: Vec<f32> = (0..256).map(|index| limit * pattern[index % 2]).collect();
                let back = round_trip(ty, &values, None);
                assert!(error(&values, &back) <= bound(&values, codes), "{ty}: {pattern:?} became {:?}", &back[..2]);
            }
        }
        for ty in GgmlType::ALL.into_iter().filter(|&ty| ty != GgmlType::F32) {
            let limit = largest(ty);
            assert!(round_trip(ty, &[limit; 256], None).iter().all(|back| back.is_finite()), "{ty}");
            let beyond = f32::from_bits(limit.to_bits() + 1);
            assert!(matches!(quantise(ty, &[beyond; 256], 256, None), Err(QuantError::Value { .. })), "{ty}");
        }
    }

    #[test]
    fn small_values_outlive_units_below_the_smallest_f16() {
        for (ty, codes) in SCALED {
            for scale in [1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-30, f32::from_bits(3)] {
                let values: Vec<f32> = (0..256).map(|index| scale * ((index * 37 % 101) as f32 / 50.0 - 1.0)).collect();
                let error = error(&values, &round_trip(ty, &values, None));
                assert!(error <= bound(&values, codes), "{ty}: {error:e} at {scale:e}");
            }
        }
    }

    #[test]
    fn rows_do_not_depend_on_each_other() {
        let values: Vec<f32> = (0..1024).map(|index| (index as f32).sin() * (1 + index / 512) as f32).collect();
        let importance: Vec<f32> = (0..512).map(|column| (1 + column % 9) as f32).collect();
        for ty in GgmlType::ALL {
            let both = quantise(ty, &values, 512, Some(&importance)).expect("finite");
            let [first, second] =
                [&values[..512], &values[512..]].map(|row| quantise(ty, row, 512, Some(&importance)).expect("finite"));
            assert_eq!(both, [first, second].concat(), "{ty}");
        }
    }

    #[test]
    fn only_the_ratios_of_importances_count() {
        let values: Vec<f32> = (0..256).map(|index| (index as f32 * 0.7).cos()).collect();
        for (ty, _) in SCALED {
            let plain = quantise(ty, &values, 256, None);
            for same in [1.0, 1e-30, 1e30, 0.0] {
                assert_eq!(quantise(ty, &values, 256, Some(&[same; 256])), plain, "{ty}, {same}");
            }
        }
    }

    #[test]
    fn importance_lowers_the_error_that_it_weighs() {
        // Uniform values, and weights mostly near zero.
        let unit = |index: u32| (index.wrapping_mul(0x9E37_79B1) >> 8) as f32 / (1 << 24) as f32;
        let values: Vec<f32> = (0..4096).map(|index| 2.0 * unit(index) - 1.0).collect();
        let importance: Vec<f32> = (4096..8192).map(|index| unit(index * index).powi(4)).collect();
        let weighted = |back: &[f32]| {
            let off = values.iter().zip(back).map(|(&value, &back)| f64::from(value) - f64::from(back));
            root_mean_square(off.zip(&importance).map(|(off, &weight)| off * f64::from(weight).sqrt()))
        };
        for (ty, _) in SCALED {
            let plain = weighted(&round_trip(ty, &values, None));
            let informed = weighted(&round_trip(ty, &values, Some(&importance)));
            assert!(informed < plain, "{ty}: {informed:e} against {plain:e}");
        }
    }

    #[test]
    fn converting_again_loses_less_than_the_first_time() {
        // Of many blocks: a search may miss the grid that a single block already lies on.
        let unit = |index: u32| (index.wrapping_mul(0x9E37_79B1) >> 8) as f32 / (1 << 24) as f32;
        let values: Vec<f32> = (0..65_536).map(|index| (2.0 * unit(index) - 1.0).powi(3)).collect();
        for ty in GgmlType::ALL {
            let once = round_trip(ty, &values, None);
            let (first, again) = (error(&values, &once), error(&once, &round_trip(ty, &once, None)));
            assert!(again <= 0.5 * first, "{ty}: {again:e} after {first:e}");
        }
    }

    /// A block whose runs of sixteen values have widths and centres of their own.
    fn block() -> impl Strategy<Value = Vec<f32>> {
        let run = (prop::collection::vec(-1.0..1.0_f32, 16), -8..=0_i32, prop_oneof![Just(0.0), -2.0..2.0_f32]);
        (prop::collection::vec(run, 16), -12..12_i32).prop_map(|(runs, exponent)| {
            let scale = 2_f32.powi(exponent);
            let values = |(values, width, centre): (Vec<f32>, i32, f32)| {
                values.into_iter().map(move |value| scale * (centre + value * 2_f32.powi(width)))
            };
            runs.into_iter().flat_map(values).collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn errors_are_within_half_a_step(values in block()) {
            for (ty, codes) in SCALED {
                let error = error(&values, &round_trip(ty, &values, None));
                prop_assert!(error <= bound(&values, codes), "{ty}: {error:e}");
            }
        }

        #[test]
        fn values_on_a_grid_stay_within_half_a_step(values in block()) {
            for (ty, codes) in SCALED {
                let once = round_trip(ty, &values, None);
                let error = error(&once, &round_trip(ty, &once, None));
                prop_assert!(error <= bound(&once, codes), "{ty}: {error:e}");
            }
        }

        #[test]
        fn floats_and_microscaled_values_survive_conversion(values in block()) {
            for ty in [GgmlType::F32, GgmlType::F16, GgmlType::Bf16, GgmlType::Mxfp4] {
                let once = round_trip(ty, &values, None);
                prop_assert_eq!(&round_trip(ty, &once, None), &once, "{}", ty);
            }
        }
    }
}
