//! From any store of a model's tensors to a GGUF file, in bounded memory, and back to see that it arrived.

use std::hash::{DefaultHasher, Hasher as _};
use std::ops::Range;
use std::path::{Path, PathBuf};

use dsv41_config::TensorSpec;
use dsv41_quant::{GgmlType, QuantError, quantise};

use super::error::ModelError;
use super::file::ModelFile;
use super::importance::{Entry, Importance};
use super::layout::{LaidTensor, Layout, columns, rows};
use super::plan::{TypePlan, Types};
use super::record::metadata_of;
use super::sizes::PartSize;
use super::store::TensorStore;
use crate::{Advice, Gguf, GgufWriter, Metadata, Split, TensorPlan, TensorType, WriterOptions};

/// Values converted at a time: enough for every thread to have rows, and sixteen megabytes.
const CHUNK: usize = 1 << 22;

/// How matrices become blocks. Types alone make all columns count alike.
#[derive(Clone, Copy)]
pub struct Quantisation<'a> {
    /// The type for each tensor.
    pub types: &'a dyn Types,
    /// What depends on each column.
    pub importance: Option<&'a Importance>,
}

impl<'a> From<&'a TypePlan> for Quantisation<'a> {
    fn from(plan: &'a TypePlan) -> Self {
        Self { types: plan, importance: None }
    }
}

impl<'a> From<&'a dyn Types> for Quantisation<'a> {
    fn from(types: &'a dyn Types) -> Self {
        Self { types, importance: None }
    }
}

/// How far a conversion is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress<'a> {
    /// What is being done.
    pub step: Step,
    /// The tensor of the file that it is done to.
    pub tensor: &'a str,
    /// Bytes of all tensors that it is done for.
    pub bytes: u64,
    /// Bytes of all tensors.
    pub total: u64,
}

/// A step of a conversion; each passes all tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Converting and writing.
    Write,
    /// Reading back and comparing.
    Check,
}

/// What a conversion has made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// The files.
    pub files: Vec<PathBuf>,
    /// What each part of the model takes in each type.
    pub sizes: Vec<PartSize>,
    /// Tensors whose rows do not divide into the blocks of the type that the plan has for them.
    pub fallbacks: Vec<Fallback>,
    /// Tensors of the file that were copied, as they had their type already.
    pub copied: usize,
    /// Tensors that were quantised with importances for only some of their matrices, or for none though there was a file
    /// of them.
    pub unweighted: Vec<Unweighted>,
}

/// A tensor that has another type than the plan says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fallback {
    /// The name in the file.
    pub tensor: String,
    /// Values of a row.
    pub columns: usize,
    /// The type of the plan.
    pub wanted: GgmlType,
    /// The type that it has.
    pub given: GgmlType,
}

/// A tensor whose columns count alike in some of its matrices or in all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unweighted {
    /// The name in the file.
    pub tensor: String,
    /// Matrices without importances.
    pub matrices: usize,
    /// All of its matrices that importances tell apart.
    pub of: usize,
}

/// Writes a model as one GGUF file or as a set, reads it back, and compares every byte's hash with what was written.
///
/// Of `extra`, keys under `tokenizer.` and `general.` are passed on: a source file's metadata, or those of a tokenizer.
/// Memory is bounded: tensors pass in chunks of rows, and those that the store holds in their type are copied unchanged.
///
/// # Errors
/// As [`metadata_of`], [`Layout::new`], [`GgufWriter`] and the store's; for importances that do not fit the model
/// [`ModelError::NoEntry`], [`ModelError::Shape`] and others that name their file; [`ModelError::Quant`] for values that a
/// type cannot hold; [`ModelError::OverSource`] where a file of the store would be replaced; [`ModelError::ReadBack`] for a
/// tensor that is not in the file as it was written.
pub fn convert<'a>(
    store: &dyn TensorStore,
    quantisation: impl Into<Quantisation<'a>>,
    extra: &Metadata,
    path: &Path,
    split: Split,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Summary, ModelError> {
    let Quantisation { types, importance } = quantisation.into();
    let layout = Layout::new(store.tensors(), types)?;
    if let Some(importance) = importance {
        importance.check(&layout, store.config())?;
    }
    let metadata = metadata(store, &layout, extra)?;
    let planned = layout.tensors.iter().map(|tensor| TensorPlan {
        name: tensor.name.clone(),
        shape: tensor.shape.clone(),
        ty: tensor.ty,
    });
    let options = WriterOptions { split, ..WriterOptions::default() };
    let writer = GgufWriter::create(path, &metadata, planned.collect(), options)?;
    check_paths(store, &writer)?;
    let mut report = Report { progress, bytes: 0, total: layout.bytes() };
    let written = write(store, &layout, importance, writer, &mut report)?;
    report.bytes = 0;
    check(&layout, &written, &mut report)?;
    let fallbacks = layout.tensors.iter().filter(|tensor| tensor.ty != tensor.wanted).map(|tensor| Fallback {
        tensor: tensor.name.clone(),
        columns: columns(&tensor.shape),
        wanted: tensor.wanted,
        given: tensor.ty,
    });
    Ok(Summary {
        sizes: layout.sizes(),
        fallbacks: fallbacks.collect(),
        files: written.files,
        copied: written.copied,
        unweighted: written.unweighted,
    })
}

