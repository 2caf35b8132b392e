//! Engram tables that are trained on the host, by the rows that are looked up.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, fs,
    io::{self, BufWriter, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use dsv41::{ExpertResidency, ModelError, RowSource, WeightSource};
use dsv41_config::Config;
use dsv41_quant::PackedMatrix;
use serde::{Deserialize, Serialize};

use crate::{
    optimiser::{
        AdamWSettings, Algorithm, GroupSettings, OptimiserError,
        rows::{MemoryRows, Originals, RowAdamW, RowGradients, RowStore, SharedRows, TouchedRows},
    },
    trainer::TrainError,
};

/// Where engram tables are while they are trained.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TableStorage {
    /// In tensors, as every other parameter: a step has a gradient for every row, and moments of all fade.
    #[default]
    Tensor,
    /// Where they were loaded from; touched rows and their moments are kept in memory.
    Memory,
    /// In files of f32 beside the run, mapped, with the moments in files beside them: for tables larger than memory.
    File,
}

type Store = Box<dyn AnyStore>;

/// A row store of any kind.
trait AnyStore: RowStore + fmt::Debug + Send + Sync {}

impl<T: RowStore + fmt::Debug + Send + Sync> AnyStore for T {}

/// The engram tables of a model whose rows are trained on the host, by layer.
///
/// [`Self::over`] gives them to a model that is loaded, which reads them from then on as they are trained.
#[derive(Debug, Default)]
pub struct EngramTables {
    tables: BTreeMap<usize, RowAdamW<SharedRows<Store>, Store>>,
}

/// Gradients of the rows of engram tables, by layer.
#[derive(Debug, Default)]
pub struct TableGradients(BTreeMap<usize, RowGradients>);

impl EngramTables {
    /// All engram tables of a model, of which touched rows and their moments are kept in memory. Others are read from
    /// `weights`, where it has the table by rows.
    ///
    /// # Errors
    /// When a table cannot be read, or the settings are not AdamW's.
    pub fn in_memory(
        config: &Config,
        weights: &dyn WeightSource,
        settings: &GroupSettings,
    ) -> Result<Self, TrainError> {
        Self::each(config, |layer, shape| {
            let adamw = adamw(settings)?;
            let base = base(weights, layer, shape)?;
            let table = SharedRows::new(Box::new(TouchedRows::of(base)) as Store);
            let moments = Box::new(TouchedRows::zeros([shape[0], 2 * shape[1] + 1])) as Store;
            let originals = Originals::temporary(shape).map_err(OptimiserError::Rows)?;
            Ok(RowAdamW::new(adamw, settings.weight_decay, table, moments, originals)?)
        })
    }

    /// All engram tables of a model, in files of a folder, which are made where they are not there; where they are, every
    /// row is put back to what it was at first.
    ///
    /// # Errors
    /// When a table cannot be read, a file cannot be made or is of another table, or the settings are not AdamW's.
    pub fn in_folder(
        config: &Config,
        weights: &dyn WeightSource,
        settings: &GroupSettings,
        folder: &Path,
    ) -> Result<Self, TrainError> {
        fs::create_dir_all(folder).map_err(|source| io_error(folder, "made", source))?;
        Self::each(config, |layer, shape| {
            let path = folder.join(format!("layers.{layer}.engram.embed.f32"));
            if !path.exists() {
                write_table(&path, &*base(weights, layer, shape)?)?;
            }
            let mapped = RowAdamW::mapped(adamw(settings)?, settings.weight_decay, &path, shape)?;
            let mut table = mapped
                .map_stores(|table| SharedRows::new(Box::new(table) as Store), |moments| Box::new(moments) as Store);
            table.rewind()?;
            Ok(table)
        })
    }

    fn each(
        config: &Config,
        make: impl Fn(usize, [usize; 2]) -> Result<RowAdamW<SharedRows<Store>, Store>, TrainError>,
    ) -> Result<Self, TrainError> {
        let layers = config.engram_layer_ids.iter().zip(&config.engram_num_embeddings);
        let tables = layers.map(|(&layer, &rows)| Ok((layer, make(layer, [rows as usize, config.engram_head_dim])?)));
        Ok(Self { tables: tables.collect::<Result<_, TrainError>>()? })
    }

