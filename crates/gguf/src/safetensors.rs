//! Reading safetensors files and sets of them: how the model was released.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

pub use ::safetensors::tensor::Dtype;
use ::safetensors::tensor::Metadata;
use bytes::Bytes;
use indexmap::IndexMap;
use indexmap::map::Entry;
use serde::Deserialize;

use crate::format::Place;
use crate::mapped::MappedFile;

/// What the names of files end in, behind a dot.
const EXTENSION: &str = "safetensors";
/// The file of a set that says which tensor is in which file.
const INDEX: &str = "model.safetensors.index.json";
/// What the names of such files end in.
const INDEX_SUFFIX: &str = ".index.json";
/// Bytes of the longest header, as the format's own reader has it.
const LONGEST_HEADER: u64 = 100_000_000;
/// Bytes of the header's length, before the header.
const LENGTH_BYTES: usize = 8;

/// Why safetensors files cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SafetensorsError {
    /// The system refuses.
    #[error("{file}: cannot be {action}: {source}")]
    Io {
        /// The file.
        file: PathBuf,
        /// What was to be done.
        action: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// A folder without such files.
    #[error("{folder}: holds neither `{INDEX}` nor any file `*.{EXTENSION}`")]
    NoFiles {
        /// The folder.
        folder: PathBuf,
    },
    /// An index that is not one.
    #[error("{file}: not a valid index: {source}")]
    Index {
        /// The index.
        file: PathBuf,
        /// What the parser says.
        source: serde_json::Error,
    },
    /// An index that points to another folder.
    #[error("{file}: puts tensor `{tensor}` into `{entry}`, expected the name of a file beside the index")]
    IndexEntry {
        /// The index.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Where it should be.
        entry: String,
    },
    /// A file of a set that is not there.
    #[error("{file}: is missing: {by} needs it")]
    MissingFile {
        /// The file.
        file: PathBuf,
        /// The index, or a file of the same set.
        by: PathBuf,
    },
    /// The file ends before its header does, or the header is longer than any.
    #[error("{file}: header of {found} bytes, expected at most {most}")]
    HeaderLength {
        /// The file.
        file: PathBuf,
        /// Bytes of the header by the file.
        found: u64,
        /// Bytes left in the file, or of the longest header.
        most: u64,
    },
    /// Too short for even a header's length.
    #[error("{file}: not a safetensors file: {found} bytes, expected at least {LENGTH_BYTES}")]
    TooShort {
        /// The file.
        file: PathBuf,
        /// Its bytes.
        found: usize,
    },
    /// A header that is not JSON, or whose shapes and offsets are not those of tensors one after another.
    #[error("{file}: not a valid header: {source}")]
    Header {
        /// The file.
        file: PathBuf,
        /// What the parser says.
        source: serde_json::Error,
    },
    /// More or fewer bytes than the tensors take.
    #[error("{file}: tensors take {expected} bytes, and {found} follow the header")]
    DataLength {
        /// The file.
        file: PathBuf,
        /// Bytes of all tensors.
        expected: usize,
        /// Bytes behind the header.
        found: usize,
    },
    /// A name in two files.
    #[error("{file}: tensor `{tensor}` is also in {other}")]
    Duplicate {
        /// The second file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// The first file.
        other: PathBuf,
    },
    /// A tensor that is not there.
    #[error("{file}: tensor `{tensor}` is missing")]
    MissingTensor {
        /// The file or folder.
        file: PathBuf,
        /// The tensor.
        tensor: String,
    },
}

/// A tensor of the release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredTensor {
    /// The shape, slowest axis first, in elements of the type: two fp4 to one I8.
    pub shape: Vec<usize>,
    /// The type.
    pub dtype: Dtype,
    /// The bytes, which are the mapped file's.
    pub bytes: Bytes,
}

/// A model in safetensors files, mapped into memory.
///
/// Opening reads headers alone, and checks them: the tensors of a file follow one another without gaps to its end. As
/// with [`Gguf`](crate::Gguf), a mapped file must not be cut short by others meanwhile.
#[derive(Debug)]
pub struct Safetensors {
    path: PathBuf,
    files: Vec<PathBuf>,
    /// Every tensor and the place of its file.
    tensors: IndexMap<String, (StoredTensor, usize)>,
}

