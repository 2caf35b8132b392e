//! GGUF and safetensors files of DeepSeek-V4.1.
//!
//! [`Gguf`] opens a file or a set of shards and maps it, [`GgufWriter`] writes them tensor by tensor, and
//! [`Safetensors`] opens the release.
//!
//! ```
//! use dsv41_gguf::{Gguf, GgufWriter, Metadata, TensorPlan, WriterOptions};
//! use dsv41_quant::GgmlType;
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("model.gguf");
//! let mut metadata = Metadata::new();
//! metadata.insert("deepseek41.block_count", 40_u32);
//! let tensor = TensorPlan { name: "output_norm.weight".to_owned(), shape: vec![1, 2], ty: GgmlType::F32 };
//! let mut writer = GgufWriter::create(&path, &metadata, vec![tensor], WriterOptions::default())?;
//! writer.write("output_norm.weight", &1.0_f32.to_le_bytes())?;
//! writer.write("output_norm.weight", &2.5_f32.to_le_bytes())?;
//! writer.finish()?;
//!
//! let gguf = Gguf::open(&path)?;
//! assert_eq!(gguf.metadata().usize("deepseek41.block_count")?, Some(40));
//! assert_eq!(gguf.matrix("output_norm.weight")?.dequantise(), [1.0, 2.5]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
mod format;
mod mapped;
mod metadata;
mod model;
mod new_file;
mod reader;
mod safetensors;
mod tensor;
mod value;
mod writer;

pub use error::{GgufError, HeaderFault, HeaderItem, KeyFault, ShardFault, TensorFault};
pub use mapped::Advice;
pub use metadata::Metadata;
pub use model::{
    Description, EngramRows, Fallback, GgufName, Importance, LaidTensor, Layout, ModelError, ModelFile, OwnTypes,
    PartSize, Progress, Quantisation, ReleaseDir, Step, Summary, TensorStore, TypePlan, Types, UnknownPlan, Unweighted,
    convert, describe, fitting, metadata_of,
};
pub use new_file::{NewFile, WholeFile};
pub use reader::Gguf;
pub use safetensors::{Dtype, Safetensors, SafetensorsError, StoredTensor};
pub use tensor::{TensorInfo, TensorType};
pub use value::{Array, Value, ValueType};
pub use writer::{GgufWriter, Split, TensorPlan, WriterOptions};
