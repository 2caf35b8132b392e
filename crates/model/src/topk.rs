//! Selection of the best scores on the host: stable, exact, the same on every device.
//!
//! Backends' own sorts leave the order of equal scores open; here the lowest index wins, and -0.0 equals +0.0.

use std::cmp::Ordering;

/// The indices of the `k` best `scores`, best first; fewer when there are fewer scores. NaN counts as the worst.
pub fn top_k(scores: &[f64], k: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    let better = |&a: &usize, &b: &usize| compare(scores[b], scores[a]).then(a.cmp(&b));
    if k == 0 {
        return Vec::new();
    }
    if k < order.len() {
        order.select_nth_unstable_by(k - 1, better);
        order.truncate(k);
    }
    order.sort_unstable_by(better);
    order
}

fn compare(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| b.is_nan().cmp(&a.is_nan()))
}

#[cfg(test)]
mod tests {
    use super::top_k;

    #[test]
    fn equal_scores_go_to_the_lowest_index() {
        assert_eq!(top_k(&[1.0, 3.0, 3.0, 0.0, 3.0], 2), [1, 2]);
        assert_eq!(top_k(&[0.0, -0.0, 0.0, -0.0], 3), [0, 1, 2]);
        assert_eq!(top_k(&[f64::NEG_INFINITY; 4], 2), [0, 1]);
    }

    #[test]
    fn best_comes_first_and_nan_last() {
        assert_eq!(top_k(&[f64::NAN, 1.0, 2.0], 3), [2, 1, 0]);
        assert_eq!(top_k(&[1.0, 2.0], 5), [1, 0]);
        assert_eq!(top_k(&[1.0], 0), [0; 0]);
    }

    #[test]
    fn agrees_with_a_stable_sort_on_many_ties() {
        let scores: Vec<f64> = (0..5000u64).map(|i| (i.wrapping_mul(2_654_435_761) % 17) as f64).collect();
        let mut expected: Vec<usize> = (0..scores.len()).collect();
        expected.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
        for k in [1, 7, 300, 4999] {
            assert_eq!(top_k(&scores, k), expected[..k], "k = {k}");
        }
    }
}
