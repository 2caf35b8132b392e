//! A GGUF file's weights as the model asks for them: packed in the mapped file, read row by row, or widened.

mod background;
mod experts;
mod rows;

use std::{io, sync::Arc};

use bytesize::ByteSize;
use dsv41::{ExpertResidency, ModelError, RowSource, WeightSource};
use dsv41_config::Part;
use dsv41_gguf::{Advice, GgufError, GgufName, ModelFile, TensorStore as _};
use dsv41_quant::{GgmlType, PackedMatrix};

use background::Background;
use experts::Experts;
pub use rows::RowCounts;
use rows::{CachedRows, TableFile, cost_of_row};

/// Memory of the row caches of all engram tables where no limit is set.
const ROWS_WITHOUT_LIMIT: u64 = 256 << 20;

/// The share of what a limit leaves beside the weights that are always in memory which goes to rows; experts get the
/// rest.
const ROW_SHARE: u64 = 16;

/// Why a file's weights cannot be used as asked.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The limit is too small for one token.
    #[error(
        "a memory limit of {} is too small: {} at least, {} for what every token uses, {} for the {activated} experts of \
         one layer and {} for engram rows",
        shown(*limit), shown(always + experts + rows), shown(*always), shown(*experts), shown(*rows)
    )]
    Limit {
        /// The limit asked for.
        limit: u64,
        /// Bytes that every token uses.
        always: u64,
        /// Experts of a layer that one token uses.
        activated: usize,
        /// Their bytes.
        experts: u64,
        /// Bytes of engram rows.
        rows: u64,
    },
    /// A tensor of the file cannot be used.
    #[error(transparent)]
    Gguf(Box<GgufError>),
    /// The thread that fetches ahead cannot be started.
    #[error("a thread cannot be started: {0}")]
    Thread(#[from] std::io::Error),
}

impl From<GgufError> for StorageError {
    fn from(error: GgufError) -> Self {
        Self::Gguf(Box::new(error))
    }
}

fn shown(bytes: u64) -> String {
    ByteSize(bytes).display().iec().to_string()
}

/// The weights of a GGUF file.
#[derive(Debug)]
pub struct GgufWeights {
    file: Arc<ModelFile>,
    experts: Arc<Experts>,
    background: Arc<Background>,
    row_bytes: u64,
    counts: Arc<RowCounts>,
}

impl GgufWeights {
    /// Takes an opened file. With a `limit`, at most so many bytes of it are kept in memory.
    ///
    /// # Errors
    /// [`StorageError::Limit`] when the limit does not hold what one token uses.
    pub fn new(file: ModelFile, limit: Option<u64>) -> Result<Self, StorageError> {
        let file = Arc::new(file);
        let needs = Needs::of(&file)?;
        let left = limit.map(|limit| needs.left(limit)).transpose()?;
        let row_bytes = left.map_or(ROWS_WITHOUT_LIMIT, |left| (left / ROW_SHARE).max(needs.rows));
        let background = Arc::new(Background::start()?);
        let advise = {
            let file = Arc::clone(&file);
            Box::new(move |expert, advice| advise(&file, expert, advice))
        };
        let expert_limit = left.map(|left| left - row_bytes);
        let experts = Arc::new(Experts::new(needs.expert_bytes, expert_limit, advise, Arc::clone(&background)));
        Ok(Self { file, experts, background, row_bytes, counts: Arc::default() })
    }

    /// The file.
    pub fn file(&self) -> Arc<ModelFile> {
        Arc::clone(&self.file)
    }

    /// How often engram rows were in memory, where the model has engrams.
    pub fn row_counts(&self) -> Option<Arc<RowCounts>> {
        let has_engrams = !self.file.config().engram_layer_ids.is_empty();
        has_engrams.then(|| Arc::clone(&self.counts))
    }

    /// The table of an engram, read row by row from the file.
    fn engram_rows(&self, name: &str, shape: [usize; 2]) -> Result<Arc<dyn RowSource>, dsv41_gguf::ModelError> {
        let place = GgufName::of(name).map(|place| place.tensor).unwrap_or_default();
        let info = self.file.gguf().required(&place)?.clone();
        let file = Arc::clone(&self.file);
        let table = TableFile {
            ty: info.known_type()?,
            shape,
            row_bytes: info.row_bytes()?,
            read: Box::new(move |row, bytes| file.gguf().read_row(&info, row, bytes).map_err(io::Error::other)),
        };
        let share = self.row_bytes / self.file.config().engram_layer_ids.len().max(1) as u64;
        Ok(Arc::new(CachedRows::new(table, share, Arc::clone(&self.counts), Arc::clone(&self.background))))
    }
}

impl WeightSource for GgufWeights {
    fn weight(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        let values = self.file.values(name, shape).map_err(|error| refused(name, error))?;
        // The values are copies: the pages that they came from are not needed besides.
        advise_on(&self.file, name, Advice::DontNeed);
        Ok(values)
    }

