//! `dsv41 convert` and `dsv41 make-tiny`: GGUF files from a model, or from nothing but its shape.

mod synthetic;

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use bytesize::ByteSize;
use clap::Args;
use dsv41_config::Config;
use dsv41_gguf::{
    Importance, Metadata, ModelError, ModelFile, Progress, Quantisation, ReleaseDir, Split, Step, Summary, TensorStore,
    TypePlan, convert,
};
use dsv41_quant::GgmlType;
use dsv41_text::{TokenMap, Tokenizer, Vocabulary};

pub use synthetic::SyntheticModel;

use crate::{
    model_source::{bytes_vocabulary, folded_token_map, vocabulary_metadata},
    progress,
    train::{TrainedModel, is_run_or_checkpoint},
};

/// Which model to convert, to what.
#[derive(Debug, Args)]
pub struct ConvertArgs {
    /// A GGUF file, any member of a shard set, the folder of a safetensors release with its config.json, or the folder of
    /// a training run or of one of its checkpoints; of a run the best one is taken.
    source: PathBuf,
    /// The file to write; of a set, the name that its members' are made from.
    out: PathBuf,
    /// A tokenizer.json whose vocabulary goes into the file; by default what the source has (a release: its
    /// tokenizer.json).
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// What depends on each column of the matrices, as llama.cpp's `llama-imatrix` writes it in GGUF: columns that much
    /// depends on are quantised closer.
    #[arg(long, value_name = "FILE")]
    importance: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

/// What model to make, and where.
#[derive(Debug, Args)]
pub struct MakeTinyArgs {
    /// The shape of the model.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// The file to write; of a set, the name that its members' are made from.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Weights are made from their names and this.
    #[arg(long, value_name = "TEXT", default_value = "dsv41")]
    seed: String,
    #[command(flatten)]
    output: OutputArgs,
}

/// Types and size of files.
#[derive(Debug, Args)]
struct OutputArgs {
    /// The types to begin with: one type for all matrices, `q2_k-mix` or `published`, then any `,PART=TYPE`. Norms, sinks
    /// and biases are always F32.
    #[arg(long, value_name = "PLAN", default_value = "q2_k-mix")]
    types: TypePlan,
    #[command(flatten)]
    part_types: PartTypeArgs,
    #[command(flatten)]
    split: SplitArgs,
}

/// Types of some parts.
#[derive(Debug, Args)]
pub(crate) struct PartTypeArgs {
    /// The type of experts' gate and up matrices.
    #[arg(long, value_name = "TYPE")]
    experts: Option<GgmlType>,
    /// The type of experts' down matrices.
    #[arg(long, value_name = "TYPE")]
    down: Option<GgmlType>,
    /// The type of all other projections.
    #[arg(long, value_name = "TYPE")]
    dense: Option<GgmlType>,
    /// The type of engram tables.
    #[arg(long, value_name = "TYPE")]
    engram: Option<GgmlType>,
    /// The type of the token embedding.
    #[arg(long, value_name = "TYPE")]
    embedding: Option<GgmlType>,
    /// The type of the output head.
    #[arg(long, value_name = "TYPE")]
    head: Option<GgmlType>,
}

/// Size of files.
#[derive(Debug, Args)]
pub(crate) struct SplitArgs {
    /// Write a set of files of at most this size instead of one.
    #[arg(long, value_name = "SIZE", conflicts_with = "shard_tensors")]
    shard_size: Option<ByteSize>,
    /// Write a set of files of at most so many tensors instead of one.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    shard_tensors: Option<u32>,
}

impl PartTypeArgs {
    /// The plan with these types in place of its own.
    pub(crate) fn over<T: From<GgmlType>>(&self, mut plan: TypePlan<T>) -> TypePlan<T> {
        let Self { experts, down, dense, engram, embedding, head } = *self;
        let choices = [
            (experts, &mut plan.gate_up),
            (experts, &mut plan.shared_gate_up),
            (down, &mut plan.down),
            (down, &mut plan.shared_down),
            (dense, &mut plan.dense),
            (engram, &mut plan.engram),
            (embedding, &mut plan.embedding),
            (head, &mut plan.head),
        ];
        for (chosen, ty) in choices {
            if let Some(chosen) = chosen {
                *ty = chosen.into();
            }
        }
        plan
    }
}

impl SplitArgs {
    pub(crate) fn split(&self) -> Split {
        match (self.shard_size, self.shard_tensors) {
            (Some(size), _) => Split::Bytes(size.as_u64()),
            (None, Some(tensors)) => Split::Tensors(tensors as usize),
            (None, None) => Split::None,
        }
    }
}

impl OutputArgs {
    /// Writes the model and says what came of it.
    fn write(
        &self,
        store: &dyn TensorStore,
        importance: Option<&Importance>,
        extra: &Metadata,
        out: &Path,
    ) -> Result<String, ModelError> {
        let plan = self.part_types.over(self.types);
        let quantisation = Quantisation { types: &plan, importance };
        Ok(write_model(store, quantisation, extra, out, self.split.split())?.1)
    }
}

/// Writes a model, shows how far it is, and says what came of it.
pub(crate) fn write_model(
    store: &dyn TensorStore,
    quantisation: Quantisation<'_>,
    extra: &Metadata,
    out: &Path,
    split: Split,
) -> Result<(Summary, String), ModelError> {
    let bar = progress::bytes("writing", 0);
    let mut show = |progress: Progress<'_>| {
        bar.set_message(match progress.step {
            Step::Write => "writing",
            Step::Check => "checking",
        });
        bar.set_length(progress.total);
        bar.set_position(progress.bytes);
    };
    let summary = convert(store, quantisation, extra, out, split, &mut show)?;
    bar.finish_and_clear();
    let text = report(&summary);
    Ok((summary, text))
}