/// Passes files to write of which the store reads none.
fn check_paths(store: &dyn TensorStore, writer: &GgufWriter) -> Result<(), ModelError> {
    let resolved = |path: &Path| path.canonicalize().ok();
    let sources: Vec<PathBuf> = store.files().into_iter().filter_map(resolved).collect();
    match writer.paths().find(|path| resolved(path).is_some_and(|path| sources.contains(&path))) {
        Some(file) => Err(ModelError::OverSource { file: file.to_owned() }),
        None => Ok(()),
    }
}

/// Whom to tell how far it is.
struct Report<'a> {
    progress: &'a mut dyn FnMut(Progress<'_>),
    bytes: u64,
    total: u64,
}

impl Report<'_> {
    fn done(&mut self, step: Step, tensor: &LaidTensor, bytes: usize) {
        // No platform of Rust has a `usize` of more than 64 bits.
        self.bytes += bytes as u64;
        (self.progress)(Progress { step, tensor: &tensor.name, bytes: self.bytes, total: self.total });
    }
}

/// Files as they were written.
struct Written {
    files: Vec<PathBuf>,
    /// Of the bytes of each tensor.
    hashes: Vec<u64>,
    copied: usize,
    unweighted: Vec<Unweighted>,
}

/// The metadata of the file.
fn metadata(store: &dyn TensorStore, layout: &Layout, extra: &Metadata) -> Result<Metadata, ModelError> {
    let mut metadata = metadata_of(store.config(), store.token_map())?;
    let mut of_types: Vec<(GgmlType, u64)> = GgmlType::ALL.map(|ty| (ty, 0)).to_vec();
    for tensor in &layout.tensors {
        of_types.iter_mut().filter(|(ty, _)| *ty == tensor.ty).for_each(|(_, bytes)| *bytes += tensor.bytes);
    }
    let most = of_types.into_iter().max_by_key(|&(_, bytes)| bytes).map_or(GgmlType::F32, |(ty, _)| ty);
    metadata.insert("general.file_type", file_type(most));
    metadata.insert("general.quantization_version", 2_u32);
    for (key, value) in extra.iter() {
        if (key.starts_with("tokenizer.") || key.starts_with("general.")) && metadata.get(key).is_none() {
            metadata.insert(key, value.clone());
        }
    }
    Ok(metadata)
}

/// ggml's number for files that are mostly of a type.
fn file_type(ty: GgmlType) -> u32 {
    match ty {
        GgmlType::F32 => 0,
        GgmlType::F16 => 1,
        GgmlType::Q4_0 => 2,
        GgmlType::Q8_0 => 7,
        GgmlType::Q2K => 10,
        GgmlType::Q3K => 12,
        GgmlType::Q4K => 15,
        GgmlType::Q5K => 17,
        GgmlType::Q6K => 18,
        GgmlType::Bf16 => 32,
        GgmlType::Mxfp4 => 38,
    }
}

/// The rows of a tensor of the reference that are converted at a time.
fn chunks(spec: &TensorSpec) -> impl Iterator<Item = Range<usize>> {
    let rows = rows(&spec.shape);
    let step = (CHUNK / columns(&spec.shape).max(1)).max(1);
    (0..rows).step_by(step).map(move |start| start..rows.min(start.saturating_add(step)))
}

