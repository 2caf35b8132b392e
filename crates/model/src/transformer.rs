use burn::{
    module::Module,
    tensor::{DType, Tensor, TensorData, backend::Backend},
};
use dsv41_config::{Config, ExpertStorage, Storage, Topology};

use crate::{
    Call, LogitsOf, LowRank, ModelBackend, ModelError, Selections, StreamPoint,
    block::Block,
    cache::Cache,
    documents,
    engram::{Engram, NgramHasher},
    hyper_connection::collapse,
    linear::{Linear, LinearInput},
    norm::RmsNorm,
    parameters::Parameter,
    pass::Pass,
    table::Table,
    weights::{LoadOptions, Loader, WeightSource},
};

/// The text model: embedding, layers, head.
#[derive(Module, Debug)]
pub struct Transformer<B: Backend> {
    /// `[vocab, D]`
    pub embed: Table<B>,
    /// The layers, first to last.
    pub layers: Vec<Layer<B>>,
    /// Norm before the head.
    pub norm: RmsNorm<B>,
    /// `[D, vocab]`, in f32.
    pub head: Linear<B>,
    #[module(skip)]
    shape: ModelShape,
}

/// One layer: an engram where it has one, and a block.
#[derive(Module, Debug)]
pub struct Layer<B: Backend> {
    /// Changes the stream before the block.
    pub engram: Option<Engram<B>>,
    /// Attention and feed-forward.
    pub block: Block<B>,
}

/// What a model knows of itself besides its parameters.
#[derive(Debug, Clone)]
struct ModelShape {
    config: Config,
    topology: Topology,
    hasher: NgramHasher,
    dtype: DType,
    parameters: Vec<Parameter>,
}

/// The residual stream `[B, S, C, D]` and the weights `[B, S, C]` that the next sublayer collapses it with.
pub(crate) type Stream<B> = (Tensor<B, 4>, Tensor<B, 3>);

/// What a call gives.
#[derive(Debug, Clone)]
pub struct Output<B: Backend> {
    /// `[B, S, vocab]`, or `[B, 1, vocab]` where the last position's alone were asked for.
    pub logits: Tensor<B, 3>,
    /// What each layer's own scores chose, also where other choices were handed in.
    pub selections: Selections,
}

/// What a call gives before the head.
#[derive(Debug, Clone)]
pub struct States<B: Backend> {
    /// The head's input `[B, S, D]`, or `[B, 1, D]` where the last position's alone was asked for.
    pub x: Tensor<B, 3>,
    /// What each layer's own scores chose, also where other choices were handed in.
    pub selections: Selections,
}

impl<B: ModelBackend> Transformer<B> {
    /// Builds the model of `config` from `source`'s weights on `device`. `token_map` gives each token's id in the engram's
    /// compressed vocabulary; the identity where absent.
    ///
    /// # Errors
    /// When the configuration breaks a rule or a weight is missing or has other axes.
    pub fn load(
        config: &Config,
        source: &dyn WeightSource,
        token_map: Option<Vec<u32>>,
        device: &B::Device,
        options: LoadOptions,
    ) -> Result<Self, ModelError> {
        config.validate()?;
        let topology = config.topology();
        let from = Loader::new(source, device, options);
        let dense = match config.dtype {
            Storage::Bf16 => LinearInput::Plain,
            Storage::Fp8 => LinearInput::Fp8,
        };
        let routed = match config.expert_dtype {
            None => dense,
            Some(ExpertStorage::Fp4 | ExpertStorage::Fp8) => LinearInput::Fp8,
        };
        let layers = topology.layers().iter().map(|place| {
            let from = from.at("layers").at(place.layer);
            Ok(Layer {
                engram: place.engram.map(|slot| Engram::load(&from, config, slot, dense)).transpose()?,
                block: Block::load(&from, config, place, dense, routed)?,
            })
        });
        Ok(Self {
            embed: Table::load(&from, "embed", [config.vocab_size, config.dim])?,
            layers: layers.collect::<Result<_, ModelError>>()?,
            norm: RmsNorm::load(&from, "norm", config.dim, config.norm_eps)?,
            head: Linear::load(&from, "head", [config.dim, config.vocab_size], LinearInput::Plain)?,
            shape: ModelShape {
                config: config.clone(),
                topology,
                hasher: NgramHasher::new(config, token_map)?,
                dtype: options.dtype,
                parameters: from.parameters(),
            },
        })
    }

