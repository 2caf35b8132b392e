//! Fields of a few bits in the order that the formats share.

/// Fields of `BITS` bits in groups of `RUN` bytes: the lowest bits of a group's bytes are its first `RUN` elements, the
/// next bits the next `RUN`, and so on.
pub(super) struct Fields<const BITS: usize, const RUN: usize>;

impl<const BITS: usize, const RUN: usize> Fields<BITS, RUN> {
    const MASK: u8 = (1 << BITS) - 1;
    /// Elements of a group.
    const GROUP: usize = RUN * 8 / BITS;

    /// Sets bits `AT` and up of each element to its field of `bytes`; these bits are zero before.
    ///
    /// Elements without a field and fields without an element are left alone.
    pub(super) fn unpack<const AT: usize>(bytes: &[u8], elements: &mut [u8]) {
        for (bytes, elements) in bytes.chunks_exact(RUN).zip(elements.chunks_exact_mut(Self::GROUP)) {
            for (place, run) in elements.chunks_exact_mut(RUN).enumerate() {
                for (element, byte) in run.iter_mut().zip(bytes) {
                    *element |= (byte >> (BITS * place) & Self::MASK) << AT;
                }
            }
        }
    }

    /// Sets the fields of `bytes`, zero before, to bits `AT` and up of the elements: the inverse of
    /// [`unpack`](Self::unpack).
    pub(super) fn pack<const AT: usize>(elements: &[u8], bytes: &mut [u8]) {
        for (bytes, elements) in bytes.chunks_exact_mut(RUN).zip(elements.chunks_exact(Self::GROUP)) {
            for (place, run) in elements.chunks_exact(RUN).enumerate() {
                for (element, byte) in run.iter().zip(bytes.iter_mut()) {
                    *byte |= (element >> AT & Self::MASK) << (BITS * place);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_a_group_lie_over_each_other() {
        let mut elements = [0; 8];
        Fields::<4, 2>::unpack::<0>(&[0x31, 0x42, 0x75, 0x86], &mut elements);
        assert_eq!(elements, [1, 2, 3, 4, 5, 6, 7, 8]);
        Fields::<1, 1>::unpack::<4>(&[0b1000_0001], &mut elements);
        assert_eq!(elements, [17, 2, 3, 4, 5, 6, 7, 24]);
    }

    #[test]
    fn packing_undoes_unpacking() {
        let bytes: [u8; 64] = std::array::from_fn(|index| (index * 37 + 11) as u8);
        let mut elements = [0; 256];
        Fields::<2, 32>::unpack::<4>(&bytes, &mut elements);
        let mut packed = [0; 64];
        Fields::<2, 32>::pack::<4>(&elements, &mut packed);
        assert_eq!(packed, bytes);
    }
}
