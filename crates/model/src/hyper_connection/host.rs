//! Kernels of the hyper-connections' operations, a token at a time.

use dsv41_ops::{
    host::{HostFloat, HostOp, Values, View, add_scaled, dot},
    vectorised,
};
use rayon::prelude::*;

use super::{
    sinkhorn::Sinkhorn,
    stream::{Collapse, Expand},
};

/// Tokens that a thread takes at a time.
const TOKENS: usize = 16;

impl HostOp<2> for Collapse {
    fn forward_on_host<T: HostFloat>(&self, [h, mix]: [View<'_, T>; 2]) -> Option<Values<T>> {
        let &[batch, seq, copies, dim] = h.dims else { return None };
        let mut x = vec![T::zero(); batch * seq * dim];
        let tokens = x.par_chunks_mut(dim).zip(h.values.par_chunks(copies * dim)).zip(mix.values.par_chunks(copies));
        tokens.with_min_len(TOKENS).for_each(|((x, h), mix)| {
            vectorised!({
                for (h, &mix) in h.chunks_exact(dim).zip(mix) {
                    add_scaled(x, mix, h);
                }
            })
        });
        Some(Values { dims: vec![batch, seq, dim], values: x })
    }

    fn backward_on_host<T: HostFloat>(
        &self,
        [h, mix]: [View<'_, T>; 2],
        gradient: View<'_, T>,
        wanted: [bool; 2],
    ) -> Option<[Option<Values<T>>; 2]> {
        let &[.., copies, dim] = h.dims else { return None };
        let of_h = || {
            let mut of_h = Values::zeros_like(h);
            let tokens = of_h.values.par_chunks_mut(copies * dim).zip(gradient.values.par_chunks(dim));
            tokens.zip(mix.values.par_chunks(copies)).with_min_len(TOKENS).for_each(|((of_h, gradient), mix)| {
                vectorised!({
                    for (of_h, &mix) in of_h.chunks_exact_mut(dim).zip(mix) {
                        add_scaled(of_h, mix, gradient);
                    }
                })
            });
            of_h
        };
        let of_mix = || {
            let mut of_mix = Values::zeros_like(mix);
            let tokens = of_mix.values.par_chunks_mut(copies).zip(gradient.values.par_chunks(dim));
            let tokens = tokens.zip(h.values.par_chunks(copies * dim)).with_min_len(TOKENS);
            tokens.for_each(|((of_mix, gradient), h)| {
                vectorised!({
                    for (of_mix, h) in of_mix.iter_mut().zip(h.chunks_exact(dim)) {
                        *of_mix = dot(h, gradient);
                    }
                })
            });
            of_mix
        };
        Some([wanted[0].then(of_h), wanted[1].then(of_mix)])
    }
}

impl HostOp<4> for Expand {
    fn forward_on_host<T: HostFloat>(&self, [h, y, post, comb]: [View<'_, T>; 4]) -> Option<Values<T>> {
        let &[.., copies, dim] = h.dims else { return None };
        let mut new = Values::zeros_like(h);
        let tokens = new.values.par_chunks_mut(copies * dim).zip(h.values.par_chunks(copies * dim));
        let tokens = tokens.zip(y.values.par_chunks(dim)).zip(post.values.par_chunks(copies));
        let tokens = tokens.zip(comb.values.par_chunks(copies * copies)).with_min_len(TOKENS);
        tokens.for_each(|((((new, h), y), post), comb)| {
            vectorised!({
                for (k, new) in new.chunks_exact_mut(dim).enumerate() {
                    for (j, h) in h.chunks_exact(dim).enumerate() {
                        add_scaled(new, comb[j * copies + k], h);
                    }
                    add_scaled(new, post[k], y);
                }
            })
        });
        Some(new)
    }

    fn backward_on_host<T: HostFloat>(
        &self,
        [h, y, post, comb]: [View<'_, T>; 4],
        gradient: View<'_, T>,
        wanted: [bool; 4],
    ) -> Option<[Option<Values<T>>; 4]> {
        let &[.., copies, dim] = h.dims else { return None };
        let gradients = || gradient.values.par_chunks(copies * dim);
        let of_h = || {
            let mut of_h = Values::zeros_like(h);
            let tokens = of_h.values.par_chunks_mut(copies * dim).zip(gradients());
            let tokens = tokens.zip(comb.values.par_chunks(copies * copies)).with_min_len(TOKENS);
            tokens.for_each(|((of_h, gradient), comb)| {
                vectorised!({
                    for (of_h, comb) in of_h.chunks_exact_mut(dim).zip(comb.chunks_exact(copies)) {
                        for (gradient, &weight) in gradient.chunks_exact(dim).zip(comb) {
                            add_scaled(of_h, weight, gradient);
                        }
                    }
                })
            });
            of_h
        };
        let of_y = || {
            let mut of_y = Values::zeros_like(y);
            let tokens = of_y.values.par_chunks_mut(dim).zip(gradients()).zip(post.values.par_chunks(copies));
            tokens.with_min_len(TOKENS).for_each(|((of_y, gradient), post)| {
                vectorised!({
                    for (gradient, &post) in gradient.chunks_exact(dim).zip(post) {
                        add_scaled(of_y, post, gradient);
                    }
                })
            });
            of_y
        };
        let of_post = || {
            let mut of_post = Values::zeros_like(post);
            let tokens = of_post.values.par_chunks_mut(copies).zip(gradients()).zip(y.values.par_chunks(dim));
            tokens.with_min_len(TOKENS).for_each(|((of_post, gradient), y)| {
                vectorised!({
                    for (of_post, gradient) in of_post.iter_mut().zip(gradient.chunks_exact(dim)) {
                        *of_post = dot(y, gradient);
                    }
                })
            });
            of_post
        };
        let of_comb = || {
            let mut of_comb = Values::zeros_like(comb);
            let tokens = of_comb.values.par_chunks_mut(copies * copies).zip(gradients());
            tokens.zip(h.values.par_chunks(copies * dim)).with_min_len(TOKENS).for_each(|((of_comb, gradient), h)| {
                vectorised!({
                    for (of_comb, h) in of_comb.chunks_exact_mut(copies).zip(h.chunks_exact(dim)) {
                        for (of_comb, gradient) in of_comb.iter_mut().zip(gradient.chunks_exact(dim)) {
                            *of_comb = dot(h, gradient);
                        }
                    }
                })
            });
            of_comb
        };
        Some([wanted[0].then(of_h), wanted[1].then(of_y), wanted[2].then(of_post), wanted[3].then(of_comb)])
    }
}

impl HostOp<1> for Sinkhorn {
    fn forward_on_host<T: HostFloat>(&self, [logits]: [View<'_, T>; 1]) -> Option<Values<T>> {
        let &[.., copies, _] = logits.dims else { return None };
        let mut matrices = Values::zeros_like(logits);
        let tokens = matrices.values.par_chunks_mut(copies * copies).zip(logits.values.par_chunks(copies * copies));
        tokens.with_min_len(TOKENS).for_each(|(matrix, logits)| {
            softmax_rows(logits, matrix, copies);
            matrix.iter_mut().for_each(|value| *value = *value + T::of(self.eps));
            for axis in self.axes() {
                self.divide_by_sums(matrix, Lines::new(axis, copies), |_, _| ());
            }
        });
        Some(matrices)
    }

    fn backward_on_host<T: HostFloat>(
        &self,
        [logits]: [View<'_, T>; 1],
        gradient: View<'_, T>,
        _: [bool; 1],
    ) -> Option<[Option<Values<T>>; 1]> {
        let &[.., copies, _] = logits.dims else { return None };
        let size = copies * copies;
        let divisions = self.axes().count();
        let mut of_logits = Values::zeros_like(logits);
        let tokens = of_logits.values.par_chunks_mut(size).zip(logits.values.par_chunks(size));
        let tokens = tokens.zip(gradient.values.par_chunks(size)).with_min_len(TOKENS);
        // What every division gave, and what it divided by.
        let room = || (vec![T::zero(); divisions * size], vec![T::zero(); divisions * copies], vec![T::zero(); size]);
        tokens.for_each_init(room, |(results, sums, probs), ((of_logits, logits), gradient)| {
            softmax_rows(logits, probs, copies);
            let mut matrix: Vec<T> = probs.iter().map(|&value| value + T::of(self.eps)).collect();
            let steps = self.axes().zip(results.chunks_exact_mut(size)).zip(sums.chunks_exact_mut(copies));
            for ((axis, result), sums) in steps {
                self.divide_by_sums(&mut matrix, Lines::new(axis, copies), |line, sum| sums[line] = sum);
                result.copy_from_slice(&matrix);
            }

            of_logits.copy_from_slice(gradient);
            let axes: Vec<usize> = self.axes().collect();
            for (step, axis) in axes.into_iter().enumerate().rev() {
                let lines = Lines::new(axis, copies);
                let result = &results[step * size..][..size];
                for (line, &sum) in sums[step * copies..][..copies].iter().enumerate() {
                    let along: T = lines.of(line).map(|place| of_logits[place] * result[place]).sum();
                    lines.of(line).for_each(|place| of_logits[place] = (of_logits[place] - along) / sum);
                }
            }
            for (of_row, probs) in of_logits.chunks_exact_mut(copies).zip(probs.chunks_exact(copies)) {
                let along: T = of_row.iter().zip(probs).map(|(&gradient, &prob)| gradient * prob).sum();
                of_row.iter_mut().zip(probs).for_each(|(gradient, &prob)| *gradient = prob * (*gradient - along));
            }
        });
        Some([Some(of_logits)])
    }
}

impl Sinkhorn {
    /// Divides every line of a matrix by its guarded sum, which `seen` is told.
    fn divide_by_sums<T: HostFloat>(&self, matrix: &mut [T], lines: Lines, mut seen: impl FnMut(usize, T)) {
        for line in 0..lines.copies {
            let sum = lines.of(line).map(|place| matrix[place]).sum::<T>() + T::of(self.eps);
            lines.of(line).for_each(|place| matrix[place] = matrix[place] / sum);
            seen(line, sum);
        }
    }
}

/// The rows or the columns of a square matrix.
#[derive(Clone, Copy)]
struct Lines {
    copies: usize,
    /// From one line to the next, and along a line.
    strides: [usize; 2],
}

impl Lines {
    /// Those that a sum along `axis` of `[.., .., C, C]` goes over.
    fn new(axis: usize, copies: usize) -> Self {
        let strides = if axis == super::sinkhorn::ROWS { [copies, 1] } else { [1, copies] };
        Self { copies, strides }
    }

    /// Places of a line.
    fn of(self, line: usize) -> impl Iterator<Item = usize> {
        let [between, along] = self.strides;
        (0..self.copies).map(move |step| line * between + step * along)
    }
}

fn softmax_rows<T: HostFloat>(logits: &[T], probs: &mut [T], copies: usize) {
    for (logits, probs) in logits.chunks_exact(copies).zip(probs.chunks_exact_mut(copies)) {
        let max = logits.iter().copied().fold(T::neg_infinity(), T::max);
        for (prob, &logit) in probs.iter_mut().zip(logits) {
            *prob = (logit - max).exp();
        }
        let sum: T = probs.iter().copied().sum();
        probs.iter_mut().for_each(|prob| *prob = *prob / sum);
    }
}