    /// The model's configuration.
    pub fn config(&self) -> &Config {
        &self.shape.config
    }

    /// The linear layers, in the order of the graph.
    pub fn linears(&self) -> Vec<&Linear<B>> {
        let mut linears = Vec::new();
        for layer in &self.layers {
            linears.extend(layer.engram.iter().map(|engram| &engram.wkv));
            linears.extend(layer.block.attn.linears());
            linears.extend(layer.block.ffn.linears());
        }
        linears.push(&self.head);
        linears
    }

    /// The linear layers, in the order of the graph.
    pub fn linears_mut(&mut self) -> Vec<&mut Linear<B>> {
        let mut linears = Vec::new();
        for layer in &mut self.layers {
            linears.extend(layer.engram.iter_mut().map(|engram| &mut engram.wkv));
            linears.extend(layer.block.attn.linears_mut());
            linears.extend(layer.block.ffn.linears_mut());
        }
        linears.push(&mut self.head);
        linears
    }

    /// Stops everything from training, adapters so far included: what [`Self::adapt`] adds from now on trains alone, and
    /// [`Self::parameters`] lists nothing else.
    pub fn freeze(&mut self) {
        // Parameters change by being mapped; a clone shares their values.
        *self = self.clone().no_grad();
        self.linears_mut().into_iter().flat_map(|linear| &mut linear.adapters).for_each(|it| it.set_dropout(None));
        self.shape.parameters.clear();
    }

    /// Adds an adapter to every linear layer for which `make` has one, besides those already there. Its parameters
    /// replace earlier ones of the same layer in [`Self::parameters`]: only the last adapter of a layer trains, and the
    /// earlier ones stop requiring gradients.
    pub fn adapt<E>(&mut self, mut make: impl FnMut(&Linear<B>) -> Result<Option<LowRank<B>>, E>) -> Result<(), E> {
        let made = self.linears().into_iter().map(&mut make).collect::<Result<Vec<_>, E>>()?;
        let mut parameters = std::mem::take(&mut self.shape.parameters);
        for (linear, adapter) in self.linears_mut().into_iter().zip(made) {
            let Some(adapter) = adapter else { continue };
            let new = adapter.parameters(linear.name());
            parameters.retain(|parameter| new.iter().all(|new| new.id != parameter.id));
            parameters.extend(new);
            let earlier = std::mem::take(&mut linear.adapters).into_iter().enumerate();
            linear.adapters = earlier.map(|(place, adapter)| adapter.retire(linear.name(), place)).collect();
            linear.adapters.push(adapter);
        }
        self.shape.parameters = parameters;
        Ok(())
    }

    /// Who reads from whom.
    pub(crate) fn topology(&self) -> &Topology {
        &self.shape.topology
    }

    /// What is known of the parameters, in the order of loading, or since [`Self::freeze`]. Packed matrices and tables read
    /// by row have none.
    pub fn parameters(&self) -> &[Parameter] {
        &self.shape.parameters
    }

