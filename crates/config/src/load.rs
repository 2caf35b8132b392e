//! Reading a [`Config`] from JSON: the reference's `config.json` keys as they are, or Hugging Face's.

use std::path::Path;

use serde::de::{DeserializeOwned, Error as _};
use serde_json::Value;

use crate::engram::EngramConstants;
use crate::{Config, ConfigError, Storage};

/// The reference's key and where Hugging Face's configuration has it; every other key is named alike in both.
const HUGGING_FACE: [(&str, &str); 20] = [
    ("dim", "hidden_size"),
    ("n_layers", "num_hidden_layers"),
    ("n_heads", "num_attention_heads"),
    ("rope_head_dim", "qk_rope_head_dim"),
    ("moe_inter_dim", "moe_intermediate_size"),
    ("n_activated_experts", "num_experts_per_tok"),
    ("score_func", "scoring_func"),
    ("route_scale", "routed_scaling_factor"),
    ("norm_eps", "rms_norm_eps"),
    ("window_size", "sliding_window"),
    ("kv_source_layers", "kv_source_layer_ids"),
    ("index_source_layers", "index_source_layer_ids"),
    ("candidate_source_layer", "candidate_source_layer_id"),
    ("engram_pad_id", "engram_pad_token_id"),
    ("n_mtp_layers", "num_nextn_predict_layers"),
    ("max_seq_len", "max_position_embeddings"),
    ("rope_factor", "rope_scaling/factor"),
    ("original_seq_len", "rope_scaling/original_max_position_embeddings"),
    ("beta_fast", "rope_scaling/beta_fast"),
    ("beta_slow", "rope_scaling/beta_slow"),
];

impl Config {
    /// Reads and validates a configuration file.
    ///
    /// # Errors
    /// Whatever [`Config::from_path`] and [`Config::validate`] say, with the file's name.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let config = Self::from_path(path)?;
        config.validate().map_err(|error| error.within(&path.display().to_string()))?;
        Ok(config)
    }

    /// Reads a configuration file without validating it.
    ///
    /// # Errors
    /// [`ConfigError::Read`] when the file cannot be read, otherwise as [`Config::from_json`].
    pub fn from_path(path: &Path) -> Result<Self, ConfigError> {
        let text =
            std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        Self::from_json(&path.display().to_string(), &text)
    }

    /// Reads a configuration from JSON text without validating it; `origin` stands for the file in errors.
    ///
    /// # Errors
    /// [`ConfigError::Parse`] when the text is not JSON, otherwise as [`Config::from_value`].
    pub fn from_json(origin: &str, text: &str) -> Result<Self, ConfigError> {
        let value =
            serde_json::from_str(text).map_err(|source| ConfigError::Parse { origin: origin.to_owned(), source })?;
        Self::from_value(origin, &value)
    }

    /// Reads a configuration from a JSON object without validating it.
    ///
    /// Each key is looked for under the reference's name and Hugging Face's, in `text_config` and at the top. Unknown
    /// keys are ignored. Keys that the released file omits have defaults: `gate_temp` 1, `norm_topk_prob` true,
    /// `n_shared_experts` 1, `dtype` bf16, `expert_dtype` as `dtype`, `max_seq_len` the stretched context
    /// (`original_seq_len * rope_factor`), no draft head, no vision encoder, `engram_num_embeddings` from the primes.
    /// The keys of a part that the model does not have (indexer, candidates, engram, YaRN) may be absent.
    ///
    /// # Errors
    /// Names `origin`, and the key that is missing, has the wrong type, or contradicts its other name.
    pub fn from_value(origin: &str, value: &Value) -> Result<Self, ConfigError> {
        if !value.is_object() {
            let source = serde_json::Error::custom("expected a JSON object of configuration keys");
            return Err(ConfigError::Parse { origin: origin.to_owned(), source });
        }
        read(value).map_err(|error| error.within(origin))
    }

    /// The configuration as indented JSON under the reference's keys, which [`Config::from_json`] reads back equal.
    pub fn to_json(&self) -> String {
        // Serialising to a string fails only for maps whose keys are not strings, and this is a struct.
        serde_json::to_string_pretty(self).expect("a struct serialises")
    }
}

