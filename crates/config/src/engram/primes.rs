//! Prime numbers of 64 bits.

/// Bases that make the Miller-Rabin test exact for every number below 3.3e24 (Sorenson and Webster, 2015).
const BASES: [u64; 12] = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37];

/// The primes of at least `start`, ascending, as far as 64 bits go.
pub(super) fn from(start: u64) -> impl Iterator<Item = u64> {
    (start..=u64::MAX).filter(|&n| is_prime(n))
}

fn is_prime(n: u64) -> bool {
    if n < 2 {
        return false;
    }
    if let Some(divisor) = BASES.into_iter().find(|base| n.is_multiple_of(*base)) {
        return n == divisor;
    }
    let twos = (n - 1).trailing_zeros();
    let odd = (n - 1) >> twos;
    BASES.into_iter().all(|base| {
        let mut power = power_mod(base, odd, n);
        if power == 1 {
            return true;
        }
        for _ in 1..twos {
            if power == n - 1 {
                return true;
            }
            power = multiply_mod(power, power, n);
        }
        power == n - 1
    })
}

fn power_mod(mut base: u64, mut exponent: u64, modulus: u64) -> u64 {
    let mut result = 1;
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = multiply_mod(result, base, modulus);
        }
        base = multiply_mod(base, base, modulus);
        exponent >>= 1;
    }
    result
}

fn multiply_mod(a: u64, b: u64, modulus: u64) -> u64 {
    // A remainder of a 64-bit modulus fits 64 bits.
    (u128::from(a) * u128::from(b) % u128::from(modulus)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_trial_division() {
        let by_division = |n: u64| n >= 2 && (2..).take_while(|d| d * d <= n).all(|d| !n.is_multiple_of(d));
        for n in (0..5_000).chain(16_000_000..16_000_500) {
            assert_eq!(is_prime(n), by_division(n), "{n}");
        }
    }

    #[test]
    fn large_numbers() {
        // A strong pseudoprime to the first eleven bases, a Carmichael number, the square of a prime.
        for composite in [3_825_123_056_546_413_051, 561, 4_294_967_291 * 4_294_967_291] {
            assert!(!is_prime(composite), "{composite}");
        }
        for prime in [4_294_967_291, (1 << 61) - 1, 18_446_744_073_709_551_557] {
            assert!(is_prime(prime), "{prime}");
        }
        assert_eq!(from(18_446_744_073_709_551_557).count(), 1);
    }
}