    /// Runs `tokens`, one row a sequence, all of one length. With a cache they follow what it holds and join it; without
    /// one they are whole sequences. A call that fails leaves the cache as it was.
    ///
    /// # Errors
    /// Empty or ragged rows, ids outside the vocabulary, a cache of another batch or model, more positions than fit,
    /// selections that do not fit the call.
    pub fn forward<'a>(
        &self,
        tokens: &[Vec<u32>],
        cache: Option<&'a mut Cache<B>>,
        call: Call<'a, B>,
    ) -> Result<Output<B>, ModelError> {
        let mut pass = self.pass(tokens, cache, call)?;
        let x = self.run(tokens, &mut pass)?;
        let logits = self.head.forward_unrounded(x, pass.numerics);
        pass.record(None, "logits_full", &logits);
        Ok(Output { logits, selections: pass.chosen })
    }

    /// [`Self::forward`] up to the head's input, for losses that take the head apart.
    ///
    /// # Errors
    /// As [`Self::forward`].
    pub fn forward_states<'a>(
        &self,
        tokens: &[Vec<u32>],
        cache: Option<&'a mut Cache<B>>,
        call: Call<'a, B>,
    ) -> Result<States<B>, ModelError> {
        let mut pass = self.pass(tokens, cache, call)?;
        let x = self.run(tokens, &mut pass)?;
        Ok(States { x, selections: pass.chosen })
    }

    /// A call that has been checked.
    pub(crate) fn pass<'a>(
        &self,
        tokens: &[Vec<u32>],
        cache: Option<&'a mut Cache<B>>,
        call: Call<'a, B>,
    ) -> Result<Pass<'a, B>, ModelError> {
        let config = self.config();
        let [batch, seq] = check_tokens(tokens, config.vocab_size)?;
        let start = check_cache(cache.as_deref(), config, batch, seq)?;
        if let Some(selections) = call.selections {
            selections.check(config, &self.shape.topology, [batch, seq], start)?;
        }
        if let Some(starts) = call.documents {
            documents::check(starts, &self.shape.topology, [batch, seq], cache.is_some())?;
        }
        let device = self.norm.weight.device();
        Ok(Pass::new(config, [batch, seq], cache, call, device, self.shape.dtype))
    }

    /// Tokens to the head's input. The cache takes note of them once nothing can fail any more.
    fn run(&self, tokens: &[Vec<u32>], pass: &mut Pass<'_, B>) -> Result<Tensor<B, 3>, ModelError> {
        let engram_rows = self.engram_rows(tokens, pass);
        let mut stream = self.begin(tokens, pass)?;
        for index in 0..self.layers.len() {
            stream = self.layer(index, stream, &engram_rows, pass)?;
        }
        let x = self.finish(stream, pass);
        if let Some(cache) = &mut pass.cache {
            cache.advance(tokens);
        }
        Ok(x)
    }

    /// One layer: its engram where it has one, and its block.
    pub(crate) fn layer(
        &self,
        index: usize,
        (mut h, mut pre_mix): Stream<B>,
        engram_rows: &[Vec<i64>],
        pass: &mut Pass<'_, B>,
    ) -> Result<Stream<B>, ModelError> {
        let layer = &self.layers[index];
        if let (Some(engram), Some(slot)) = (&layer.engram, self.shape.topology.layers()[index].engram) {
            (h, pre_mix) = pass.stream(index, StreamPoint::Engram, h, pre_mix);
            pass.record(index, "engram_in", &h);
            let rows = &engram_rows[slot];
            let shape = [pass.batch, pass.seq, self.shape.hasher.slots(slot)];
            pass.record_host(index, "engram_hash_ids", || TensorData::new(rows.clone(), shape));
            h = engram.forward(h, rows, index, pass)?;
            pass.record(index, "engram_out", &h);
        }
        (h, pre_mix) = pass.stream(index, StreamPoint::Block, h, pre_mix);
        pass.record(index, "h_in", &h);
        pass.record(index, "pre_mix_in", &pre_mix);
        let next = self.layers.get(index + 1).map(|layer| &layer.block);
        (h, pre_mix) = layer.block.forward(h, pre_mix, index, next, pass);
        pass.record(index, "h_out", &h);
        pass.record(index, "pre_mix_out", &pre_mix);
        Ok((h, pre_mix))
    }

    /// The stream `[B, S, C, D]`, C copies of the embeddings, and collapse weights that take copy 0.
    pub(crate) fn begin(&self, tokens: &[Vec<u32>], pass: &mut Pass<'_, B>) -> Result<Stream<B>, ModelError> {
        let (batch, seq, copies) = (pass.batch, pass.seq, self.config().hc_mult);
        let ids: Vec<i64> = tokens.iter().flatten().map(|&id| i64::from(id)).collect();
        let embedded = self.embed.look_up(&ids, &pass.device, pass.dtype)?.reshape([batch, seq, self.config().dim]);
        pass.record(None, "embed", &embedded);
        let h = embedded.unsqueeze_dim::<4>(2).repeat_dim(2, copies);

        let options = (&pass.device, pass.dtype);
        let first = Tensor::ones([batch, seq, 1], options);
        let pre_mix = match copies {
            1 => first,
            _ => Tensor::cat(vec![first, Tensor::zeros([batch, seq, copies - 1], options)], 2),
        };
        Ok((h, pre_mix))
    }

    /// The table rows of every engram, by its place in the configuration. They follow from the tokens alone, so slow
    /// tables can begin to read them before the first layer runs.
    pub(crate) fn engram_rows(&self, tokens: &[Vec<u32>], pass: &Pass<'_, B>) -> Vec<Vec<i64>> {
        let hasher = &self.shape.hasher;
        let sequences = with_history(tokens, pass.cache.as_deref());
        let context = sequences[0].len() - pass.seq;
        let rows = |slot| {
            let of_sequence = |(row, sequence): (usize, &Vec<Option<u32>>)| {
                let of_document = |document: &[usize]| {
                    // Without a cache, so that positions in the call and in the sequence are the same.
                    let (first, last) = (document[0], document[document.len() - 1]);
                    hasher.rows(slot, &sequence[first..=last], 0)
                };
                match pass.documents.starts() {
                    None => hasher.rows(slot, sequence, context),
                    Some(_) => {
                        let positions: Vec<usize> = (0..pass.seq).collect();
                        let same =
                            |a: &usize, b: &usize| pass.documents.start(row, *a) == pass.documents.start(row, *b);
                        positions.chunk_by(same).flat_map(of_document).collect()
                    }
                }
            };
            sequences.iter().enumerate().flat_map(of_sequence).collect()
        };
        let rows: Vec<Vec<i64>> = (0..self.config().engram_layer_ids.len()).map(rows).collect();
        for (layer, place) in self.layers.iter().zip(self.shape.topology.layers()) {
            if let (Some(engram), Some(slot)) = (&layer.engram, place.engram) {
                engram.embed.prefetch(&rows[slot]);
            }
        }
        rows
    }

    /// Collapses with the last layer's mix, and norms: the head's input.
    pub(crate) fn finish(&self, (h, pre_mix): Stream<B>, pass: &mut Pass<'_, B>) -> Tensor<B, 3> {
        let numerics = pass.numerics;
        let (h, pre_mix) = match pass.logits {
            LogitsOf::Every => (h, pre_mix),
            LogitsOf::Last => (h.narrow(1, pass.seq - 1, 1), pre_mix.narrow(1, pass.seq - 1, 1)),
        };
        let x = collapse(h, pre_mix, numerics);
        pass.record(None, "h_final", &x);
        let x = self.norm.forward(x, numerics);
        pass.record(None, "head_in", &x);
        x
    }
}

