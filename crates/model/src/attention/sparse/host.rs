//! Kernels of sparse attention: every query reads the keys of its list where they are.

use std::iter::zip;

use dsv41_ops::{
    host::{HostFloat, HostOp, Values, View, add_scaled, dot},
    vectorised,
};
use rayon::prelude::*;

use super::{op::SparseAttention, softmax::scale};
use crate::{Numerics, selections::NONE};

/// Parts of a sequence whose keys have gradients of their own, which are added in the end: as many threads have work
/// where there is one sequence, and results do not depend on how many there are.
const PARTS: usize = 2;

/// The shape of a call.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) seq: usize,
    pub(super) heads: usize,
    pub(super) width: usize,
    /// Keys of a sequence.
    pub(super) keys: usize,
}

/// What one head of a query attends.
pub(super) struct Head<T> {
    /// Of each entry of the list; absent ones are left out.
    pub(super) weights: Vec<T>,
    /// What the sink takes.
    sink: T,
}

impl<T: HostFloat> Head<T> {
    pub(super) fn new() -> Self {
        Self { weights: Vec::new(), sink: T::zero() }
    }

    /// The softmax of a query's scores and the sink.
    #[inline(always)]
    pub(super) fn attend<'a>(&mut self, query: &[T], keys: impl Iterator<Item = &'a [T]>, sink: T, scale: T)
    where
        T: 'a,
    {
        self.weights.clear();
        self.weights.extend(keys.map(|key| dot(query, key) * scale));
        let max = self.weights.iter().copied().fold(sink, T::max);
        self.weights.iter_mut().for_each(|weight| *weight = (*weight - max).exp());
        self.sink = (sink - max).exp();
        let sum = self.weights.iter().copied().sum::<T>() + self.sink;
        self.weights.iter_mut().for_each(|weight| *weight = *weight / sum);
        self.sink = self.sink / sum;
    }
}

impl SparseAttention {
    /// The keys that a query (of `B*S`) lists, by their rows in its sequence.
    fn listed(&self, query: usize) -> impl Iterator<Item = usize> + Clone {
        let width = self.lists.width;
        let entries = &self.lists.rows[query * width..][..width];
        entries.iter().filter(|&&row| row != NONE).map(|&row| row as usize)
    }
}

impl Shape {
    pub(super) fn of<T>(query: View<'_, T>, keys: View<'_, T>) -> Option<Self> {
        let (&[_, seq, heads, width], &[_, keys, _]) = (query.dims, keys.dims) else { return None };
        Some(Self { seq, heads, width, keys })
    }
}

