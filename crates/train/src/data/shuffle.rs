//! The order of an epoch's examples.

use rand::RngCore as _;
use rand_chacha::ChaCha8Rng;

use super::random::{Purpose, generator};

/// Rounds of the network. Four suffice for large sets (Luby and Rackoff); small sets need more to look random.
const ROUNDS: u64 = 8;

/// A permutation of the numbers below a count, which follows from a seed and an epoch.
///
/// A Feistel network whose round function is ChaCha8: numbers are split into two halves of bits, and each round adds to
/// one half, modulo 2, what the cipher makes of the other. That permutes all numbers of so many bits; one that falls
/// outside of the count is put through again until it falls inside. So any position is known without the others, and
/// nothing is kept for each example.
#[derive(Debug, Clone)]
pub struct Shuffle {
    count: u64,
    half_bits: u32,
    cipher: ChaCha8Rng,
}

impl Shuffle {
    /// The order of `count` examples in an epoch.
    pub fn new(count: usize, seed: u64, epoch: u64) -> Self {
        let count = count as u64;
        let bits = u64::BITS - count.saturating_sub(1).leading_zeros();
        Self { count, half_bits: bits.div_ceil(2).max(1), cipher: generator(Purpose::Shuffle, [seed, epoch, 0]) }
    }

    /// The example at a position of the epoch.
    ///
    /// # Panics
    /// When the epoch has no such position.
    pub fn at(&self, position: usize) -> usize {
        let mut number = position as u64;
        assert!(number < self.count, "position {position} of an epoch of {} examples", self.count);
        loop {
            number = self.permuted(number);
            if number < self.count {
                // Below a count that was a `usize`.
                return number as usize;
            }
        }
    }

    fn permuted(&self, number: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut high, mut low) = (number >> self.half_bits, number & mask);
        for round in 0..ROUNDS {
            (high, low) = (low, high ^ (self.enciphered(round, low) & mask));
        }
        high << self.half_bits | low
    }

    fn enciphered(&self, round: u64, half: u64) -> u64 {
        /// 32-bit words of a block of the cipher: each half has a block to itself.
        const BLOCK: u128 = 16;
        let mut cipher = self.cipher.clone();
        cipher.set_stream(round);
        cipher.set_word_pos(u128::from(half) * BLOCK);
        cipher.next_u64()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn order(count: usize, seed: u64, epoch: u64) -> Vec<usize> {
        let shuffle = Shuffle::new(count, seed, epoch);
        (0..count).map(|position| shuffle.at(position)).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn every_example_has_one_position(count in 0_usize..300, seed: u64, epoch: u64) {
            let mut order = order(count, seed, epoch);
            order.sort_unstable();
            prop_assert_eq!(order, (0..count).collect::<Vec<_>>());
        }

        #[test]
        fn positions_of_a_large_count_stay_below_it(count in 1..=usize::MAX, seed: u64, place: prop::sample::Index) {
            prop_assert!(Shuffle::new(count, seed, 0).at(place.index(count)) < count);
        }
    }

    #[test]
    fn the_order_follows_from_seed_and_epoch() {
        assert_eq!(order(100, 1, 2), order(100, 1, 2));
        assert_ne!(order(100, 1, 2), order(100, 1, 3));
        assert_ne!(order(100, 1, 2), order(100, 2, 2));
    }

    #[test]
    fn saved_positions_keep_their_meaning() {
        assert_eq!(order(8, 0, 0), [7, 2, 5, 3, 0, 6, 4, 1]);
    }

    #[test]
    fn every_order_of_few_examples_comes_up_about_as_often() {
        let mut counts = std::collections::BTreeMap::new();
        for epoch in 0..6_000 {
            *counts.entry(order(4, 7, epoch)).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 24);
        // Each is binomial with mean 250 and deviation 15.5.
        assert!(counts.values().all(|count| (250_i32 - count).abs() < 70), "{counts:?}");
    }

    #[test]
    #[should_panic(expected = "position 4 of an epoch of 4 examples")]
    fn a_position_beyond_the_epoch_is_refused() {
        Shuffle::new(4, 0, 0).at(4);
    }
}
