//! Sets of files that hold one model: `NAME-00001-of-00003.gguf` and so on.

use std::io;
use std::path::{Path, PathBuf};

use crate::error::{GgufError, ShardFault};
use crate::format::{EXTENSION, Place, SHARD, SHARD_COUNT};
use crate::metadata::Metadata;

/// The place of a file by its metadata; none for a model in one file.
pub(super) fn place_by_metadata(metadata: &Metadata) -> Result<Option<Place>, GgufError> {
    let Some(count) = metadata.u64(SHARD_COUNT)?.filter(|&count| count != 1) else { return Ok(None) };
    let number = metadata.required(SHARD, Metadata::u64)?.saturating_add(1);
    Ok(Some(Place { number, count }))
}

/// The files of the model of which one was opened.
pub(super) struct Members<'a> {
    opened: &'a Path,
    stem: &'a str,
    place: Place,
}

impl<'a> Members<'a> {
    /// The files of the model of which `opened` is one and has this metadata; none for a model in one file.
    pub(super) fn of(opened: &'a Path, metadata: &Metadata) -> Result<Option<Self>, GgufError> {
        let fault = |fault| GgufError::Shard { file: opened.to_owned(), fault };
        let by_name = Place::by_name(opened, EXTENSION);
        let Some(place) = place_by_metadata(metadata)? else {
            return match by_name {
                Some((_, Place { number, count })) if count != 1 => Err(fault(ShardFault::Unsplit { number, count })),
                _ => Ok(None),
            };
        };
        match by_name {
            Some((stem, named)) if named == place && (1..=place.count).contains(&place.number) => {
                Ok(Some(Self { opened, stem, place }))
            }
            _ => Err(fault(ShardFault::Name { number: place.number, count: place.count })),
        }
    }

    /// Their paths, in order.
    pub(super) fn paths(&self) -> impl Iterator<Item = PathBuf> {
        let path = |number| self.opened.with_file_name(Place { number, ..self.place }.name(self.stem, EXTENSION));
        (1..=self.place.count).map(path)
    }

    /// What to say of a file that cannot be opened.
    pub(super) fn unopened(&self, file: PathBuf, index: usize, source: io::Error) -> GgufError {
        if source.kind() != io::ErrorKind::NotFound {
            return GgufError::Io { file, action: "opened", source };
        }
        let (number, count) = (index as u64 + 1, self.place.count);
        GgufError::Shard { file, fault: ShardFault::Missing { number, count, by: self.opened.to_owned() } }
    }

    /// Passes the metadata of the file at this place.
    pub(super) fn check(&self, file: &Path, index: usize, metadata: &Metadata) -> Result<(), GgufError> {
        let expected = Place { number: index as u64 + 1, ..self.place };
        let found = place_by_metadata(metadata)?.unwrap_or(Place { number: 1, count: 1 });
        if found == expected {
            return Ok(());
        }
        let fault = ShardFault::Place {
            number: found.number,
            count: found.count,
            expected_number: expected.number,
            expected_count: expected.count,
        };
        Err(GgufError::Shard { file: file.to_owned(), fault })
    }
}
