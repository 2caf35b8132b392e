//! Adapters named on the command line.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use dsv41::{ModelBackend, Transformer};
use dsv41_config::Config;
use dsv41_train::adapters::{self, AdapterError, AdapterFile, Base};

/// Adapters to add to a model.
#[derive(Debug, Clone, Default, Args)]
pub struct AdapterArgs {
    /// The folder of an adapter to add to the model, and how many times to add it, by default once. May be given more than
    /// once: adapters add up.
    #[arg(long = "adapter", value_name = "DIR[=STRENGTH]")]
    pub adapters: Vec<AdapterArg>,
}

/// An adapter's folder and its strength: `DIR` or `DIR=STRENGTH`.
#[derive(Debug, Clone, PartialEq)]
pub struct AdapterArg {
    /// The folder.
    pub folder: PathBuf,
    /// How many times it is added.
    pub strength: f64,
}

impl FromStr for AdapterArg {
    type Err = AdapterError;

    /// What follows the last `=` is the strength if it is a number; names of folders may have one, too.
    fn from_str(text: &str) -> Result<Self, AdapterError> {
        let number = text.rsplit_once('=').and_then(|(folder, strength)| Some((folder, strength.parse::<f64>().ok()?)));
        match number {
            Some((_, found)) if !found.is_finite() => Err(AdapterError::Strength { found }),
            Some((folder, strength)) => Ok(Self { folder: folder.into(), strength }),
            None => Ok(Self { folder: text.into(), strength: 1.0 }),
        }
    }
}

/// Adapters and the model that they are added to.
#[derive(Debug, Clone)]
pub struct Adapters {
    /// The model.
    pub base: Base,
    /// The adapters and their strengths, in the order in which they are added.
    pub files: Vec<(AdapterFile, f64)>,
}

impl Adapters {
    /// Opens the adapters and sees that each belongs to the model of `config`.
    ///
    /// # Errors
    /// As [`AdapterFile::open`] and [`AdapterFile::factors`].
    pub fn open(args: &AdapterArgs, config: &Config, base: Base) -> Result<Self, AdapterError> {
        let open = |AdapterArg { folder, strength }: &AdapterArg| {
            let file = AdapterFile::open(folder)?;
            file.factors(config, &base)?;
            Ok((file, *strength))
        };
        let files = args.adapters.iter().map(open).collect::<Result<_, AdapterError>>()?;
        Ok(Self { base, files })
    }

    /// Adds them to the model.
    ///
    /// # Errors
    /// As [`adapters::load`].
    pub fn load<B: ModelBackend>(&self, model: &mut Transformer<B>) -> Result<(), AdapterError> {
        for (file, strength) in &self.files {
            adapters::load(model, file, &self.base, *strength)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_may_have_a_strength() {
        let adapter = |folder: &str, strength| AdapterArg { folder: folder.into(), strength };
        for (text, expected) in [
            ("runs/a", adapter("runs/a", 1.0)),
            ("runs/a=0.5", adapter("runs/a", 0.5)),
            ("a=-2", adapter("a", -2.0)),
            ("rate=1e-3/a", adapter("rate=1e-3/a", 1.0)),
            ("rate=1e-3/a=1", adapter("rate=1e-3/a", 1.0)),
        ] {
            assert_eq!(text.parse::<AdapterArg>().unwrap(), expected);
        }
        let error = "a=inf".parse::<AdapterArg>().unwrap_err();
        assert_eq!(error.to_string(), "an adapter's strength is inf, expected a finite number");
    }
}
