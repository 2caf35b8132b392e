//! Products straight from packed rows, against the products of the dequantised matrix in f64, for every format and
//! every instruction set that the machine has.

use dsv41_quant::{
    GgmlType, PackedMatrix,
    kernel::{Activations, Simd, multiply, multiply_transposed, multiply_transposed_with, multiply_with},
};

const SHAPES: [[usize; 2]; 3] = [[1, 256], [13, 512], [70, 1024]];
const VECTORS: [usize; 6] = [1, 2, 3, 17, 33, 64];

/// Numbers from -1 to 1 that repeat nothing obvious.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(count).collect()
}

fn packed(ty: GgmlType, shape @ [rows, columns]: [usize; 2]) -> PackedMatrix {
    PackedMatrix::quantise(ty, &numbers(rows * columns, 1), shape, None).expect("finite values in whole blocks")
}

/// `sum a[i] b[i]` in f64, and what sums of that many terms in f32 are off by.
fn exact(a: impl Iterator<Item = f32>, b: impl Iterator<Item = f32>) -> (f64, f64) {
    let terms: Vec<f64> = a.zip(b).map(|(a, b)| f64::from(a) * f64::from(b)).collect();
    let magnitude: f64 = terms.iter().map(|term| term.abs()).sum();
    (terms.iter().sum(), (terms.len() as f64).sqrt().max(4.0) * f64::from(f32::EPSILON) * magnitude)
}

fn assert_exact(found: f32, (expected, bound): (f64, f64), what: &str) {
    assert!((f64::from(found) - expected).abs() <= bound, "{what}: {found}, expected {expected} within {bound:e}");
}

fn each_case(mut check: impl FnMut(&PackedMatrix, &[f32], usize, &str)) {
    for ty in GgmlType::ALL {
        for shape in SHAPES {
            let weight = packed(ty, shape);
            let values = weight.dequantise();
            for vectors in VECTORS {
                check(&weight, &values, vectors, &format!("{weight:?}, {vectors} vectors"));
            }
        }
    }
}

#[test]
fn products_are_those_of_the_dequantised_matrix() {
    each_case(|weight, values, vectors, what| {
        let [rows, columns] = [weight.rows(), weight.columns()];
        let x = numbers(vectors * columns, 2);
        for simd in Simd::ALL {
            let mut out = vec![f32::NAN; vectors * rows];
            multiply_with(simd, weight, &x, &mut out, Activations::F32);
            for (index, &found) in out.iter().enumerate() {
                let x = x[index / rows * columns..][..columns].iter().copied();
                let w = values[index % rows * columns..][..columns].iter().copied();
                assert_exact(found, exact(x, w), &format!("{what}, {simd:?}"));
            }
        }
    });
}

#[test]
fn transposed_products_are_those_of_the_dequantised_matrix() {
    each_case(|weight, values, vectors, what| {
        let [rows, columns] = [weight.rows(), weight.columns()];
        let y = numbers(vectors * rows, 3);
        for simd in Simd::ALL {
            let mut out = vec![f32::NAN; vectors * columns];
            multiply_transposed_with(simd, weight, &y, &mut out);
            for (index, &found) in out.iter().enumerate() {
                let y = y[index / columns * rows..][..rows].iter().copied();
                let w = values[index % columns..].iter().step_by(columns).copied();
                assert_exact(found, exact(y, w), &format!("{what}, {simd:?}"));
            }
        }
    });
}

/// Activations rounded to nearest under one scale for each group are off by half a step at most.
#[test]
fn products_in_eight_bits_are_off_by_the_activations_rounding() {
    each_case(|weight, values, vectors, what| {
        let [rows, columns] = [weight.rows(), weight.columns()];
        let x = numbers(vectors * columns, 2);
        let rounds = !matches!(weight.ty(), GgmlType::F32 | GgmlType::F16 | GgmlType::Bf16);
        // The largest of any group is at most 1.
        let half_step = if rounds { 0.5 / 127.0 } else { 0.0 };
        for simd in Simd::ALL {
            let mut out = vec![f32::NAN; vectors * rows];
            multiply_with(simd, weight, &x, &mut out, Activations::Int8);
            for (index, &found) in out.iter().enumerate() {
                let x = x[index / rows * columns..][..columns].iter().copied();
                let w = &values[index % rows * columns..][..columns];
                let weights: f64 = w.iter().map(|w| f64::from(w.abs())).sum();
                let (expected, bound) = exact(x, w.iter().copied());
                assert_exact(found, (expected, bound + 1.01 * half_step * weights), &format!("{what}, {simd:?}"));
            }
        }
    });
}

#[test]
fn nothing_times_nothing_is_nothing() {
    let weight = packed(GgmlType::Q8_0, [3, 32]);
    multiply(&weight, &[], &mut [], Activations::F32);
    multiply_transposed(&weight, &[], &mut []);
}

#[test]
#[should_panic(expected = "results of 3")]
fn lengths_have_to_fit() {
    multiply(&packed(GgmlType::Q8_0, [3, 32]), &[0.0; 64], &mut [0.0; 3], Activations::F32);
}
