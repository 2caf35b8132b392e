//! Blocks of 256 values in sub-blocks, unpacked: the form that the K formats share.

use half::f16;

/// Values of a block.
pub(crate) const LEN: usize = 256;

/// 256 values in `SUBS` sub-blocks, each `(scale * scales[s]) * code - (minimum * minima[s])`. Formats without minima have
/// zeros for them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SuperBlock<const SUBS: usize> {
    /// What one unit of a sub-block's scale is.
    pub(crate) scale: f16,
    /// What one unit of a sub-block's minimum is.
    pub(crate) minimum: f16,
    /// One scale a sub-block.
    pub(crate) scales: [i8; SUBS],
    /// One minimum a sub-block.
    pub(crate) minima: [i8; SUBS],
    /// One code a value.
    pub(crate) codes: [i8; LEN],
}

impl<const SUBS: usize> SuperBlock<SUBS> {
    /// Values of a sub-block.
    pub(crate) const SUB_LEN: usize = LEN / SUBS;

    /// The values. The order of the products is part of the format: another order rounds differently.
    pub(crate) fn dequantise(&self, out: &mut [f32; LEN]) {
        let (scale, minimum) = (self.scale.to_f32(), self.minimum.to_f32());
        let subs = out.chunks_exact_mut(Self::SUB_LEN).zip(self.codes.chunks_exact(Self::SUB_LEN));
        for ((out, codes), (&sub_scale, &sub_minimum)) in subs.zip(self.scales.iter().zip(&self.minima)) {
            let step = scale * f32::from(sub_scale);
            let offset = minimum * f32::from(sub_minimum);
            for (out, &code) in out.iter_mut().zip(codes) {
                // Without minima this takes a positive zero away, which changes no value, negative zeros included.
                *out = step * f32::from(code) - offset;
            }
        }
    }
}