/// Which files to read, and what of them.
struct Sources {
    files: Vec<PathBuf>,
    /// Where a set has an index: the name of the file of every tensor. What files hold besides is not the model's.
    index: Option<IndexMap<String, String>>,
    /// What asks for the files.
    by: PathBuf,
}

/// The index of a set.
#[derive(Deserialize)]
struct Index {
    weight_map: IndexMap<String, String>,
}

impl Safetensors {
    /// Opens a file, or the set of files of which it is one by its name, or which an index names, or which are in a
    /// folder.
    ///
    /// # Errors
    /// [`SafetensorsError`], which names the file.
    pub fn open(path: &Path) -> Result<Self, SafetensorsError> {
        let sources = Sources::of(path)?;
        let mut set = Self { path: path.to_owned(), files: vec![], tensors: IndexMap::new() };
        for file in &sources.files {
            set.add(file, &sources)?;
        }
        if let Some(index) = &sources.index
            && let Some((tensor, name)) = index.iter().find(|(tensor, _)| !set.tensors.contains_key(*tensor))
        {
            let file = sources.by.with_file_name(name);
            return Err(SafetensorsError::MissingTensor { file, tensor: tensor.clone() });
        }
        Ok(set)
    }

    fn add(&mut self, path: &Path, sources: &Sources) -> Result<(), SafetensorsError> {
        let file = MappedFile::open(path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound if path != sources.by => {
                SafetensorsError::MissingFile { file: path.to_owned(), by: sources.by.clone() }
            }
            _ => SafetensorsError::Io { file: path.to_owned(), action: "opened", source },
        })?;
        for (name, tensor) in tensors_of(path, file.bytes())? {
            if !sources.wants(&name, path) {
                continue;
            }
            match self.tensors.entry(name) {
                Entry::Vacant(entry) => entry.insert((tensor, self.files.len())),
                Entry::Occupied(entry) => {
                    let (tensor, other) = (entry.key().clone(), self.files[entry.get().1].clone());
                    return Err(SafetensorsError::Duplicate { file: path.to_owned(), tensor, other });
                }
            };
        }
        self.files.push(path.to_owned());
        Ok(())
    }

    /// The files, in order.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// The names of all tensors, in the order of the files and of their data.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The tensor of a name.
    ///
    /// # Errors
    /// [`SafetensorsError::MissingTensor`].
    pub fn tensor(&self, name: &str) -> Result<&StoredTensor, SafetensorsError> {
        let missing = || SafetensorsError::MissingTensor { file: self.path.clone(), tensor: name.to_owned() };
        self.tensors.get(name).map(|(tensor, _)| tensor).ok_or_else(missing)
    }
}

impl Sources {
    fn of(path: &Path) -> Result<Self, SafetensorsError> {
        if path.is_dir() {
            let index = path.join(INDEX);
            return if index.exists() { Self::of_index(index) } else { Self::of_folder(path) };
        }
        if path.to_str().is_some_and(|path| path.ends_with(INDEX_SUFFIX)) {
            return Self::of_index(path.to_owned());
        }
        let files = set_of(path).unwrap_or_else(|| vec![path.to_owned()]);
        Ok(Self { files, index: None, by: path.to_owned() })
    }

    fn of_index(by: PathBuf) -> Result<Self, SafetensorsError> {
        let text = fs::read(&by).map_err(|source| SafetensorsError::Io { file: by.clone(), action: "read", source })?;
        let Index { weight_map } =
            serde_json::from_slice(&text).map_err(|source| SafetensorsError::Index { file: by.clone(), source })?;
        if let Some((tensor, entry)) = weight_map.iter().find(|(_, entry)| !is_plain_name(entry)) {
            return Err(SafetensorsError::IndexEntry { file: by, tensor: tensor.clone(), entry: entry.clone() });
        }
        let names: BTreeSet<&String> = weight_map.values().collect();
        let files = names.into_iter().map(|name| by.with_file_name(name)).collect();
        Ok(Self { files, index: Some(weight_map), by })
    }

