//! The released checkpoint: a folder with a configuration and safetensors files, under the reference's names.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use dsv41_config::{Config, StoredTensor as Expected, TensorSpec, TensorStorage};
use dsv41_quant::release::{ReleaseFormat, ReleaseMatrix};
use dsv41_quant::{GgmlType, PackedMatrix, dequantise};

use super::error::ModelError;
use super::layout::{columns, rows};
use super::store::TensorStore;
use crate::{Dtype, Safetensors, StoredTensor};

/// The file of the configuration.
const CONFIG: &str = "config.json";

/// A folder of the release. Its files are mapped, and tensors converted as their rows are asked for.
#[derive(Debug)]
pub struct ReleaseDir {
    folder: PathBuf,
    config: Config,
    token_map: Option<Vec<u32>>,
    tensors: Vec<TensorSpec>,
    /// Places in the tensors.
    places: HashMap<String, usize>,
    files: Safetensors,
}

impl ReleaseDir {
    /// Opens a folder and checks that it holds every tensor of its model in the right shape and in a type that is read.
    /// The tensors of vision encoder and draft head are passed over.
    ///
    /// `token_map` is the engram's, which the release leaves to its tokenizer.
    ///
    /// # Errors
    /// [`ModelError::Configuration`] for its `config.json`, errors of the container for the files, and
    /// [`ModelError::Shape`] and [`ModelError::Dtype`] for tensors.
    pub fn open(folder: &Path, token_map: Option<Vec<u32>>) -> Result<Self, ModelError> {
        let config = Config::load(&folder.join(CONFIG)).map_err(ModelError::Configuration)?;
        let files = Safetensors::open(folder)?;
        let tensors = config.tensors();
        let places = tensors.iter().enumerate().map(|(place, spec)| (spec.name.clone(), place)).collect();
        let release = Self { folder: folder.to_owned(), config, token_map, tensors, places, files };
        for spec in &release.tensors {
            release.find(spec).map_err(|error| error.within(folder))?;
        }
        Ok(release)
    }

    fn spec(&self, name: &str) -> Result<&TensorSpec, ModelError> {
        let unknown = || ModelError::UnknownTensor { name: name.to_owned() }.within(&self.folder);
        self.places.get(name).map(|&place| &self.tensors[place]).ok_or_else(unknown)
    }

    /// A tensor as its file holds it. Where that is in other floats than the configuration says, the file is right.
    fn find(&self, spec: &TensorSpec) -> Result<Stored<'_>, ModelError> {
        let expected = spec.stored();
        let found = self.files.tensor(&spec.name)?;
        if let Some(ty) = float(found.dtype) {
            check_shape(&spec.name, found, &spec.shape)?;
            return Ok(Stored::Floats { ty, values: &found.bytes });
        }
        let format = match (spec.storage, found.dtype) {
            (TensorStorage::Fp8Tile, Dtype::F8_E4M3) => ReleaseFormat::Fp8Tiles,
            (TensorStorage::Fp8Row, Dtype::F8_E4M3) => ReleaseFormat::Fp8Rows,
            (TensorStorage::Fp4, Dtype::I8 | Dtype::U8) => ReleaseFormat::Fp4,
            (storage, _) => return Err(wrong_type(&spec.name, found, types(storage))),
        };
        // The codes, and scales where there are codes.
        for Expected { name, shape, .. } in &expected {
            check_shape(name, self.files.tensor(name)?, shape)?;
        }
        let scale = expected.last().map_or(spec.name.as_str(), |scale| &scale.name);
        let scales = self.files.tensor(scale)?;
        if !matches!(scales.dtype, Dtype::F8_E8M0 | Dtype::U8) {
            return Err(wrong_type(scale, scales, "F8_E8M0 or U8"));
        }
        Ok(Stored::Codes { format, codes: &found.bytes, scales: &scales.bytes })
    }
}

impl TensorStore for ReleaseDir {
    fn config(&self) -> &Config {
        &self.config
    }

    fn token_map(&self) -> Option<&[u32]> {
        self.token_map.as_deref()
    }

    fn tensors(&self) -> &[TensorSpec] {
        &self.tensors
    }

    fn files(&self) -> Vec<&Path> {
        self.files.files().iter().map(PathBuf::as_path).collect()
    }

    fn rows(&self, name: &str, rows: Range<usize>, out: &mut [f32]) -> Result<(), ModelError> {
        let spec = self.spec(name)?;
        match self.find(spec)? {
            Stored::Floats { ty, values } => {
                let bytes = row_bytes(spec, ty, values, rows)?;
                dequantise(ty, &bytes, out).map_err(|source| ModelError::Quant { tensor: name.to_owned(), source })
            }
            Stored::Codes { format, codes, scales } => {
                let matrix = ReleaseMatrix::new(format, shape(spec), codes, scales);
                let values = matrix.and_then(|matrix| matrix.dequantise_rows(rows, out));
                values.map_err(|source| ModelError::Release { tensor: name.to_owned(), source })
            }
        }
    }

