//! `dsv41 inspect`: what a GGUF file, a configuration or a golden file holds, for people and for machines.

mod gguf;
mod golden;
mod model;
mod weights;

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use bytesize::ByteSize;
use clap::Args;
use dsv41_config::{Config, ConfigError};
use dsv41_gguf::{Layout, TypePlan};
use dsv41_golden::{EngramHashGolden, Golden, GoldenError};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::{Value, json};

pub use gguf::GgufReport;
pub use golden::{EngramHashReport, GoldenReport};
pub use model::ModelReport;
pub use weights::Weights;

/// The first bytes of every GGUF file.
const GGUF_MAGIC: [u8; 4] = *b"GGUF";

/// Which file to look into, and what to say of it.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// A GGUF file (any member of a shard set) or a JSON file; what it is shows in its content.
    #[arg(value_name = "GGUF|CONFIG|GOLDEN")]
    file: PathBuf,
    /// Print one JSON object instead of tables.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    options: Options,
}

/// What to assume about weights and the machine.
#[derive(Debug, Clone, Default, Args)]
pub struct Options {
    /// With a configuration: describe the GGUF file that would hold the model in these types, such as `published` or
    /// `q2_k-mix,head=q8_0`.
    #[arg(long, value_name = "PLAN")]
    pub types: Option<TypePlan>,
    /// Memory for weights, such as 24GiB: say how many experts fit, and what a token reads from storage.
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<ByteSize>,
    /// What the storage reads in a second, such as 3GB: say how many tokens a second that allows.
    #[arg(long, value_name = "SIZE", requires = "memory")]
    pub storage_speed: Option<ByteSize>,
}

/// Why a file cannot be inspected.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// The configuration, or that of a golden, cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The golden cannot be used.
    #[error(transparent)]
    Golden(#[from] GoldenError),
    /// The GGUF file cannot be used.
    #[error(transparent)]
    Gguf(Box<dsv41_gguf::ModelError>),
    /// The configuration's tensors cannot be laid out in a file.
    #[error("{}: {source}", path.display())]
    Layout {
        /// The configuration.
        path: PathBuf,
        /// The tensor at fault.
        source: Box<dsv41_gguf::ModelError>,
    },
    /// A type plan for what is no configuration.
    #[error("{}: --types is for configurations, expected none", path.display())]
    TypesGiven {
        /// The GGUF file or the golden.
        path: PathBuf,
    },
    /// A memory plan for weights of unknown types.
    #[error("{}: --memory is for packed weights, expected a GGUF file, or --types with a configuration", path.display())]
    NoWeights {
        /// The configuration or the golden.
        path: PathBuf,
    },
}

impl From<dsv41_gguf::ModelError> for InspectError {
    fn from(error: dsv41_gguf::ModelError) -> Self {
        Self::Gguf(Box::new(error))
    }
}

/// What the command prints.
///
/// # Errors
/// As [`Report::read`].
pub fn run(args: &InspectArgs) -> Result<String, InspectError> {
    let report = Report::read(&args.file, &args.options)?;
    Ok(if args.json { format!("{:#}\n", report.to_json()) } else { report.to_string() })
}

/// What a file holds. Displayed as tables.
#[derive(Debug, Clone)]
pub struct Report {
    file: PathBuf,
    content: Content,
}

/// The kinds of files that are told apart.
#[derive(Debug, Clone)]
enum Content {
    Config(Box<ModelReport>, Option<Box<Weights>>),
    Gguf(Box<GgufReport>),
    Golden(Box<GoldenReport>),
    EngramHash(Box<EngramHashReport>),
}

impl Report {
    /// Reads a GGUF file's headers, a configuration (the reference's keys or Hugging Face's), a golden file or the
    /// engram-hash golden; the first bytes, or the keys at the file's top, say which it is.
    ///
    /// # Errors
    /// When the file cannot be read or used as what it says that it is, or `options` do not go with that.
    pub fn read(path: &Path, options: &Options) -> Result<Self, InspectError> {
        let content = match is_gguf(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })? {
            true if options.types.is_some() => return Err(InspectError::TypesGiven { path: path.to_owned() }),
            true => Content::Gguf(Box::new(GgufReport::open(path, options)?)),
            false => Content::read_json(path, options)?,
        };
        Ok(Self { file: path.to_owned(), content })
    }

    /// The same as a JSON object: `file`, `kind` (`gguf`, `config`, `golden` or `engram-hash`) and what that kind has.
    pub fn to_json(&self) -> Value {
        let (kind, mut object) = match &self.content {
            Content::Config(report, weights) => {
                let mut object = report.to_json();
                if let Some(weights) = weights {
                    object["weights"] = weights.to_json();
                }
                ("config", object)
            }
            Content::Gguf(report) => ("gguf", report.to_json()),
            Content::Golden(report) => ("golden", report.to_json()),
            Content::EngramHash(report) => ("engram-hash", report.to_json()),
        };
        object["file"] = json!(self.file.display().to_string());
        object["kind"] = json!(kind);
        object
    }
}

