//! What a layer's own scores chose, against a golden's choice.

use dsv41_golden::{LayerSelections, Recorded};
use serde::Serialize;

use crate::implementation::Step;

/// The comparison of one kind of choice of one layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChoiceComparison {
    /// The layer.
    pub layer: usize,
    /// `topk`, `candidates` or `experts`.
    pub part: &'static str,
    /// Queries (or tokens) compared.
    pub queries: usize,
    /// Queries whose choice is the golden's.
    pub equal: usize,
    /// Queries that chose otherwise among scores within one bf16 step of the boundary.
    pub near_ties: usize,
    /// The first query that chose otherwise for no such reason.
    pub wrong: Option<usize>,
}

/// Compares the choices that `step`'s layers would have made of themselves with the golden's.
pub fn compare_choices(
    step: &Step,
    layer: usize,
    want: &LayerSelections,
    candidate_block: usize,
) -> Vec<ChoiceComparison> {
    let Some(own) = step.own.layer(layer) else { return Vec::new() };
    let mut compared = Vec::new();
    let mut compare = |part, own: Vec<Vec<i64>>, want: Vec<Vec<i64>>, scores: Scores| {
        compared.push(compare_part(layer, part, &own, &want, &scores));
    };
    if let (Some(own), Some(want), Some(scores)) = (&own.experts, &want.experts, step.router_scores.get(&layer)) {
        let scores = Scores::new(scores, 1);
        compare("experts", by_query(own, scores.queries()), by_query(want, scores.queries()), scores);
    }
    if let Some(scores) = step.index_scores.get(&layer) {
        if let (Some(own), Some(want)) = (&own.topk, &want.topk) {
            let scores = Scores::new(scores, 1);
            compare("topk", by_query(own, scores.queries()), by_query(want, scores.queries()), scores);
        }
        if let (Some(own), Some(want)) = (&own.candidates, &want.candidates) {
            let scores = Scores::new(scores, candidate_block);
            let blocks = |mask: &[bool]| {
                let rows = mask.chunks_exact(mask.len() / scores.queries());
                rows.map(|row| {
                    let blocks = row.chunks(candidate_block).enumerate();
                    blocks.filter(|(_, block)| block.contains(&true)).map(|(block, _)| block as i64).collect()
                })
                .collect()
            };
            compare("candidates", blocks(own), blocks(want), scores);
        }
    }
    compared
}

/// Scores of what can be chosen, a row for each query; of blocks, the best of each.
struct Scores {
    rows: Vec<Vec<f64>>,
    /// One bf16 step of the largest finite score.
    step: f64,
}

impl Scores {
    fn new(scores: &Recorded, block: usize) -> Self {
        let width = scores.shape[scores.shape.len() - 1];
        let values: Vec<f64> = (0..scores.len()).map(|index| scores.get(index)).collect();
        let best = |block: &[f64]| block.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let rows = values.chunks_exact(width).map(|row| row.chunks(block).map(best).collect()).collect();
        let largest = values.iter().filter(|score| score.is_finite()).fold(0.0, |max: f64, score| max.max(score.abs()));
        let step = if largest > 0.0 { 2f64.powf(largest.log2().floor() - 7.0) } else { 0.0 };
        Self { rows, step }
    }

    fn queries(&self) -> usize {
        self.rows.len()
    }
}

fn by_query(choices: &[i64], queries: usize) -> Vec<Vec<i64>> {
    choices.chunks_exact((choices.len() / queries).max(1)).map(<[i64]>::to_vec).collect()
}

fn compare_part(
    layer: usize,
    part: &'static str,
    own: &[Vec<i64>],
    want: &[Vec<i64>],
    scores: &Scores,
) -> ChoiceComparison {
    let mut comparison = ChoiceComparison { layer, part, queries: own.len(), equal: 0, near_ties: 0, wrong: None };
    for (query, ((own, want), scores_of_query)) in own.iter().zip(want).zip(&scores.rows).enumerate() {
        if own == want {
            comparison.equal += 1;
        } else if is_near_tie(own, want, scores_of_query, boundary(part, own, scores_of_query), scores.step) {
            comparison.near_ties += 1;
        } else {
            comparison.wrong.get_or_insert(query);
        }
    }
    comparison
}

/// The score that decides whether something is chosen: the k-th best, where k choices can be made. Of candidate blocks
/// it is the worst one chosen, the pinned one (the newest with anything visible) aside.
fn boundary(part: &str, own: &[i64], scores: &[f64]) -> f64 {
    if part == "candidates" {
        let pinned = scores.iter().rposition(|score| score.is_finite());
        let chosen = own.iter().map(|&block| block as usize).filter(|&block| Some(block) != pinned);
        return chosen.map(|block| scores[block]).fold(f64::INFINITY, f64::min);
    }
    let mut descending = scores.to_vec();
    descending.sort_by(|a, b| b.total_cmp(a));
    descending[own.len() - 1]
}

/// Whether everything that only one side chose lies within `step` of the `boundary`, or (where both chose the same in
/// another order) of the scores it changed places with.
fn is_near_tie(own: &[i64], want: &[i64], scores: &[f64], boundary: f64, step: f64) -> bool {
    let score = |&choice: &i64| usize::try_from(choice).ok().and_then(|choice| scores.get(choice)).copied();
    let close = |a: f64, b: f64| a == b || (a - b).abs() <= step;
    let only_one = own.iter().filter(|c| !want.contains(c)).chain(want.iter().filter(|c| !own.contains(c)));
    let mut differing = only_one.filter(|&&choice| choice >= 0).peekable();
    if differing.peek().is_none() {
        return own.iter().zip(want).all(|(a, b)| match (score(a), score(b)) {
            (Some(a), Some(b)) => close(a, b),
            _ => false,
        });
    }
    differing.all(|choice| score(choice).is_some_and(|score| close(score, boundary)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCORES: [f64; 4] = [1.0, 0.5, 0.501, 0.1];
    const STEP: f64 = 1.0 / 128.0;

    fn near(own: &[i64], want: &[i64]) -> bool {
        is_near_tie(own, want, &SCORES, boundary("topk", own, &SCORES), STEP)
    }

    #[test]
    fn only_what_is_close_to_the_boundary_may_differ() {
        assert!(near(&[0, 2], &[0, 1]), "0.5 is within a step of 0.501");
        assert!(!near(&[0, 2], &[0, 3]));
        assert!(!near(&[0, 2], &[1, 2]), "the best score is no near tie");
        assert!(near(&[1, 2], &[2, 1]), "order among equals");
        assert!(!near(&[0, 1], &[1, 0]), "order among unequals");
    }

    #[test]
    fn hidden_positions_tie_with_each_other_alone() {
        let scores = [1.0, f64::NEG_INFINITY, f64::NEG_INFINITY];
        let near = |own: &[i64], want: &[i64]| is_near_tie(own, want, &scores, boundary("topk", own, &scores), STEP);
        assert!(near(&[0, -1], &[0, 2]), "a hidden position picked");
        assert!(!near(&[0, -1], &[1, -1]), "the visible one left out");
    }

    #[test]
    fn the_pinned_block_does_not_set_the_boundary() {
        let scores = [1.0, 0.5, 0.501, 0.1];
        let near =
            |own: &[i64], want: &[i64]| is_near_tie(own, want, &scores, boundary("candidates", own, &scores), STEP);
        assert!(near(&[0, 2, 3], &[0, 1, 3]));
        assert!(!near(&[0, 2, 3], &[1, 2, 3]));
    }
}
