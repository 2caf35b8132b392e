//! `dsv41 export`: a GGUF file with adapters added up into its matrices.

mod merged;
mod rounding;

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use dsv41_gguf::{ModelFile, OwnTypes, TensorStore as _, TypePlan, Types};

pub use merged::MergedModel;
pub use rounding::{PartRounding, rounding};

use crate::{
    adapters::{AdapterArgs, Adapters},
    convert::{PartTypeArgs, SplitArgs, write_model},
    model_source::{base_of, open_gguf},
    table::{Align, Table},
};

/// What to export, and where to.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The GGUF file to start from, or any member of a shard set. It is read and never written.
    #[arg(long, value_name = "FILE")]
    model: PathBuf,
    #[command(flatten)]
    adapters: AdapterArgs,
    /// The file to write; of a set, the name that its members' are made from.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// The types to begin with, as `convert` has them; by default each tensor keeps its own.
    #[arg(long, value_name = "PLAN")]
    types: Option<TypePlan>,
    #[command(flatten)]
    part_types: PartTypeArgs,
    #[command(flatten)]
    split: SplitArgs,
}

/// Exports, and says what was written and what rounding it to its types has cost.
///
/// # Errors
/// When the model or an adapter cannot be used, the output cannot be written, or what was read back differs.
pub fn run(args: &ExportArgs) -> Result<String> {
    let (file, _) = open_gguf(&args.model, None)?;
    let adapters = Adapters::open(&args.adapters, file.config(), base_of(&args.model, &file)?)?;
    let merged = MergedModel::new(&file, &adapters)?;
    let types: Box<dyn Types + '_> = match args.types {
        Some(plan) => Box::new(args.part_types.over(plan)),
        None => Box::new(OwnTypes { file: &file, chosen: args.part_types.over(TypePlan::default()) }),
    };
    let (summary, mut text) = write_model(&merged, (&*types).into(), file.metadata(), &args.out, args.split.split())?;
    if let Some(first) = summary.files.first() {
        let parts = rounding(&merged, &ModelFile::open(first)?)?;
        if !parts.is_empty() {
            text += &format!("\nROUNDING\n{}\n\n{EXPLANATION}", table(&parts));
        }
    }
    Ok(text)
}

const EXPLANATION: &str = "  \
  matrices  those that adapters change or that have another type than before; all others were copied
  change    root mean square of what adapters add, as a share of the base's
  rounded   root mean square of the error of rounding the sums to the type, as a share of theirs
  base      the same of rounding the base's own values to the type once more
";

fn table(parts: &[PartRounding]) -> Table<6> {
    use Align::{Left, Right};
    let mut table = Table::new([Left, Left, Right, Right, Right, Right]);
    table.row(["part", "type", "matrices", "change", "rounded", "base"]);
    let percent = |ratio: f64| format!("{:.3}%", 100.0 * ratio);
    for part in parts {
        let PartRounding { part: name, ty, tensors, .. } = part;
        let ratios = [part.change(), part.rounded(), part.base()].map(percent);
        let [change, rounded, base] = ratios;
        table.row([name.to_string(), ty.to_string(), tensors.to_string(), change, rounded, base]);
    }
    table
}
