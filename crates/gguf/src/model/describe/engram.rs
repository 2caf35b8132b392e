//! The engram: its layers and sizes, the token map, and the hash's constants, which the configuration gives anew and a
//! file may hold.

use dsv41_config::Config;
use dsv41_config::engram::EngramConstants;

use super::Header;
use super::keys::{Typed, full, missing, wrong, wrong_full};
use crate::model::error::ModelError;

/// Vocabulary of the released tokenizer, and how many distinct keys its token map has.
const RELEASED_VOCAB: (usize, usize) = (129_280, 99_092);

/// Longest n-gram of the released model.
const RELEASED_NGRAM: usize = 4;

/// Fills in the engram's keys of a configuration that has its vocabulary, and gives the token map.
pub(super) fn describe(
    header: &Header<'_>,
    config: &mut Config,
    given_map: Option<Vec<u32>>,
    notes: &mut Vec<String>,
) -> Result<Option<Vec<u32>>, ModelError> {
    config.engram_layer_ids = layers(header)?;
    if config.engram_layer_ids.is_empty() {
        return Ok(None);
    }
    let tables: Vec<[usize; 2]> =
        config.engram_layer_ids.iter().map(|&layer| header.matrix(&table(layer))).collect::<Result<_, _>>()?;
    config.engram_head_dim = tables[0][1];
    header.keys.agrees("engram.key_length", &config.engram_head_dim, "the columns of the tables")?;
    // No platform of Rust has a `usize` of more than 64 bits.
    config.engram_num_embeddings = tables.iter().map(|&[rows, _]| rows as u64).collect();
    hash_shape(header, config, notes)?;
    let token_map = token_map(header, config, given_map, notes)?;
    pad(header, config, token_map.as_deref(), notes)?;
    constants(header, config, notes)?;
    Ok(token_map)
}

/// The layers in the order in which they take their primes, which decides what the hash is.
fn layers(header: &Header<'_>) -> Result<Vec<usize>, ModelError> {
    let with_table = header.layers_with("engram_embd.weight");
    let Some((layers, key)) = find::<Vec<usize>>(header, "layer_ids")? else {
        return Ok(with_table);
    };
    let mut ascending = layers.clone();
    ascending.sort_unstable();
    if ascending != with_table {
        return Err(wrong_full(&key, format!("{layers:?}"), format!("{with_table:?}, the layers with a table")));
    }
    Ok(layers)
}

/// The longest n-gram and the heads.
fn hash_shape(header: &Header<'_>, config: &mut Config, notes: &mut Vec<String>) -> Result<(), ModelError> {
    let projection = format!("blk.{}.engram_wkv.weight", config.engram_layer_ids[0]);
    // Its input is every slot's row, one after another.
    let [outputs, gathered] = header.matrix(&projection)?;
    let ngram = find::<usize>(header, "max_ngram_size")?;
    let heads = find::<usize>(header, "head_count")?;
    (config.engram_max_ngram_size, config.engram_n_heads) = match (ngram, heads) {
        (Some((ngram, _)), Some((heads, _))) => (ngram, heads),
        (Some(_), None) => return Err(missing("engram.head_count")),
        (None, Some(_)) => return Err(missing("engram.max_ngram_size")),
        (None, None) => {
            let slots = gathered / config.engram_head_dim.max(1);
            let heads = slots / (RELEASED_NGRAM - 1);
            notes.push(format!(
                "The file names no engram sizes: n-grams of up to {RELEASED_NGRAM} tokens as released, and so {heads} heads for \
                 the {slots} rows that the projection takes."
            ));
            (RELEASED_NGRAM, heads)
        }
    };
    // Here already, as it takes a prime for each slot to find the rest: no more than the file has a use for.
    let slots = config.engram_slots();
    if slots.saturating_mul(config.engram_head_dim) == gathered {
        return Ok(());
    }
    Err(ModelError::Shape {
        tensor: projection,
        found: vec![outputs, gathered],
        expected: format!("{slots} rows of {} values as inputs", config.engram_head_dim),
    })
}

