//! What the tests of this crate read.

use std::path::{Path, PathBuf};

use crate::Config;

/// A file of the repository.
pub(crate) fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// A golden file, whole.
pub(crate) fn golden(name: &str) -> serde_json::Value {
    let text = std::fs::read_to_string(repository(&format!("goldens/{name}.json"))).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// The configuration of a golden file, whose fixture holds the run's own keys too.
pub(crate) fn fixture(name: &str) -> Config {
    Config::from_value(name, &golden(name)["fixture"]).unwrap()
}

/// A configuration of `configs/`, loaded and validated.
pub(crate) fn released(name: &str) -> Config {
    Config::load(&repository(&format!("configs/{name}.json"))).unwrap()
}
