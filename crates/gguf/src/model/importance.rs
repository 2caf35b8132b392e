//! How much depends on each column of a model's matrices, as llama.cpp's `llama-imatrix` measures it.

use std::ops::Range;
use std::path::{Path, PathBuf};

use dsv41_config::Config;
use dsv41_quant::GgmlType;

use super::error::ModelError;
use super::layout::{LaidTensor, Layout, columns, rows};
use crate::{Gguf, TensorInfo, TensorType};

/// The key that says what a file is, and what it says of such a file.
const KIND: (&str, &str) = ("general.type", "imatrix");
/// Behind a tensor's name: the sums of its squared inputs, `[matrices, columns]`.
const SUMS: &str = ".in_sum2";
/// Behind a tensor's name: the inputs that were summed, `[matrices, 1]`.
const COUNTS: &str = ".counts";

/// A file of importances: for the matrices of a model, the squared inputs that each column was multiplied with in a
/// calibration run.
#[derive(Debug)]
pub struct Importance {
    gguf: Gguf,
    file: PathBuf,
}

impl Importance {
    /// Opens a file that `llama-imatrix` wrote as GGUF.
    ///
    /// # Errors
    /// As [`Gguf::open`]; [`ModelError::MissingKey`] and [`ModelError::Key`] for a GGUF file of another kind.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let gguf = Gguf::open(path)?;
        let (key, expected) = KIND;
        let error = match gguf.metadata().str(key)? {
            Some(kind) if kind == expected => return Ok(Self { gguf, file: path.to_owned() }),
            Some(kind) => ModelError::Key {
                key: key.to_owned(),
                found: format!("{kind:?}"),
                expected: format!("{expected:?}, which files of importances say"),
            },
            None => ModelError::MissingKey { key: key.to_owned() },
        };
        Err(error.within(path))
    }

    /// Passes entries that fit the tensors of a file, one of which has to have one.
    ///
    /// # Errors
    /// [`ModelError::NoEntry`], or as [`Importance::entry`].
    pub(super) fn check(&self, layout: &Layout, config: &Config) -> Result<(), ModelError> {
        let mut any = false;
        for tensor in &layout.tensors {
            any |= self.entry(tensor, config)?.is_some();
        }
        let none = || ModelError::NoEntry { found: self.gguf.tensors().len() }.within(&self.file);
        if any { Ok(()) } else { Err(none()) }
    }

    /// What there is for a tensor.
    ///
    /// # Errors
    /// For an entry that is not what the tensor needs: [`ModelError::MissingTensor`], [`ModelError::Dtype`],
    /// [`ModelError::Shape`] and [`ModelError::Weight`].
    pub(super) fn entry(&self, tensor: &LaidTensor, config: &Config) -> Result<Option<Entry>, ModelError> {
        let [sums, counts] = [SUMS, COUNTS].map(|suffix| format!("{}{suffix}", tensor.name));
        match (self.gguf.tensor(&sums), self.gguf.tensor(&counts)) {
            (None, None) => Ok(None),
            (Some(_), None) => Err(ModelError::MissingTensor { tensor: counts }.within(&self.file)),
            (None, Some(_)) => Err(ModelError::MissingTensor { tensor: sums }.within(&self.file)),
            (Some(sums), Some(counts)) => {
                let (columns, matrices) = (columns(&tensor.shape), matrices(tensor, config));
                let found = sums.rows();
                if sums.columns() != columns || (found != 1 && found != matrices) {
                    return Err(shape(sums, [1, matrices].map(|rows| [rows, columns])));
                }
                if counts.rows() * counts.columns() != found {
                    return Err(shape(counts, [[found, 1]; 2]));
                }
                let (sums, counts) = (self.weights(sums)?, self.weights(counts)?);
                Ok(Some(Entry { sums, counts, columns, rows_each: rows(&tensor.shape) / found }))
            }
        }
    }

    /// The values of a tensor, each a finite number from zero.
    fn weights(&self, info: &TensorInfo) -> Result<Vec<f32>, ModelError> {
        if info.ty != TensorType::Known(GgmlType::F32) {
            let (tensor, found) = (info.name.clone(), info.ty.to_string());
            return Err(ModelError::Dtype { tensor, found, expected: "f32" }.within(info.file()));
        }
        let bytes = self.gguf.bytes(info)?;
        let values: Vec<f32> = bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
        match values.iter().position(|value| !(0.0..f32::INFINITY).contains(value)) {
            None => Ok(values),
            Some(place) => {
                let (tensor, value) = (info.name.clone(), values[place]);
                Err(ModelError::Weight { tensor, place, value }.within(info.file()))
            }
        }
    }
}

