//! What a GGUF file holds: its container, the model, and where its weights are.

use std::fmt;
use std::path::Path;

use dsv41_config::ConfigError;
use dsv41_gguf::{ModelError, ModelFile, TensorStore as _};
use serde_json::{Value, json};

use super::{InspectError, ModelReport, Options, Weights};
use crate::table::{Align, Table, bytes, grouped};

/// A GGUF file or a set of shards, described. Displayed as tables and notes.
#[derive(Debug, Clone)]
pub struct GgufReport {
    files: Vec<File>,
    tokenizer: Option<TokenizerReport>,
    model: ModelReport,
    weights: Weights,
    notes: Vec<String>,
}

/// One file of the model.
#[derive(Debug, Clone)]
struct File {
    name: String,
    bytes: u64,
}

/// What the metadata say of a tokenizer.
#[derive(Debug, Clone)]
struct TokenizerReport {
    model: String,
    pre: Option<String>,
    tokens: usize,
}

impl GgufReport {
    /// Opens a file, or the set of which it is a shard, and reads its headers.
    ///
    /// # Errors
    /// When it is no GGUF file, is damaged, or holds another model.
    pub fn open(path: &Path, options: &Options) -> Result<Self, InspectError> {
        let file = ModelFile::open(path)?;
        let files = file.gguf().files().map(|(path, bytes)| File {
            name: path.display().to_string(),
            // No platform of Rust has a `usize` of more than 64 bits.
            bytes: bytes as u64,
        });
        Ok(Self {
            files: files.collect(),
            tokenizer: TokenizerReport::of(&file)?,
            model: model(path, &file)?,
            weights: Weights::new(file.config(), file.part_sizes(), options),
            notes: file.description().notes.clone(),
        })
    }

    /// `files`, `tokenizer` (null where the file has none), `model`, `weights` and `notes`.
    pub(super) fn to_json(&self) -> Value {
        let files: Vec<Value> =
            self.files.iter().map(|file| json!({ "file": file.name, "bytes": file.bytes })).collect();
        let tokenizer = self
            .tokenizer
            .as_ref()
            .map(|tokenizer| json!({ "model": tokenizer.model, "pre": tokenizer.pre, "tokens": tokenizer.tokens }));
        json!({
            "files": files,
            "tokenizer": tokenizer,
            "model": self.model.graph_json(),
            "weights": self.weights.to_json(),
            "notes": self.notes,
        })
    }

    fn container(&self) -> Table<3> {
        let mut table = Table::new([Align::Left, Align::Right, Align::Left]);
        for file in &self.files {
            table.row(["file", &bytes(file.bytes), &file.name]);
        }
        if self.files.len() > 1 {
            let all = self.files.iter().fold(0_u64, |sum, file| sum.saturating_add(file.bytes));
            table.row(["set", &bytes(all), &format!("{} shards", self.files.len())]);
        }
        let (count, tokenizer) = match &self.tokenizer {
            Some(tokenizer) => (grouped(tokenizer.tokens as u64), tokenizer.to_string()),
            None => (String::new(), "none".to_owned()),
        };
        table.row(["tokens", &count, &tokenizer]);
        table
    }
}

impl TokenizerReport {
    fn of(file: &ModelFile) -> Result<Option<Self>, ModelError> {
        let metadata = file.metadata();
        let Some(model) = metadata.str("tokenizer.ggml.model")? else { return Ok(None) };
        Ok(Some(Self {
            model: model.to_owned(),
            pre: metadata.str("tokenizer.ggml.pre")?.map(str::to_owned),
            tokens: metadata.strings("tokenizer.ggml.tokens")?.map_or(0, <[String]>::len),
        }))
    }
}

impl fmt::Display for TokenizerReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tokenizer {}", self.model)?;
        self.pre.as_ref().map_or(Ok(()), |pre| write!(f, ", text split as {pre}"))
    }
}

impl fmt::Display for GgufReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "CONTAINER\n{}\n", self.container())?;
        writeln!(f, "SHAPE\n{}\n", self.model.outline())?;
        writeln!(f, "LAYERS\n{}\n", self.model.layers())?;
        write!(f, "{}", self.weights)?;
        if !self.notes.is_empty() {
            writeln!(f, "\nNOTES")?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "  {note}"))
    }
}

fn model(path: &Path, file: &ModelFile) -> Result<ModelReport, ConfigError> {
    ModelReport::new(&path.display().to_string(), file.config().clone())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use dsv41_config::Config;
    use dsv41_gguf::{Metadata, Split, TypePlan, convert};

    use super::*;
    use crate::convert::SyntheticModel;
    use crate::inspect::Report;
    use crate::model_source::{bytes_vocabulary, folded_token_map, vocabulary_metadata};

    fn nano() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/nano.json")
    }

    fn write(path: &Path, plan: &TypePlan, extra: &Metadata, split: Split) -> Vec<PathBuf> {
        let config = Config::load(&nano()).unwrap();
        let map = folded_token_map(&config);
        let model = SyntheticModel::new(config, Some(map), "test".to_owned());
        convert(&model, plan, extra, path, split, &mut |_| {}).unwrap().files
    }

    #[test]
    fn a_file_weighs_what_its_configuration_says_before_there_is_one() {
        let folder = tempfile::tempdir().unwrap();
        let plan = TypePlan::Q2K_MIX;
        let path = write(&folder.path().join("nano.gguf"), &plan, &Metadata::new(), Split::None).remove(0);
        let written = Report::read(&path, &Options::default()).unwrap().to_json();
        let planned = Options { types: Some(plan), ..Options::default() };
        let planned = Report::read(&nano(), &planned).unwrap().to_json();
        assert_eq!(written["kind"], "gguf");
        assert_eq!(written["weights"], planned["weights"]);
        assert_eq!(written["model"]["layers"], planned["layers"]);
        assert_eq!(written["tokenizer"], Value::Null);
    }

    #[test]
    fn any_shard_stands_for_the_set() {
        let folder = tempfile::tempdir().unwrap();
        let extra = vocabulary_metadata(&bytes_vocabulary());
        let files = write(&folder.path().join("nano.gguf"), &TypePlan::Q2K_MIX, &extra, Split::Tensors(100));
        assert!(files.len() > 1);
        let report = GgufReport::open(&files[1], &Options::default()).unwrap();
        assert_eq!(report.files.len(), files.len());
        let text = report.to_string();
        assert!(text.contains(&format!("{} shards", files.len())), "{text}");
        assert!(text.contains("  256  tokenizer gpt2, text split as joyai-llm\n"), "{text}");
    }

    #[test]
    fn what_is_no_whole_file_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cut.gguf");
        for bytes in [&b"GGUF\x03\0\0\0"[..], b"GG", b"{}"] {
            std::fs::write(&path, bytes).unwrap();
            let error = Report::read(&path, &Options::default()).unwrap_err();
            assert!(matches!(error, InspectError::Gguf(_)), "{error}");
            assert!(error.to_string().starts_with(&path.display().to_string()), "{error}");
        }
    }

    #[test]
    fn a_file_has_its_own_types() {
        let folder = tempfile::tempdir().unwrap();
        let path = write(&folder.path().join("n.gguf"), &TypePlan::Q2K_MIX, &Metadata::new(), Split::None).remove(0);
        let options = Options { types: Some(TypePlan::PUBLISHED), ..Options::default() };
        assert!(matches!(Report::read(&path, &options), Err(InspectError::TypesGiven { .. })));
    }
}