    fn packed_rows(&self, name: &str, rows: Range<usize>, ty: GgmlType) -> Result<Option<Bytes>, ModelError> {
        let spec = self.spec(name)?;
        match self.find(spec)? {
            Stored::Floats { ty: stored, values } if stored == ty => row_bytes(spec, ty, values, rows).map(Some),
            _ => Ok(None),
        }
    }
}

/// A tensor's bytes.
enum Stored<'a> {
    /// Plain floats.
    Floats { ty: GgmlType, values: &'a Bytes },
    /// Small floats under scales.
    Codes { format: ReleaseFormat, codes: &'a [u8], scales: &'a [u8] },
}

fn float(dtype: Dtype) -> Option<GgmlType> {
    match dtype {
        Dtype::F32 => Some(GgmlType::F32),
        Dtype::BF16 => Some(GgmlType::Bf16),
        Dtype::F16 => Some(GgmlType::F16),
        _ => None,
    }
}

/// What tensors of a storage may be stored as.
fn types(storage: TensorStorage) -> &'static str {
    match storage {
        TensorStorage::F32 | TensorStorage::Bf16 => "F32, BF16 or F16",
        TensorStorage::Fp8Tile | TensorStorage::Fp8Row => "F8_E4M3, F32, BF16 or F16",
        TensorStorage::Fp4 => "I8 with two codes a byte, F32, BF16 or F16",
    }
}

fn check_shape(tensor: &str, found: &StoredTensor, expected: &[usize]) -> Result<(), ModelError> {
    if found.shape == expected {
        return Ok(());
    }
    let (found, expected) = (found.shape.clone(), format!("{expected:?}"));
    Err(ModelError::Shape { tensor: tensor.to_owned(), found, expected })
}

fn wrong_type(tensor: &str, found: &StoredTensor, expected: &'static str) -> ModelError {
    ModelError::Dtype { tensor: tensor.to_owned(), found: format!("{:?}", found.dtype), expected }
}

/// A tensor's shape as that of a matrix.
fn shape(spec: &TensorSpec) -> [usize; 2] {
    [rows(&spec.shape), columns(&spec.shape)]
}

