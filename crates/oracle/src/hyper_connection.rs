//! One-pass hyper-connections: the residual stream is C copies of D channels, and each sublayer mixes them anew.

use dsv41_config::Config;

use crate::linear::{Linear, sum};
use crate::load::Scope;
use crate::norm::inverse_rms;
use crate::{Numerics, OracleError, Real};

/// Makes the mixing weights of one sublayer from the whole stream of one token.
pub(crate) struct Mixer<F> {
    copies: usize,
    iterations: usize,
    norm_eps: F,
    hc_eps: F,
    /// `[(2 + C) * C, C * D]`
    function: Linear<F>,
    base: Vec<F>,
    scale: Vec<F>,
}

/// The mixing weights of one token.
pub(crate) struct Mix<F> {
    /// `[C]`: how the next sublayer (for the attention mixer) or the next block (for the FFN mixer) collapses the copies.
    pub(crate) pre: Vec<F>,
    /// `[C]`: how much of this sublayer's output each copy takes.
    pub(crate) post: Vec<F>,
    /// `[C, C]`: how much of copy `j` (first axis) goes to copy `k`. Close to doubly stochastic.
    pub(crate) comb: Vec<F>,
}

impl<F: Real> Mixer<F> {
    /// The mixer called `hc_NAME_*`.
    pub(crate) fn load(scope: &Scope, name: &str, config: &Config) -> Result<Self, OracleError> {
        let copies = config.hc_mult;
        let outputs = (2 + copies) * copies;
        Ok(Self {
            copies,
            iterations: config.hc_sinkhorn_iters,
            norm_eps: F::from_f64(config.norm_eps),
            hc_eps: F::from_f64(config.hc_eps),
            function: Linear::load_tensor(scope, &format!("hc_{name}_fn"), outputs, copies * config.dim)?,
            base: scope.values(&format!("hc_{name}_base"), &[outputs])?,
            scale: scope.values(&format!("hc_{name}_scale"), &[3])?,
        })
    }

    /// The mix of one token's stream `h`, `[C * D]`.
    pub(crate) fn mix(&self, h: &[F]) -> Mix<F> {
        let copies = self.copies;
        let rms = inverse_rms(h, self.norm_eps);
        let mixes: Vec<F> = self.function.project(h).into_iter().map(|mix| mix * rms).collect();
        let scaled = |index: usize, scale: usize| mixes[index] * self.scale[scale] + self.base[index];

        let two = F::ONE + F::ONE;
        let pre = (0..copies).map(|c| scaled(c, 0).sigmoid() + self.hc_eps).collect();
        let post = (copies..2 * copies).map(|c| two * scaled(c, 1).sigmoid()).collect();
        let mut comb: Vec<F> = (2 * copies..(2 + copies) * copies).map(|index| scaled(index, 2)).collect();
        sinkhorn(&mut comb, self.copies, self.iterations, self.hc_eps);
        Mix { pre, post, comb }
    }
}

impl<F: Real> Mix<F> {
    /// The stream after a sublayer gave `y` (`[D]`): `h'[k] = post[k] * y + sum_j comb[j][k] * h[j]`.
    pub(crate) fn expand(&self, y: &[F], h: &[F], numerics: Numerics) -> Vec<F> {
        let (copies, dim) = (self.post.len(), y.len());
        let mut expanded = Vec::with_capacity(h.len());
        for k in 0..copies {
            for channel in 0..dim {
                let kept = sum((0..copies).map(|j| self.comb[j * copies + k] * h[j * dim + channel]));
                expanded.push(numerics.bf16(self.post[k] * y[channel] + kept));
            }
        }
        expanded
    }
}

/// Makes a square matrix of logits nearly doubly stochastic: row softmax, then a column division, then row and column
/// divisions in turn, `iterations` column divisions in all.
fn sinkhorn<F: Real>(comb: &mut [F], copies: usize, iterations: usize, eps: F) {
    for row in comb.chunks_exact_mut(copies) {
        softmax(row);
        for value in row {
            *value += eps;
        }
    }
    divide_columns(comb, copies, eps);
    for _ in 1..iterations {
        divide_rows(comb, copies, eps);
        divide_columns(comb, copies, eps);
    }
}

fn divide_rows<F: Real>(comb: &mut [F], copies: usize, eps: F) {
    for row in comb.chunks_exact_mut(copies) {
        let divisor = sum(row.iter().copied()) + eps;
        for value in row {
            *value /= divisor;
        }
    }
}

fn divide_columns<F: Real>(comb: &mut [F], copies: usize, eps: F) {
    for column in 0..copies {
        let divisor = sum(comb.iter().skip(column).step_by(copies).copied()) + eps;
        for value in comb.iter_mut().skip(column).step_by(copies) {
            *value /= divisor;
        }
    }
}

/// One vector of D from the copies of `h`: `sum_c mix[c] * h[c]`.
pub(crate) fn collapse<F: Real>(mix: &[F], h: &[F], numerics: Numerics) -> Vec<F> {
    let dim = h.len() / mix.len();
    (0..dim)
        .map(|channel| numerics.bf16(sum(mix.iter().enumerate().map(|(c, &mix)| mix * h[c * dim + channel]))))
        .collect()
}

/// Softmax in place, the maximum subtracted.
pub(crate) fn softmax<F: Real>(values: &mut [F]) {
    let max = values.iter().copied().fold(F::NEG_INFINITY, F::max);
    for value in values.iter_mut() {
        *value = (*value - max).exp();
    }
    let divisor = sum(values.iter().copied());
    for value in values {
        *value /= divisor;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_division_has_its_epsilon() {
        // Softmax of one logit is 1: 1 + eps, then a column, a row and a column division by the value + eps.
        let mut comb = [3.0f64];
        sinkhorn(&mut comb, 1, 2, 0.5);
        assert_eq!(comb, [0.75 / 1.25 / (0.75 / 1.25 + 0.5)]);
    }

    #[test]
    fn columns_come_last() {
        let mut comb = [2.0f64, -1.0, 0.5, 0.0, 1.0, -2.0, 3.0, 0.0, 1.0];
        sinkhorn(&mut comb, 3, 1, 0.0);
        for column in 0..3 {
            let total = comb[column] + comb[3 + column] + comb[6 + column];
            assert!((total - 1.0).abs() < 1e-12, "{total}");
        }
        let row = comb[6] + comb[7] + comb[8];
        assert!((row - 1.0).abs() > 0.1, "{row}: the division has undone the row's softmax");
    }

    #[test]
    fn copies_are_summed_over_the_first_axis_of_comb() {
        let mix = Mix { pre: vec![], post: vec![10.0f64, 20.0], comb: vec![1.0, 2.0, 3.0, 4.0] };
        let h = [1.0, 5.0, 100.0, 500.0];
        let expanded = mix.expand(&[1.0, -1.0], &h, Numerics::Full);
        assert_eq!(expanded, [10.0 + 301.0, -10.0 + 1505.0, 20.0 + 402.0, -20.0 + 2010.0]);
        assert_eq!(collapse(&[2.0, 3.0], &h, Numerics::Full), [302.0, 1510.0]);
    }
}