impl TryFrom<Value> for Config {
    type Error = ConfigError;

    fn try_from(value: Value) -> Result<Self, ConfigError> {
        Self::from_value("configuration", &value)
    }
}

fn read(root: &Value) -> Result<Config, ConfigError> {
    let keys = Keys::new(root)?;

    let n_layers = keys.required("n_layers")?;
    let compress_ratios: Vec<usize> = keys.required("compress_ratios")?;
    let compresses = compress_ratios.iter().take(n_layers).any(|&ratio| ratio > 0);
    let index_source_layers: Vec<usize> = keys.optional("index_source_layers", Vec::new())?;
    let indexes = !index_source_layers.is_empty();
    let candidate_source_layer = keys.layer("candidate_source_layer")?;
    let selects = candidate_source_layer.is_some();
    let engram_layer_ids: Vec<usize> = keys.optional("engram_layer_ids", Vec::new())?;
    let has_engram = !engram_layer_ids.is_empty();

    let rope_theta = keys.required("rope_theta")?;
    let original_seq_len: usize = keys.required_if(!keys.is_null("rope_scaling"), "original_seq_len", 0)?;
    let stretched = original_seq_len > 0;
    let rope_factor = keys.required_if(stretched, "rope_factor", 1.0)?;
    let max_seq_len = match keys.find("max_seq_len")? {
        Some(given) => given,
        // The cast saturates, and validation bounds the result.
        None if stretched => (original_seq_len as f64 * rope_factor) as usize,
        None => return Err(ConfigError::Missing { key: "max_seq_len" }),
    };

    let mut config = Config {
        vocab_size: keys.required("vocab_size")?,
        dim: keys.required("dim")?,
        n_layers,
        n_heads: keys.required("n_heads")?,
        head_dim: keys.required("head_dim")?,
        rope_head_dim: keys.required("rope_head_dim")?,
        q_lora_rank: keys.required("q_lora_rank")?,
        o_lora_rank: keys.required("o_lora_rank")?,
        o_groups: keys.required("o_groups")?,
        moe_inter_dim: keys.required("moe_inter_dim")?,
        n_routed_experts: keys.required("n_routed_experts")?,
        n_shared_experts: keys.optional("n_shared_experts", 1)?,
        n_activated_experts: keys.required("n_activated_experts")?,
        score_func: keys.required("score_func")?,
        gate_temp: keys.optional("gate_temp", 1.0)?,
        norm_topk_prob: keys.optional("norm_topk_prob", true)?,
        route_scale: keys.required("route_scale")?,
        swiglu_limit: keys.required("swiglu_limit")?,
        window_size: keys.required("window_size")?,
        compress_ratios,
        kv_source_layers: keys.optional("kv_source_layers", Vec::new())?,
        index_source_layers,
        candidate_source_layer,
        candidate_topk_blocks: keys.required_if(selects, "candidate_topk_blocks", 0)?,
        candidate_block_size: keys.required_if(selects, "candidate_block_size", 0)?,
        index_n_heads: keys.required_if(indexes, "index_n_heads", 0)?,
        index_head_dim: keys.required_if(indexes, "index_head_dim", 0)?,
        index_topk: keys.required_if(indexes, "index_topk", 0)?,
        hc_mult: keys.required("hc_mult")?,
        hc_sinkhorn_iters: keys.required("hc_sinkhorn_iters")?,
        hc_eps: keys.required("hc_eps")?,
        engram_layer_ids,
        engram_max_ngram_size: keys.required_if(has_engram, "engram_max_ngram_size", 0)?,
        engram_vocab_size: keys.required_if(has_engram, "engram_vocab_size", 0)?,
        engram_n_heads: keys.required_if(has_engram, "engram_n_heads", 0)?,
        engram_head_dim: keys.required_if(has_engram, "engram_head_dim", 0)?,
        engram_pad_id: keys.required_if(has_engram, "engram_pad_id", 0)?,
        engram_compressed_vocab_size: keys.required_if(has_engram, "engram_compressed_vocab_size", 0)?,
        engram_num_embeddings: Vec::new(),
        rope_theta,
        compress_rope_theta: keys.required_if(compresses, "compress_rope_theta", rope_theta)?,
        rope_factor,
        original_seq_len,
        beta_fast: keys.required_if(stretched, "beta_fast", 32.0)?,
        beta_slow: keys.required_if(stretched, "beta_slow", 1.0)?,
        norm_eps: keys.required("norm_eps")?,
        dtype: keys.optional("dtype", Storage::Bf16)?,
        expert_dtype: keys.find("expert_dtype")?,
        max_seq_len,
        n_mtp_layers: keys.optional("n_mtp_layers", 0)?,
        dspark_block_size: keys.optional("dspark_block_size", 0)?,
        vision_n_layers: keys.optional("vision_n_layers", 0)?,
        image_token_id: keys.find("image_token_id")?,
    };
    config.engram_num_embeddings = match keys.find("engram_num_embeddings")? {
        Some(given) => given,
        None => EngramConstants::new(&config)?.layers.iter().map(|layer| layer.rows).collect(),
    };
    Ok(config)
}

