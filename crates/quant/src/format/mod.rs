//! The block formats, a file each: how bytes become values, and values bytes.
//!
//! Every module has `dequantise_block(&[u8; BYTES], &mut [f32; LEN])` and its opposite, `quantise_block(values, weights)`,
//! which minimises the sum of squared errors, each times its value's weight. The formats of 256 values unpack into a
//! common form first, [`super_block`], and pack from it.

use half::f16;

mod fields;
pub(crate) mod float;
pub(crate) mod mxfp4;
pub(crate) mod q2_k;
pub(crate) mod q3_k;
pub(crate) mod q4_0;
pub(crate) mod q4_k;
pub(crate) mod q5_k;
pub(crate) mod q6_k;
pub(crate) mod q8_0;
mod six_bit;
pub(crate) mod super_block;

/// The `N` bytes from `at`, for fields at places that the layout fixes.
///
/// # Panics
/// When they reach past the block's end.
fn bytes_at<const N: usize>(block: &[u8], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&block[at..at + N]);
    bytes
}

/// The f16 at `at`.
fn f16_at(block: &[u8], at: usize) -> f16 {
    f16::from_le_bytes(bytes_at(block, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Packing must restore every bit of every block.
    fn check<const BYTES: usize, const SUBS: usize>(
        unpack: fn(&[u8; BYTES]) -> super_block::SuperBlock<SUBS>,
        pack: fn(&super_block::SuperBlock<SUBS>) -> [u8; BYTES],
    ) {
        for seed in 0..64 {
            let block = std::array::from_fn(|index| (index * 167 + seed * 89 + index * index / 8) as u8);
            assert_eq!(pack(&unpack(&block)), block);
        }
    }

    #[test]
    fn packing_undoes_unpacking() {
        check(q2_k::unpack, q2_k::pack);
        check(q3_k::unpack, q3_k::pack);
        check(q4_k::unpack, q4_k::pack);
        check(q5_k::unpack, q5_k::pack);
        check(q6_k::unpack, q6_k::pack);
    }
}
