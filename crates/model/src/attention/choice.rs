//! What the queries of a call choose by their scores, a tile of queries at a time: what is held besides the choices does not
//! grow with the number of queries.

use std::borrow::Cow;
use std::iter::repeat;
use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;

use super::{
    index_scores::IndexOperands,
    select::{CandidateRule, Scored, Visibility, within},
};
use crate::{Candidates, ModelBackend, Numerics, selections::NONE};

/// Numbers of one tile's largest tensor.
const TILE_ELEMENTS: usize = 1 << 22;

/// What queries may score.
pub(super) struct Scope {
    pub(super) visibility: Visibility,
    /// What they are limited to.
    pub(super) candidates: Option<Arc<Candidates>>,
}

impl Scope {
    /// The positions of a query (of `B*S`).
    fn of_query(&self, query: usize) -> Vec<Range<usize>> {
        let visible = self.visibility.of_query(query);
        match &self.candidates {
            Some(candidates) => within(candidates.of_query(query), &visible),
            None => vec![visible],
        }
    }

    /// The most candidates of a query, where they are so few of all positions that keys are gathered for each query.
    fn longest_list(&self) -> Option<usize> {
        let longest = self.candidates.as_ref()?.longest().max(1);
        (2 * longest <= self.visibility.positions()).then_some(longest)
    }
}

/// How queries choose.
#[derive(Clone, Copy)]
pub(super) struct Rule {
    /// Positions that a query attends.
    pub(super) topk: usize,
    /// As [`crate::Switches::keep_masked_picks`].
    pub(super) keep_masked: bool,
    /// How to choose candidates for later index sources, where that is to be done.
    pub(super) candidates: Option<CandidateRule>,
}

/// What B*S queries chose among T positions.
pub(super) struct Chosen {
    /// `[B, S, min(topk, T)]`, ascending, -1 last.
    pub(super) topk: Vec<i64>,
    /// Where asked for.
    pub(super) candidates: Option<Candidates>,
    /// All scores `[B, S, T]`, minus infinity where nothing was to be scored, where asked for.
    pub(super) scores: Option<Vec<f64>>,
}

/// Scores what is within `scope` and chooses. `keep_scores` asks for all of them.
pub(super) fn choose<B: ModelBackend>(
    operands: &IndexOperands<B>,
    scope: &Scope,
    rule: Rule,
    numerics: Numerics,
    keep_scores: bool,
) -> Chosen {
    let [batch, seq, heads, head_dim] = operands.query.dims();
    let positions = scope.visibility.positions();
    let width = rule.topk.min(positions);
    let listed = scope.longest_list();
    let of_query = listed.map_or(positions * heads, |longest| longest * heads.max(head_dim));
    let step = (TILE_ELEMENTS / (batch * of_query)).clamp(1, seq);

    let mut topk = vec![NONE; batch * seq * width];
    let mut candidates = rule.candidates.map(|_| vec![Vec::new(); batch * seq]);
    let mut scores = keep_scores.then(|| vec![f64::NEG_INFINITY; batch * seq * positions]);
    for first in (0..seq).step_by(step) {
        let tile = Tile::score(operands, scope, first..seq.min(first + step), listed, numerics);
        let choices = (0..tile.queries.len()).into_par_iter().map(|place| {
            let scores = tile.scores(place);
            let visible = scope.visibility.of_query(tile.queries[place]);
            let candidates = rule.candidates.map(|rule| rule.choose(visible.clone(), &scores, positions));
            let scored = Scored { visible, runs: &tile.runs[place], scores: &scores };
            (scored.best(width, rule.keep_masked), candidates)
        });
        for (place, (best, chosen)) in choices.collect::<Vec<_>>().into_iter().enumerate() {
            let query = tile.queries[place];
            topk[query * width..][..width].copy_from_slice(&best);
            if let (Some(candidates), Some(chosen)) = (&mut candidates, chosen) {
                candidates[query] = chosen;
            }
            if let Some(scores) = &mut scores {
                let found = tile.scores(place);
                let at = tile.runs[place].iter().cloned().flatten();
                at.zip(found.iter()).for_each(|(position, &score)| scores[query * positions + position] = score);
            }
        }
    }
    Chosen { topk, candidates: candidates.map(Candidates::new), scores }
}

/// Some queries of every sequence, with their scores.
struct Tile {
    /// Which of the B*S queries.
    queries: Vec<usize>,
    /// The positions of each.
    runs: Vec<Vec<Range<usize>>>,
    /// Rows of scores, a query each: of the first positions, or of those of its runs one after the other.
    rows: Vec<f64>,
    width: usize,
    listed: bool,
}

impl Tile {
    fn score<B: ModelBackend>(
        operands: &IndexOperands<B>,
        scope: &Scope,
        queries: Range<usize>,
        listed: Option<usize>,
        numerics: Numerics,
    ) -> Self {
        let [batch, seq, ..] = operands.query.dims();
        let of_row = |row: usize| queries.clone().map(move |query| row * seq + query);
        let all: Vec<usize> = (0..batch).flat_map(of_row).collect();
        let runs: Vec<Vec<Range<usize>>> = all.iter().map(|&query| scope.of_query(query)).collect();
        let (rows, width) = match listed {
            Some(width) => {
                let padded = |runs: &Vec<Range<usize>>| runs.clone().into_iter().flatten().chain(repeat(0)).take(width);
                let positions: Vec<usize> = runs.iter().flat_map(padded).collect();
                (operands.score_at(queries, &positions, width, numerics), width)
            }
            None => {
                let last = all.iter().map(|&query| scope.visibility.of_query(query).end).max().unwrap_or(0);
                let width = last.max(1);
                (operands.score(queries, width, numerics), width)
            }
        };
        Self { queries: all, runs, rows, width, listed: listed.is_some() }
    }

    /// The scores at the runs of a query.
    fn scores(&self, place: usize) -> Cow<'_, [f64]> {
        let row = &self.rows[place * self.width..][..self.width];
        match &*self.runs[place] {
            runs if self.listed => Cow::Borrowed(&row[..runs.iter().map(Range::len).sum()]),
            [run] => Cow::Borrowed(&row[run.clone()]),
            runs => Cow::Owned(runs.iter().flat_map(|run| &row[run.clone()]).copied().collect()),
        }
    }
}
