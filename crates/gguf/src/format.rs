//! What those that read and those that write files must agree on.

use std::path::Path;

use crate::error::KeyFault;

/// The first bytes of every file.
pub(crate) const MAGIC: [u8; 4] = *b"GGUF";
/// What the names of files end in, behind a dot.
pub(crate) const EXTENSION: &str = "gguf";
/// The version that is written.
pub(crate) const VERSION: u32 = 3;
/// Bytes of the longest key, and of the longest tensor name that is read.
pub(crate) const LONGEST_KEY: usize = 65_535;
/// Bytes of the longest tensor name that is written: ggml keeps 64, one for the end.
pub(crate) const LONGEST_NAME: usize = 63;

/// The key of a file's alignment.
pub(crate) const ALIGNMENT: &str = "general.alignment";
/// The alignment of a file that names none.
pub(crate) const DEFAULT_ALIGNMENT: u32 = 32;

/// The key of a shard's number, from 0.
pub(crate) const SHARD: &str = "split.no";
/// The key of the number of shards.
pub(crate) const SHARD_COUNT: &str = "split.count";
/// The key of the number of tensors of all shards.
pub(crate) const TENSOR_COUNT: &str = "split.tensors.count";

/// Passes what data may be aligned to.
pub(crate) fn check_alignment(alignment: u64) -> Result<u64, KeyFault> {
    if alignment.is_power_of_two() && alignment >= 8 {
        return Ok(alignment);
    }
    Err(KeyFault::Range { value: alignment.to_string(), expected: "a power of two of at least 8" })
}

/// The place of a file in its set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// From 1, as names have it.
    pub(crate) number: u64,
    pub(crate) count: u64,
}

impl Place {
    /// The name of the file at this place: `STEM-00001-of-00003.EXTENSION`.
    pub(crate) fn name(self, stem: &str, extension: &str) -> String {
        format!("{stem}-{:05}-of-{:05}.{extension}", self.number, self.count)
    }

    /// The place by the name of a file, and the stem of the name; none for another name.
    pub(crate) fn by_name<'a>(path: &'a Path, extension: &str) -> Option<(&'a str, Self)> {
        let name = path.file_name()?.to_str()?;
        let (rest, count) = name.strip_suffix(extension)?.strip_suffix('.')?.rsplit_once("-of-")?;
        let (stem, number) = rest.rsplit_once('-')?;
        let place = Self { number: number.parse().ok()?, count: count.parse().ok()? };
        // Numbers have one spelling.
        (place.name(stem, extension) == name).then_some((stem, place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_shards_are_read_as_they_are_written() {
        let place = Place { number: 3, count: 12 };
        assert_eq!(place.name("a-of-b", EXTENSION), "a-of-b-00003-of-00012.gguf");
        assert_eq!(Place::by_name(Path::new("x/a-of-b-00003-of-00012.gguf"), EXTENSION), Some(("a-of-b", place)));
    }

    #[test]
    fn other_names_are_no_shards() {
        for name in ["a.gguf", "a-3-of-12.gguf", "a-00003-of-00012.bin", "a-0000+3-of-00012.gguf", "-of-.gguf", ".."] {
            assert_eq!(Place::by_name(Path::new(name), EXTENSION), None, "{name}");
        }
    }
}
