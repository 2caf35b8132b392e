//! Adapters on a model: new ones, saved ones, and what a step leaves out of them.

use std::collections::HashSet;

use dsv41::{Dropout, ModelBackend, Transformer};
use indexmap::IndexMap;

use super::{AdapterError, AdapterFile, AdapterSettings, Base, Factors, targets};

/// What was added to a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inserted {
    /// The linear layers that have an adapter now.
    pub linears: Vec<String>,
    /// Values that train.
    pub parameters: usize,
}

/// Freezes a model and adds adapters that have not learnt yet, so that the model computes what it did. Theirs alone are
/// the parameters that train, [`Transformer::parameters`].
///
/// # Errors
/// [`AdapterError::Setting`], or [`AdapterError::NoTarget`] for a pattern that matches no linear layer.
pub fn insert<B: ModelBackend>(
    model: &mut Transformer<B>,
    settings: &AdapterSettings,
) -> Result<Inserted, AdapterError> {
    settings.validate()?;
    let targets = targets::chosen(model.config(), &settings.targets)?;
    let factors = targets.into_iter().map(|target| {
        let factors = Factors::initial(&target, settings.rank, settings.seed);
        (target.linear, factors)
    });
    Ok(add(model, factors.collect(), settings.scale()))
}

/// Freezes a model and adds a saved adapter, `strength` times: 1 for the adapter as it was saved. It goes on training as
/// one that was inserted does, until another one is added.
///
/// # Errors
/// As [`AdapterFile::factors`]; [`AdapterError::Strength`].
pub fn load<B: ModelBackend>(
    model: &mut Transformer<B>,
    adapter: &AdapterFile,
    base: &Base,
    strength: f64,
) -> Result<Inserted, AdapterError> {
    if !strength.is_finite() {
        return Err(AdapterError::Strength { found: strength });
    }
    let factors = adapter.factors(model.config(), base)?;
    Ok(add(model, factors, strength * adapter.settings().scale()))
}

fn add<B: ModelBackend>(model: &mut Transformer<B>, factors: IndexMap<String, Factors<'_>>, scale: f64) -> Inserted {
    let (device, dtype) = (model.norm.weight.device(), model.norm.weight.dtype());
    model.freeze();
    let added: Result<(), std::convert::Infallible> = model.adapt(|linear| {
        Ok(factors.get(linear.name()).map(|factors| factors.to_device(linear.name(), scale, &device, dtype)))
    });
    let Ok(()) = added;
    let parameters = model.parameters().iter().map(|parameter| parameter.dims.iter().product::<usize>()).sum();
    Inserted { linears: factors.into_keys().collect(), parameters }
}

/// Says which inputs the adapters that train leave out from now on: a share of them, chosen by a seed that is another one
/// for every step; none at evaluation.
pub fn set_dropout<B: ModelBackend>(model: &mut Transformer<B>, dropout: Option<(f64, u64)>) {
    let dropout = dropout.map(|(probability, seed)| Dropout { probability, seed });
    let trained = trained(model);
    let adapted = model.linears_mut().into_iter().filter(|linear| trained.contains(linear.name()));
    adapted.filter_map(|linear| linear.adapters.last_mut()).for_each(|adapter| adapter.set_dropout(dropout));
}

/// The linear layers whose last adapter trains.
fn trained<B: ModelBackend>(model: &Transformer<B>) -> HashSet<String> {
    let names = model.parameters().iter().filter_map(|parameter| parameter.name.strip_suffix(".lora_a"));
    names.map(str::to_owned).collect()
}
