//! Attention of queries to lists of keys: the window, and chosen compressed positions.

use anyhow::Result;
use burn::tensor::{DType, Tensor};
use clap::Args;
use dsv41::{
    LogitsOf, ModelBackend, NONE, Numerics,
    attention::{
        sparse::{KeyLists, sparse_attention},
        window::{previous_keys, window_positions},
    },
};
use dsv41_config::Config;

use super::{PartArgs, Stand};
use crate::bench::{
    model::BenchModel,
    session::{Measured, Session},
    work::Span,
};
use crate::device::{DeviceTask, Precision};

/// How much to attend to.
#[derive(Debug, Args)]
pub(in crate::bench) struct SparseAttentionArgs {
    #[command(flatten)]
    part: PartArgs,
    /// Tokens before the queries.
    #[arg(long, value_name = "N", default_value_t = 0)]
    context: usize,
}

/// Times attention in layers of each ratio that the model has.
pub(in crate::bench) fn run(args: &SparseAttentionArgs) -> Result<()> {
    let part = &args.part;
    let model = BenchModel::open(&part.model)?;
    part.check(args.context, model.config())?;
    let numerics = Some(part.model.numerics.to_string());
    let mut session = Session::begin("sparse-attention", &part.devices, Some(model.record()), numerics)?;
    for device in session.devices() {
        session.announce(device, "attention");
        for measured in device.dispatch(Precision::F32, Steps { args, model: &model })?? {
            session.add(device, measured);
        }
    }
    session.print_table();
    session.conclude(&part.output)
}

struct Steps<'a> {
    args: &'a SparseAttentionArgs,
    model: &'a BenchModel,
}

impl DeviceTask for Steps<'_> {
    type Output = Result<Vec<Measured>>;

    fn run<B: ModelBackend>(self, device: B::Device, dtype: DType) -> Self::Output {
        let SparseAttentionArgs { part, context } = self.args;
        let (config, counter) = (self.model.config(), self.model.counter());
        let stand = Stand::<B> { device: device.clone(), dtype, repeats: part.repeats.repeats };
        let numerics = Numerics::from(part.model.numerics);
        let sink: Tensor<B, 1> = stand.tensor("bench/sink", [config.n_heads]);
        let mut measured = Vec::new();
        for &length in &part.lengths {
            let query: Tensor<B, 4> = stand.tensor("bench/query", [1, length, config.n_heads, config.head_dim]);
            for ratio in ratios(config) {
                let span = Span { batch: 1, start: *context, tokens: length, logits: LogitsOf::Every };
                let (lists, count) = key_lists(config, span, ratio);
                let keys: Tensor<B, 3> = stand.tensor("bench/keys", [1, count, config.head_dim]);
                let step = if ratio == 0 { "window".to_owned() } else { format!("ratio {ratio}") };
                let work = counter.sparse_attention(span, ratio);
                measured.push(stand.time([&step, &length.to_string()], length, work, || {
                    Ok(sparse_attention(query.clone(), keys.clone(), &lists, sink.clone(), numerics, true))
                })?);
            }
        }
        Ok(measured)
    }
}

/// The ratios of the model's layers, ascending.
fn ratios(config: &Config) -> Vec<usize> {
    let mut ratios: Vec<usize> = config.topology().layers().iter().map(|layer| layer.ratio).collect();
    ratios.sort_unstable();
    ratios.dedup();
    ratios
}

/// The keys of each query, as the model lists them, with compressed positions from all of those that it sees; and how many
/// keys there are.
fn key_lists(config: &Config, span: Span, ratio: usize) -> (KeyLists, usize) {
    let Span { start, tokens, .. } = span;
    let before = previous_keys(start, config.window_size);
    let positions = (start + tokens).checked_div(ratio).unwrap_or(0);
    let chosen = config.index_topk.min(positions);
    let window = window_positions(start, tokens, config.window_size, |_| 0);
    let width = window.len() / tokens;
    let mut rows = Vec::with_capacity(tokens * (width + chosen));
    for (query, window) in window.chunks_exact(width).enumerate() {
        let row = |&position: &i64| if position == NONE { NONE } else { position - (start - before) as i64 };
        rows.extend(window.iter().map(row));
        let visible = (start + query + 1).checked_div(ratio).unwrap_or(0);
        let count = chosen.min(visible);
        rows.extend((0..count).map(|place| (before + tokens + place * visible / count) as i64));
        rows.extend(std::iter::repeat_n(NONE, chosen - count));
    }
    (KeyLists { rows, width: width + chosen }, before + tokens + positions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{
        model::open_config,
        work::{Counter, Widths},
    };

    #[test]
    fn lists_hold_what_is_counted() {
        let config = open_config("small").unwrap();
        let counter = Counter::new(&config, Widths::f32());
        for (start, tokens) in [(0, 1), (0, 200), (777, 1), (300, 40)] {
            for ratio in ratios(&config) {
                let span = Span { batch: 1, start, tokens, logits: LogitsOf::Every };
                let (lists, keys) = key_lists(&config, span, ratio);
                assert_eq!(lists.rows.len(), tokens * lists.width);
                let listed = lists.rows.iter().filter(|&&row| row != NONE).count();
                let heads = config.n_heads * config.head_dim;
                assert_eq!(counter.sparse_attention(span, ratio).operations, (4 * heads * listed) as u64);
                assert!(lists.rows.iter().all(|&row| row < keys as i64));
                for list in lists.rows.chunks_exact(lists.width) {
                    let mut once: Vec<i64> = list.iter().copied().filter(|&row| row != NONE).collect();
                    once.dedup();
                    assert_eq!(once.len(), list.iter().filter(|&&row| row != NONE).count());
                    assert!(once.is_sorted());
                }
            }
        }
        assert_eq!(ratios(&config), [0, 1, 2]);
    }
}
