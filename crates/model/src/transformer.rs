use burn::{
    module::{Module, Param},
    tensor::{DType, Tensor, TensorData, backend::Backend},
};
use dsv41_config::{Config, ExpertStorage, Storage, Topology};

use crate::{
    Call, ModelError, Selections, StreamPoint,
    block::Block,
    cache::Cache,
    engram::{Engram, NgramHasher},
    hyper_connection::collapse,
    linear::{Linear, LinearInput},
    norm::RmsNorm,
    pass::Pass,
    weights::{Loader, WeightSource},
};

/// The text model: embedding, layers, head.
#[derive(Module, Debug)]
pub struct Transformer<B: Backend> {
    /// `[vocab, D]`
    pub embed: Param<Tensor<B, 2>>,
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
}

/// What a call gives.
#[derive(Debug, Clone)]
pub struct Output<B: Backend> {
    /// `[B, S, vocab]`
    pub logits: Tensor<B, 3>,
    /// What each layer's own scores chose, also where other choices were handed in.
    pub selections: Selections,
}

impl<B: Backend> Transformer<B> {
    /// Builds the model of `config` from `source`'s weights, on `device`, in `dtype` (f32, or f64 where the backend has
    /// it). `token_map` gives each token's id in the engram's compressed vocabulary; the identity where absent.
    ///
    /// # Errors
    /// When the configuration breaks a rule or a weight is missing or has other axes.
    pub fn load(
        config: &Config,
        source: &dyn WeightSource,
        token_map: Option<Vec<u32>>,
        device: &B::Device,
        dtype: DType,
    ) -> Result<Self, ModelError> {
        config.validate()?;
        let topology = config.topology();
        let from = Loader::new(source, device, dtype);
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
            embed: from.param("embed.weight", [config.vocab_size, config.dim])?,
            layers: layers.collect::<Result<_, ModelError>>()?,
            norm: RmsNorm::load(&from, "norm", config.dim, config.norm_eps)?,
            head: Linear::load(&from, "head", [config.dim, config.vocab_size], LinearInput::Plain)?,
            shape: ModelShape { config: config.clone(), topology, hasher: NgramHasher::new(config, token_map)?, dtype },
        })
    }

    /// The model's configuration.
    pub fn config(&self) -> &Config {
        &self.shape.config
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
        let config = self.config();
        let [batch, seq] = check_tokens(tokens, config.vocab_size)?;
        let start = check_cache(cache.as_deref(), config, batch, seq)?;
        if let Some(selections) = call.selections {
            selections.check(config, &self.shape.topology, [batch, seq], start)?;
        }
        let sequences = with_history(tokens, cache.as_deref());
        let context = sequences[0].len() - seq;

        let mut pass = Pass::new(config, [batch, seq], cache, call, self.embed.device(), self.shape.dtype);
        let (mut h, mut pre_mix) = self.begin(tokens, &mut pass);
        for (index, (layer, place)) in self.layers.iter().zip(self.shape.topology.layers()).enumerate() {
            if let (Some(engram), Some(slot)) = (&layer.engram, place.engram) {
                (h, pre_mix) = pass.stream(index, StreamPoint::Engram, h, pre_mix);
                pass.record(index, "engram_in", &h);
                let hasher = &self.shape.hasher;
                let rows: Vec<i64> =
                    sequences.iter().flat_map(|sequence| hasher.rows(slot, sequence, context)).collect();
                pass.record_host(index, "engram_hash_ids", || {
                    TensorData::new(rows.clone(), [batch, seq, hasher.slots(slot)])
                });
                h = engram.forward(h, &rows, index, &mut pass);
                pass.record(index, "engram_out", &h);
            }
            (h, pre_mix) = pass.stream(index, StreamPoint::Block, h, pre_mix);
            pass.record(index, "h_in", &h);
            pass.record(index, "pre_mix_in", &pre_mix);
            (h, pre_mix) = layer.block.forward(h, pre_mix, index, &mut pass);
            pass.record(index, "h_out", &h);
            pass.record(index, "pre_mix_out", &pre_mix);
        }
        let logits = self.finish(h, pre_mix, &mut pass);
        let Pass { chosen: selections, cache, .. } = pass;
        if let Some(cache) = cache {
            cache.advance(tokens);
        }
        Ok(Output { logits, selections })
    }

    /// The stream `[B, S, C, D]`, C copies of the embeddings, and collapse weights that take copy 0.
    fn begin(&self, tokens: &[Vec<u32>], pass: &mut Pass<'_, B>) -> (Tensor<B, 4>, Tensor<B, 3>) {
        let (batch, seq, copies) = (pass.batch, pass.seq, self.config().hc_mult);
        let ids: Vec<i64> = tokens.iter().flatten().map(|&id| i64::from(id)).collect();
        let ids = Tensor::from_data(TensorData::new(ids, [batch * seq]), &pass.device);
        let embedded = self.embed.val().select(0, ids).reshape([batch, seq, self.config().dim]);
        pass.record(None, "embed", &embedded);
        let h = embedded.unsqueeze_dim::<4>(2).repeat_dim(2, copies);

        let options = (&pass.device, pass.dtype);
        let first = Tensor::ones([batch, seq, 1], options);
        let pre_mix = match copies {
            1 => first,
            _ => Tensor::cat(vec![first, Tensor::zeros([batch, seq, copies - 1], options)], 2),
        };
        (h, pre_mix)
    }

    /// Collapses with the last layer's mix, norms, and multiplies by the head in f32.
    fn finish(&self, h: Tensor<B, 4>, pre_mix: Tensor<B, 3>, pass: &mut Pass<'_, B>) -> Tensor<B, 3> {
        let numerics = pass.numerics;
        let x = collapse(h, pre_mix, numerics);
        pass.record(None, "h_final", &x);
        let x = self.norm.forward(x, numerics);
        pass.record(None, "head_in", &x);
        let logits = self.head.forward_unrounded(x, numerics);
        pass.record(None, "logits_full", &logits);
        logits
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