/// The bytes of some rows of plain floats.
fn row_bytes(spec: &TensorSpec, ty: GgmlType, values: &Bytes, rows: Range<usize>) -> Result<Bytes, ModelError> {
    let quant = |source| ModelError::Quant { tensor: spec.name.clone(), source };
    let whole = PackedMatrix::new(ty, shape(spec), values.clone()).map_err(quant)?;
    if rows.start > rows.end || rows.end > whole.rows() {
        return Err(ModelError::Rows { tensor: spec.name.clone(), asked: rows, rows: whole.rows() });
    }
    Ok(whole.slice_rows(rows).bytes().clone())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use ::safetensors::tensor::TensorView;
    use dsv41_config::{ExpertStorage, Storage, StoredDtype};

    use super::*;
    use crate::model::testing::{as_text, released, token_map};
    use crate::{Metadata, ModelFile, Split, TypePlan, convert};

    /// A small model stored as the released one is.
    fn config() -> Config {
        let config = Config { dtype: Storage::Fp8, expert_dtype: Some(ExpertStorage::Fp4), ..released("nano") };
        config.validate().unwrap();
        config
    }

    /// A tensor of a file.
    struct Entry {
        name: String,
        dtype: Dtype,
        shape: Vec<usize>,
        bytes: Vec<u8>,
    }

    /// The scale of a place in the list of scales: a power of two between 1/8 and 16.
    fn scale(place: usize) -> i32 {
        (place % 8) as i32 - 3
    }

    /// What the release would hold of a tensor: every code of a matrix stands for 1 or, as the high half of a byte, for
    /// -3, and every scale is [`scale`] of its place; floats are their place.
    fn entries(spec: &TensorSpec) -> Vec<Entry> {
        let stored = spec.stored();
        let entry = |stored: &Expected| {
            let count = stored.shape.iter().product();
            let floats = (0..count).map(|place| (place % 251) as f32);
            let (dtype, bytes) = match stored.dtype {
                StoredDtype::F32 => (Dtype::F32, floats.flat_map(f32::to_le_bytes).collect()),
                // The upper half of a float of few bits.
                StoredDtype::Bf16 => {
                    let halves = floats.map(|value| (value.to_bits() >> 16) as u16);
                    (Dtype::BF16, halves.flat_map(u16::to_le_bytes).collect())
                }
                StoredDtype::F8E4m3 => (Dtype::F8_E4M3, vec![0x38; count]),
                StoredDtype::F8E8m0 => (Dtype::F8_E8M0, (0..count).map(|place| (127 + scale(place)) as u8).collect()),
                StoredDtype::F4E2m1x2 => (Dtype::I8, vec![0xD2; count]),
            };
            Entry { name: stored.name.clone(), dtype, shape: stored.shape.clone(), bytes }
        };
        stored.iter().map(entry).collect()
    }

    /// The value that such a tensor has at a place.
    fn value(spec: &TensorSpec, row: usize, column: usize) -> f32 {
        let columns = columns(&spec.shape);
        let scales = columns.div_ceil(32);
        match spec.storage {
            TensorStorage::F32 | TensorStorage::Bf16 => ((row * columns + column) % 251) as f32,
            TensorStorage::Fp8Tile => 2_f32.powi(scale(row / 32 * scales + column / 32)),
            TensorStorage::Fp8Row => 2_f32.powi(scale(row * scales + column / 32)),
            TensorStorage::Fp4 => {
                let code = if column.is_multiple_of(2) { 1.0 } else { -3.0 };
                code * 2_f32.powi(scale(row * scales + column / 32))
            }
        }
    }

    /// A folder with the model in two files and an index, whose tensors `change` may change.
    fn folder(change: impl Fn(&mut Entry)) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let config = config();
        fs::write(folder.path().join(CONFIG), config.to_json()).unwrap();
        let mut entries: Vec<Entry> = config.tensors().iter().flat_map(entries).collect();
        entries.iter_mut().for_each(change);
        let draft =
            Entry { name: "mtp.0.norm.weight".to_owned(), dtype: Dtype::BF16, shape: vec![2], bytes: vec![0; 4] };
        entries.push(draft);
        let mut index = serde_json::Map::new();
        let half = entries.len() / 2;
        for (number, entries) in [&entries[..half], &entries[half..]].into_iter().enumerate() {
            let file = format!("model-{:05}-of-00002.safetensors", number + 1);
            let views = entries.iter().map(|entry| {
                let view = TensorView::new(entry.dtype, entry.shape.clone(), &entry.bytes).unwrap();
                (entry.name.clone(), view)
            });
            ::safetensors::serialize_to_file(views, None, &folder.path().join(&file)).unwrap();
            index.extend(entries.iter().map(|entry| (entry.name.clone(), file.clone().into())));
        }
        let index = serde_json::json!({ "weight_map": index });
        fs::write(folder.path().join("model.safetensors.index.json"), index.to_string()).unwrap();
        folder
    }

    fn open(folder: &tempfile::TempDir) -> Result<ReleaseDir, ModelError> {
        ReleaseDir::open(folder.path(), Some(token_map(&config())))
    }

    fn values(store: &dyn TensorStore, spec: &TensorSpec, rows: Range<usize>) -> Vec<f32> {
        let mut out = vec![f32::NAN; rows.len() * columns(&spec.shape)];
        store.rows(&spec.name, rows, &mut out).unwrap();
        out
    }

    fn expected(spec: &TensorSpec, rows: Range<usize>) -> Vec<f32> {
        rows.flat_map(|row| (0..columns(&spec.shape)).map(move |column| value(spec, row, column))).collect()
    }

    #[test]
    fn every_tensor_has_the_values_of_its_codes_and_scales() {
        let folder = folder(|_| {});
        let release = open(&folder).unwrap();
        assert_eq!(*release.config(), config());
        let mut storages = std::collections::HashSet::new();
        for spec in release.tensors() {
            let all = 0..rows(&spec.shape);
            assert_eq!(values(&release, spec, all.clone()), expected(spec, all.clone()), "{}", spec.name);
            let some = all.end / 3..all.end;
            assert_eq!(values(&release, spec, some.clone()), expected(spec, some), "{}", spec.name);
            storages.insert(spec.storage);
        }
        assert_eq!(storages.len(), 5, "{storages:?}");
    }

    #[test]
    fn a_configuration_that_cannot_be_used_is_named() {
        let folder = folder(|_| {});
        let path = folder.path().join(CONFIG);
        fs::write(&path, "{}").unwrap();
        let error = open(&folder).unwrap_err().to_string();
        assert_eq!(error, format!("{}: key `n_layers` is missing", path.display()));
    }

    /// fp4 and MXFP4 are the same codes and scales in another order.
    #[test]
    fn experts_lose_nothing_in_mxfp4() {
        let folder = folder(|_| {});
        let release = open(&folder).unwrap();
        let path = folder.path().join("model.gguf");
        let plan = TypePlan { engram: GgmlType::Q8_0, ..TypePlan::uniform(GgmlType::Mxfp4) };
        convert(&release, &plan, &Metadata::new(), &path, Split::None, &mut |_| {}).unwrap();
        let file = ModelFile::open(&path).unwrap();
        for spec in release.tensors().iter().filter(|spec| spec.storage == TensorStorage::Fp4) {
            assert_eq!(file.ty(&spec.name).unwrap(), GgmlType::Mxfp4);
            assert_eq!(file.values(&spec.name, &spec.shape).unwrap(), expected(spec, 0..rows(&spec.shape)));
        }
    }

    #[test]
    fn a_file_made_of_the_release_is_the_release() {
        let folder = folder(|_| {});
        let release = open(&folder).unwrap();
        let path = folder.path().join("model.gguf");
        let plan = TypePlan::uniform(GgmlType::F32);
        let summary = convert(&release, &plan, &Metadata::new(), &path, Split::None, &mut |_| {}).unwrap();
        assert!(summary.copied > 0);
        let file = ModelFile::open(&path).unwrap();
        assert_eq!(*file.config(), as_text(config()));
        for spec in release.tensors() {
            let all = 0..rows(&spec.shape);
            assert_eq!(values(&file, spec, all.clone()), expected(spec, all), "{}", spec.name);
        }
    }

    #[test]
    fn floats_of_another_type_are_read_as_they_are() {
        const NAME: &str = "layers.0.attn.wq_a.weight";
        let widen = |entry: &mut Entry| {
            if entry.name == NAME {
                entry.dtype = Dtype::F32;
                entry.bytes = (0..entry.bytes.len()).flat_map(|place| (place as f32).to_le_bytes()).collect();
            }
        };
        let folder = folder(widen);
        let release = open(&folder).unwrap();
        let spec = release.spec(NAME).unwrap();
        assert_eq!(values(&release, spec, 1..2)[0], columns(&spec.shape) as f32);
        let packed = release.packed_rows(NAME, 0..1, GgmlType::F32).unwrap().unwrap();
        assert_eq!(packed[4..8], 1_f32.to_le_bytes());
        assert_eq!(release.packed_rows(NAME, 0..1, GgmlType::Bf16).unwrap(), None);
    }

    #[test]
    fn tensors_of_another_shape_or_type_are_named() {
        const NAME: &str = "layers.1.ffn.experts.3.w2";
        let message = |change: fn(&mut Entry)| {
            let folder = folder(|entry| {
                if entry.name.starts_with(NAME) {
                    change(entry);
                }
            });
            let error = open(&folder).unwrap_err().to_string();
            error.split_once(": ").unwrap().1.to_owned()
        };
        let flat = message(|entry| entry.shape = vec![entry.bytes.len()]);
        assert_eq!(flat, format!("tensor `{NAME}.weight` has shape [1536], expected [96, 16]"));
        let typed = message(|entry| entry.dtype = Dtype::F8_E4M3);
        assert!(
            typed.starts_with(&format!("tensor `{NAME}.weight` has type F8_E4M3, expected I8 with two")),
            "{typed}"
        );
        let scales = message(|entry| {
            if entry.name.ends_with("scale") {
                entry.shape.reverse();
            }
        });
        assert_eq!(scales, format!("tensor `{NAME}.scale` has shape [1, 96], expected [96, 1]"));
        let scale_type = message(|entry| {
            if entry.name.ends_with("scale") {
                entry.dtype = Dtype::I8;
            }
        });
        assert_eq!(scale_type, format!("tensor `{NAME}.scale` has type I8, expected F8_E8M0 or U8"));
        let missing = message(|entry| entry.name.push('s'));
        assert_eq!(missing, format!("tensor `{NAME}.weight` is missing"));
    }

    #[test]
    fn rows_that_are_not_there_are_refused() {
        let folder = folder(|_| {});
        let release = open(&folder).unwrap();
        let mut out = [0.0; 96];
        let error = release.rows("layers.0.ffn.gate.weight", 8..9, &mut out).unwrap_err();
        let expected = "tensor `layers.0.ffn.gate.weight`: rows 8..9 were asked for, and there are 8";
        assert_eq!(error.to_string(), expected);
        let error = release.rows("layers.0.attn.wq_a.weight", 64..65, &mut out).unwrap_err();
        assert_eq!(
            error.to_string(),
            "tensor `layers.0.attn.wq_a.weight`: rows 64..65 were asked for, and there are 64"
        );
        assert!(matches!(release.rows("mtp.0.norm.weight", 0..1, &mut out), Err(ModelError::In { .. })));
    }
}
