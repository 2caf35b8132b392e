//! Values of blocks against PyPI's `gguf`, and errors of quantisation against candle's; `make_vectors.py` made the files.

use std::collections::BTreeMap;

use dsv41_golden::filler;
use dsv41_quant::{GgmlType, PackedMatrix, dequantise};

#[test]
fn blocks_have_the_values_of_the_reference_to_the_bit() {
    let files: [(GgmlType, &[u8]); 10] = [
        (GgmlType::F16, include_bytes!("vectors/f16.bin")),
        (GgmlType::Bf16, include_bytes!("vectors/bf16.bin")),
        (GgmlType::Q4_0, include_bytes!("vectors/q4_0.bin")),
        (GgmlType::Q8_0, include_bytes!("vectors/q8_0.bin")),
        (GgmlType::Q2K, include_bytes!("vectors/q2_k.bin")),
        (GgmlType::Q3K, include_bytes!("vectors/q3_k.bin")),
        (GgmlType::Q4K, include_bytes!("vectors/q4_k.bin")),
        (GgmlType::Q5K, include_bytes!("vectors/q5_k.bin")),
        (GgmlType::Q6K, include_bytes!("vectors/q6_k.bin")),
        (GgmlType::Mxfp4, include_bytes!("vectors/mxfp4.bin")),
    ];
    for (ty, file) in files {
        let records = file.chunks_exact(ty.block_bytes() + 4 * ty.block_len());
        assert!(records.remainder().is_empty() && records.len() > 0, "{ty}: blocks with their values");
        let mut values = vec![0.0; ty.block_len()];
        for (number, record) in records.enumerate() {
            let (block, expected) = record.split_at(ty.block_bytes());
            dequantise(ty, block, &mut values).expect("one whole block");
            for (index, (value, expected)) in values.iter().zip(expected.as_chunks().0).enumerate() {
                let expected = f32::from_le_bytes(*expected);
                // Which NaN comes of an infinite scale times zero is the machine's.
                let same = value.to_bits() == expected.to_bits() || value.is_nan() && expected.is_nan();
                assert!(same, "{ty}, block {number}, value {index}: {value:e} instead of {expected:e}");
            }
        }
    }
}

const SHAPE: [usize; 2] = [512, 1024];

/// The two matrices of the peer: nearly normal values, and their cubes, which have long tails.
fn matrices() -> BTreeMap<&'static str, Vec<f32>> {
    let unit = |name, index| 2.0 * ((filler::raw("", name, index) >> 40) as f64 / (1 << 24) as f64) - 1.0;
    let names = ["quant/a", "quant/b", "quant/c", "quant/d"];
    let sum = |index| names.iter().map(|name| unit(name, index)).sum::<f64>() as f32;
    let sum4: Vec<f32> = (0..(SHAPE[0] * SHAPE[1]) as u64).map(sum).collect();
    let cubed = sum4.iter().map(|&value| f64::from(value).powi(3) as f32).collect();
    BTreeMap::from([("sum4", sum4), ("sum4_cubed", cubed)])
}

fn rmse(values: &[f32], others: &[f32]) -> f64 {
    let squares = values.iter().zip(others).map(|(&value, &other)| (f64::from(value) - f64::from(other)).powi(2));
    (squares.sum::<f64>() / values.len() as f64).sqrt()
}

#[test]
fn errors_are_at_most_those_of_the_peer() {
    let peer: BTreeMap<String, BTreeMap<String, f64>> =
        serde_json::from_str(include_str!("vectors/peer.json")).expect("errors by type and matrix");
    let matrices = matrices();
    for (ty, errors) in peer {
        let ty: GgmlType = ty.parse().expect("a type's name");
        for (matrix, peer) in errors {
            let values = &matrices[matrix.as_str()];
            let packed = PackedMatrix::quantise(ty, values, SHAPE, None).expect("finite values");
            let error = rmse(values, &packed.dequantise());
            println!("{ty:4} {matrix:10} {error:.6} against {peer:.6}, {:.3}", error / peer);
            assert!(error <= peer, "{ty} of {matrix}: {error} and the peer's {peer}");
        }
    }
}
