//! What attention attends, as an operation without gradients.

use std::iter::zip;

use burn::tensor::{Tensor, ops::FloatTensor};
use dsv41_ops::{
    CustomOp, CustomOps, from_primitive,
    host::{HostFloat, HostOp, Values, View},
    into_primitive, vectorised,
};
use rayon::prelude::*;

use super::{
    KeyLists,
    host::{Head, Shape},
    softmax::{Softmax, scale},
    tiles::Tiles,
};
use crate::{Numerics, selections::NONE};

/// The weights of queries `[B, S, H, d]` over keys `[B, N, d]` with a sink `[H]`, summed over heads: `[B*S, width]`.
#[derive(Debug)]
pub(super) struct SummedWeights {
    pub(super) lists: KeyLists,
    /// Numbers gathered at a time.
    pub(super) tile_elements: usize,
}

impl CustomOp<3> for SummedWeights {
    fn forward<B: CustomOps>(&self, inputs: [FloatTensor<B>; 3]) -> FloatTensor<B> {
        if let Some(weights) = B::host_forward(self, &inputs) {
            return weights;
        }
        let [query, keys, sink] = inputs;
        let softmax = Softmax::<B>::new(from_primitive(sink), Numerics::Full, false);
        let tiles = Tiles::new(from_primitive(query), from_primitive(keys), &self.lists, self.tile_elements);
        let weights = tiles.iter().map(|tile| softmax.weights(&tile).exact.sum_dim(1).squeeze_dim::<2>(1)).collect();
        into_primitive(Tensor::<B, 2>::cat(weights, 0))
    }

    fn backward<B: CustomOps>(
        &self,
        _: [FloatTensor<B>; 3],
        _: FloatTensor<B>,
        _: [bool; 3],
    ) -> [Option<FloatTensor<B>>; 3] {
        [None, None, None]
    }
}

impl HostOp<3> for SummedWeights {
    fn forward_on_host<T: HostFloat>(&self, [query, keys, sink]: [View<'_, T>; 3]) -> Option<Values<T>> {
        let shape = Shape::of(query, keys)?;
        let (seq, heads, width, listed) = (shape.seq, shape.heads, shape.width, self.lists.width);
        let queries = query.values.len() / (heads * width);
        let mut weights = vec![T::zero(); queries * listed];
        let rows = weights.par_chunks_mut(listed.max(1)).zip(query.values.par_chunks(heads * width));
        rows.enumerate().for_each_init(Head::new, |head, (place, (weights, query))| {
            let keys = &keys.values[place / seq * shape.keys * width..];
            let row = &self.lists.rows[place * listed..][..listed];
            let present = row.iter().filter(|&&key| key != NONE);
            for (query, &sink) in query.chunks_exact(width).zip(sink.values) {
                let keys = present.clone().map(|&key| &keys[key as usize * width..][..width]);
                vectorised!(head.attend(query, keys, sink, T::of(scale(width))));
                let present = zip(weights.iter_mut(), row).filter(|(_, key)| **key != NONE);
                for ((sum, _), &weight) in present.zip(&head.weights) {
                    *sum = *sum + weight;
                }
            }
        });
        Some(Values { dims: vec![queries, listed], values: weights })
    }

    fn backward_on_host<T: HostFloat>(
        &self,
        _: [View<'_, T>; 3],
        _: View<'_, T>,
        _: [bool; 3],
    ) -> Option<[Option<Values<T>>; 3]> {
        Some([None, None, None])
    }
}
