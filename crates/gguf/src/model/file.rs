//! A model in GGUF by the reference's names: packed matrices, values, and rows of tables too large for memory.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use dsv41_config::{Config, TensorSpec};
use dsv41_quant::{GgmlType, PackedMatrix, dequantise};

use super::describe::{Description, describe};
use super::error::ModelError;
use super::layout::rows;
use super::names::GgufName;
use super::sizes::{PartSize, by_part};
use super::store::TensorStore;
use crate::{Gguf, Metadata, TensorInfo, TensorType};

/// A GGUF file, or a set of shards, whose model is described and whose tensors all have the shapes that it needs.
#[derive(Debug)]
pub struct ModelFile {
    gguf: Gguf,
    /// The first file, for messages.
    file: PathBuf,
    description: Description,
    /// Places in the description's tensors.
    places: HashMap<String, usize>,
}

impl ModelFile {
    /// Opens a file, or the whole set of which it is a shard.
    ///
    /// # Errors
    /// As [`Gguf::open`] and [`describe`].
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        Self::new(Gguf::open(path)?, None)
    }

    /// Describes the model of an opened file. `token_map` stands in for the engram's where the file has none; it is what
    /// the file's tokenizer gives.
    ///
    /// # Errors
    /// As [`describe`].
    pub fn new(gguf: Gguf, token_map: Option<Vec<u32>>) -> Result<Self, ModelError> {
        let file = gguf.files().next().map_or(PathBuf::new(), |(path, _)| path.to_owned());
        let shapes = gguf.tensors().map(|info| (info.name.as_str(), info.shape.as_slice()));
        let mut description = describe(gguf.metadata(), shapes, token_map).map_err(|error| error.within(&file))?;
        description.notes.extend(unreadable(&gguf));
        let names = description.tensors.iter().enumerate();
        let places = names.map(|(place, tensor)| (tensor.name.clone(), place)).collect();
        Ok(Self { gguf, file, description, places })
    }

    /// The container.
    pub fn gguf(&self) -> &Gguf {
        &self.gguf
    }

    /// The metadata of the file.
    pub fn metadata(&self) -> &Metadata {
        self.gguf.metadata()
    }

    /// The model, and what was left open and filled in.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// The type of a tensor, under the reference's name.
    ///
    /// # Errors
    /// [`ModelError::UnknownTensor`], or a [`TensorFault::UnknownType`](crate::TensorFault::UnknownType).
    pub fn ty(&self, name: &str) -> Result<GgmlType, ModelError> {
        Ok(self.find(name)?.info.known_type()?)
    }

    /// A matrix as the file holds it, without a copy, under the reference's name: of a stack of experts, the one named.
    ///
    /// # Errors
    /// [`ModelError::UnknownTensor`]; [`ModelError::Shape`] when it is not of this shape; an error of the container when
    /// its type is unknown.
    pub fn packed(&self, name: &str, [rows, columns]: [usize; 2]) -> Result<PackedMatrix, ModelError> {
        let found = self.shaped(name, &[rows, columns])?;
        found.matrix(&self.gguf, 0..rows)
    }

    /// The values of a tensor of any rank, under the reference's name.
    ///
    /// # Errors
    /// As [`ModelFile::packed`].
    pub fn values(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        let found = self.shaped(name, shape)?;
        Ok(found.matrix(&self.gguf, 0..found.rows())?.dequantise())
    }

    /// What each part of the model takes in each type, and what else is in the file. Tensors of unknown types have no
    /// known size and are not counted.
    pub fn part_sizes(&self) -> Vec<PartSize> {
        let tensors = self.description.tensors.iter();
        let parts: HashMap<String, _> =
            tensors.filter_map(|tensor| Some((GgufName::of(&tensor.name)?.tensor, tensor.part))).collect();
        by_part(self.gguf.tensors().filter_map(|info| {
            let ty = info.known_type().ok()?;
            // No platform of Rust has a `usize` of more than 64 bits.
            let bytes = info.byte_len().ok()? as u64;
            Some((parts.get(&info.name).copied(), ty, bytes))
        }))
    }

    fn shaped(&self, name: &str, shape: &[usize]) -> Result<Found<'_>, ModelError> {
        let found = self.find(name)?;
        if found.spec.shape == shape {
            return Ok(found);
        }
        let error = ModelError::Shape {
            tensor: found.place.to_string(),
            found: found.spec.shape.clone(),
            expected: format!("{shape:?}"),
        };
        Err(error.within(&self.file))
    }

    fn find(&self, name: &str) -> Result<Found<'_>, ModelError> {
        let unknown = || ModelError::UnknownTensor { name: name.to_owned() }.within(&self.file);
        let spec = self.places.get(name).map(|&place| &self.description.tensors[place]).ok_or_else(unknown)?;
        let place = GgufName::of(name).ok_or_else(unknown)?;
        let info = self.gguf.required(&place.tensor)?;
        Ok(Found { spec, place, info })
    }
}

