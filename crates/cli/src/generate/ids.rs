use std::path::{Path, PathBuf};

/// Why token ids cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum IdsError {
    /// The file cannot be read.
    #[error("{}: cannot be read: {source}", path.display())]
    Read {
        /// The file asked for.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not a JSON list of ids.
    #[error("{}: expected a JSON list of token ids: {source}", path.display())]
    Parse {
        /// The file asked for.
        path: PathBuf,
        /// What the parser said, with line and column.
        source: serde_json::Error,
    },
    /// A word that is no id.
    #[error("`{word}` is no token id: expected numbers between spaces or commas, or @FILE")]
    Word {
        /// What stands there.
        word: String,
    },
    /// There are none.
    #[error("no token ids")]
    None,
}

/// Token ids from a command line: numbers between spaces or commas, or `@FILE` with a JSON list.
///
/// # Errors
/// When the file cannot be read or anything is not a number from 0 to 2^32 - 1, or there are no ids.
pub fn parse_ids(text: &str) -> Result<Vec<u32>, IdsError> {
    let ids = match text.strip_prefix('@') {
        Some(path) => read_ids(Path::new(path))?,
        None => text
            .split([',', ' ', '\n', '\t'])
            .filter(|word| !word.is_empty())
            .map(|word| word.parse().map_err(|_| IdsError::Word { word: word.to_owned() }))
            .collect::<Result<_, _>>()?,
    };
    if ids.is_empty() { Err(IdsError::None) } else { Ok(ids) }
}

fn read_ids(path: &Path) -> Result<Vec<u32>, IdsError> {
    let text = std::fs::read_to_string(path).map_err(|source| IdsError::Read { path: path.to_owned(), source })?;
    serde_json::from_str(&text).map_err(|source| IdsError::Parse { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_stand_between_spaces_or_commas() {
        assert_eq!(parse_ids("1,2, 3 4\n5").unwrap(), [1, 2, 3, 4, 5]);
        assert_eq!(parse_ids("4294967295").unwrap(), [u32::MAX]);
    }

    #[test]
    fn ids_stand_in_a_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "[3, 0,\n7]").unwrap();
        assert_eq!(parse_ids(&format!("@{}", file.path().display())).unwrap(), [3, 0, 7]);
        std::fs::write(file.path(), "{\"ids\": [3]}").unwrap();
        let error = parse_ids(&format!("@{}", file.path().display())).unwrap_err().to_string();
        assert!(error.contains("expected a JSON list of token ids: invalid type: map"), "{error}");
    }

    #[test]
    fn other_words_are_refused() {
        for word in ["-1", "x", "1.5", "4294967296"] {
            let error = parse_ids(&format!("1 {word}")).unwrap_err().to_string();
            assert_eq!(error, format!("`{word}` is no token id: expected numbers between spaces or commas, or @FILE"));
        }
        assert_eq!(parse_ids(" , ").unwrap_err().to_string(), "no token ids");
        let error = parse_ids("@no-such-file.json").unwrap_err().to_string();
        assert!(error.starts_with("no-such-file.json: cannot be read: "), "{error}");
    }
}