    fn packed(&self, name: &str, shape: [usize; 2]) -> Result<Option<PackedMatrix>, ModelError> {
        let matrix = self.file.packed(name, shape).map_err(|error| refused(name, error))?;
        // What is not packed multiplies faster as a parameter.
        Ok((matrix.ty() != GgmlType::F32).then_some(matrix))
    }

    fn rows(&self, name: &str, shape: [usize; 2]) -> Result<Option<Arc<dyn RowSource>>, ModelError> {
        let rows = match name.ends_with("engram.embed.weight") {
            true => self.engram_rows(name, shape),
            false => self.file.packed(name, shape).map(|matrix| Arc::new(matrix) as Arc<dyn RowSource>),
        };
        rows.map(Some).map_err(|error| refused(name, error))
    }

    fn residency(&self) -> Option<Arc<dyn ExpertResidency>> {
        Some(Arc::<Experts>::clone(&self.experts))
    }
}

fn refused(name: &str, error: dsv41_gguf::ModelError) -> ModelError {
    ModelError::Weight { name: name.to_owned(), reason: error.to_string() }
}

/// Tells the system about the bytes of one expert, in the stacks of its layer.
fn advise(file: &ModelFile, (layer, expert): (usize, usize), advice: Advice) {
    for matrix in ["w1", "w2", "w3"] {
        advise_on(file, &format!("layers.{layer}.ffn.experts.{expert}.{matrix}.weight"), advice);
    }
}

/// Tells the system about the bytes of a tensor under the reference's name: of an expert's, those in its stack.
fn advise_on(file: &ModelFile, name: &str, advice: Advice) {
    let Some(place) = GgufName::of(name) else { return };
    let Some(info) = file.gguf().tensor(&place.tensor) else { return };
    let rows = match place.expert {
        Some(expert) => {
            let each = info.rows() / file.config().n_routed_experts.max(1);
            expert * each..(expert + 1) * each
        }
        None => 0..info.rows(),
    };
    // Advice that the system does not take costs time, and nothing else.
    let _ = file.gguf().advise(info, rows, advice);
}

/// Memory that a file's weights take.
struct Needs {
    /// Bytes that every token uses: all but experts and engram tables.
    always: u64,
    /// Bytes of one expert of each layer.
    expert_bytes: Vec<u64>,
    /// Experts of a layer that one token uses.
    activated: usize,
    /// Bytes of the engram rows that one token uses, as they are cached.
    rows: u64,
}

impl Needs {
    fn of(file: &ModelFile) -> Result<Self, StorageError> {
        let config = file.config();
        let mut needs =
            Self { always: 0, expert_bytes: vec![0; config.n_layers], activated: config.n_activated_experts, rows: 0 };
        for tensor in file.tensors() {
            let place = GgufName::of(&tensor.name);
            let Some(info) = place.as_ref().and_then(|place| file.gguf().tensor(&place.tensor)) else { continue };
            let ty = info.known_type()?;
            // No platform of Rust has a `usize` of more than 64 bits.
            let bytes = info.byte_len()? as u64;
            match tensor.part {
                Part::RoutedExperts => {
                    // An expert's three matrices come with the first expert, once for each stack.
                    if place.is_some_and(|place| place.expert == Some(0)) {
                        let layer = tensor.name.split('.').nth(1).and_then(|layer| layer.parse::<usize>().ok());
                        let layer = layer.and_then(|layer| needs.expert_bytes.get_mut(layer));
                        layer.into_iter().for_each(|sum| *sum += bytes / config.n_routed_experts.max(1) as u64);
                    }
                }
                Part::EngramTables => needs.rows += config.engram_slots() as u64 * cost_of_row(info.row_bytes()?),
                // Parameters are widened; the file's pages of them are left behind.
                _ if widened(tensor.part, ty) => needs.always += tensor.elements().unwrap_or(u64::MAX) * 4,
                _ => needs.always += bytes,
            }
        }
        Ok(needs)
    }

    /// What `limit` leaves for experts and rows.
    fn left(&self, limit: u64) -> Result<u64, StorageError> {
        let experts = self.expert_bytes.iter().max().map_or(0, |&bytes| bytes * self.activated as u64);
        // Rows take a share of what is left, of which experts have to fit the rest.
        let smallest = self.always + experts + (experts / (ROW_SHARE - 1)).max(self.rows);
        if limit < smallest {
            let Self { always, activated, .. } = *self;
            return Err(StorageError::Limit { limit, always, activated, experts, rows: smallest - always - experts });
        }
        Ok(limit - self.always)
    }
}

/// Whether tensors of this part and type become parameters in f32.
fn widened(part: Part, ty: GgmlType) -> bool {
    ty == GgmlType::F32 || matches!(part, Part::HyperConnections | Part::Norms)
}