impl TensorStore for ModelFile {
    fn config(&self) -> &Config {
        &self.description.config
    }

    fn token_map(&self) -> Option<&[u32]> {
        self.description.token_map.as_deref()
    }

    fn tensors(&self) -> &[TensorSpec] {
        &self.description.tensors
    }

    fn files(&self) -> Vec<&Path> {
        self.gguf.files().map(|(path, _)| path).collect()
    }

    fn rows(&self, name: &str, rows: Range<usize>, out: &mut [f32]) -> Result<(), ModelError> {
        let found = self.find(name)?;
        let matrix = found.matrix(&self.gguf, rows)?;
        let quant = |source| ModelError::Quant { tensor: found.place.to_string(), source };
        dequantise(matrix.ty(), matrix.bytes(), out).map_err(quant)
    }

    fn packed_rows(&self, name: &str, rows: Range<usize>, ty: GgmlType) -> Result<Option<Bytes>, ModelError> {
        let found = self.find(name)?;
        if found.info.known_type()? != ty {
            return Ok(None);
        }
        Ok(Some(found.matrix(&self.gguf, rows)?.bytes().clone()))
    }
}

/// A tensor of the model and where it is in the file.
struct Found<'a> {
    spec: &'a TensorSpec,
    place: GgufName,
    info: &'a TensorInfo,
}

impl Found<'_> {
    /// The number of the tensor's rows: of an expert, its own.
    fn rows(&self) -> usize {
        rows(&self.spec.shape)
    }

    /// Some of the tensor's rows, of an expert its own, without a copy.
    fn matrix(&self, gguf: &Gguf, rows: Range<usize>) -> Result<PackedMatrix, ModelError> {
        if rows.start > rows.end || rows.end > self.rows() {
            let asked = rows.end.saturating_sub(1).max(rows.start);
            return Err(self.info.no("row", asked as u64, self.rows()).into());
        }
        let shape = [self.info.rows(), self.info.columns()];
        let whole = PackedMatrix::new(self.info.known_type()?, shape, gguf.bytes(self.info)?);
        let whole = whole.map_err(|source| self.info.quant(source))?;
        // Describing the file has checked that there are as many experts and rows as the model has.
        let first = self.place.expert.unwrap_or(0) * self.rows();
        Ok(whole.slice_rows(first + rows.start..first + rows.end))
    }
}

/// The note on tensors of types that are not read here, where there are any.
fn unreadable(gguf: &Gguf) -> Option<String> {
    let unknown = gguf.tensors().filter(|info| matches!(info.ty, TensorType::Unknown(_)));
    let types: Vec<String> = unknown.map(|info| info.ty.to_string()).collect();
    let distinct: BTreeSet<&str> = types.iter().map(String::as_str).collect();
    let names: Vec<&str> = distinct.into_iter().collect();
    (!types.is_empty()).then(|| {
        format!("{} of the file's tensors cannot be used, having unknown types: {}.", types.len(), names.join(", "))
    })
}

/// Rows of an engram table, read from the file one by one: a table of a hundred gigabytes takes no memory but the rows
/// asked for.
#[derive(Debug, Clone)]
pub struct EngramRows {
    file: Arc<ModelFile>,
    table: TensorInfo,
    ty: GgmlType,
    row_bytes: usize,
}

impl EngramRows {
    /// The table of a layer.
    ///
    /// # Errors
    /// [`ModelError::UnknownTensor`] when the layer has none, or an error of the container when its type is unknown.
    pub fn new(file: Arc<ModelFile>, layer: usize) -> Result<Self, ModelError> {
        let table = file.find(&format!("layers.{layer}.engram.embed.weight"))?.info.clone();
        let (ty, row_bytes) = (table.known_type()?, table.row_bytes()?);
        Ok(Self { file, table, ty, row_bytes })
    }

    /// Rows of the table.
    pub fn rows(&self) -> u64 {
        // No platform of Rust has a `usize` of more than 64 bits.
        self.table.rows() as u64
    }

    /// Values of a row.
    pub fn columns(&self) -> usize {
        self.table.columns()
    }