/// The token map, and the number of its distinct values.
fn token_map(
    header: &Header<'_>,
    config: &mut Config,
    given: Option<Vec<u32>>,
    notes: &mut Vec<String>,
) -> Result<Option<Vec<u32>>, ModelError> {
    const NAME: &str = "engram.token_map";
    let stated = find::<usize>(header, "compressed_vocab_size")?.map(|(size, _)| size);
    let map = match find::<Vec<u32>>(header, "token_map")? {
        Some((map, _)) => map,
        None => match given {
            Some(map) => {
                notes.push("The file has no token map for the engram: it is made from the tokenizer.".to_owned());
                map
            }
            None => {
                let released = (config.vocab_size == RELEASED_VOCAB.0).then_some(RELEASED_VOCAB.1);
                config.engram_compressed_vocab_size = stated.or(released).ok_or_else(|| missing(NAME))?;
                notes.push(format!(
                    "The file has no token map for the engram: one of {} distinct values has to be made from the tokenizer.",
                    config.engram_compressed_vocab_size
                ));
                return Ok(None);
            }
        },
    };
    if map.len() != config.vocab_size {
        return Err(wrong(NAME, format!("{} entries", map.len()), format!("{}, the vocabulary", config.vocab_size)));
    }
    config.engram_compressed_vocab_size = distinct(&map)?;
    header.keys.agrees(
        "engram.compressed_vocab_size",
        &config.engram_compressed_vocab_size,
        "what the token map has",
    )?;
    Ok(Some(map))
}

/// The number of distinct values of a token map, which numbers them without gaps.
///
/// # Errors
/// [`ModelError::Key`] when there is a gap: hashes of ids beyond the vocabulary could overflow.
pub(crate) fn distinct(map: &[u32]) -> Result<usize, ModelError> {
    let mut ids = map.to_vec();
    ids.sort_unstable();
    ids.dedup();
    match ids.iter().zip(0..).find(|&(&id, place)| id != place) {
        None => Ok(ids.len()),
        Some((id, place)) => Err(wrong("engram.token_map", id, format!("{place}, as ids are numbered without gaps"))),
    }
}

/// The pad token: the file names its compressed id, and any token of that id will do.
fn pad(
    header: &Header<'_>,
    config: &mut Config,
    token_map: Option<&[u32]>,
    notes: &mut Vec<String>,
) -> Result<(), ModelError> {
    let of_tokenizer = header.keys.find_full::<usize>("tokenizer.ggml.padding_token_id")?;
    let compressed = find::<usize>(header, "pad_id")?;
    config.engram_pad_id = match (compressed, token_map) {
        (Some((id, key)), Some(map)) => {
            let means = |token: usize| map.get(token).is_some_and(|&mapped| mapped as usize == id);
            let token =
                of_tokenizer.filter(|&token| means(token)).or_else(|| (0..map.len()).find(|&token| means(token)));
            token.ok_or_else(|| wrong_full(&key, id, "a value of the token map"))?
        }
        (Some((id, _)), None) => {
            let token = of_tokenizer.unwrap_or(id);
            notes.push(format!("Without a token map, token {token} is taken for the engram's pad, whose id is {id}."));
            token
        }
        (None, _) => {
            let token = of_tokenizer.ok_or_else(|| missing("engram.pad_id"))?;
            notes.push(format!("The file names no pad for the engram: token {token} is the tokenizer's."));
            token
        }
    };
    Ok(())
}

/// Finds the primes, derives everything from them, and holds the file's tables and arrays to it.
fn constants(header: &Header<'_>, config: &mut Config, notes: &mut Vec<String>) -> Result<(), ModelError> {
    let primes = find::<Vec<u64>>(header, "primes")?;
    let first = primes.as_ref().and_then(|(primes, _)| primes.first().copied());
    config.engram_vocab_size = match find::<u64>(header, "vocab_size")? {
        Some((size, _)) => size,
        // The primes are those in a row from the first one on.
        None => match first {
            Some(prime) => prime,
            None => first_prime(config)?,
        },
    };
    let derived = EngramConstants::new(config)?;
    for (layer, &rows) in derived.layers.iter().zip(&config.engram_num_embeddings) {
        if layer.rows != rows {
            return Err(ModelError::Shape {
                tensor: table(layer.layer),
                found: header.matrix(&table(layer.layer))?.to_vec(),
                expected: format!("{} rows, the sum of the layer's primes", layer.rows),
            });
        }
    }
    let layers = &derived.layers;
    let arrays = [
        (primes, "primes", layers.iter().flat_map(|layer| layer.primes.iter().flatten().copied()).collect()),
        (find(header, "offsets")?, "offsets", layers.iter().flat_map(|layer| layer.offsets.iter().copied()).collect()),
        (
            find(header, "multipliers")?,
            "multipliers",
            layers.iter().flat_map(|layer| layer.multipliers.iter().map(|&m| m.cast_unsigned())).collect::<Vec<u64>>(),
        ),
    ];
    let mut absent = Vec::new();
    for (stored, name, derived) in arrays {
        match stored {
            None => absent.push(name),
            Some((stored, _)) if stored == derived => {}
            Some((stored, key)) => return Err(contradiction(&key, &stored, &derived)),
        }
    }
    if !absent.is_empty() {
        notes.push(format!("The file has no engram {}: derived from its sizes.", absent.join(", ")));
    }
    Ok(())
}

