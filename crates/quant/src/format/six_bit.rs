//! Eight scales and eight minima of six bits in twelve bytes, as Q4_K and Q5_K hold them.
//!
//! Bytes 0 to 3 hold the first four scales and bytes 4 to 7 the first four minima, six bits each. The last four take
//! their high two bits from the rest of those bytes, and their low four from bytes 8 to 11: scales from the low nibbles,
//! minima from the high ones.

/// The scales and the minima.
pub(super) fn unpack(bytes: &[u8; 12]) -> ([i8; 8], [i8; 8]) {
    let (mut scales, mut minima) = ([0; 8], [0; 8]);
    for k in 0..4 {
        let (scale, minimum, low) = (bytes[k], bytes[4 + k], bytes[8 + k]);
        scales[k] = scale & 63;
        minima[k] = minimum & 63;
        scales[4 + k] = low & 15 | scale >> 6 << 4;
        minima[4 + k] = low >> 4 | minimum >> 6 << 4;
    }
    (scales.map(u8::cast_signed), minima.map(u8::cast_signed))
}

/// The inverse of [`unpack`], for scales and minima below 64.
pub(super) fn pack(scales: &[i8; 8], minima: &[i8; 8]) -> [u8; 12] {
    let (scales, minima) = (scales.map(i8::cast_unsigned), minima.map(i8::cast_unsigned));
    let mut bytes = [0; 12];
    for k in 0..4 {
        bytes[k] = scales[k] | scales[4 + k] >> 4 << 6;
        bytes[4 + k] = minima[k] | minima[4 + k] >> 4 << 6;
        bytes[8 + k] = scales[4 + k] & 15 | minima[4 + k] << 4;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn high_bits_of_the_last_four_lie_over_the_first() {
        let mut bytes = [0; 12];
        (bytes[0], bytes[4], bytes[8]) = (0b10_000001, 0b11_000010, 0b0101_0011);
        let (scales, minima) = unpack(&bytes);
        assert_eq!((scales[0], scales[4]), (1, 0b10_0011));
        assert_eq!((minima[0], minima[4]), (2, 0b11_0101));
        assert_eq!(pack(&scales, &minima), bytes);
    }
}