    /// Bytes that reading one row takes.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Writes the values of `rows` to `out`, one row after another, and returns the number of bytes read for them.
    ///
    /// # Errors
    /// For a row that is not there, and when the file cannot be read.
    ///
    /// # Panics
    /// When `out` does not hold exactly that many rows.
    pub fn read(&self, rows: &[u64], out: &mut [f32]) -> Result<u64, ModelError> {
        assert_eq!(out.len(), rows.len() * self.columns(), "values of {} rows", rows.len());
        let mut bytes = vec![0; self.row_bytes];
        for (&row, out) in rows.iter().zip(out.chunks_exact_mut(self.columns())) {
            self.file.gguf.read_row(&self.table, row, &mut bytes)?;
            dequantise(self.ty, &bytes, out).map_err(|source| self.table.quant(source))?;
        }
        Ok((rows.len() * self.row_bytes) as u64)
    }
}

#[cfg(test)]
mod tests {
    use dsv41_config::ScoreFunc;

    use super::*;
    use crate::model::testing::{Synthetic, released, shared};
    use crate::{Split, TypePlan, convert};

    fn tiny() -> Option<ModelFile> {
        Some(ModelFile::open(&shared("gguf/tiny-q2_k.gguf")?).unwrap())
    }

    #[test]
    fn the_handed_file_is_the_model_that_it_says() {
        let Some(file) = tiny() else { return };
        let expected = Config {
            vocab_size: 320,
            dim: 256,
            n_layers: 6,
            n_heads: 4,
            head_dim: 128,
            rope_head_dim: 64,
            q_lora_rank: 256,
            o_lora_rank: 128,
            o_groups: 2,
            moe_inter_dim: 256,
            n_routed_experts: 8,
            n_shared_experts: 1,
            n_activated_experts: 2,
            score_func: ScoreFunc::SqrtSoftplus,
            gate_temp: 1.0,
            norm_topk_prob: true,
            route_scale: 1.5,
            swiglu_limit: 10.0,
            window_size: 16,
            compress_ratios: vec![0, 0, 2, 2, 1, 1],
            kv_source_layers: vec![2, 4],
            index_source_layers: vec![2, 4, 5],
            candidate_source_layer: Some(4),
            candidate_topk_blocks: 4,
            candidate_block_size: 4,
            index_n_heads: 16,
            index_head_dim: 128,
            index_topk: 8,
            hc_mult: 4,
            hc_sinkhorn_iters: 20,
            hc_eps: 1e-20,
            engram_layer_ids: vec![1, 3],
            engram_max_ngram_size: 4,
            engram_vocab_size: 97,
            engram_n_heads: 2,
            engram_head_dim: 256,
            engram_pad_id: 2,
            engram_compressed_vocab_size: 211,
            engram_num_embeddings: vec![630, 834],
            rope_theta: 10_000.0,
            compress_rope_theta: 160_000.0,
            rope_factor: 16.0,
            original_seq_len: 64,
            beta_fast: 32.0,
            beta_slow: 1.0,
            norm_eps: 1e-20,
            dtype: dsv41_config::Storage::Bf16,
            expert_dtype: None,
            max_seq_len: 1024,
            n_mtp_layers: 0,
            dspark_block_size: 0,
            vision_n_layers: 0,
            image_token_id: None,
        };
        assert_eq!(*file.config(), expected);
        assert_eq!(
            file.description().notes,
            ["6 routers have a bias for image tokens, which a text model does not use."]
        );
        let map = file.token_map().unwrap();
        assert_eq!((map.len(), map[2], map.iter().max()), (320, 2, Some(&210)));
    }