/// The error of a stored array that differs from the derived one: its length, or the first entry that differs.
fn contradiction(key: &str, stored: &[u64], derived: &[u64]) -> ModelError {
    match stored.iter().zip(derived).position(|(stored, derived)| stored != derived) {
        Some(place) => {
            let expected = format!("{}, which the engram's sizes give", derived[place]);
            wrong_full(key, format!("{} at place {place}", stored[place]), expected)
        }
        None => wrong_full(key, format!("{} entries", stored.len()), format!("{}, one for each use", derived.len())),
    }
}

/// The first prime of the first table, from its number of rows, which is the sum of as many primes in a row as the table
/// has slots. The sum never falls as the first prime grows, so it is found by halving.
fn first_prime(config: &Config) -> Result<u64, ModelError> {
    let mut alone = Config { engram_layer_ids: config.engram_layer_ids[..1].to_vec(), ..config.clone() };
    let rows = config.engram_num_embeddings[0];
    let mut prime_and_sum = |size: u64| -> Result<(u64, u64), ModelError> {
        alone.engram_vocab_size = size;
        let layers = EngramConstants::new(&alone)?.layers;
        let first = layers.iter().flat_map(|layer| layer.primes.iter().flatten()).next();
        Ok((first.copied().unwrap_or(size), layers.iter().map(|layer| layer.rows).sum()))
    };
    // Every prime is at least the size.
    let slots = config.engram_slots().max(1) as u64;
    let (mut low, mut high) = (1, (rows / slots).max(1));
    while low < high {
        let middle = low + (high - low) / 2;
        match prime_and_sum(middle)? {
            (_, sum) if sum < rows => low = middle + 1,
            _ => high = middle,
        }
    }
    Ok(prime_and_sum(low)?.0)
}

/// A key of the engram under this architecture's prefix, or V4's, which early converters wrote.
fn find<T: Typed + PartialEq + std::fmt::Debug>(
    header: &Header<'_>,
    name: &str,
) -> Result<Option<(T, String)>, ModelError> {
    header.keys.spelt(&[full(&format!("engram.{name}")), format!("deepseek4.engram.{name}")])
}

