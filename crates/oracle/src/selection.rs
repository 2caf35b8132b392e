//! The rule of every top-k: largest first, equal scores (0.0 and -0.0 are equal) to the lowest position.

use std::cmp::Ordering;

use crate::Real;

/// Positions of the `k` best of `scores`, best first.
pub(crate) fn best<F: Real>(scores: &[F], k: usize) -> Vec<usize> {
    let mut positions: Vec<usize> = (0..scores.len()).collect();
    // The sort is stable, so equal scores stay in order of position.
    positions.sort_by(|&a, &b| scores[b].partial_cmp(&scores[a]).unwrap_or(Ordering::Equal));
    positions.truncate(k);
    positions
}

#[cfg(test)]
mod tests {
    use super::best;

    #[test]
    fn equal_scores_go_to_the_lowest_position() {
        assert_eq!(best(&[1.0, 3.0, 2.0, 3.0, 1.0], 4), [1, 3, 2, 0]);
        assert_eq!(best(&[-0.0, 0.0, -0.0f32], 2), [0, 1]);
        assert_eq!(best(&[f64::NEG_INFINITY, 0.0, f64::NEG_INFINITY], 2), [1, 0]);
        assert!(best::<f32>(&[], 3).is_empty());
    }
}
