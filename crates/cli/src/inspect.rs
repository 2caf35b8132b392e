//! `dsv41 inspect`: what a configuration or a golden file holds, for people and for machines.

mod golden;
mod model;
mod table;

use std::fmt;
use std::path::{Path, PathBuf};

use dsv41_config::{Config, ConfigError};
use dsv41_golden::{EngramHashGolden, Golden, GoldenError};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::{Value, json};

pub use golden::{EngramHashReport, GoldenReport};
pub use model::ModelReport;

/// Why a file cannot be inspected.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// The configuration, or that of a golden, cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The golden cannot be used.
    #[error(transparent)]
    Golden(#[from] GoldenError),
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
    Config(Box<ModelReport>),
    Golden(Box<GoldenReport>),
    EngramHash(Box<EngramHashReport>),
}

impl Report {
    /// Reads a configuration (the reference's keys or Hugging Face's), a golden file or the engram-hash golden; the
    /// keys at the file's top say which it is.
    ///
    /// # Errors
    /// When the file cannot be read or used as what its keys say that it is.
    pub fn read(path: &Path) -> Result<Self, InspectError> {
        let text =
            std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        let keys = top_level_keys(&text);
        let has = |key: &str| keys.iter().any(|found| found == key);
        let content = if has("fixture") {
            let golden = Golden::from_str(path, &text)?;
            Content::Golden(Box::new(GoldenReport::new(golden)?))
        } else if has("hash_ids") {
            let golden = EngramHashGolden::from_str(path, &text)?;
            Content::EngramHash(Box::new(EngramHashReport(golden)))
        } else {
            let origin = path.display().to_string();
            let config = Config::from_json(&origin, &text)?;
            Content::Config(Box::new(ModelReport::new(&origin, config)?))
        };
        Ok(Self { file: path.to_owned(), content })
    }

    /// The same as a JSON object: `file`, `kind` (`config`, `golden` or `engram-hash`) and what that kind has.
    pub fn to_json(&self) -> Value {
        let (kind, mut object) = match &self.content {
            Content::Config(report) => ("config", report.to_json()),
            Content::Golden(report) => ("golden", report.to_json()),
            Content::EngramHash(report) => ("engram-hash", report.to_json()),
        };
        object["file"] = json!(self.file.display().to_string());
        object["kind"] = json!(kind);
        object
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.file.display())?;
        match &self.content {
            Content::Config(report) => write!(f, "configuration of a text model\n\n{report}"),
            Content::Golden(report) => write!(f, "golden of the text graph\n\n{report}"),
            Content::EngramHash(report) => write!(f, "golden of engram hashing\n\n{report}"),
        }
    }
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
    fn keys_before_a_fault_are_known() {
        assert_eq!(top_level_keys(r#"{"a": {"x": 1}, "b": [2]}"#), ["a", "b"]);
        assert_eq!(top_level_keys(r#"{"fixture": {}, "x": [NaN], "y": 1}"#), ["fixture", "x"]);
        assert_eq!(top_level_keys(r#"{"fixture": {"dim": 6"#), ["fixture"]);
        for text in ["", "[1, 2]", "7", "{"] {
            assert!(top_level_keys(text).is_empty(), "{text}");
        }
    }
}