impl Content {
    fn read_json(path: &Path, options: &Options) -> Result<Self, InspectError> {
        let text =
            std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        let keys = top_level_keys(&text);
        let has = |key: &str| keys.iter().any(|found| found == key);
        let is_golden = has("fixture") || has("hash_ids");
        if is_golden && options.types.is_some() {
            return Err(InspectError::TypesGiven { path: path.to_owned() });
        }
        if options.types.is_none() && options.memory.is_some() {
            return Err(InspectError::NoWeights { path: path.to_owned() });
        }
        if has("fixture") {
            let golden = Golden::from_str(path, &text)?;
            return Ok(Self::Golden(Box::new(GoldenReport::new(golden)?)));
        }
        if has("hash_ids") {
            let golden = EngramHashGolden::from_str(path, &text)?;
            return Ok(Self::EngramHash(Box::new(EngramHashReport(golden))));
        }
        let origin = path.display().to_string();
        let config = Config::from_json(&origin, &text)?;
        let report = ModelReport::new(&origin, config.clone())?;
        let planned = options.types.map(|types| Layout::new(&config.tensors(), &types)).transpose();
        let planned =
            planned.map_err(|source| InspectError::Layout { path: path.to_owned(), source: source.into() })?;
        let weights = planned.map(|layout| Box::new(Weights::new(&config, layout.sizes(), options)));
        Ok(Self::Config(Box::new(report), weights))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.file.display())?;
        match &self.content {
            Content::Config(report, weights) => {
                write!(f, "configuration of a text model\n\n{report}")?;
                weights.as_ref().map_or(Ok(()), |weights| write!(f, "\nAS A GGUF FILE\n\n{weights}"))
            }
            Content::Gguf(report) => write!(f, "text model in GGUF\n\n{report}"),
            Content::Golden(report) => write!(f, "golden of the text graph\n\n{report}"),
            Content::EngramHash(report) => write!(f, "golden of engram hashing\n\n{report}"),
        }
    }
}

/// Whether a file says that it is GGUF, by its first bytes or by its name: such files are larger than memory, and never
/// read as text.
fn is_gguf(path: &Path) -> std::io::Result<bool> {
    if path.extension().is_some_and(|extension| extension == "gguf") {
        return Ok(true);
    }
    let mut start = Vec::new();
    File::open(path)?.take(GGUF_MAGIC.len() as u64).read_to_end(&mut start)?;
    Ok(start == GGUF_MAGIC)
}

/// The keys of the object that `text` holds, as far as it can be read: whoever reads it as what it is meant to be says
/// what is wrong after that.
fn top_level_keys(text: &str) -> Vec<String> {
    struct Keys<'a>(&'a mut Vec<String>);

    impl<'de> DeserializeSeed<'de> for Keys<'_> {
        type Value = ();

        fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
            deserializer.deserialize_map(self)
        }
    }

    impl<'de> Visitor<'de> for Keys<'_> {
        type Value = ();

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
            while let Some(key) = map.next_key()? {
                self.0.push(key);
                map.next_value::<IgnoredAny>()?;
            }
            Ok(())
        }
    }

    let mut keys = Vec::new();
    let mut deserializer = serde_json::Deserializer::from_str(text);
    // An error ends the list where the text ends to be JSON.
    let _ = Keys(&mut keys).deserialize(&mut deserializer);
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_planned_for_known_types_alone() {
        let file = |path: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
        let memory = Options { memory: Some(ByteSize::gib(1)), ..Options::default() };
        for path in ["configs/tiny.json", "goldens/tiny.json"] {
            let error = Report::read(&file(path), &memory).unwrap_err();
            assert!(matches!(error, InspectError::NoWeights { .. }), "{error}");
        }
        let types = Options { types: Some(TypePlan::PUBLISHED), ..memory };
        let error = Report::read(&file("goldens/tiny.json"), &types).unwrap_err();
        assert!(matches!(error, InspectError::TypesGiven { .. }), "{error}");
        assert!(Report::read(&file("configs/tiny.json"), &types).is_ok());
    }

    #[test]
    fn files_are_told_by_their_first_bytes() {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes, expected) in
            [("model.bin", &b"GGUF\x03"[..], true), ("model.json", b"{}", false), ("model.gguf", b"", true)]
        {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(is_gguf(&path).unwrap(), expected, "{name}");
        }
    }

    #[test]
    fn keys_before_a_fault_are_known() {
        assert_eq!(top_level_keys(r#"{"a": {"x": 1}, "b": [2]}"#), ["a", "b"]);
        assert_eq!(top_level_keys(r#"{"fixture": {}, "x": [NaN], "y": 1}"#), ["fixture", "x"]);
        assert_eq!(top_level_keys(r#"{"fixture": {"dim": 6"#), ["fixture"]);
        for text in ["", "[1, 2]", "7", "{"] {
            assert!(top_level_keys(text).is_empty(), "{text}");
        }
    }
}
