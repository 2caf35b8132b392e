//! Where a model comes from: a GGUF file, a configuration, or the program itself.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use bytesize::ByteSize;
use dsv41::WeightSource;
use dsv41_config::Config;
use dsv41_gguf::{Array, Gguf, Metadata, ModelFile, PartSize, TensorStore as _, Value};
use dsv41_text::{TokenMap, Tokenizer, Vocabulary};
use dsv41_train::adapters::Base;
use sha2::{Digest as _, Sha256};

use crate::{
    storage::{GgufWeights, RowCounts},
    weights::GoldenWeights,
};

/// The built-in model, which `models/make-nano.sh` makes.
const BUILT_IN: &[u8] = include_bytes!("../models/nano.gguf");

/// What errors call it.
const BUILT_IN_NAME: &str = "the built-in model";

/// What the weights of a configuration without a file are made from, beside their names.
const SALT: &str = "dsv41";

/// How to open a model.
#[derive(Debug, Clone, Default)]
pub struct SourceOptions {
    /// A tokenizer.json instead of the vocabulary in the model's file.
    pub tokenizer: Option<PathBuf>,
    /// Memory for the weights of a GGUF file.
    pub memory_limit: Option<ByteSize>,
}

/// A model that is ready to be put on a device.
pub struct ModelSource {
    config: Config,
    origin: Origin,
    weights: Box<dyn WeightSource>,
    tokenizer: Option<Tokenizer>,
    token_map: Option<Vec<u32>>,
    end_of_text: Option<u32>,
    notes: Vec<String>,
    row_counts: Option<Arc<RowCounts>>,
}

/// What a model's weights are made from.
enum Origin {
    File(PathBuf, Arc<ModelFile>),
    /// Nothing but the tensors' names and the shape, which is called so.
    Names(String),
}

impl ModelSource {
    /// Opens a GGUF file, by any member of its shard set, or a configuration, whose weights are then made from their
    /// names; without a path, the built-in model of bytes.
    ///
    /// # Errors
    /// When the file cannot be used, or the model needs a token map that nothing gives.
    pub fn open(path: Option<&Path>, options: &SourceOptions) -> Result<Self> {
        let tokenizer = options.tokenizer.as_deref().map(Tokenizer::from_file).transpose()?;
        match path {
            None => {
                let gguf = Gguf::from_bytes(BUILT_IN_NAME, Bytes::from_static(BUILT_IN))?;
                let mut source = Self::from_gguf(Path::new(BUILT_IN_NAME), gguf, tokenizer, None)?;
                source.notes.push(
                    "no --model: the built-in one has learnt to recall pairs of letters, and nothing else".to_owned(),
                );
                Ok(source)
            }
            Some(path) if path.extension().is_some_and(|extension| extension == "json") => {
                Self::from_names(&path.display().to_string(), Config::load(path)?, tokenizer)
            }
            Some(path) => {
                let limit = options.memory_limit.map(|limit| limit.as_u64());
                Self::from_gguf(path, Gguf::open(path)?, tokenizer, limit)
            }
        }
    }

    fn from_names(name: &str, config: Config, tokenizer: Option<Tokenizer>) -> Result<Self> {
        let weights = Box::new(GoldenWeights::from_names(SALT, &config)?);
        let mut source = Self {
            origin: Origin::Names(name.to_owned()),
            weights,
            tokenizer,
            token_map: None,
            end_of_text: None,
            notes: Vec::new(),
            row_counts: None,
            config,
        };
        if !source.config.engram_layer_ids.is_empty() {
            source.token_map = Some(folded_token_map(&source.config));
        }
        Ok(source)
    }

    fn from_gguf(path: &Path, gguf: Gguf, tokenizer: Option<Tokenizer>, memory_limit: Option<u64>) -> Result<Self> {
        let (file, tokenizer) = model_of(path, gguf, tokenizer)?;
        let end_of_text = file.metadata().u32("tokenizer.ggml.eos_token_id")?;
        let config = file.config().clone();
        let token_map = file.token_map().map(<[u32]>::to_vec);
        ensure!(
            token_map.is_some() || config.engram_layer_ids.is_empty(),
            "{}: the model has engrams but no token map: give --tokenizer, from which the map follows",
            path.display()
        );
        let notes = file.description().notes.clone();
        let weights = GgufWeights::new(file, memory_limit)?;
        Ok(Self {
            config,
            origin: Origin::File(path.to_owned(), weights.file()),
            row_counts: weights.row_counts(),
            weights: Box::new(weights),
            end_of_text: end_of_text.or(tokenizer.as_ref().and_then(Tokenizer::eos)),
            tokenizer,
            token_map,
            notes,
        })
    }