fn write(
    store: &dyn TensorStore,
    layout: &Layout,
    importance: Option<&Importance>,
    mut writer: GgufWriter,
    report: &mut Report<'_>,
) -> Result<Written, ModelError> {
    let mut hashes = Vec::with_capacity(layout.tensors.len());
    let (mut copied, mut unweighted) = (0, Vec::new());
    let mut values = Vec::new();
    for tensor in &layout.tensors {
        let entry = importance.map(|importance| importance.entry(tensor, store.config())).transpose()?.flatten();
        let mut hasher = DefaultHasher::new();
        let mut whole = true;
        for (place, source) in tensor.sources.iter().enumerate() {
            for rows in chunks(source) {
                let packed = store.packed_rows(&source.name, rows.clone(), tensor.ty)?;
                whole &= packed.is_some();
                let bytes = match packed {
                    Some(bytes) => bytes,
                    None => {
                        values.resize(rows.len() * columns(&source.shape), 0.0);
                        store.rows(&source.name, rows.clone(), &mut values)?;
                        quantise_rows(tensor, place, rows.start, entry.as_ref(), &values)?.into()
                    }
                };
                hasher.write(&bytes);
                writer.write(&tensor.name, &bytes)?;
                report.done(Step::Write, tensor, bytes.len());
            }
        }
        hashes.push(hasher.finish());
        copied += usize::from(whole);
        if importance.is_some() && !whole && tensor.ty.block_len() > 1 {
            let (matrices, of) = entry.as_ref().map_or((1, 1), Entry::unseen);
            unweighted.extend((matrices > 0).then(|| Unweighted { tensor: tensor.name.clone(), matrices, of }));
        }
    }
    Ok(Written { files: writer.finish()?, hashes, copied, unweighted })
}

/// Converts rows of one of a tensor's sources from `start` on, each under the importances of its matrix; errors name the
/// row in the source.
fn quantise_rows(
    tensor: &LaidTensor,
    place: usize,
    start: usize,
    entry: Option<&Entry>,
    values: &[f32],
) -> Result<Vec<u8>, ModelError> {
    let source = &tensor.sources[place];
    let columns = columns(&source.shape);
    let first = place * rows(&source.shape);
    let all = first + start..first + start + values.len() / columns;
    let parts: Vec<_> = entry.map_or_else(|| vec![(all.clone(), None)], |entry| entry.cut(all.clone()).collect());
    let mut bytes = Vec::new();
    for (rows, weights) in parts {
        let values = &values[(rows.start - all.start) * columns..(rows.end - all.start) * columns];
        let quantised = quantise(tensor.ty, values, columns, weights).map_err(|error| match error {
            QuantError::Value { ty, row, column, value, limit } => {
                QuantError::Value { ty, row: rows.start - first + row, column, value, limit }
            }
            other => other,
        });
        bytes.extend(quantised.map_err(|error| ModelError::Quant { tensor: source.name.clone(), source: error })?);
    }
    Ok(bytes)
}

