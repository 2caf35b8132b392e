//! An engram: hashes, look-up, projection, gates.

use std::time::Instant;

use anyhow::{Result, ensure};
use burn::tensor::{DType, Tensor};
use dsv41::{
    LinearInput, LoadOptions, Loader, ModelBackend, Numerics,
    engram::{Engram, NgramHasher},
};
use dsv41_config::Storage;

use super::{PartArgs, Stand};
use crate::bench::{
    model::{BenchModel, tokens},
    report::Case,
    session::{Measured, Session},
    timing::repeat,
};
use crate::device::{DeviceTask, Precision};

/// Times the model's first engram: they are alike but for their tables' rows.
pub(in crate::bench) fn run(args: &PartArgs) -> Result<()> {
    let model = BenchModel::open(&args.model)?;
    let config = model.config();
    args.check(0, config)?;
    ensure!(!config.engram_layer_ids.is_empty(), "{}: the model has no engram", args.model.config);
    model.check_memory()?;
    let numerics = Some(args.model.numerics.to_string());
    let mut session = Session::begin("engram", &args.devices, Some(model.record()), numerics)?;
    for device in session.devices() {
        session.announce(device, "an engram");
        for measured in device.dispatch(Precision::F32, Steps { args, model: &model })?? {
            session.add(device, measured);
        }
    }
    session.print_table();
    session.conclude(&args.output)
}

struct Steps<'a> {
    args: &'a PartArgs,
    model: &'a BenchModel,
}

impl DeviceTask for Steps<'_> {
    type Output = Result<Vec<Measured>>;

    fn run<B: ModelBackend>(self, device: B::Device, dtype: DType) -> Self::Output {
        let Self { args, model } = self;
        let (config, counter) = (model.config(), model.counter());
        let input = match config.dtype {
            Storage::Bf16 => LinearInput::Plain,
            Storage::Fp8 => LinearInput::Fp8,
        };
        let loader = Loader::<B>::new(model.weights(), &device, LoadOptions { dtype, ..LoadOptions::default() });
        let layer = loader.at("layers").at(config.engram_layer_ids[0]);
        let engram = Engram::load(&layer, config, 0, input)?;
        let hasher = NgramHasher::new(config, model.token_map())?;
        let stand = Stand::<B> { device: device.clone(), dtype, repeats: args.repeats.repeats };
        let numerics = Numerics::from(args.model.numerics);
        let mut measured = Vec::new();
        for &length in &args.lengths {
            let sequence: Vec<Option<u32>> =
                tokens(1, length, config.vocab_size).remove(0).into_iter().map(Some).collect();
            let rows = hasher.rows(0, &sequence, 0);
            let h = stand.tensor("bench/engram", [1, length, config.hc_mult, config.dim]);
            let look_up = |rows: &[i64]| -> Result<Tensor<B, 3>> {
                Ok(engram.embed.look_up(rows, &device, dtype)?.reshape([1, length as i32, -1]))
            };
            let looked_up = look_up(&rows)?;
            let kv = engram.wkv.forward(looked_up.clone(), numerics);
            let label = length.to_string();
            let [looking_up, projecting, gating] =
                [counter.engram_look_up(length), counter.engram_projection(length), counter.engram_gate(length)];

            let hashing = repeat(args.repeats.repeats, || {
                let start = Instant::now();
                std::hint::black_box(hasher.rows(0, &sequence, 0));
                anyhow::Ok(start.elapsed())
            })?;
            let case = Case::new([("step", "hashes".to_owned()), ("length", label.clone())]);
            measured.push(Measured { tokens: Some(length), ..Measured::new(case, hashing) });
            measured.push(stand.time(["look-up", &label], length, looking_up, || look_up(&rows))?);
            measured.push(stand.time(["projection", &label], length, projecting, || {
                Ok(engram.wkv.forward(looked_up.clone(), numerics))
            })?);
            measured.push(
                stand.time(["gates", &label], length, gating, || Ok(engram.add(h.clone(), kv.clone(), numerics)))?,
            );
            let all = looking_up + projecting + gating;
            measured.push(stand.time(["all", &label], length, all, || {
                let kv = engram.wkv.forward(look_up(&hasher.rows(0, &sequence, 0))?, numerics);
                Ok(engram.add(h.clone(), kv, numerics))
            })?);
        }
        Ok(measured)
    }
}
