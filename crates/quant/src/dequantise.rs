//! From stored blocks to values.

use crate::format::{float, mxfp4, q2_k, q3_k, q4_0, q4_k, q5_k, q6_k, q8_0};
use crate::{GgmlType, QuantError};

/// Writes the values that `bytes` hold to `out`, to the bit as ggml does.
///
/// `out` may be one row or, as rows are whole blocks, any number of them.
///
/// # Errors
/// When `out` does not divide into blocks or `bytes` are not as many as it takes.
pub fn dequantise(ty: GgmlType, bytes: &[u8], out: &mut [f32]) -> Result<(), QuantError> {
    let expected = ty.row_bytes(out.len())?;
    if bytes.len() != expected {
        return Err(QuantError::ByteCount { ty, rows: 1, columns: out.len(), found: bytes.len(), expected });
    }
    dequantise_blocks(ty, bytes, out);
    Ok(())
}

/// [`dequantise()`] for as many bytes as `out` takes, which is a whole number of blocks.
pub(crate) fn dequantise_blocks(ty: GgmlType, bytes: &[u8], out: &mut [f32]) {
    match ty {
        GgmlType::F32 => each_block(bytes, out, float::dequantise_f32),
        GgmlType::F16 => each_block(bytes, out, float::dequantise_f16),
        GgmlType::Bf16 => each_block(bytes, out, float::dequantise_bf16),
        GgmlType::Q4_0 => each_block(bytes, out, q4_0::dequantise_block),
        GgmlType::Q8_0 => each_block(bytes, out, q8_0::dequantise_block),
        GgmlType::Q2K => each_block(bytes, out, q2_k::dequantise_block),
        GgmlType::Q3K => each_block(bytes, out, q3_k::dequantise_block),
        GgmlType::Q4K => each_block(bytes, out, q4_k::dequantise_block),
        GgmlType::Q5K => each_block(bytes, out, q5_k::dequantise_block),
        GgmlType::Q6K => each_block(bytes, out, q6_k::dequantise_block),
        GgmlType::Mxfp4 => each_block(bytes, out, mxfp4::dequantise_block),
    }
}

fn each_block<const BYTES: usize, const LEN: usize>(
    bytes: &[u8],
    out: &mut [f32],
    dequantise: impl Fn(&[u8; BYTES], &mut [f32; LEN]),
) {
    for (block, out) in bytes.as_chunks().0.iter().zip(out.as_chunks_mut().0) {
        dequantise(block, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_do_not_match_are_refused() {
        let message = |bytes, count| {
            let error = dequantise(GgmlType::Q2K, &vec![0; bytes], &mut vec![0.0; count]).expect_err("unsound");
            error.to_string()
        };
        assert_eq!(message(84, 255), "q2_k holds blocks of 256, and a row has 255 values");
        assert_eq!(message(84, 512), "1x512 values of q2_k take 168 bytes, and there are 84");
        for ty in GgmlType::ALL {
            assert_eq!(dequantise(ty, &[], &mut []), Ok(()));
        }
    }
}