/// What a conversion made, and where it is not quite what was asked for.
fn report(summary: &Summary) -> String {
    let mut text = String::new();
    for fallback in &summary.fallbacks {
        text += &format!(
            "{}: rows of {} do not divide into blocks of {}: written as {}\n",
            fallback.tensor, fallback.columns, fallback.wanted, fallback.given
        );
    }
    let (absent, partial): (Vec<_>, Vec<_>) =
        summary.unweighted.iter().partition(|tensor| tensor.matrices == tensor.of);
    if !absent.is_empty() {
        let names: Vec<&str> = absent.iter().map(|tensor| tensor.tensor.as_str()).collect();
        text += &format!("quantised plainly, as no importances were given for them: {}\n", names.join(", "));
    }
    for tensor in partial {
        text += &format!(
            "{}: {} of {} matrices quantised plainly, as no input came to them when importances were measured\n",
            tensor.tensor, tensor.matrices, tensor.of
        );
    }
    let total: u64 = summary.sizes.iter().map(|size| size.bytes).sum();
    let files: Vec<String> = summary.files.iter().map(|file| file.display().to_string()).collect();
    text += &format!(
        "{}: {} of tensors, {} of them copied as they were, read back and found as written\n",
        files.join(", "),
        ByteSize(total).display().iec(),
        summary.copied
    );
    text
}

/// Converts, and says what was written.
///
/// # Errors
/// When the source cannot be used, the output cannot be written, or what was read back differs.
pub fn run_convert(args: &ConvertArgs) -> Result<String> {
    let chosen = args.tokenizer.as_deref().map(Vocabulary::from_tokenizer_json).transpose()?;
    let importance = args.importance.as_deref().map(Importance::open).transpose()?;
    if !args.source.is_dir() {
        let file = ModelFile::open(&args.source)?;
        let extra = chosen.as_ref().map_or_else(|| file.metadata().clone(), vocabulary_metadata);
        let written = args.output.write(&file, importance.as_ref(), &extra, &args.out);
        return Ok(written.map_err(|error| error.within(&args.source))?);
    }
    if is_run_or_checkpoint(&args.source) {
        let model = TrainedModel::open(&args.source)?;
        let extra = chosen.as_ref().map_or_else(|| model.metadata().clone(), vocabulary_metadata);
        let written = args.output.write(&model, importance.as_ref(), &extra, &args.out);
        return Ok(written.map_err(|error| error.within(&args.source))?);
    }
    let beside = args.source.join("tokenizer.json");
    let vocabulary = match chosen {
        Some(vocabulary) => Some(vocabulary),
        None if beside.exists() => Some(Vocabulary::from_tokenizer_json(&beside)?),
        None => None,
    };
    let extra = vocabulary.as_ref().map(vocabulary_metadata).unwrap_or_default();
    let map = vocabulary.map(|vocabulary| anyhow::Ok(TokenMap::new(&Tokenizer::from_vocabulary(vocabulary)?)?));
    let map = map.transpose()?.map(|map| map.ids().to_vec());
    let release = ReleaseDir::open(&args.source, map)?;
    ensure!(
        release.token_map().is_some() || release.config().engram_layer_ids.is_empty(),
        "{}: the model has engrams, whose token map follows from the tokenizer: give --tokenizer",
        args.source.display()
    );
    let written = args.output.write(&release, importance.as_ref(), &extra, &args.out);
    Ok(written.map_err(|error| error.within(&args.source))?)
}

/// Makes a model from its shape, and says what was written.
///
/// # Errors
/// When the configuration cannot be used or the output cannot be written.
pub fn run_make_tiny(args: &MakeTinyArgs) -> Result<String> {
    let config = Config::load(&args.config)?;
    let map = folded_token_map(&config);
    // A model of bytes gets their tokenizer; no text belongs to another vocabulary.
    let extra = if config.vocab_size == 256 { vocabulary_metadata(&bytes_vocabulary()) } else { Metadata::new() };
    let model = SyntheticModel::new(config, Some(map), args.seed.clone());
    let written = args.output.write(&model, None, &extra, &args.out);
    Ok(written.map_err(|error| error.within(&args.config))?)
}