/// The keys of a configuration, under either name and in either place.
struct Keys<'a> {
    /// `text_config` where the file has one, then the file itself.
    scopes: Vec<&'a Value>,
}

impl<'a> Keys<'a> {
    fn new(root: &'a Value) -> Result<Self, ConfigError> {
        let scopes = match root.get("text_config") {
            None | Some(Value::Null) => vec![root],
            Some(text @ Value::Object(_)) => vec![text, root],
            Some(_) => {
                let source = serde_json::Error::custom("expected a JSON object");
                return Err(ConfigError::Type { key: "text_config".to_owned(), source });
            }
        };
        Ok(Self { scopes })
    }

    /// The value of a key; none when it is absent or null everywhere.
    fn find<T: DeserializeOwned + PartialEq>(&self, key: &'static str) -> Result<Option<T>, ConfigError> {
        let renamed = HUGGING_FACE.iter().filter(|(name, _)| *name == key).map(|(_, path)| *path);
        let paths: Vec<&str> = std::iter::once(key).chain(renamed).collect();
        let mut found: Option<(&str, &Value, T)> = None;
        for scope in &self.scopes {
            for path in &paths {
                let Some(value) = scope.pointer(&format!("/{path}")).filter(|value| !value.is_null()) else {
                    continue;
                };
                let parsed = T::deserialize(value).map_err(|source| ConfigError::Type { key: shown(path), source })?;
                match &found {
                    None => found = Some((path, value, parsed)),
                    Some((_, _, first)) if *first == parsed => {}
                    Some((first_path, first, _)) => {
                        return Err(ConfigError::Disagree {
                            key: shown(first_path),
                            value: first.to_string(),
                            other_key: shown(path),
                            other_value: value.to_string(),
                        });
                    }
                }
            }
        }
        Ok(found.map(|(_, _, parsed)| parsed))
    }

    fn required<T: DeserializeOwned + PartialEq>(&self, key: &'static str) -> Result<T, ConfigError> {
        self.find(key)?.ok_or(ConfigError::Missing { key })
    }

    fn optional<T: DeserializeOwned + PartialEq>(&self, key: &'static str, default: T) -> Result<T, ConfigError> {
        Ok(self.find(key)?.unwrap_or(default))
    }

