//! Products with packed matrices: how long they take and how exact they are, beside candle's, the same product in f32,
//! and a copy of the packed bytes.
//!
//! Contestants take turns, so that what else the machine does meets all of them. Times are the least of all rounds, and
//! ratios those of the least times, with the medians of the rounds' ratios beside them. Candle comes with the feature
//! `candle`, and has the instruction set that it is built for:
//!
//! ```console
//! $ RUSTFLAGS="-C target-cpu=native" cargo bench -p dsv41-quant --features candle
//! ```

#[cfg(feature = "candle")]
mod candle;
mod case;
mod contestant;
mod report;

use std::error::Error;

use dsv41_quant::GgmlType;

use case::Case;

/// What experts come in, and what the matrices beside them do.
const TYPES: [GgmlType; 4] = [GgmlType::Q2K, GgmlType::Q3K, GgmlType::Q4K, GgmlType::Q8_0];

/// Outputs and inputs of an expert's matrices.
const SHAPES: [[usize; 2]; 2] = [[5120, 2304], [2304, 5120]];

/// A token, and a part of a prompt.
const VECTORS: [usize; 2] = [1, 64];

fn main() -> Result<(), Box<dyn Error>> {
    let mut results = Vec::new();
    for vectors in VECTORS {
        for ty in TYPES {
            for shape in SHAPES {
                let result = Case { ty, shape, vectors }.measure()?;
                eprintln!("{}", result.case);
                results.push(result);
            }
        }
    }
    print!("{}", report::tables(&results));
    Ok(())
}