impl HostOp<3> for SparseAttention {
    fn forward_on_host<T: HostFloat>(&self, [query, keys, sink]: [View<'_, T>; 3]) -> Option<Values<T>> {
        if self.numerics != Numerics::Full {
            return None;
        }
        let shape = Shape::of(query, keys)?;
        let Shape { seq, heads, width, .. } = shape;
        let scale = T::of(scale(width));
        let mut result = Values::zeros_like(query);
        let queries = result.values.par_chunks_mut(heads * width).zip(query.values.par_chunks(heads * width));
        queries.enumerate().for_each_init(Head::new, |head, (place, (result, query))| {
            let keys = &keys.values[place / seq * shape.keys * width..];
            let listed = || self.listed(place).map(|row| &keys[row * width..][..width]);
            let heads = zip(result.chunks_exact_mut(width), query.chunks_exact(width)).zip(sink.values);
            vectorised!({
                for ((result, query), &sink) in heads {
                    head.attend(query, listed(), sink, scale);
                    zip(&head.weights, listed()).for_each(|(&weight, key)| add_scaled(result, weight, key));
                }
            });
        });
        Some(result)
    }

    fn backward_on_host<T: HostFloat>(
        &self,
        [query, keys, sink]: [View<'_, T>; 3],
        gradient: View<'_, T>,
        wanted: [bool; 3],
    ) -> Option<[Option<Values<T>>; 3]> {
        if self.numerics != Numerics::Full {
            return None;
        }
        let shape = Shape::of(query, keys)?;
        let Shape { seq, heads, width, .. } = shape;
        let part = seq.div_ceil(PARTS) * heads * width;
        let mut of_query = Values::zeros_like(query);
        let sequences = of_query.values.par_chunks_mut(seq * heads * width).enumerate();
        let parts = sequences.flat_map(|(sequence, of_query)| {
            of_query.par_chunks_mut(part).enumerate().map(move |(index, of_query)| {
                let first = sequence * seq + index * part / (heads * width);
                let keys = &keys.values[sequence * shape.keys * width..][..shape.keys * width];
                let operands = Operands { query: query.values, keys, sink: sink.values, gradient: gradient.values };
                (sequence, vectorised!(self.backward_of_part(shape, first, operands, of_query)))
            })
        });
        let parts: Vec<(usize, PartGradients<T>)> = parts.collect();

        let (mut of_keys, mut of_sink) = (Values::zeros_like(keys), Values::zeros_like(sink));
        for (sequence, part) in parts {
            add_scaled(
                &mut of_keys.values[sequence * shape.keys * width..][..shape.keys * width],
                T::one(),
                &part.keys,
            );
            add_scaled(&mut of_sink.values, T::one(), &part.sink);
        }
        Some([wanted[0].then_some(of_query), wanted[1].then_some(of_keys), wanted[2].then_some(of_sink)])
    }
}

/// What a part of a sequence is computed from.
#[derive(Clone, Copy)]
struct Operands<'a, T> {
    /// Of all sequences, `[B*S, H, d]`.
    query: &'a [T],
    /// Of this sequence, `[N, d]`.
    keys: &'a [T],
    sink: &'a [T],
    /// Of all sequences, `[B*S, H, d]`.
    gradient: &'a [T],
}

/// What the queries of a part add to the gradients of what they share.
struct PartGradients<T> {
    /// `[N, d]`
    keys: Vec<T>,
    /// `[H]`
    sink: Vec<T>,
}

impl SparseAttention {
    /// The gradients of the queries from `first` on, which are written, and their part of the others.
    #[inline(always)]
    fn backward_of_part<T: HostFloat>(
        &self,
        shape: Shape,
        first: usize,
        operands: Operands<'_, T>,
        of_query: &mut [T],
    ) -> PartGradients<T> {
        let Shape { heads, width, keys, .. } = shape;
        let scale = T::of(scale(width));
        let mut sums = PartGradients { keys: vec![T::zero(); keys * width], sink: vec![T::zero(); heads] };
        let (mut head, mut by_entry) = (Head::new(), Vec::new());
        for (index, of_query) in of_query.chunks_exact_mut(heads * width).enumerate() {
            let place = first + index;
            let rows = self.listed(place);
            let listed = || rows.clone().map(|row| &operands.keys[row * width..][..width]);
            for (number, of_query) in of_query.chunks_exact_mut(width).enumerate() {
                let at = (place * heads + number) * width;
                let (query, gradient) = (&operands.query[at..][..width], &operands.gradient[at..][..width]);
                head.attend(query, listed(), operands.sink[number], scale);
                by_entry.clear();
                by_entry.extend(listed().map(|key| dot(gradient, key)));
                // The gradient times the result.
                let by_result = dot(&head.weights, &by_entry);
                sums.sink[number] = sums.sink[number] - head.sink * by_result;
                for ((row, &weight), &along) in rows.clone().zip(&head.weights).zip(&by_entry) {
                    let score = weight * (along - by_result) * scale;
                    add_scaled(of_query, score, &operands.keys[row * width..][..width]);
                    let of_key = &mut sums.keys[row * width..][..width];
                    add_scaled(of_key, weight, gradient);
                    add_scaled(of_key, score, query);
                }
            }
        }
        sums
    }
}
