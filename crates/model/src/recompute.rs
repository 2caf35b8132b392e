//! Gradients block by block: the forward pass keeps each layer's input alone, and the backward pass runs one layer at a
//! time again, with its graph, from the last to the first.

use std::collections::BTreeMap;

use burn::{
    module::{AutodiffModule as _, Module, ModuleVisitor, Param},
    optim::GradientsParams,
    tensor::{Tensor, backend::AutodiffBackend},
};
use dsv41_ops::is_tracked;

use crate::{
    Call, ModelBackend, ModelError, Numerics, Objective, Selections, Switches, Transformer, cache::StreamView,
};

/// How to make a call whose gradients are taken block by block: [`Call`] without what such a call cannot have.
#[derive(Debug, Clone, Copy, Default)]
pub struct BlockCall<'a> {
    /// Where to round.
    pub numerics: Numerics,
    /// Quirks of the released code to reproduce.
    pub switches: Switches,
    /// Choices to force; parts left out are chosen as usual.
    pub selections: Option<&'a Selections>,
    /// As [`Call::documents`].
    pub documents: Option<&'a [Vec<usize>]>,
}

impl<B> Transformer<B>
where
    B: ModelBackend + AutodiffBackend,
    B::InnerBackend: ModelBackend,
{
    /// The gradients of a loss of whole sequences.
    ///
    /// `loss` takes the head's input `[B, S, D]` to the loss, whose terms from `objective` come in addition. The graph of
    /// one layer exists at a time; besides it, every layer's input and the compressed streams are kept.
    ///
    /// # Errors
    /// As [`Transformer::forward`], and what `loss` gives.
    pub fn gradients_by_block<E: From<ModelError>>(
        &self,
        tokens: &[Vec<u32>],
        call: BlockCall<'_>,
        objective: &mut dyn Objective<B>,
        loss: impl FnOnce(Tensor<B, 3>) -> Result<Tensor<B, 1>, E>,
    ) -> Result<GradientsParams, E> {
        let forward = Forward::run(&self.valid(), tokens, call)?;
        let again = Call {
            numerics: call.numerics,
            switches: call.switches,
            selections: Some(&forward.selections),
            documents: call.documents,
            objective: Some(objective),
            ..Call::default()
        };
        let mut pass = self.pass(tokens, None, again)?;
        pass.repeats = true;
        let topk = |(&layer, chosen): (&usize, &crate::LayerSelections)| Some((layer, chosen.topk.clone()?));
        pass.topk = forward.selections.layers.iter().filter_map(topk).collect();
        let engram_rows = self.engram_rows(tokens, &pass);
        let mut gathered = Gathered { gradients: GradientsParams::new() };

        let (h, pre_mix) = (leaf(forward.last.0), leaf(forward.last.1));
        let x = self.finish((h.clone(), pre_mix.clone()), &mut pass);
        let mut gradients = loss(x)?.backward();
        gathered.take(&self.norm, &mut gradients);
        gathered.take(&self.head, &mut gradients);
        let mut upstream = (h.grad_remove(&mut gradients), pre_mix.grad_remove(&mut gradients));
        let mut streams = StreamGradients::default();

        let places = self.topology().layers();
        for (index, (h, pre_mix)) in forward.inputs.into_iter().enumerate().rev() {
            let (h, pre_mix) = (leaf(h), leaf(pre_mix));
            let borrowed = places[index].kv_source.filter(|&source| source != index);
            if let Some(source) = borrowed
                && let Some(stream) = forward.streams.get(&source)
            {
                let stream = StreamView { latents: leaf(stream.latents.clone()), keys: leaf(stream.keys.clone()) };
                pass.streams.insert(source, stream);
            }
            let (h_out, pre_mix_out) = self.layer(index, (h.clone(), pre_mix.clone()), &engram_rows, &mut pass)?;

            let mut terms = vec![along(h_out, upstream.0), along(pre_mix_out, upstream.1)];
            if places[index].owns_stream()
                && let Some(stream) = pass.streams.get(&index)
            {
                let (latents, keys) = streams.remove(index);
                terms.extend([along(stream.latents.clone(), latents), along(stream.keys.clone(), keys)]);
            }
            let own = pass.objective.as_mut().and_then(|objective| objective.take_loss());
            terms.push(own);
            let sum = terms.into_iter().flatten().reduce(|sum, term| sum + term);
            let Some(sum) = sum else {
                upstream = (None, None);
                continue;
            };
            let mut gradients = sum.backward();
            gathered.take(&self.layers[index], &mut gradients);
            if let Some(objective) = &mut pass.objective {
                objective.backward(&|rows| rows.grad(&gradients).map(|gradient| gradient.into_data()));
            }
            if let Some(source) = borrowed
                && let Some(stream) = pass.streams.get(&source)
            {
                streams.add(source, stream, &mut gradients);
            }
            upstream = (h.grad_remove(&mut gradients), pre_mix.grad_remove(&mut gradients));
        }

        let (h, _) = self.begin(tokens, &mut pass)?;
        if is_tracked(&h)
            && let Some(sum) = along(h, upstream.0)
        {
            gathered.take(&self.embed, &mut sum.backward());
        }
        Ok(gathered.gradients)
    }
}

