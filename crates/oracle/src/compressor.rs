//! The compressed stream: one latent for each group of `ratio` tokens.

use dsv41_config::Config;

use crate::hyper_connection::softmax;
use crate::linear::{Linear, sum};
use crate::load::Scope;
use crate::norm::RmsNorm;
use crate::rows::Rows;
use crate::{Numerics, OracleError, Real};

/// Makes latents, before rotation and quantisation: the index key is made from them too.
pub(crate) struct Compressor<F> {
    ratio: usize,
    width: usize,
    wkv: Linear<F>,
    /// Scores of the pooling; a group of one token has nothing to weigh.
    wgate: Option<Linear<F>>,
    norm: RmsNorm<F>,
}

impl<F: Real> Compressor<F> {
    pub(crate) fn load(scope: &Scope, config: &Config, ratio: usize) -> Result<Self, OracleError> {
        let (width, dim) = (config.head_dim, config.dim);
        Ok(Self {
            ratio,
            width,
            wkv: Linear::load(scope, "wkv", width, dim)?,
            wgate: (ratio > 1).then(|| Linear::load(scope, "wgate", width, dim)).transpose()?,
            norm: RmsNorm::load(scope, "norm", width, config.norm_eps)?,
        })
    }

    /// Numbers that [`Compressor::project`] keeps of one token.
    pub(crate) fn pooled_width(&self) -> usize {
        match self.wgate {
            Some(_) => 2 * self.width,
            None => self.width,
        }
    }

    /// What one token contributes to its group: its kv, then its scores. Both are f32 where there is pooling to do.
    pub(crate) fn project(&self, x: &[F], numerics: Numerics) -> Vec<F> {
        match &self.wgate {
            Some(wgate) => [self.wkv.project(x), wgate.project(x)].concat(),
            None => self.wkv.forward(x, numerics),
        }
    }

    /// The latent of group `group`, whose tokens' contributions all stand in `inputs`.
    pub(crate) fn latent(&self, inputs: &Rows<F>, group: usize, numerics: Numerics) -> Vec<F> {
        let pooled = match self.wgate {
            None => inputs.row(group).to_vec(),
            Some(_) => {
                let tokens: Vec<&[F]> =
                    (group * self.ratio..(group + 1) * self.ratio).map(|token| inputs.row(token)).collect();
                let mut pooled = pool(&tokens, self.width);
                numerics.bf16_all(&mut pooled);
                pooled
            }
        };
        self.norm.forward(&pooled, numerics)
    }
}

/// One kv from those of a group's `tokens`, each followed by as many scores: every channel has its own softmax over the
/// tokens.
fn pool<F: Real>(tokens: &[&[F]], width: usize) -> Vec<F> {
    (0..width)
        .map(|channel| {
            let mut weights: Vec<F> = tokens.iter().map(|token| token[width + channel]).collect();
            softmax(&mut weights);
            sum(tokens.iter().zip(weights).map(|(token, weight)| token[channel] * weight))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::pool;

    #[test]
    fn every_channel_has_its_own_softmax() {
        let far = 100.0;
        let pooled = pool(&[&[1.0, 2.0, 3.0, far, 0.0, 0.0], &[5.0, 6.0, 7.0, 0.0, far, 0.0f64]], 3);
        assert_eq!(pooled, [1.0, 6.0, 5.0]);
    }
}
