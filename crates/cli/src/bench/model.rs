//! The model that is timed.

use std::path::Path;

use anyhow::{Result, bail, ensure};
use bytesize::ByteSize;
use dsv41::WeightSource;
use dsv41_config::{Config, ConfigError};
use dsv41_golden::filler;
use dsv41_train::InitialWeights;

use super::options::ModelArgs;
use super::report::ModelRecord;
use super::work::{Counter, Widths};
use crate::{
    memory,
    model_source::{ModelSource, SourceOptions, folded_token_map},
};

/// The repository's configurations.
const BUNDLED: [(&str, &str); 6] = [
    ("tiny", include_str!("../../../../configs/tiny.json")),
    ("nano", include_str!("../../../../configs/nano.json")),
    ("bytes", include_str!("../../../../configs/bytes.json")),
    ("small", include_str!("../../../../configs/small.json")),
    ("mid", include_str!("../../../../configs/mid.json")),
    ("v4.1-flash", include_str!("../../../../configs/v4.1-flash.json")),
];

/// A model with weights.
pub(super) struct BenchModel {
    record: ModelRecord,
    config: Config,
    widths: Widths,
    weights: Weights,
}

enum Weights {
    Random(InitialWeights),
    File(Box<ModelSource>),
}

impl BenchModel {
    /// Opens a configuration of the repository by its name, another one, or a GGUF file.
    ///
    /// # Errors
    /// When there is no such thing or it cannot be used.
    pub(super) fn open(args: &ModelArgs) -> Result<Self> {
        let path = Path::new(&args.config);
        if bundled(&args.config).is_some() || is_json(path) || !path.exists() {
            let config = open_config(&args.config)?;
            return Ok(Self {
                record: ModelRecord {
                    name: args.config.clone(),
                    weights: format!("random weights of seed {}", args.seed),
                    parameters: config.parameter_counts()?.total,
                },
                widths: Widths::f32(),
                weights: Weights::Random(InitialWeights::new(&config, args.seed)),
                config,
            });
        }
        let source = ModelSource::open(Some(path), &SourceOptions::default())?;
        let counts = source.config().parameter_counts()?;
        Ok(Self {
            record: ModelRecord {
                name: args.config.clone(),
                weights: "weights of the file".to_owned(),
                parameters: counts.total,
            },
            config: source.config().clone(),
            widths: source.part_sizes().map_or_else(Widths::f32, |sizes| Widths::of_file(&sizes, &counts)),
            weights: Weights::File(Box::new(source)),
        })
    }

    /// What a report says of it.
    pub(super) fn record(&self) -> ModelRecord {
        self.record.clone()
    }

    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    pub(super) fn weights(&self) -> &dyn WeightSource {
        match &self.weights {
            Weights::Random(weights) => weights,
            Weights::File(source) => source.weights(),
        }
    }

    pub(super) fn token_map(&self) -> Option<Vec<u32>> {
        match &self.weights {
            Weights::Random(_) if self.config.engram_layer_ids.is_empty() => None,
            Weights::Random(_) => Some(folded_token_map(&self.config)),
            Weights::File(source) => source.token_map().map(<[u32]>::to_vec),
        }
    }

    /// Counts what calls of it come to.
    pub(super) fn counter(&self) -> Counter<'_> {
        Counter::new(&self.config, self.widths.clone())
    }

    /// Refuses random weights that would not fit into memory, before the system ends the program for them.
    pub(super) fn check_memory(&self) -> Result<()> {
        if let (Weights::Random(_), Some(available)) = (&self.weights, memory::available()) {
            let needed = self.record.parameters.saturating_mul(4);
            let size = |bytes| ByteSize(bytes).display().iec();
            ensure!(
                needed < available,
                "{}: its weights take {} in f32, and {} of memory are free: take a smaller one, or a GGUF file",
                self.record.name,
                size(needed),
                size(available)
            );
        }
        Ok(())
    }
}

/// The configuration of the repository that has this name.
pub(super) fn bundled(name: &str) -> Option<Result<Config, ConfigError>> {
    let (name, text) = BUNDLED.iter().find(|(known, _)| *known == name)?;
    Some(Config::from_json(name, text))
}

/// A configuration by its name or its file.
pub(super) fn open_config(name: &str) -> Result<Config> {
    let path = Path::new(name);
    match bundled(name) {
        Some(config) => Ok(config?),
        None if path.exists() || is_json(path) => Ok(Config::load(path)?),
        None => {
            let names = BUNDLED.map(|(name, _)| name).join(", ");
            bail!("`{name}`: no such file, and none of the configurations {names}");
        }
    }
}

fn is_json(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "json")
}

/// Tokens that are the same in every run.
pub(super) fn tokens(batch: usize, length: usize, vocab: usize) -> Vec<Vec<u32>> {
    let id =
        |row: usize, place: usize| (filler::raw("", "bench/ids", (row * length + place) as u64) % vocab as u64) as u32;
    (0..batch).map(|row| (0..length).map(|place| id(row, place)).collect()).collect()
}

/// Numbers from -1 to 1, made from a name.
pub(super) fn values(name: &str, count: usize) -> Vec<f32> {
    (0..count as u64).map(|index| (filler::raw("", name, index) >> 40) as f32 / (1 << 23) as f32 - 1.0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numerics::NumericsArg;

    fn open(config: &str) -> Result<BenchModel> {
        BenchModel::open(&ModelArgs { config: config.to_owned(), seed: 7, numerics: NumericsArg::Full })
    }

    #[test]
    fn the_configurations_of_the_repository_go_by_their_names() {
        for (name, _) in BUNDLED {
            let config = open_config(name).unwrap();
            config.validate().unwrap();
            let path = format!("{}/../../configs/{name}.json", env!("CARGO_MANIFEST_DIR"));
            assert_eq!(config, open_config(&path).unwrap(), "{name}");
        }
    }

    #[test]
    fn what_is_neither_a_name_nor_a_file_is_named() {
        let error = open("smal").err().unwrap().to_string();
        assert_eq!(
            error,
            "`smal`: no such file, and none of the configurations tiny, nano, bytes, small, mid, v4.1-flash"
        );
        assert!(open("no/such.json").err().unwrap().to_string().contains("no/such.json"));
    }

    #[test]
    fn a_model_that_does_not_fit_is_refused_before_it_is_made() {
        open("nano").unwrap().check_memory().unwrap();
        if memory::available().is_some() {
            let error = open("v4.1-flash").unwrap().check_memory().unwrap_err().to_string();
            assert!(error.starts_with("v4.1-flash: its weights take 2.7 TiB in f32"), "{error}");
        }
    }
}