/// How many matrices of a tensor have inputs of their own: the experts of a stack, and the groups of the attention's
/// output.
fn matrices(tensor: &LaidTensor, config: &Config) -> usize {
    if tensor.name.ends_with(".attn_output_a.weight") { config.o_groups } else { tensor.sources.len() }
}

fn shape(info: &TensorInfo, expected: [[usize; 2]; 2]) -> ModelError {
    let [one, each] = expected.map(|shape| format!("{shape:?}"));
    let expected = if one == each { one } else { format!("{one} or {each}") };
    ModelError::Shape { tensor: info.name.clone(), found: info.shape.clone(), expected }.within(info.file())
}

/// The importances of one tensor.
#[derive(Debug)]
pub(super) struct Entry {
    /// `[matrices, columns]`
    sums: Vec<f32>,
    /// `[matrices]`
    counts: Vec<f32>,
    columns: usize,
    /// Rows of each matrix.
    rows_each: usize,
}

impl Entry {
    /// Some of the tensor's rows, cut where another matrix begins, and the weights of their columns: none where no input
    /// came to the matrix. Sums serve as well as means, as the ratios of importances alone count.
    pub(super) fn cut(&self, rows: Range<usize>) -> impl Iterator<Item = (Range<usize>, Option<&[f32]>)> {
        let first = rows.start / self.rows_each;
        let matrices = self.counts.iter().zip(self.sums.chunks(self.columns)).enumerate().skip(first);
        matrices
            .map(move |(matrix, (&count, sums))| {
                let start = rows.start.max(matrix * self.rows_each);
                let end = rows.end.min((matrix + 1) * self.rows_each);
                (start..end, (count > 0.0).then_some(sums))
            })
            .take_while(|(rows, _)| !rows.is_empty())
    }