    /// The weights of a model that reads these tables, and everything else from `weights`.
    pub fn over<'a>(&self, weights: &'a dyn WeightSource) -> WithTables<'a> {
        WithTables { weights, tables: self.sources().collect() }
    }

    /// The tables under the reference's names, as they are now and will be.
    pub fn sources(&self) -> impl Iterator<Item = (String, Arc<dyn RowSource>)> {
        self.tables.iter().map(|(&layer, table)| (name(layer), Arc::new(table.table().clone()) as Arc<dyn RowSource>))
    }

    /// Layers that have one.
    pub fn layers(&self) -> BTreeSet<usize> {
        self.tables.keys().copied().collect()
    }

    /// Numbers of all tables.
    pub fn elements(&self) -> usize {
        self.tables.values().map(|table| RowStore::shape(table.table()).iter().product::<usize>()).sum()
    }

    /// Updates the rows that have a gradient, at a rate.
    ///
    /// # Errors
    /// When there is no such table, or the storage fails, where some rows may have been changed.
    pub fn step(&mut self, gradients: &TableGradients, rate: f64) -> Result<(), OptimiserError> {
        for (layer, gradients) in &gradients.0 {
            let table = self.tables.get_mut(layer).ok_or(OptimiserError::ForeignGradients { count: 1 })?;
            table.step(gradients, rate)?;
        }
        Ok(())
    }

    /// Writes the rows that were ever touched, and their moments, a file for each table.
    ///
    /// # Errors
    /// When rows cannot be read or a file cannot be written.
    pub fn save(&self, folder: &Path) -> Result<(), OptimiserError> {
        self.tables.iter().try_for_each(|(&layer, table)| table.save(&checkpoint(folder, layer)))
    }

    /// Makes the tables what they were when they were saved.
    ///
    /// # Errors
    /// When a file cannot be read or is of another table, or the storage fails.
    pub fn restore(&mut self, folder: &Path) -> Result<(), OptimiserError> {
        self.tables.iter_mut().try_for_each(|(&layer, table)| table.restore(&checkpoint(folder, layer)))
    }
}

impl TableGradients {
    /// Adds the gradients of a layer's look-ups in its table.
    ///
    /// # Errors
    /// As [`RowGradients::add`], and when `tables` has none for the layer.
    pub fn add(
        &mut self,
        tables: &EngramTables,
        layer: usize,
        rows: &[i64],
        gradients: &[f32],
    ) -> Result<(), OptimiserError> {
        let table = tables.tables.get(&layer).ok_or(OptimiserError::ForeignGradients { count: 1 })?;
        let shape = RowStore::shape(table.table());
        self.0.entry(layer).or_insert_with(|| RowGradients::new(shape)).add(rows, gradients)
    }

    /// The sum of squares, which counts in the norm of all gradients.
    pub fn sum_of_squares(&self) -> f64 {
        self.0.values().map(RowGradients::sum_of_squares).sum()
    }

    /// Multiplies all gradients by a factor.
    pub fn scale(&mut self, factor: f64) {
        self.0.values_mut().for_each(|gradients| gradients.scale(factor));
    }
}

/// Weights of which the engram tables are elsewhere.
pub struct WithTables<'a> {
    weights: &'a dyn WeightSource,
    tables: BTreeMap<String, Arc<dyn RowSource>>,
}

impl WeightSource for WithTables<'_> {
    fn weight(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        self.weights.weight(name, shape)
    }

    fn packed(&self, name: &str, shape: [usize; 2]) -> Result<Option<PackedMatrix>, ModelError> {
        self.weights.packed(name, shape)
    }

    fn rows(&self, name: &str, shape: [usize; 2]) -> Result<Option<Arc<dyn RowSource>>, ModelError> {
        match self.tables.get(name) {
            Some(table) => Ok(Some(Arc::clone(table))),
            None => self.weights.rows(name, shape),
        }
    }

    fn residency(&self) -> Option<Arc<dyn ExpertResidency>> {
        self.weights.residency()
    }
}

fn name(layer: usize) -> String {
    format!("layers.{layer}.engram.embed.weight")
}

fn checkpoint(folder: &Path, layer: usize) -> PathBuf {
    folder.join(format!("layers.{layer}.engram.embed.safetensors"))
}

fn adamw(settings: &GroupSettings) -> Result<AdamWSettings, OptimiserError> {
    match settings.algorithm {
        Algorithm::AdamW(adamw) => Ok(adamw),
        Algorithm::Muon(_) => Err(OptimiserError::Setting {
            key: "engram.algorithm".to_owned(),
            found: "muon".to_owned(),
            expected: "adamw: Muon is for matrices and adapters".to_owned(),
        }),
    }
}

/// A table as it is before training.
fn base(weights: &dyn WeightSource, layer: usize, shape: [usize; 2]) -> Result<Arc<dyn RowSource>, TrainError> {
    let name = name(layer);
    match weights.rows(&name, shape)? {
        Some(rows) => Ok(rows),
        None => Ok(Arc::new(SharedRows::new(MemoryRows::new(weights.weight(&name, &shape)?, shape)?))),
    }
}

/// Writes a table's rows as f32. The file has its name once it is whole.
fn write_table(path: &Path, table: &dyn RowSource) -> Result<(), TrainError> {
    /// Rows read at a time.
    const ROWS: usize = 4096;

    let write = || -> io::Result<()> {
        let [rows, width] = table.shape();
        let folder = path.parent().unwrap_or(Path::new("."));
        let mut file = BufWriter::new(tempfile::NamedTempFile::new_in(folder)?);
        let mut values = vec![0.0; ROWS.min(rows) * width];
        for first in (0..rows).step_by(ROWS) {
            let numbers: Vec<i64> = (first..rows.min(first + ROWS)).map(|row| row as i64).collect();
            let values = &mut values[..numbers.len() * width];
            table.read(&numbers, values)?;
            values.iter().try_for_each(|value| file.write_all(&value.to_le_bytes()))?;
        }
        let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        Ok(())
    };
    write().map_err(|source| io_error(path, "written", source))
}

fn io_error(file: &Path, action: &'static str, source: io::Error) -> TrainError {
    TrainError::Io { file: file.to_owned(), action, source }
}