fn table(layer: usize) -> String {
    format!("blk.{layer}.engram_embd.weight")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::error::ModelError;
    use crate::model::testing::{Header, as_text, released, token_map};
    use crate::{Metadata, Value};

    /// What published files say: neither the number above which the primes lie nor where they were found.
    fn published() -> Header {
        Header::of(&released("tiny")).without("engram.vocab_size")
    }

    #[test]
    fn primes_stand_for_the_number_they_were_found_above() {
        let config = published().describe().unwrap().config;
        assert_eq!(config.engram_vocab_size, 67);
        let expected = released("tiny");
        assert_eq!(constants_of(&config), constants_of(&expected));
    }

    fn constants_of(config: &Config) -> EngramConstants {
        EngramConstants::new(config).unwrap()
    }

    #[test]
    fn arrays_may_stand_under_the_prefix_of_v4() {
        let header = published();
        let mut metadata = Metadata::new();
        for (key, value) in header.metadata.iter() {
            metadata.insert(key.replace("deepseek41.engram", "deepseek4.engram"), value.clone());
        }
        let renamed = Header { metadata, ..header.clone() };
        assert_eq!(renamed.describe().unwrap(), header.describe().unwrap());
    }

    #[test]
    fn constants_that_a_file_lacks_come_from_the_rows_of_its_tables() {
        for name in ["tiny", "nano", "small", "mid", "v4.1-flash"] {
            let complete = Header::of(&released(name)).without("engram.vocab_size");
            let mut lacking = complete.clone();
            for array in ["engram.primes", "engram.offsets", "engram.multipliers", "engram.layer_ids"] {
                lacking = lacking.without(array);
            }
            let described = lacking.describe().unwrap();
            assert_eq!(described.config, complete.describe().unwrap().config, "{name}");
            let note = "The file has no engram primes, offsets, multipliers: derived from its sizes.";
            assert!(described.notes.iter().any(|found| found == note), "{:?}", described.notes);
        }
    }

    /// The oldest published files: no word of the engram at all.
    #[test]
    fn a_released_file_without_any_engram_key_is_filled_in() {
        let config = released("v4.1-flash");
        let mut header = Header::of(&config).without("engram");
        header.metadata.insert("tokenizer.ggml.padding_token_id", 2_u32);
        let described = header.describe().unwrap();
        let expected = Config { engram_vocab_size: 16_000_057, ..as_text(config.clone()) };
        assert_eq!(described.config, expected);
        assert_eq!(described.token_map, None);
        assert!(
            described.notes.iter().any(|note| note.contains("one of 99092 distinct values")),
            "{:?}",
            described.notes
        );
        let map = token_map(&config);
        assert_eq!(header.describe_with(Some(map.clone())).unwrap().token_map, Some(map));
    }

    #[test]
    fn a_map_from_the_tokenizer_fills_in_for_one_that_the_file_lacks() {
        let expected = published().describe().unwrap();
        let lacking = published().without("token_map");
        let error = lacking.describe().unwrap_err();
        assert_eq!(error.to_string(), "key `deepseek41.engram.token_map` is missing");
        let map = token_map(&released("tiny"));
        let described = lacking.describe_with(Some(map)).unwrap();
        assert_eq!((described.config, described.token_map), (expected.config, expected.token_map));
        // Of another tokenizer: the multipliers tell.
        let other: Vec<u32> = (0..64).map(|token| token % 63).collect();
        let error = lacking.describe_with(Some(other)).unwrap_err();
        assert!(error.to_string().starts_with("key `deepseek41.engram.multipliers` is "), "{error}");
    }

    #[test]
    fn the_file_s_map_wins_over_a_given_one() {
        let described = published().describe_with(Some(vec![0; 64])).unwrap();
        assert_eq!(described.token_map, Some(token_map(&released("tiny"))));
    }

    #[test]
    fn the_pad_is_a_token_of_the_id_that_the_file_names() {
        let mut config = released("tiny");
        config.engram_compressed_vocab_size = 60;
        let mut header = Header::of(&config);
        assert_eq!(header.describe().unwrap().config.engram_pad_id, 2);
        // Tokens 2 and 62 have one id.
        header.metadata.insert("tokenizer.ggml.padding_token_id", 62_u32);
        assert_eq!(header.describe().unwrap().config.engram_pad_id, 62);
        header.metadata.insert("tokenizer.ggml.padding_token_id", 5_u32);
        assert_eq!(header.describe().unwrap().config.engram_pad_id, 2);
        assert_eq!(header.without("pad_id").describe().unwrap().config.engram_pad_id, 5);
    }

    #[test]
    fn ids_with_a_gap_are_refused() {
        let mut header = published();
        let mut map: Vec<i32> = (0..64).collect();
        map[63] = 64;
        header.metadata.insert("deepseek41.engram.token_map", map.clone());
        let error = header.describe().unwrap_err().to_string();
        assert!(error.starts_with("key `deepseek41.engram.token_map` is 64, expected 63"), "{error}");
        map[63] = -1;
        header.metadata.insert("deepseek41.engram.token_map", map);
        assert!(matches!(header.describe(), Err(ModelError::Gguf(_))));
    }

    #[test]
    fn tables_that_no_primes_sum_to_are_refused() {
        let mut header = published().without("engram.primes");
        *header.shape("blk.1.engram_embd.weight") = vec![463, 32];
        let error = header.describe().unwrap_err().to_string();
        let expected = "tensor `blk.1.engram_embd.weight` has shape [463, 32], expected 492 rows";
        assert!(error.starts_with(expected), "{error}");
        let mut header = published();
        *header.shape("blk.4.engram_embd.weight") = vec![630 + 1, 32];
        let error = header.describe().unwrap_err().to_string();
        assert!(
            error.starts_with("tensor `blk.4.engram_embd.weight` has shape [631, 32], expected 630 rows"),
            "{error}"
        );
    }

    #[test]
    fn stored_constants_that_no_sizes_give_are_refused() {
        for name in ["primes", "offsets", "multipliers"] {
            let mut header = published();
            let key = format!("deepseek41.engram.{name}");
            let mut values = header.metadata.u64s(&key).unwrap().unwrap();
            let last = values.len() - 1;
            values[last] += 2;
            header.metadata.insert(key.clone(), Value::from(values));
            let error = header.describe().unwrap_err().to_string();
            assert!(error.starts_with(&format!("key `{key}` is ")), "{error}");
            assert!(error.contains(&format!("at place {last}, expected ")), "{error}");
        }
    }
}