    fn of_folder(folder: &Path) -> Result<Self, SafetensorsError> {
        let failed = |source| SafetensorsError::Io { file: folder.to_owned(), action: "listed", source };
        let mut files = BTreeSet::new();
        for entry in fs::read_dir(folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_some_and(|extension| extension == EXTENSION) {
                // Those of its set that are not there are missed when it is opened.
                files.extend(set_of(&path).unwrap_or_else(|| vec![path]));
            }
        }
        if files.is_empty() {
            return Err(SafetensorsError::NoFiles { folder: folder.to_owned() });
        }
        Ok(Self { files: files.into_iter().collect(), index: None, by: folder.to_owned() })
    }

    /// Whether a tensor of a file is one of the model.
    fn wants(&self, tensor: &str, file: &Path) -> bool {
        let Some(index) = &self.index else { return true };
        index.get(tensor).is_some_and(|name| file.file_name() == Some(OsStr::new(name)))
    }
}

/// All files of the set of which this is one by its name.
fn set_of(path: &Path) -> Option<Vec<PathBuf>> {
    let (stem, Place { count, .. }) = Place::by_name(path, EXTENSION)?;
    // No set has more, whatever a name claims.
    let count = u16::try_from(count).ok()?.into();
    let member = |number| path.with_file_name(Place { number, count }.name(stem, EXTENSION));
    Some((1..=count).map(member).collect())
}

/// Whether a path stays in its folder.
fn is_plain_name(entry: &str) -> bool {
    let mut parts = Path::new(entry).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(name)), None) if name == entry)
}

/// The tensors of a file in the order of their data.
fn tensors_of(path: &Path, bytes: &Bytes) -> Result<Vec<(String, StoredTensor)>, SafetensorsError> {
    let file = || path.to_owned();
    let length = bytes.first_chunk::<LENGTH_BYTES>();
    let found = u64::from_le_bytes(*length.ok_or(SafetensorsError::TooShort { file: file(), found: bytes.len() })?);
    let most = LONGEST_HEADER.min((bytes.len() - LENGTH_BYTES) as u64);
    if found > most {
        return Err(SafetensorsError::HeaderLength { file: file(), found, most });
    }
    let begin = LENGTH_BYTES + found as usize;
    // The crate checks that offsets ascend without gaps and are as long as shapes and types say, but not without
    // overflow that the last of them lies within the file.
    let header: Metadata = serde_json::from_slice(&bytes[LENGTH_BYTES..begin])
        .map_err(|source| SafetensorsError::Header { file: file(), source })?;
    let data = bytes.slice(begin..);
    if header.data_len() != data.len() {
        let (expected, found) = (header.data_len(), data.len());
        return Err(SafetensorsError::DataLength { file: file(), expected, found });
    }
    let tensor = |name: String| {
        let info = header.info(&name)?;
        let bytes = data.slice(info.data_offsets.0..info.data_offsets.1);
        let tensor = StoredTensor { shape: info.shape.clone(), dtype: info.dtype, bytes };
        Some((name, tensor))
    };
    Ok(header.offset_keys().into_iter().filter_map(tensor).collect())
}

#[cfg(test)]
mod tests {
    use ::safetensors::tensor::TensorView;
    use tempfile::TempDir;

    use super::*;

    /// A file of tensors of bytes that are as their names.
    fn file_of(names: &[&str]) -> Vec<u8> {
        let views =
            names.iter().map(|&name| (name, TensorView::new(Dtype::U8, vec![name.len()], name.as_bytes()).unwrap()));
        ::safetensors::serialize(views, None).unwrap()
    }

