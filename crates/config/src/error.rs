use std::path::PathBuf;

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: cannot be read: {source}", path.display())]
    Read {
        /// The file asked for.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The text is not JSON, or not an object.
    #[error("{origin}: {source}")]
    Parse {
        /// The file, or what stands for it.
        origin: String,
        /// What the parser said, with line and column.
        source: serde_json::Error,
    },
    /// A key has the wrong type, or a word that is not among those it may be.
    #[error("key `{key}`: {source}")]
    Type {
        /// The key as it stands in the file; a dot leads into an object.
        key: String,
        /// What was found and what was expected.
        source: serde_json::Error,
    },
    /// One quantity is given under two names, with different values.
    #[error("key `{key}` is {value}, but key `{other_key}` says {other_value}: both name the same")]
    Disagree {
        /// The key found first.
        key: String,
        /// Its value, as JSON.
        value: String,
        /// The key that contradicts it.
        other_key: String,
        /// The value of that one, as JSON.
        other_value: String,
    },
    /// A required key is absent under both of its names.
    #[error("key `{key}` is missing")]
    Missing {
        /// The reference's name of the key.
        key: &'static str,
    },
    /// A value breaks a rule.
    #[error("key `{key}` is {value}: {rule}")]
    Rule {
        /// The reference's name of the key.
        key: &'static str,
        /// The value found.
        value: String,
        /// What it has to be.
        rule: String,
    },
    /// Any of the above but the first two, in a file.
    #[error("{origin}: {error}")]
    In {
        /// The file, or what stands for it.
        origin: String,
        /// What is wrong in it.
        error: Box<ConfigError>,
    },
}

impl ConfigError {
    /// The key at fault, where it is one.
    pub fn key(&self) -> Option<&str> {
        match self {
            Self::Read { .. } | Self::Parse { .. } => None,
            Self::Type { key, .. } | Self::Disagree { key, .. } => Some(key),
            Self::Missing { key } | Self::Rule { key, .. } => Some(key),
            Self::In { error, .. } => error.key(),
        }
    }

    /// The same error, saying which file it is in.
    pub(crate) fn within(self, origin: &str) -> Self {
        Self::In { origin: origin.to_owned(), error: Box::new(self) }
    }
}

/// Checks one rule: an error naming key, value and rule unless `holds`.
pub(crate) fn require(
    holds: bool,
    key: &'static str,
    value: impl std::fmt::Display,
    rule: impl Into<String>,
) -> Result<(), ConfigError> {
    if holds { Ok(()) } else { Err(broken(key, value, rule)) }
}

/// The error of a broken rule.
pub(crate) fn broken(key: &'static str, value: impl std::fmt::Display, rule: impl Into<String>) -> ConfigError {
    ConfigError::Rule { key, value: value.to_string(), rule: rule.into() }
}
