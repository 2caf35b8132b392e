//! What a model is trained on, and what it is tried on.

use rand::Rng as _;

use crate::data::random::{Purpose, generator};

/// A side of a task's examples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Split {
    /// Examples to train on.
    Training,
    /// Examples to try the model on, which it was not trained on.
    HeldOut,
}

impl Split {
    /// The side that a thing falls on, known by two numbers among those of its task: an eighth is held out. It does not
    /// depend on a seed, so that the sides of all seeds are apart.
    pub(super) fn of(task: Purpose, thing: [u64; 2]) -> Self {
        let [first, second] = thing;
        let mut random = generator(Purpose::Split, [task as u64, first, second]);
        if random.random_ratio(1, 8) { Self::HeldOut } else { Self::Training }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_eighth_is_held_out() {
        let held_out = (0..8_000).filter(|&thing| Split::of(Purpose::Recall, [thing, 0]) == Split::HeldOut).count();
        // Binomial with mean 1000 and deviation 30.
        assert!((880..1_120).contains(&held_out), "{held_out}");
    }
}