    fn folder(files: &[(&str, Vec<u8>)]) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            fs::write(folder.path().join(name), bytes).unwrap();
        }
        folder
    }

    fn index(entries: &[(&str, &str)]) -> (&'static str, Vec<u8>) {
        let map: IndexMap<&str, &str> = entries.iter().copied().collect();
        (INDEX, serde_json::json!({ "metadata": { "total_size": 1 }, "weight_map": map }).to_string().into_bytes())
    }

    /// The tensors and the bytes of each.
    fn contents(set: &Safetensors) -> Vec<(String, Vec<u8>)> {
        set.names().map(|name| (name.to_owned(), set.tensor(name).unwrap().bytes.to_vec())).collect()
    }

    fn as_named(names: &[&str]) -> Vec<(String, Vec<u8>)> {
        names.iter().map(|name| ((*name).to_owned(), name.as_bytes().to_vec())).collect()
    }

    /// What is said, without the folder.
    fn message(folder: &TempDir, name: &str) -> String {
        let message = Safetensors::open(&folder.path().join(name)).unwrap_err().to_string();
        message.replace(&format!("{}/", folder.path().display()), "")
    }

    /// A file with this header, and so many bytes behind it.
    fn with_header(header: &str, data: usize) -> Vec<u8> {
        [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &vec![0; data]].concat()
    }

    #[test]
    fn the_types_of_the_release_are_read() {
        let types = [Dtype::F8_E4M3, Dtype::F8_E8M0, Dtype::I8, Dtype::BF16, Dtype::F32];
        let data: Vec<u8> = (0..24).collect();
        let views = types.map(|dtype| {
            let bytes = 6 * dtype.bitsize() / 8;
            (dtype.to_string(), TensorView::new(dtype, vec![2, 3], &data[..bytes]).unwrap())
        });
        let folder = folder(&[("m.safetensors", ::safetensors::serialize(views, None).unwrap())]);
        let set = Safetensors::open(&folder.path().join("m.safetensors")).unwrap();
        assert_eq!(set.names().len(), types.len());
        for dtype in types {
            let tensor = set.tensor(&dtype.to_string()).unwrap();
            let bytes = data[..6 * dtype.bitsize() / 8].to_vec().into();
            assert_eq!(tensor, &StoredTensor { shape: vec![2, 3], dtype, bytes });
        }
    }

    #[test]
    fn a_set_is_opened_by_its_index_its_folder_or_any_file() {
        let (first, second) = ("m-00001-of-00002.safetensors", "m-00002-of-00002.safetensors");
        let files = [(first, file_of(&["a", "bb"])), (second, file_of(&["ccc"]))];
        let indexed = folder(
            &[files.clone(), [index(&[("ccc", second), ("a", first), ("bb", first)]), files[0].clone()]].concat(),
        );
        let bare = folder(&files);
        for path in [
            indexed.path().to_owned(),
            indexed.path().join(INDEX),
            bare.path().to_owned(),
            bare.path().join(first),
            bare.path().join(second),
        ] {
            let set = Safetensors::open(&path).unwrap();
            assert_eq!(contents(&set), as_named(&["a", "bb", "ccc"]), "{}", path.display());
            assert_eq!(set.files().len(), 2);
            let absent = set.tensor("d").unwrap_err().to_string();
            assert_eq!(absent, format!("{}: tensor `d` is missing", path.display()));
        }
    }

    #[test]
    fn an_index_chooses_among_what_files_hold() {
        let other = ("other.safetensors", file_of(&["a", "zz"]));
        let folder = folder(&[("m.safetensors", file_of(&["a", "bb"])), other, index(&[("a", "m.safetensors")])]);
        assert_eq!(contents(&Safetensors::open(folder.path()).unwrap()), as_named(&["a"]));
    }

    #[test]
    fn a_missing_file_is_named() {
        let (first, second) = ("m-00001-of-00002.safetensors", "m-00002-of-00002.safetensors");
        let bare = folder(&[(second, file_of(&["a"]))]);
        assert_eq!(message(&bare, second), format!("{first}: is missing: {second} needs it"));
        assert_eq!(message(&bare, "."), format!("{first}: is missing: . needs it"));
        let indexed = folder(&[(second, file_of(&["a"])), index(&[("a", second), ("b", first)])]);
        assert_eq!(message(&indexed, INDEX), format!("{first}: is missing: {INDEX} needs it"));
        assert!(message(&bare, "absent.safetensors").starts_with("absent.safetensors: cannot be opened: "));
    }

    #[test]
    fn an_index_and_its_files_agree() {
        let lacking =
            folder(&[("m.safetensors", file_of(&["a"])), index(&[("a", "m.safetensors"), ("b", "m.safetensors")])]);
        assert_eq!(message(&lacking, INDEX), "m.safetensors: tensor `b` is missing");
        for entry in ["../m.safetensors", "/m.safetensors", "sub/m.safetensors", "..", ".", "", "m.safetensors/"] {
            let outside = folder(&[index(&[("a", entry)])]);
            assert_eq!(
                message(&outside, INDEX),
                format!("{INDEX}: puts tensor `a` into `{entry}`, expected the name of a file beside the index")
            );
        }
        let broken = folder(&[(INDEX, b"{\"weight_map\": 3}".to_vec())]);
        assert_eq!(
            message(&broken, INDEX),
            format!("{INDEX}: not a valid index: invalid type: integer `3`, expected a map at line 1 column 16")
        );
    }

    #[test]
    fn a_folder_without_files_is_refused() {
        let folder = folder(&[("m.bin", vec![])]);
        let expected = ".: holds neither `model.safetensors.index.json` nor any file `*.safetensors`";
        assert_eq!(message(&folder, "."), expected);
    }

    #[test]
    fn a_tensor_of_two_files_is_refused() {
        let folder = folder(&[("a.safetensors", file_of(&["t"])), ("b.safetensors", file_of(&["t"]))]);
        let error = Safetensors::open(folder.path()).unwrap_err().to_string();
        let path = |name| folder.path().join(name).display().to_string();
        assert_eq!(error, format!("{}: tensor `t` is also in {}", path("b.safetensors"), path("a.safetensors")));
    }

    #[test]
    fn files_that_are_not_what_they_should_be_are_refused() {
        let t = |shape: &str, offsets: &str| {
            format!(r#"{{"t":{{"dtype":"U8","shape":{shape},"data_offsets":{offsets}}}}}"#)
        };
        for (bytes, expected) in [
            (vec![1, 2, 3], "not a safetensors file: 3 bytes, expected at least 8".to_owned()),
            (vec![255; 8], format!("header of {} bytes, expected at most 0", u64::MAX)),
            ([&50_u64.to_le_bytes()[..], &[0; 49]].concat(), "header of 50 bytes, expected at most 49".to_owned()),
            (with_header("GGUF", 0), "not a valid header: expected value at line 1 column 1".to_owned()),
            (with_header(&t("[4]", "[0,4]"), 3), "tensors take 4 bytes, and 3 follow the header".to_owned()),
            (with_header(&t("[4]", "[0,4]"), 5), "tensors take 4 bytes, and 5 follow the header".to_owned()),
            (with_header(&t("[4]", "[1,5]"), 5), "not a valid header: invalid offset for tensor `t`".to_owned()),
            (
                with_header(&t("[5]", "[0,4]"), 4),
                "not a valid header: invalid shape, data type, or offset for tensor".to_owned(),
            ),
            (
                with_header(&t("[4294967296,4294967296]", "[0,4]"), 4),
                "not a valid header: overflow computing buffer size from shape and/or element type".to_owned(),
            ),
        ] {
            let folder = folder(&[("m.safetensors", bytes)]);
            assert_eq!(message(&folder, "m.safetensors"), format!("m.safetensors: {expected}"));
        }
    }

    #[test]
    fn tensors_whose_ends_overflow_are_refused() {
        // Nine of the longest there are, one after another, end at the last byte that can be counted: with the header,
        // behind it.
        const LONGEST: u64 = (1 << 61) - 1;
        let ends: Vec<u64> = (1..=8).map(|count| count * LONGEST).chain([u64::MAX]).collect();
        let entries: Vec<String> = ends
            .iter()
            .scan(0, |begin, &end| {
                let entry =
                    format!(r#""{end}":{{"dtype":"U8","shape":[{}],"data_offsets":[{begin},{end}]}}"#, end - *begin);
                *begin = end;
                Some(entry)
            })
            .collect();
        let folder = folder(&[("m.safetensors", with_header(&format!("{{{}}}", entries.join(",")), 16))]);
        assert_eq!(
            message(&folder, "m.safetensors"),
            format!("m.safetensors: tensors take {} bytes, and 16 follow the header", u64::MAX)
        );
    }

    #[test]
    fn damaged_files_are_read_or_refused() {
        let whole = file_of(&["a", "bb", "ccc"]);
        let read = |bytes: Vec<u8>| tensors_of(Path::new("m.safetensors"), &bytes.into());
        assert_eq!(read(whole.clone()).unwrap().len(), 3);
        for place in 0..whole.len() {
            for byte in 0..=u8::MAX {
                let mut damaged = whole.clone();
                damaged[place] = byte;
                if let Ok(tensors) = read(damaged) {
                    assert_eq!(tensors.iter().map(|(_, tensor)| tensor.bytes.len()).sum::<usize>(), 6);
                }
            }
            assert!(read(whole[..place].to_vec()).is_err(), "cut to {place} bytes");
        }
    }
}