    #[test]
    fn matrices_and_values_are_those_of_the_file() {
        let Some(file) = tiny() else { return };
        let stack = file.gguf().required("blk.3.ffn_down_exps.weight").unwrap();
        let stack = file.gguf().bytes(stack).unwrap();
        let expert = file.packed("layers.3.ffn.experts.5.w2.weight", [256, 256]).unwrap();
        assert_eq!(expert.ty(), GgmlType::Q3K);
        assert_eq!(expert.bytes()[..], stack[5 * 256 * 110..6 * 256 * 110]);
        // Without a copy: the very bytes of the map.
        assert_eq!(expert.bytes().as_ptr(), stack[5 * 256 * 110..].as_ptr());
        let norm = file.values("layers.3.attn_norm.weight", &[256]).unwrap();
        let bytes = file.gguf().bytes(file.gguf().required("blk.3.attn_norm.weight").unwrap()).unwrap();
        let expected = bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes));
        assert!(norm.into_iter().eq(expected));
        let mut rows = vec![0.0; 2 * 256];
        file.rows("layers.3.ffn.experts.5.w2.weight", 7..9, &mut rows).unwrap();
        assert_eq!(rows, expert.dequantise()[7 * 256..9 * 256]);
    }

    #[test]
    fn what_is_asked_of_no_tensor_or_in_another_shape_is_named() {
        let Some(file) = tiny() else { return };
        let message = |error: ModelError| {
            let text = error.to_string();
            let (path, message) = text.split_once(": ").unwrap();
            assert!(path.ends_with("tiny-q2_k.gguf"), "{text}");
            message.to_owned()
        };
        let error = file.packed("layers.3.ffn.experts.5.w2.weight", [256, 128]).unwrap_err();
        let expected = "tensor `blk.3.ffn_down_exps.weight[5]` has shape [256, 256], expected [256, 128]";
        assert_eq!(message(error), expected);
        for absent in ["layers.3.ffn.experts.8.w2.weight", "layers.9.attn_norm.weight", "mtp.0.norm.weight"] {
            let error = file.values(absent, &[256]).unwrap_err();
            assert_eq!(message(error), format!("tensor `{absent}`: no tensor of this model has this name"));
        }
        let error = file.rows("layers.3.ffn.experts.0.w1.weight", 250..257, &mut []).unwrap_err();
        assert_eq!(message(error), "tensor `blk.3.ffn_gate_exps.weight` has no row 256: there are 256");
    }

    #[test]
    fn a_tensor_of_an_unknown_type_is_noted_and_an_error_once_it_is_used() {
        const NAME: &str = "blk.0.attn_norm.weight";
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        let store = Synthetic::new(released("tiny"));
        let plan = TypePlan::uniform(GgmlType::F32);
        convert(&store, &plan, &Metadata::new(), &path, Split::None, &mut |_| {}).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        let name = bytes.windows(NAME.len()).position(|window| window == NAME.as_bytes()).unwrap();
        // Behind the name stand the number of axes, one axis, and the type.
        bytes[name + NAME.len() + 4 + 8] = 16;
        let file = ModelFile::new(Gguf::from_bytes("tiny.gguf", bytes.into()).unwrap(), None).unwrap();
        let note = "1 of the file's tensors cannot be used, having unknown types: type 16.";
        assert_eq!(file.description().notes, [note]);
        let error = file.values("layers.0.attn_norm.weight", &[64]).unwrap_err().to_string();
        assert!(error.starts_with(&format!("tiny.gguf: tensor `{NAME}` has type 16, expected one of ")), "{error}");
        assert_eq!(file.part_sizes().iter().map(|size| size.tensors).sum::<usize>(), file.gguf().tensors().len() - 1);
    }

    #[test]
    fn rows_of_a_table_are_read_one_by_one() {
        let Some(file) = tiny() else { return };
        let file = Arc::new(file);
        let table = file.values("layers.3.engram.embed.weight", &[834, 256]).unwrap();
        let rows = EngramRows::new(file.clone(), 3).unwrap();
        assert_eq!((rows.rows(), rows.columns(), rows.row_bytes()), (834, 256, 84));
        let ids = [833, 0, 17, 17];
        let mut out = vec![f32::NAN; 4 * 256];
        assert_eq!(rows.read(&ids, &mut out).unwrap(), 4 * 84);
        let expected: Vec<f32> = ids.iter().flat_map(|&row| &table[row as usize * 256..][..256]).copied().collect();
        assert_eq!(out, expected);
        let error = rows.read(&[834], &mut out[..256]).unwrap_err();
        assert!(error.to_string().ends_with("`blk.3.engram_embd.weight` has no row 834: there are 834"), "{error}");
        assert!(matches!(EngramRows::new(file, 2), Err(ModelError::In { .. })));
    }

    #[test]
    fn parts_add_up_to_every_tensor() {
        let Some(file) = tiny() else { return };
        let sizes = file.part_sizes();
        let tensors: usize = sizes.iter().map(|size| size.tensors).sum();
        assert_eq!(tensors, 176);
        assert!(sizes.iter().all(|size| size.part.is_some()));
        let bytes: u64 = sizes.iter().map(|size| size.bytes).sum();
        let listed: usize = file.gguf().tensors().map(|info| info.byte_len().unwrap()).sum();
        assert_eq!(bytes, listed as u64);
    }
}
