//! Random numbers that follow from what they are for.

use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;

/// Separates draws for different ends that share a seed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Purpose {
    /// The order of an epoch.
    Shuffle,
    /// On which side of a split something falls.
    Split,
    /// An example of the task `recall`.
    Recall,
    /// An example of the task `arithmetic`.
    Arithmetic,
    /// A weight before training.
    Weight,
}

/// The generator for a purpose and three numbers, all of which matter: the four are the cipher's key.
pub(crate) fn generator(purpose: Purpose, numbers: [u64; 3]) -> ChaCha8Rng {
    let [first, second, third] = numbers;
    let mut key = [0; 32];
    for (place, number) in key.chunks_exact_mut(8).zip([purpose as u64, first, second, third]) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    ChaCha8Rng::from_seed(key)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use rand::RngCore as _;

    use super::*;

    #[test]
    fn the_purpose_and_every_number_matter() {
        let keys = [
            (Purpose::Shuffle, [1, 2, 3]),
            (Purpose::Split, [1, 2, 3]),
            (Purpose::Shuffle, [0, 2, 3]),
            (Purpose::Shuffle, [1, 0, 3]),
            (Purpose::Shuffle, [1, 2, 0]),
            (Purpose::Shuffle, [1, 2, 3 << 32]),
        ];
        let draws: HashSet<u64> = keys.iter().map(|&(purpose, key)| generator(purpose, key).next_u64()).collect();
        assert_eq!(draws.len(), keys.len());
    }
}