    /// Matrices that no input came to, and all.
    pub(super) fn unseen(&self) -> (usize, usize) {
        (self.counts.iter().filter(|&&count| count == 0.0).count(), self.counts.len())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;
    use crate::model::testing::{Synthetic, released};
    use crate::{
        GgufWriter, Metadata, ModelFile, Quantisation, Split, Summary, TensorPlan, TensorStore, TypePlan, Unweighted,
        WriterOptions, convert,
    };

    const PLAN: TypePlan = TypePlan::uniform(GgmlType::Q4_0);

    /// A tensor of a file of importances.
    type Statistic = (String, Vec<usize>, Vec<f32>);

    fn config() -> Config {
        released("tiny")
    }

    /// Entries for every matrix of the model, with a few columns that much depends on.
    fn statistics() -> Vec<Statistic> {
        let layout = Layout::new(&config().tensors(), &PLAN).unwrap();
        let tensors = layout.tensors.into_iter().filter(|tensor| rows(&tensor.shape) > 1);
        let mut statistics = Vec::new();
        for tensor in tensors {
            let (matrices, columns) = (matrices(&tensor, &config()), columns(&tensor.shape));
            let sum = |place: usize| 1.0 + if place.is_multiple_of(7) { 1e4 } else { (place % 5) as f32 };
            let sums = (0..matrices * columns).map(sum).collect();
            statistics.push((format!("{}{SUMS}", tensor.name), vec![matrices, columns], sums));
            statistics.push((format!("{}{COUNTS}", tensor.name), vec![matrices, 1], vec![512.0; matrices]));
        }
        statistics
    }

    fn write(path: &Path, kind: Option<&str>, ty: GgmlType, statistics: &[Statistic]) {
        let mut metadata = Metadata::new();
        if let Some(kind) = kind {
            metadata.insert(KIND.0, kind);
        }
        let plans =
            statistics.iter().map(|(name, shape, _)| TensorPlan { name: name.clone(), shape: shape.clone(), ty });
        let mut writer = GgufWriter::create(path, &metadata, plans.collect(), WriterOptions::default()).unwrap();
        for (name, shape, values) in statistics {
            writer.write(name, &dsv41_quant::quantise(ty, values, columns(shape), None).unwrap()).unwrap();
        }
        writer.finish().unwrap();
    }

    /// A folder for a file of importances and what is converted with it.
    struct Workplace(TempDir);

    impl Workplace {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn importance(&self, statistics: &[Statistic]) -> Importance {
            let path = self.path("importance.gguf");
            write(&path, Some(KIND.1), GgmlType::F32, statistics);
            Importance::open(&path).unwrap()
        }

        fn convert(&self, name: &str, importance: Option<&Importance>) -> Result<Summary, ModelError> {
            let quantisation = Quantisation { types: &PLAN, importance };
            let (store, path) = (Synthetic::new(config()), self.path(name));
            convert(&store, quantisation, &Metadata::new(), &path, Split::None, &mut |_| {})
        }

        /// The message of a conversion that fails, behind the name of the file of importances, and leaves nothing.
        fn complaint(&self, statistics: &[Statistic]) -> String {
            let importance = self.importance(statistics);
            let error = self.convert("out.gguf", Some(&importance)).unwrap_err().to_string();
            assert_eq!(fs::read_dir(self.0.path()).unwrap().count(), 1);
            error.strip_prefix(&format!("{}: ", self.path("importance.gguf").display())).unwrap_or(&error).to_owned()
        }
    }

    fn values(store: &dyn TensorStore, name: &str, shape: &[usize]) -> Vec<f32> {
        let mut out = vec![f32::NAN; shape.iter().product()];
        store.rows(name, 0..rows(shape), &mut out).unwrap();
        out
    }

    #[test]
    fn importances_lower_the_error_that_they_weigh_in_every_tensor() {
        let workplace = Workplace::new();
        let statistics = statistics();
        let importance = workplace.importance(&statistics);
        let plain = workplace.convert("plain.gguf", None).unwrap();
        let weighted = workplace.convert("weighted.gguf", Some(&importance)).unwrap();
        assert_eq!((plain.unweighted, weighted.unweighted), (vec![], vec![]));

        let model = Synthetic::new(config());
        let [plain, weighted] =
            ["plain.gguf", "weighted.gguf"].map(|name| ModelFile::open(&workplace.path(name)).unwrap());
        let layout = Layout::new(model.tensors(), &PLAN).unwrap();
        let mut compared = 0;
        for tensor in layout.tensors.iter().filter(|tensor| tensor.ty == GgmlType::Q4_0) {
            let (_, _, sums) = statistics.iter().find(|(name, ..)| *name == format!("{}{SUMS}", tensor.name)).unwrap();
            let columns = columns(&tensor.shape);
            let rows_each = rows(&tensor.shape) / (sums.len() / columns);
            let error = |file: &ModelFile| {
                let mut error = 0.0;
                for (place, spec) in tensor.sources.iter().enumerate() {
                    let [exact, stored] =
                        [&model as &dyn TensorStore, file].map(|store| values(store, &spec.name, &spec.shape));
                    for (index, (exact, stored)) in exact.iter().zip(stored).enumerate() {
                        let row = place * rows(&spec.shape) + index / columns;
                        let weight = sums[row / rows_each * columns + index % columns];
                        error += f64::from(weight) * f64::from(exact - stored).powi(2);
                    }
                }
                error
            };
            let (plain, weighted) = (error(&plain), error(&weighted));
            assert!(weighted < 0.8 * plain, "{}: {weighted:e} with importances, {plain:e} without", tensor.name);
            compared += 1;
        }
        assert!(compared > 50, "{compared}");
    }

    #[test]
    fn tensors_and_experts_without_importances_are_quantised_plainly_and_reported() {
        let workplace = Workplace::new();
        let mut statistics = statistics();
        statistics.retain(|(name, ..)| !name.starts_with("token_embd"));
        let experts = statistics.iter_mut().find(|(name, ..)| name == "blk.3.ffn_up_exps.weight.counts").unwrap();
        experts.2[1] = 0.0;
        let importance = workplace.importance(&statistics);
        workplace.convert("plain.gguf", None).unwrap();
        let summary = workplace.convert("weighted.gguf", Some(&importance)).unwrap();
        let lacking = [("token_embd.weight", 1, 1), ("blk.3.ffn_up_exps.weight", 1, 4)];
        let lacking = lacking.map(|(name, matrices, of)| Unweighted { tensor: name.to_owned(), matrices, of });
        assert_eq!(summary.unweighted, lacking);
        let [plain, weighted] =
            ["plain.gguf", "weighted.gguf"].map(|name| ModelFile::open(&workplace.path(name)).unwrap());
        for (name, shape, alike) in [
            ("embed.weight", [64, 64], true),
            ("layers.3.ffn.experts.1.w3.weight", [24, 64], true),
            ("layers.3.ffn.experts.2.w3.weight", [24, 64], false),
        ] {
            assert_eq!(values(&plain, name, &shape) == values(&weighted, name, &shape), alike, "{name}");
        }
    }

    #[test]
    fn entries_that_do_not_fit_are_named_before_anything_is_written() {
        let workplace = Workplace::new();
        let changed = |tensor: &str, shape: &[usize]| {
            let mut statistics = statistics();
            let found = statistics.iter_mut().find(|(name, ..)| name == tensor).unwrap();
            *found = (tensor.to_owned(), shape.to_vec(), vec![1.0; shape.iter().product()]);
            statistics
        };
        for (tensor, shape, expected) in [
            ("blk.0.attn_q_a.weight.in_sum2", &[1, 63][..], "[1, 64]"),
            ("blk.0.attn_q_a.weight.counts", &[2, 1], "[1, 1]"),
            ("blk.2.attn_output_a.weight.in_sum2", &[3, 64], "[1, 64] or [2, 64]"),
            ("blk.2.ffn_up_exps.weight.in_sum2", &[3, 64], "[1, 64] or [4, 64]"),
            ("blk.2.ffn_up_exps.weight.counts", &[3, 1], "[4, 1]"),
        ] {
            let found = workplace.complaint(&changed(tensor, shape));
            assert_eq!(found, format!("tensor `{tensor}` has shape {shape:?}, expected {expected}"));
        }
        let mut negative = statistics();
        negative[0].2[5] = -1.0;
        let expected = format!("tensor `{}`: value 5 is -1e0, expected a finite number from 0", negative[0].0);
        assert_eq!(workplace.complaint(&negative), expected);

        let half = [statistics().swap_remove(0)];
        let missing = half[0].0.replace(SUMS, COUNTS);
        assert_eq!(workplace.complaint(&half), format!("tensor `{missing}` is missing"));
        let foreign = [("blk.0.attn_q.weight.in_sum2".to_owned(), vec![1, 64], vec![1.0; 64])];
        assert!(workplace.complaint(&foreign).starts_with("none of its 1 tensors belongs to this model"));
    }

    #[test]
    fn only_files_of_importances_are_opened() {
        let workplace = Workplace::new();
        let path = workplace.path("importance.gguf");
        let message = || Importance::open(&path).unwrap_err().to_string();
        write(&path, None, GgmlType::F32, &statistics());
        assert!(message().ends_with("importance.gguf: key `general.type` is missing"), "{}", message());
        write(&path, Some("model"), GgmlType::F32, &statistics());
        assert!(message().contains("key `general.type` is \"model\", expected \"imatrix\""), "{}", message());
        write(&path, Some("imatrix"), GgmlType::F16, &statistics());
        let error = workplace.convert("out.gguf", Some(&Importance::open(&path).unwrap())).unwrap_err().to_string();
        assert!(error.ends_with("has type f16, expected f32"), "{error}");
    }
}