fn check_tokens(tokens: &[Vec<u32>], vocab: usize) -> Result<[usize; 2], ModelError> {
    let seq = tokens.first().map_or(0, Vec::len);
    if seq == 0 {
        return Err(ModelError::NoTokens);
    }
    for (row, sequence) in tokens.iter().enumerate() {
        if sequence.len() != seq {
            return Err(ModelError::RaggedBatch { row, found: sequence.len(), expected: seq });
        }
        if let Some(position) = sequence.iter().position(|&id| id as usize >= vocab) {
            return Err(ModelError::TokenOutOfRange { id: sequence[position], row, position, vocab });
        }
    }
    Ok([tokens.len(), seq])
}

/// The position at which the call starts.
fn check_cache<B: Backend>(
    cache: Option<&Cache<B>>,
    config: &Config,
    batch: usize,
    seq: usize,
) -> Result<usize, ModelError> {
    let (start, capacity) = match cache {
        None => (0, config.max_seq_len),
        Some(cache) => {
            if cache.batch() != batch {
                return Err(ModelError::BatchMismatch { found: batch, expected: cache.batch() });
            }
            if cache.layers.len() != config.n_layers {
                return Err(ModelError::CacheMismatch { found: cache.layers.len(), expected: config.n_layers });
            }
            (cache.len(), cache.capacity())
        }
    };
    if start + seq > capacity {
        return Err(ModelError::ContextExceeded { asked: start + seq, capacity });
    }
    Ok(start)
}

/// Each sequence's new tokens behind what the cache remembers of it.
fn with_history<B: Backend>(tokens: &[Vec<u32>], cache: Option<&Cache<B>>) -> Vec<Vec<Option<u32>>> {
    tokens
        .iter()
        .enumerate()
        .map(|(row, new)| {
            let before = cache.map_or(&[][..], |cache| &cache.history[row]);
            before.iter().chain(new).map(|&token| Some(token)).collect()
        })
        .collect()
}