/// Reads the files back: the model is described, and every tensor has its type and the bytes that were written.
fn check(layout: &Layout, written: &Written, report: &mut Report<'_>) -> Result<(), ModelError> {
    let Some(first) = written.files.first() else { return Ok(()) };
    let file = ModelFile::new(Gguf::open(first)?, None)?;
    let gguf = file.gguf();
    for (tensor, &expected) in layout.tensors.iter().zip(&written.hashes) {
        let info = gguf.required(&tensor.name)?;
        let bytes = gguf.bytes(info)?;
        let mut hasher = DefaultHasher::new();
        let mut rest = &bytes[..];
        let mut complete = info.shape == tensor.shape && info.ty == TensorType::Known(tensor.ty);
        // In the chunks of writing, as a hash depends on them.
        for rows in tensor.sources.iter().flat_map(chunks) {
            let length = tensor.ty.row_bytes(columns(&tensor.shape)).map_err(|source| info.quant(source))? * rows.len();
            let (chunk, after) = rest.split_at_checked(length).unwrap_or((rest, &[]));
            complete &= chunk.len() == length;
            hasher.write(chunk);
            rest = after;
            report.done(Step::Check, tensor, length);
        }
        if !complete || !rest.is_empty() || hasher.finish() != expected {
            return Err(ModelError::ReadBack { tensor: tensor.name.clone() }.within(info.file()));
        }
        gguf.advise(info, 0..info.rows(), Advice::DontNeed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::model::TypePlan;
    use crate::model::testing::{Synthetic, as_text, released, shared, token_map};

    fn quiet(_: Progress<'_>) {}

    fn to_file(store: &dyn TensorStore, plan: TypePlan, path: &Path) -> Summary {
        convert(store, &plan, &Metadata::new(), path, Split::None, &mut quiet).unwrap()
    }

    fn values(store: &dyn TensorStore, spec: &TensorSpec) -> Vec<f32> {
        let mut out = vec![f32::NAN; spec.shape.iter().product()];
        store.rows(&spec.name, 0..rows(&spec.shape), &mut out).unwrap();
        out
    }

    #[test]
    fn a_file_of_floats_is_the_model_that_was_written() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["tiny", "nano"] {
            let store = Synthetic::new(released(name));
            let path = folder.path().join(name);
            let summary = to_file(&store, TypePlan::uniform(GgmlType::F32), &path);
            assert_eq!((summary.files, summary.fallbacks, summary.copied), (vec![path.clone()], vec![], 0));
            let file = ModelFile::open(&path).unwrap();
            assert_eq!(*file.config(), as_text(released(name)));
            assert_eq!(file.token_map(), Some(&token_map(file.config())[..]));
            assert_eq!(file.part_sizes(), summary.sizes);
            for spec in store.tensors() {
                let expected = values(&store, spec);
                assert_eq!(values(&file, spec), expected, "{}", spec.name);
                assert_eq!(file.values(&spec.name, &spec.shape).unwrap(), expected, "{}", spec.name);
            }
        }
    }

    #[test]
    fn rows_that_do_not_fit_are_written_wider_and_reported() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        let store = Synthetic::new(released("tiny"));
        let summary = to_file(&store, TypePlan::uniform(GgmlType::Q2K), &path);
        let down = Fallback {
            tensor: "blk.0.ffn_down_exps.weight".to_owned(),
            columns: 24,
            wanted: GgmlType::Q2K,
            given: GgmlType::F16,
        };
        assert!(summary.fallbacks.contains(&down), "{:?}", summary.fallbacks);
        assert!(summary.fallbacks.iter().all(|fallback| fallback.given != GgmlType::Q2K && fallback.columns < 256));
        let file = ModelFile::open(&path).unwrap();
        assert_eq!(file.ty("layers.0.attn.wq_a.weight").unwrap(), GgmlType::Q8_0);
        assert_eq!(file.ty("layers.0.hc_attn_fn").unwrap(), GgmlType::F32);
        for spec in store.tensors() {
            for (value, back) in values(&store, spec).into_iter().zip(values(&file, spec)) {
                // Half a step of Q8_0 for magnitudes up to 1, and of f16.
                assert!((value - back).abs() <= 0.5 / 127.0 + 1.0 / 2048.0, "{}: {value} {back}", spec.name);
            }
        }
    }

    #[test]
    fn what_has_its_type_already_is_copied_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        let plan = TypePlan { head: GgmlType::Bf16, ..TypePlan::uniform(GgmlType::Q8_0) };
        let (first, second) = (folder.path().join("first.gguf"), folder.path().join("second.gguf"));
        let tensors = to_file(&Synthetic::new(released("nano")), plan, &first);
        let file = ModelFile::open(&first).unwrap();
        let summary = convert(&file, &plan, file.metadata(), &second, Split::None, &mut quiet).unwrap();
        assert_eq!(summary.copied, tensors.sizes.iter().map(|size| size.tensors).sum::<usize>());
        assert_eq!(fs::read(&first).unwrap(), fs::read(&second).unwrap());
    }

    #[test]
    fn no_file_that_is_read_is_written_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nano.gguf");
        let plan = TypePlan::uniform(GgmlType::Q8_0);
        let split = |path: &Path, split, store: &dyn TensorStore| {
            convert(store, &plan, &Metadata::new(), path, split, &mut quiet).map(|summary| summary.files)
        };
        let shards = split(&path, Split::Tensors(100), &Synthetic::new(released("nano"))).unwrap();
        let before: Vec<Vec<u8>> = shards.iter().map(|file| fs::read(file).unwrap()).collect();
        let file = ModelFile::open(&shards[0]).unwrap();
        let error = split(&path, Split::Tensors(100), &file).unwrap_err();
        assert!(error.to_string().ends_with("-of-00002.gguf: is read, and cannot be written over"), "{error}");
        // By another way to the same file.
        let around = folder.path().join("..").join(folder.path().file_name().unwrap()).join("nano.gguf");
        let error = split(&around, Split::Tensors(100), &file).unwrap_err();
        assert!(matches!(error, ModelError::OverSource { .. }), "{error}");
        assert!(shards.iter().map(|file| fs::read(file).unwrap()).eq(before));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn shards_hold_together_what_one_file_does() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nano.gguf");
        let store = Synthetic::new(released("nano"));
        let plan = TypePlan::uniform(GgmlType::Q4_0);
        let split = Split::Bytes(200_000);
        let summary = convert(&store, &plan, &Metadata::new(), &path, split, &mut quiet).unwrap();
        assert!(summary.files.len() > 2, "{:?}", summary.files);
        let sharded = ModelFile::open(&summary.files[1]).unwrap();
        to_file(&store, plan, &path);
        let whole = ModelFile::open(&path).unwrap();
        assert_eq!(sharded.config(), whole.config());
        for spec in store.tensors() {
            assert_eq!(values(&sharded, spec), values(&whole, spec), "{}", spec.name);
        }
    }

    #[test]
    fn the_handed_file_is_written_again_with_its_tokenizer_and_image_biases() {
        let Some(path) = shared("gguf/tiny-q2_k.gguf") else { return };
        let folder = tempfile::tempdir().unwrap();
        let again = folder.path().join("again.gguf");
        let file = ModelFile::open(&path).unwrap();
        let summary = convert(&file, &TypePlan::Q2K_MIX, file.metadata(), &again, Split::None, &mut quiet).unwrap();
        let back = ModelFile::open(&again).unwrap();
        assert_eq!(back.config(), file.config());
        assert_eq!(back.tensors(), file.tensors());
        let given: Vec<(&str, GgmlType)> =
            summary.fallbacks.iter().map(|fallback| (fallback.tensor.as_str(), fallback.given)).collect();
        let expected = ["blk.2.indexer.attn_k.weight", "blk.4.indexer.attn_k.weight"];
        assert_eq!(given, expected.map(|name| (name, GgmlType::Q8_0)));
        for key in ["general.name", "tokenizer.ggml.model", "tokenizer.ggml.tokens", "tokenizer.ggml.scores"] {
            assert_eq!(back.metadata().get(key), file.metadata().get(key), "{key}");
        }
        assert_eq!(back.metadata().u32("general.file_type").unwrap(), Some(10));
        // The mixers are now what their blocks meant; all others were copied.
        for spec in file.tensors() {
            assert_eq!(values(&back, spec), values(&file, spec), "{}", spec.name);
        }
    }

    #[test]
    fn progress_ends_at_the_whole_twice() {
        let folder = tempfile::tempdir().unwrap();
        let store = Synthetic::new(released("tiny"));
        let mut last = Vec::new();
        let mut note = |progress: Progress<'_>| {
            assert!(progress.bytes <= progress.total);
            if progress.bytes == progress.total {
                last.push((progress.step, progress.tensor.to_owned()));
            }
        };
        let path = folder.path().join("tiny.gguf");
        let plan = TypePlan::uniform(GgmlType::Bf16);
        convert(&store, &plan, &Metadata::new(), &path, Split::None, &mut note).unwrap();
        assert_eq!(last, [Step::Write, Step::Check].map(|step| (step, "output.weight".to_owned())));
    }

    #[test]
    fn a_value_that_no_type_holds_is_named_and_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        let mut store = Synthetic::new(released("tiny"));
        store.poison = Some(("layers.3.ffn.experts.2.w1.weight", 17, 5));
        let plan = TypePlan::uniform(GgmlType::Q8_0);
        let error = convert(&store, &plan, &Metadata::new(), &path, Split::None, &mut quiet).unwrap_err();
        let expected = "tensor `layers.3.ffn.experts.2.w1.weight`: the value in row 17, column 5 is NaN";
        assert!(error.to_string().starts_with(expected), "{error}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_model_with_engram_layers_needs_its_token_map() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = Synthetic::new(released("tiny"));
        store.token_map = None;
        let path = folder.path().join("tiny.gguf");
        let plan = TypePlan::uniform(GgmlType::F32);
        let error = convert(&store, &plan, &Metadata::new(), &path, Split::None, &mut quiet).unwrap_err();
        let expected = "no map for the engram's tokens, expected 64 entries of 64 distinct values";
        assert_eq!(error.to_string(), expected);
    }

    /// A file whose bytes change on the way to the disk.
    #[test]
    fn a_file_that_differs_from_what_was_written_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        let store = Synthetic::new(released("tiny"));
        let plan = TypePlan::uniform(GgmlType::F32);
        to_file(&store, plan, &path);
        let layout = Layout::new(store.tensors(), &plan).unwrap();
        let writer = |path: &Path| {
            let tensors = layout.tensors.iter().map(|tensor| TensorPlan {
                name: tensor.name.clone(),
                shape: tensor.shape.clone(),
                ty: tensor.ty,
            });
            let metadata = metadata(&store, &layout, &Metadata::new()).unwrap();
            GgufWriter::create(path, &metadata, tensors.collect(), WriterOptions::default()).unwrap()
        };
        let mut report = Report { progress: &mut quiet, bytes: 0, total: 0 };
        let written = write(&store, &layout, None, writer(&path), &mut report).unwrap();
        check(&layout, &written, &mut report).unwrap();
        let mut bytes = fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&path, bytes).unwrap();
        let error = check(&layout, &written, &mut report).unwrap_err();
        assert!(error.to_string().ends_with("tensor `output.weight` is not in the file as it was written"), "{error}");
    }
}