/// What the pass without a graph leaves.
struct Forward<B: burn::tensor::backend::Backend> {
    /// The stream that each layer takes up.
    inputs: Vec<(Tensor<B, 4>, Tensor<B, 3>)>,
    last: (Tensor<B, 4>, Tensor<B, 3>),
    streams: BTreeMap<usize, StreamView<B>>,
    /// All that was in force.
    selections: Selections,
}

impl<B: ModelBackend> Forward<B> {
    fn run(model: &Transformer<B>, tokens: &[Vec<u32>], call: BlockCall<'_>) -> Result<Self, ModelError> {
        let BlockCall { numerics, switches, selections, documents } = call;
        let mut pass =
            model.pass(tokens, None, Call { numerics, switches, selections, documents, ..Call::default() })?;
        let engram_rows = model.engram_rows(tokens, &pass);
        let mut stream = model.begin(tokens, &mut pass)?;
        let mut inputs = Vec::with_capacity(model.layers.len());
        for index in 0..model.layers.len() {
            inputs.push(stream.clone());
            stream = model.layer(index, stream, &engram_rows, &mut pass)?;
        }
        let mut in_force = pass.chosen;
        for (&layer, forced) in selections.into_iter().flat_map(|selections| &selections.layers) {
            let own = in_force.layer_mut(layer);
            own.topk = forced.topk.clone().or(own.topk.take());
            own.candidates = forced.candidates.clone().or(own.candidates.take());
            own.experts = forced.experts.clone().or(own.experts.take());
        }
        Ok(Self { inputs, last: stream, streams: pass.streams, selections: in_force })
    }
}

fn leaf<B: AutodiffBackend, const D: usize>(x: Tensor<B::InnerBackend, D>) -> Tensor<B, D> {
    Tensor::from_inner(x).require_grad()
}

/// A number whose gradient with respect to `x` is `gradient`.
fn along<B: AutodiffBackend, const D: usize>(
    x: Tensor<B, D>,
    gradient: Option<Tensor<B::InnerBackend, D>>,
) -> Option<Tensor<B, 1>> {
    gradient.map(|gradient| (x * Tensor::from_inner(gradient)).sum())
}

/// A gradient `[B, T, width]`, outside of every graph.
type RowGradient<B> = Tensor<<B as AutodiffBackend>::InnerBackend, 3>;

/// Gradients of streams, from the layers that read them, by source.
struct StreamGradients<B: AutodiffBackend> {
    latents: BTreeMap<usize, RowGradient<B>>,
    keys: BTreeMap<usize, RowGradient<B>>,
}

impl<B: AutodiffBackend> Default for StreamGradients<B> {
    fn default() -> Self {
        Self { latents: BTreeMap::new(), keys: BTreeMap::new() }
    }
}

impl<B: AutodiffBackend> StreamGradients<B> {
    fn add(&mut self, source: usize, stream: &StreamView<B>, gradients: &mut B::Gradients) {
        for (sums, leaf) in [(&mut self.latents, &stream.latents), (&mut self.keys, &stream.keys)] {
            if let Some(gradient) = leaf.grad_remove(gradients) {
                let sum = match sums.remove(&source) {
                    Some(sum) => sum + gradient,
                    None => gradient,
                };
                sums.insert(source, sum);
            }
        }
    }

    /// Those of the latents and of the keys.
    fn remove(&mut self, source: usize) -> (Option<RowGradient<B>>, Option<RowGradient<B>>) {
        (self.latents.remove(&source), self.keys.remove(&source))
    }
}

/// Gradients of parameters, from one graph after another.
struct Gathered {
    gradients: GradientsParams,
}

impl Gathered {
    /// Moves those of a module's parameters over.
    fn take<B: AutodiffBackend, M: Module<B>>(&mut self, module: &M, from: &mut B::Gradients) {
        module.visit(&mut Take::<B> { from, to: &mut self.gradients });
    }
}

struct Take<'a, B: AutodiffBackend> {
    from: &'a mut B::Gradients,
    to: &'a mut GradientsParams,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Take<'_, B> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if let Some(gradient) = param.val().grad_remove(self.from) {
            self.to.register::<B::InnerBackend, D>(param.id, gradient);
        }
    }
}
