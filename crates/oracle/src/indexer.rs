//! The indexer: scores compressed positions for each query and picks those its attention sees.

use dsv41_config::Config;

use crate::linear::{Linear, dot, sum};
use crate::load::Scope;
use crate::norm::RmsNorm;
use crate::rope::Rotation;
use crate::rows::Rows;
use crate::selection::best;
use crate::{Numerics, OracleError, Real};

/// Makes the key of a compressed position from its latent, in the layers that own a stream.
pub(crate) struct IndexKeys<F> {
    wk: Linear<F>,
    k_norm: RmsNorm<F>,
}

impl<F: Real> IndexKeys<F> {
    pub(crate) fn load(scope: &Scope, config: &Config) -> Result<Self, OracleError> {
        Ok(Self {
            wk: Linear::load(scope, "wk", config.index_head_dim, config.head_dim)?,
            k_norm: RmsNorm::load(scope, "k_norm", config.index_head_dim, config.norm_eps)?,
        })
    }

    /// The key of a latent that is neither rotated nor quantised yet.
    pub(crate) fn forward(&self, latent: &[F], rotation: &Rotation<F>, numerics: Numerics) -> Vec<F> {
        let mut key = self.k_norm.forward(&self.wk.forward(latent, numerics), numerics);
        rotation.apply(&mut key, numerics);
        numerics.index_fp4(&mut key);
        key
    }
}

/// Scores and picks compressed positions, in the layers that own an index.
pub(crate) struct Indexer<F> {
    head_dim: usize,
    topk: usize,
    weight_scale: F,
    wq_b: Linear<F>,
    weights_proj: Linear<F>,
}

impl<F: Real> Indexer<F> {
    pub(crate) fn load(scope: &Scope, config: &Config) -> Result<Self, OracleError> {
        let (heads, head_dim) = (config.index_n_heads, config.index_head_dim);
        Ok(Self {
            head_dim,
            topk: config.index_topk,
            weight_scale: F::from_f64(1.0 / libm::sqrt(head_dim as f64) / libm::sqrt(heads as f64)),
            wq_b: Linear::load(scope, "wq_b", heads * head_dim, config.q_lora_rank)?,
            weights_proj: Linear::load(scope, "weights_proj", heads, config.dim)?,
        })
    }

    /// The score of each of `keys` for one token: `sum_h w[h] * relu(q_h . k)`.
    ///
    /// `x` is the layer's normed input, `qr` the normed low-rank query.
    pub(crate) fn scores(
        &self,
        x: &[F],
        qr: &[F],
        keys: &Rows<F>,
        rotation: &Rotation<F>,
        numerics: Numerics,
    ) -> Vec<F> {
        let mut queries = self.wq_b.forward(qr, numerics);
        for query in queries.chunks_exact_mut(self.head_dim) {
            rotation.apply(query, numerics);
            numerics.index_fp4(query);
        }
        let weights: Vec<F> = self
            .weights_proj
            .forward(x, numerics)
            .into_iter()
            .map(|weight| numerics.bf16(weight * self.weight_scale))
            .collect();
        let score = |key: &[F]| {
            let heads = queries.chunks_exact(self.head_dim).zip(&weights);
            let weighted = heads.map(|(query, &weight)| {
                let similarity = numerics.bf16(dot(query, key)).max(F::ZERO);
                numerics.bf16(similarity * weight)
            });
            numerics.bf16(sum(weighted))
        };
        keys.iter().map(score).collect()
    }

    /// The picks of one query among its `scores`; see [`pick`].
    pub(crate) fn pick(&self, scores: &[F], visible: usize, keep_masked: bool) -> Vec<i64> {
        pick(scores, visible, self.topk, keep_masked)
    }
}

/// The `topk` best positions, ascending, then -1 up to the number of positions at most.
///
/// `scores` are minus infinity where a position may not be picked; only the first `visible` are attended at all. With
/// `keep_masked`, minus infinity can be picked below `visible`.
fn pick<F: Real>(scores: &[F], visible: usize, topk: usize, keep_masked: bool) -> Vec<i64> {
    let width = topk.min(scores.len());
    let mut picks: Vec<i64> = best(scores, width)
        .into_iter()
        .filter(|&t| t < visible && (keep_masked || scores[t] > F::NEG_INFINITY))
        .map(|t| t as i64)
        .collect();
    picks.sort_unstable();
    picks.resize(width, -1);
    picks
}

/// Compressed positions that later index sources may score: the best blocks of one query.
pub(crate) struct Candidates {
    block: usize,
    topk: usize,
}

impl Candidates {
    pub(crate) fn new(config: &Config) -> Self {
        Self { block: config.candidate_block_size, topk: config.candidate_topk_blocks }
    }

    /// The mask over all compressed positions, whole blocks at a time.
    ///
    /// A block scores as its best visible position; the block of the newest visible position is always in, and counted.
    /// A block with nothing visible is never in.
    pub(crate) fn mask<F: Real>(&self, scores: &[F], visible: usize) -> Vec<bool> {
        let mut blocks: Vec<F> = scores[..visible]
            .chunks(self.block)
            .map(|block| block.iter().copied().fold(F::NEG_INFINITY, F::max))
            .collect();
        if let Some(newest) = blocks.last_mut() {
            *newest = F::INFINITY;
        }
        let chosen = best(&blocks, self.topk);
        (0..scores.len()).map(|t| chosen.contains(&(t / self.block))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: f32 = f32::NEG_INFINITY;

    #[test]
    fn picks_are_ascending_and_never_from_the_future() {
        assert_eq!(pick(&[0.5, 2.0, 1.0, 2.0], 4, 3, false), [1, 2, 3]);
        assert_eq!(pick(&[0.0, -0.0, 0.0, 0.0], 4, 2, false), [0, 1], "equal scores to the lowest position");
        assert_eq!(pick(&[-1.0, -3.0, NONE, NONE], 2, 3, false), [0, 1, -1], "fewer visible than wanted");
        assert_eq!(pick(&[NONE, NONE], 0, 5, false), [-1, -1]);
    }

    #[test]
    fn masked_positions_are_picked_by_the_switch_alone() {
        let scores = [NONE, 1.0, NONE, NONE, 2.0, NONE];
        assert_eq!(pick(&scores, 5, 4, false), [1, 4, -1, -1]);
        assert_eq!(pick(&scores, 5, 4, true), [0, 1, 2, 4], "lowest first");
        assert_eq!(pick(&scores, 5, 6, true), [0, 1, 2, 3, 4, -1], "position 5 is not visible yet");
    }

    #[test]
    fn candidates_are_whole_blocks_with_the_newest_in() {
        let candidates = Candidates { block: 2, topk: 2 };
        let mask =
            |scores: &[f32], visible| candidates.mask(scores, visible).into_iter().map(i32::from).collect::<Vec<_>>();
        // The newest block scores worst, is in and is counted; the better of the others is the second.
        assert_eq!(mask(&[1.0, 3.0, 2.0, 2.5, -9.0], 5), [1, 1, 0, 0, 1]);
        // Equal scores to the lowest block.
        assert_eq!(mask(&[1.0, 0.0, 0.0, 1.0, -9.0, -9.0], 6), [1, 1, 0, 0, 1, 1]);
        // Position 3 is not visible, but its block is; the last block is not.
        assert_eq!(mask(&[1.0, 3.0, 2.0, NONE, NONE, NONE], 3), [1, 1, 1, 1, 0, 0]);
        assert_eq!(mask(&[NONE, NONE], 0), [0, 0]);
    }
}
