//! `adapter_config.json`: PEFT's keys, and in an object of this project what PEFT has no key for.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{AdapterError, AdapterSettings, targets};

/// The file's name in an adapter's folder.
pub(super) const CONFIG: &str = "adapter_config.json";

/// The one kind of adapter that is read.
const PEFT_TYPE: &str = "LORA";

/// The model that an adapter belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Base {
    /// Where it is or what it is called. Only for people: models move.
    pub name: String,
    /// What tells it from any other model, in hexadecimal digits.
    pub fingerprint: String,
}

/// The file. Keys that PEFT knows and this project has no use for are written as PEFT's own files have them, and not read.
#[derive(Debug, Serialize, Deserialize)]
struct ConfigFile {
    peft_type: String,
    #[serde(default)]
    task_type: String,
    base_model_name_or_path: String,
    r: usize,
    lora_alpha: f64,
    lora_dropout: f64,
    #[serde(default)]
    target_modules: Value,
    #[serde(default)]
    bias: String,
    #[serde(default)]
    fan_in_fan_out: bool,
    #[serde(default)]
    inference_mode: bool,
    dsv41: Own,
}

/// What PEFT has no key for.
#[derive(Debug, Serialize, Deserialize)]
struct Own {
    base_fingerprint: String,
    /// The patterns of the settings; `target_modules` says the same in PEFT's way.
    targets: Vec<String>,
    seed: u64,
}

/// The text of the file.
pub(super) fn to_json(settings: &AdapterSettings, base: &Base) -> serde_json::Result<Vec<u8>> {
    let AdapterSettings { rank, alpha, dropout, targets, seed } = settings;
    let mut text = serde_json::to_vec_pretty(&ConfigFile {
        peft_type: PEFT_TYPE.to_owned(),
        task_type: "CAUSAL_LM".to_owned(),
        base_model_name_or_path: base.name.clone(),
        r: *rank,
        lora_alpha: *alpha,
        lora_dropout: *dropout,
        target_modules: targets::peft_targets(targets),
        bias: "none".to_owned(),
        fan_in_fan_out: false,
        inference_mode: true,
        dsv41: Own { base_fingerprint: base.fingerprint.clone(), targets: targets.clone(), seed: *seed },
    })?;
    text.push(b'\n');
    Ok(text)
}

/// Reads the file.
///
/// # Errors
/// [`AdapterError::Io`], [`AdapterError::Json`], [`AdapterError::Key`].
pub(super) fn read(file: &Path) -> Result<(AdapterSettings, Base), AdapterError> {
    let text = fs::read(file).map_err(AdapterError::io(file, "read"))?;
    let json = |source| AdapterError::Json { file: file.to_owned(), source };
    let ConfigFile { peft_type, base_model_name_or_path, r, lora_alpha, lora_dropout, dsv41, .. } =
        serde_json::from_slice(&text).map_err(json)?;
    let key = |key: &str, found: String, expected: &str| AdapterError::Key {
        file: file.to_owned(),
        key: key.to_owned(),
        found,
        expected: expected.to_owned(),
    };
    if peft_type != PEFT_TYPE {
        return Err(key("peft_type", format!("`{peft_type}`"), "`LORA`"));
    }
    let settings =
        AdapterSettings { rank: r, alpha: lora_alpha, dropout: lora_dropout, targets: dsv41.targets, seed: dsv41.seed };
    settings.validate().map_err(|error| match error {
        AdapterError::Setting { key: setting, found, expected } => key(key_of(setting), found, expected),
        error => error,
    })?;
    Ok((settings, Base { name: base_model_name_or_path, fingerprint: dsv41.base_fingerprint }))
}

/// The file's key of a setting.
fn key_of(setting: &'static str) -> &'static str {
    match setting {
        "rank" => "r",
        "alpha" => "lora_alpha",
        "dropout" => "lora_dropout",
        "targets" => "dsv41.targets",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base() -> Base {
        Base { name: "model.gguf".to_owned(), fingerprint: "0123".to_owned() }
    }

    #[test]
    fn the_file_has_peft_s_keys_and_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(CONFIG);
        let settings = AdapterSettings { rank: 4, seed: 3, dropout: 0.25, ..AdapterSettings::default() };
        let text = to_json(&settings, &base()).unwrap();
        fs::write(&file, &text).unwrap();
        assert_eq!(read(&file).unwrap(), (settings.clone(), base()));
        let value: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(value["peft_type"], "LORA");
        assert_eq!(
            (&value["r"], &value["lora_alpha"], &value["lora_dropout"]),
            (&4.into(), &32.0.into(), &0.25.into())
        );
        assert_eq!(value["target_modules"], Value::from(settings.targets));
        assert_eq!(value["base_model_name_or_path"], "model.gguf");
        assert_eq!(value["dsv41"]["base_fingerprint"], "0123");
    }

    #[test]
    fn files_that_cannot_be_used_are_told_with_file_and_key() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(CONFIG);
        let error = |change: fn(&mut Value)| {
            let text = to_json(&AdapterSettings::default(), &base()).unwrap();
            let mut value: Value = serde_json::from_slice(&text).unwrap();
            change(&mut value);
            fs::write(&file, value.to_string()).unwrap();
            let error = read(&file).unwrap_err().to_string();
            error.strip_prefix(&format!("{}: ", file.display())).unwrap().to_owned()
        };
        assert_eq!(error(|value| value["peft_type"] = "IA3".into()), "key `peft_type` is `IA3`, expected `LORA`");
        assert_eq!(error(|value| value["r"] = 0.into()), "key `r` is 0, expected a number from 1 to 65536");
        let foreign = error(|value| drop(value.as_object_mut().unwrap().remove("dsv41")));
        assert!(foreign.starts_with("missing field `dsv41`"), "{foreign}");
        let absent = read(&folder.path().join("absent")).unwrap_err().to_string();
        assert!(absent.contains("absent: cannot be read: "), "{absent}");
    }
}