    /// A key of a part that only some models have.
    fn required_if<T>(&self, used: bool, key: &'static str, unused: T) -> Result<T, ConfigError>
    where
        T: DeserializeOwned + PartialEq,
    {
        if used { self.required(key) } else { self.optional(key, unused) }
    }

    /// A layer's number; a negative one means none.
    fn layer(&self, key: &'static str) -> Result<Option<usize>, ConfigError> {
        let number: Option<i64> = self.find(key)?;
        Ok(number.and_then(|number| usize::try_from(number).ok()))
    }

    /// Whether a key is there and null, which `rope_scaling` uses to say "none".
    fn is_null(&self, key: &str) -> bool {
        self.scopes.iter().any(|scope| scope.get(key).is_some_and(Value::is_null))
    }
}

/// A path as errors show it.
fn shown(path: &str) -> String {
    path.replace('/', ".")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{golden, released, repository};
    use crate::{ExpertStorage, ScoreFunc};

    fn released_json() -> Value {
        let text = std::fs::read_to_string(repository("configs/v4.1-flash.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    /// The released configuration as Hugging Face writes it: renamed, nested, with what else such files hold.
    fn hugging_face_json() -> Value {
        let mut text = serde_json::Map::new();
        let mut rope_scaling = json!({"type": "yarn"});
        for (key, value) in released_json().as_object().unwrap() {
            match HUGGING_FACE.iter().find(|(name, _)| name == key) {
                None => text.insert(key.clone(), value.clone()),
                Some((_, path)) => match path.strip_prefix("rope_scaling/") {
                    None => text.insert((*path).to_owned(), value.clone()),
                    Some(inner) => {
                        rope_scaling[inner] = value.clone();
                        None
                    }
                },
            };
        }
        let image_token_id = text.remove("image_token_id").unwrap();
        text.insert("rope_scaling".to_owned(), rope_scaling);
        json!({"model_type": "deepseek", "image_token_id": image_token_id, "text_config": text})
    }

    fn load(value: &Value) -> Result<Config, ConfigError> {
        Config::from_value("test.json", value)
    }

    #[test]
    fn the_released_keys_and_what_they_omit() {
        let config = released("v4.1-flash");
        assert_eq!((config.dim, config.n_layers, config.n_routed_experts), (5120, 40, 384));
        assert_eq!(config.score_func, ScoreFunc::SqrtSoftplus);
        assert_eq!((config.dtype, config.expert_dtype), (Storage::Fp8, Some(ExpertStorage::Fp4)));
        assert_eq!(config.candidate_source_layer, Some(20));
        assert_eq!((config.gate_temp, config.norm_topk_prob), (1.0, true));
        assert_eq!(config.max_seq_len, 1_048_576);
        assert_eq!(config.norm_eps, 1e-20);
        assert_eq!(config.image_token_id, Some(129_264));
    }

    #[test]
    fn hugging_face_names_mean_the_same() {
        let expected = released("v4.1-flash");
        let nested = hugging_face_json();
        assert_eq!(load(&nested).unwrap(), expected);
        let mut flat = nested["text_config"].clone();
        flat["image_token_id"] = nested["image_token_id"].clone();
        assert_eq!(load(&flat).unwrap(), expected);
    }

    #[test]
    fn the_storage_has_two_spellings() {
        for spelling in ["bf16", "bfloat16"] {
            let mut value = released_json();
            value["dtype"] = json!(spelling);
            let config = load(&value).unwrap();
            assert_eq!(config.dtype, Storage::Bf16);
            assert!(config.to_json().contains(r#""dtype": "bf16""#), "{}", config.to_json());
        }
    }

    #[test]
    fn every_configuration_loads_and_round_trips() {
        for name in ["v4.1-flash", "tiny", "nano", "small", "mid"] {
            let config = released(name);
            assert_eq!(Config::from_json(name, &config.to_json()).unwrap(), config, "{name}");
            let deserialised: Config = serde_json::from_str(&config.to_json()).unwrap();
            assert_eq!(deserialised, config, "{name}");
        }
        assert_eq!(released("tiny"), load(&golden("tiny")["fixture"]).unwrap());
    }

    #[test]
    fn table_rows_come_from_the_primes_when_absent() {
        let mut value = released_json();
        value.as_object_mut().unwrap().remove("engram_num_embeddings");
        assert_eq!(load(&value).unwrap(), released("v4.1-flash"));
    }

    #[test]
    fn no_candidate_source() {
        for none in [Value::Null, json!(-1)] {
            let mut value = released_json();
            value["candidate_source_layer"] = none;
            assert_eq!(load(&value).unwrap().candidate_source_layer, None);
        }
    }

    #[test]
    fn parts_that_the_model_lacks_need_no_keys() {
        let mut value = released_json();
        let keys = value.as_object_mut().unwrap();
        keys.retain(|key, _| {
            let part =
                ["engram_", "index_", "candidate_", "kv_", "compress_", "vision_", "dspark_", "rope_factor", "beta_"];
            !part.iter().any(|prefix| key.starts_with(prefix))
        });
        keys.insert("compress_ratios".to_owned(), json!(vec![0; 40]));
        keys.insert("original_seq_len".to_owned(), json!(0));
        keys.insert("max_seq_len".to_owned(), json!(4096));
        let config = load(&value).unwrap();
        config.validate().unwrap();
        assert_eq!(config.engram_num_embeddings, Vec::<u64>::new());

        let keys = value.as_object_mut().unwrap();
        keys.remove("original_seq_len");
        assert_eq!(load(&value).unwrap_err().key(), Some("original_seq_len"));
        value["rope_scaling"] = Value::Null;
        assert_eq!(load(&value).unwrap(), config);
    }

    #[test]
    fn a_missing_key_is_named() {
        for key in ["vocab_size", "dim", "compress_ratios", "index_topk", "engram_vocab_size", "candidate_block_size"] {
            let mut value = released_json();
            value.as_object_mut().unwrap().remove(key);
            let error = load(&value).unwrap_err();
            assert_eq!(error.key(), Some(key));
            assert_eq!(error.to_string(), format!("test.json: key `{key}` is missing"));
        }
    }

    #[test]
    fn a_wrong_type_is_named() {
        for (key, wrong) in [
            ("dim", json!("wide")),
            ("dim", json!(64.5)),
            ("n_layers", json!(-1)),
            ("compress_ratios", json!([0, "2"])),
            ("norm_eps", json!([])),
            ("score_func", json!("hash")),
            ("dtype", json!("int4")),
            ("expert_dtype", json!("bf16")),
            ("text_config", json!(3)),
        ] {
            let mut value = released_json();
            value[key] = wrong;
            let error = load(&value).unwrap_err();
            assert_eq!(error.key(), Some(key), "{error}");
            assert!(error.to_string().starts_with(&format!("test.json: key `{key}`: ")), "{error}");
        }
    }

    #[test]
    fn names_that_disagree_are_an_error() {
        let mut value = released_json();
        value["hidden_size"] = value["dim"].clone();
        value["rope_scaling"] = json!({"factor": 16.0});
        assert_eq!(load(&value).unwrap(), released("v4.1-flash"));
        value["rope_scaling"]["factor"] = json!(8);
        let error = load(&value).unwrap_err();
        let expected = "test.json: key `rope_factor` is 16, but key `rope_scaling.factor` says 8: both name the same";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn files_and_texts_that_are_no_configuration() {
        let absent = repository("configs/absent.json");
        assert!(matches!(Config::load(&absent), Err(ConfigError::Read { path, .. }) if path == absent));
        for text in ["", "{\"dim\": ", "[]", "7", "{\"dim\": NaN}"] {
            let error = Config::from_json("test.json", text).unwrap_err();
            assert!(matches!(&error, ConfigError::Parse { origin, .. } if origin == "test.json"), "{error}");
        }
    }

    #[test]
    fn loading_a_file_validates_it() {
        let mut value = released_json();
        value["n_shared_experts"] = json!(2);
        let file = std::env::temp_dir().join(format!("dsv41-config-{}.json", std::process::id()));
        std::fs::write(&file, value.to_string()).unwrap();
        let loaded = Config::load(&file);
        let unchecked = Config::from_path(&file);
        std::fs::remove_file(&file).unwrap();
        unchecked.unwrap();
        let error = loaded.unwrap_err();
        assert_eq!(error.key(), Some("n_shared_experts"));
        assert!(error.to_string().starts_with(&file.display().to_string()), "{error}");
    }
}