    /// What adapters know the model by. Of a file, some rows of each tensor are read.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn base(&self) -> Result<Base> {
        match &self.origin {
            Origin::File(path, file) => base_of(path, file),
            Origin::Names(name) => {
                let mut sum = Sha256::new();
                sum.update(format!("dsv41 names 1 {SALT} "));
                sum.update(serde_json::to_vec(&self.config)?);
                Ok(Base { name: name.clone(), fingerprint: format!("{:x}", sum.finalize()) })
            }
        }
    }

    /// The model's shape.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Its weights.
    pub fn weights(&self) -> &dyn WeightSource {
        &*self.weights
    }

    /// Text in and out, where the file or the user gave a tokenizer.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        self.tokenizer.as_ref()
    }

    /// Each token's id in the engram's compressed vocabulary.
    pub fn token_map(&self) -> Option<&[u32]> {
        self.token_map.as_deref()
    }

    /// What its tensors take in the file, by part and type; none where there is no file.
    pub fn part_sizes(&self) -> Option<Vec<PartSize>> {
        match &self.origin {
            Origin::File(_, file) => Some(file.part_sizes()),
            Origin::Names(_) => None,
        }
    }

    /// The token that ends a text.
    pub fn end_of_text(&self) -> Option<u32> {
        self.end_of_text
    }

    /// What was derived or taken for granted.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Engram rows wanted so far, and those of them that were in memory, where rows are read from a file.
    pub fn row_counts(&self) -> Option<(u64, u64)> {
        self.row_counts.as_ref().map(|counts| (counts.wanted(), counts.hits()))
    }
}

/// Opens a GGUF file with its tokenizer, or with another one. Where the file has no token map, the tokenizer's is taken.
pub(crate) fn open_gguf(path: &Path, tokenizer: Option<Tokenizer>) -> Result<(ModelFile, Option<Tokenizer>)> {
    model_of(path, Gguf::open(path)?, tokenizer)
}

fn model_of(path: &Path, gguf: Gguf, tokenizer: Option<Tokenizer>) -> Result<(ModelFile, Option<Tokenizer>)> {
    let tokenizer = match tokenizer {
        Some(tokenizer) => Some(tokenizer),
        None => {
            let vocabulary = vocabulary(gguf.metadata())?;
            vocabulary.map(Tokenizer::from_vocabulary).transpose().with_context(|| path.display().to_string())?
        }
    };
    // The file's own map counts where it has one; to make one takes a moment.
    let derived = match &tokenizer {
        Some(tokenizer) if !has_token_map(gguf.metadata()) => Some(TokenMap::new(tokenizer)?.ids().to_vec()),
        _ => None,
    };
    Ok((ModelFile::new(gguf, derived)?, tokenizer))
}

/// What adapters know the model of a file by.
pub(crate) fn base_of(path: &Path, file: &ModelFile) -> Result<Base> {
    Ok(Base { name: path.display().to_string(), fingerprint: file.fingerprint()? })
}

/// A map for a model without a tokenizer: ids modulo the size of the compressed vocabulary, so that all of it is used.
pub(crate) fn folded_token_map(config: &Config) -> Vec<u32> {
    (0..config.vocab_size).map(|id| (id % config.engram_compressed_vocab_size.max(1)) as u32).collect()
}

fn has_token_map(metadata: &Metadata) -> bool {
    metadata.iter().any(|(key, _)| key.ends_with(".engram.token_map"))
}

/// A token for each byte, whose id is the byte.
pub fn bytes_vocabulary() -> Vocabulary {
    // Byte-level tokenizers spell bytes that do not print with the characters from U+0100 on.
    let prints = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut others = (0x100..).filter_map(char::from_u32);
    let spelled = |byte: u8| if prints(byte) { Some(char::from(byte)) } else { others.next() };
    let tokens = (0..=u8::MAX).filter_map(spelled).map(String::from).collect();
    Vocabulary { model: "gpt2".to_owned(), pre: Some("joyai-llm".to_owned()), tokens, ..Vocabulary::default() }
}

