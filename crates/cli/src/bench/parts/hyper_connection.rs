//! A hyper-connection: the mixer, the collapse before a sublayer and the expansion after it.

use anyhow::Result;
use burn::tensor::DType;
use dsv41::{
    LoadOptions, Loader, ModelBackend, Numerics,
    hyper_connection::{HyperConnection, collapse, expand},
};

use super::{PartArgs, Stand};
use crate::bench::{
    model::BenchModel,
    session::{Measured, Session},
};
use crate::device::{DeviceTask, Precision};

/// Times the mixer of the first layer's attention, and what its weights are used for.
pub(in crate::bench) fn run(args: &PartArgs) -> Result<()> {
    let model = BenchModel::open(&args.model)?;
    args.check(0, model.config())?;
    let numerics = Some(args.model.numerics.to_string());
    let mut session = Session::begin("hyper-connection", &args.devices, Some(model.record()), numerics)?;
    for device in session.devices() {
        session.announce(device, "a hyper-connection");
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
        let loader = Loader::<B>::new(model.weights(), &device, LoadOptions { dtype, ..LoadOptions::default() });
        let mixer = HyperConnection::load(&loader.at("layers").at(0), "hc_attn", config)?;
        let stand = Stand::<B> { device: device.clone(), dtype, repeats: args.repeats.repeats };
        let numerics = Numerics::from(args.model.numerics);
        let mut measured = Vec::new();
        for &length in &args.lengths {
            let h = stand.tensor("bench/stream", [1, length, config.hc_mult, config.dim]);
            let y = stand.tensor("bench/sublayer", [1, length, config.dim]);
            let mix = mixer.forward(h.clone(), numerics);
            let label = length.to_string();
            let [mixing, collapsing, expanding] =
                [counter.mixer(length), counter.collapse(length), counter.expand(length)];

            measured
                .push(stand.time(["mixer", &label], length, mixing, || Ok(mixer.forward(h.clone(), numerics).comb))?);
            measured.push(stand.time(["collapse", &label], length, collapsing, || {
                Ok(collapse(h.clone(), mix.pre.clone(), numerics))
            })?);
            measured.push(stand.time(["expansion", &label], length, expanding, || {
                Ok(expand(h.clone(), y.clone(), mix.clone(), numerics))
            })?);
            let all = mixing + collapsing + expanding;
            measured.push(stand.time(["all", &label], length, all, || {
                let mix = mixer.forward(h.clone(), numerics);
                let x = collapse(h.clone(), mix.pre.clone(), numerics);
                Ok(expand(h.clone(), x, mix, numerics))
            })?);
        }
        Ok(measured)
    }
}
