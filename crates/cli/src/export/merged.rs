//! A model's file with adapters added to its matrices.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use bytes::Bytes;
use dsv41_config::{Config, TensorSpec};
use dsv41_gguf::{ModelError, ModelFile, TensorStore};
use dsv41_quant::GgmlType;
use dsv41_train::adapters::{AdapterError, Factors};

use crate::adapters::Adapters;

/// The sums of a file's matrices and what adapters add to them, made as their rows are asked for.
#[derive(Debug)]
pub struct MergedModel<'a> {
    base: &'a ModelFile,
    /// What is added to a tensor, and how many times.
    additions: HashMap<String, Vec<(f64, Factors<'a>)>>,
}

impl<'a> MergedModel<'a> {
    /// Adds adapters to a file.
    ///
    /// # Errors
    /// As [`AdapterFile::factors`](dsv41_train::adapters::AdapterFile::factors).
    pub fn new(base: &'a ModelFile, adapters: &'a Adapters) -> Result<Self, AdapterError> {
        let mut additions: HashMap<String, Vec<(f64, Factors<'a>)>> = HashMap::new();
        for (file, strength) in &adapters.files {
            let scale = strength * file.settings().scale();
            for (linear, factors) in file.factors(base.config(), &adapters.base)? {
                additions.entry(format!("{linear}.weight")).or_default().push((scale, factors));
            }
        }
        Ok(Self { base, additions })
    }

    /// The file that is added to.
    pub fn base(&self) -> &ModelFile {
        self.base
    }

    /// Whether anything is added to a tensor.
    pub fn changes(&self, name: &str) -> bool {
        self.additions.contains_key(name)
    }
}

impl TensorStore for MergedModel<'_> {
    fn config(&self) -> &Config {
        self.base.config()
    }

    fn token_map(&self) -> Option<&[u32]> {
        self.base.token_map()
    }

    fn tensors(&self) -> &[TensorSpec] {
        self.base.tensors()
    }

    fn files(&self) -> Vec<&Path> {
        self.base.files()
    }

    fn rows(&self, name: &str, rows: Range<usize>, out: &mut [f32]) -> Result<(), ModelError> {
        self.base.rows(name, rows.clone(), out)?;
        for (scale, factors) in self.additions.get(name).into_iter().flatten() {
            factors.add_rows(rows.start, *scale, out);
        }
        Ok(())
    }

    fn packed_rows(&self, name: &str, rows: Range<usize>, ty: GgmlType) -> Result<Option<Bytes>, ModelError> {
        if self.changes(name) { Ok(None) } else { self.base.packed_rows(name, rows, ty) }
    }
}