/// A token for each byte.
///
/// # Errors
/// None that is known; the tokenizer is made anew.
pub(crate) fn bytes_tokenizer() -> Result<Tokenizer> {
    Ok(Tokenizer::from_vocabulary(bytes_vocabulary())?)
}

/// The vocabulary in a GGUF file's metadata, where it has one.
///
/// # Errors
/// When a key has another type than it should.
pub fn vocabulary(metadata: &Metadata) -> Result<Option<Vocabulary>> {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let (Some(model), Some(tokens)) = (metadata.str(&key("model"))?, metadata.strings(&key("tokens"))?) else {
        return Ok(None);
    };
    // A number beyond i32 is no token type, and neither is the largest.
    let token_type = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
    let token_types = metadata.u32s(&key("token_type"))?;
    Ok(Some(Vocabulary {
        model: model.to_owned(),
        pre: metadata.str(&key("pre"))?.map(str::to_owned),
        tokens: tokens.to_vec(),
        token_types: token_types.map(|types| types.into_iter().map(token_type).collect()),
        merges: metadata.strings(&key("merges"))?.map(<[String]>::to_vec).unwrap_or_default(),
        scores: metadata.f32s(&key("scores"))?,
        bos: metadata.u32(&key("bos_token_id"))?,
        eos: metadata.u32(&key("eos_token_id"))?,
        pad: metadata.u32(&key("padding_token_id"))?,
        unknown: metadata.u32(&key("unknown_token_id"))?,
        add_bos: metadata.bool(&key("add_bos_token"))?.unwrap_or(false),
        // What SentencePiece does where a file does not say otherwise.
        add_space_prefix: metadata.bool(&key("add_space_prefix"))?.unwrap_or(true),
    }))
}

/// A vocabulary as GGUF metadata: what [`vocabulary`] reads.
pub fn vocabulary_metadata(vocabulary: &Vocabulary) -> Metadata {
    let mut metadata = Metadata::new();
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    metadata.insert(key("model"), Value::String(vocabulary.model.clone()));
    if let Some(pre) = &vocabulary.pre {
        metadata.insert(key("pre"), Value::String(pre.clone()));
    }
    metadata.insert(key("tokens"), Value::Array(Array::String(vocabulary.tokens.clone())));
    if let Some(types) = &vocabulary.token_types {
        metadata.insert(key("token_type"), Value::Array(Array::I32(types.clone())));
    }
    if !vocabulary.merges.is_empty() {
        metadata.insert(key("merges"), Value::Array(Array::String(vocabulary.merges.clone())));
    }
    if let Some(scores) = &vocabulary.scores {
        metadata.insert(key("scores"), Value::Array(Array::F32(scores.clone())));
    }
    let ids = [
        ("bos_token_id", vocabulary.bos),
        ("eos_token_id", vocabulary.eos),
        ("padding_token_id", vocabulary.pad),
        ("unknown_token_id", vocabulary.unknown),
    ];
    for (name, id) in ids {
        if let Some(id) = id {
            metadata.insert(key(name), Value::U32(id));
        }
    }
    metadata.insert(key("add_bos_token"), Value::Bool(vocabulary.add_bos));
    metadata.insert(key("add_space_prefix"), Value::Bool(vocabulary.add_space_prefix));
    metadata
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_a_token_of_its_own() {
        let tokenizer = Tokenizer::from_vocabulary(bytes_vocabulary()).unwrap();
        let text = "a b\n\0é~\u{7f}";
        let ids: Vec<u32> = text.bytes().map(u32::from).collect();
        assert_eq!(tokenizer.encode(text).unwrap(), ids);
        assert_eq!(tokenizer.decode(&ids).unwrap(), text);
    }

    #[test]
    fn vocabularies_come_back_from_metadata() {
        let full = Vocabulary {
            token_types: Some(vec![3; 256]),
            merges: vec!["a b".to_owned()],
            scores: Some(vec![0.5; 256]),
            bos: Some(0),
            eos: Some(1),
            add_bos: true,
            ..bytes_vocabulary()
        };
        for expected in [bytes_vocabulary(), full] {
            assert_eq!(vocabulary(&vocabulary_metadata(&expected)).unwrap(), Some(expected));
        }
        assert_eq!(vocabulary(&Metadata::new()).unwrap(), None);
    }
}
