//! Hashing at the released model's size.

use dsv41_config::Config;
use dsv41_config::engram::EngramConstants;
use dsv41_golden::EngramHashGolden;
use dsv41_oracle::hash_ids;

use crate::support::{config, golden, golden_path};

#[test]
fn the_released_models_hash_ids_come_out_exactly() {
    let want = EngramHashGolden::read(&golden_path("engram-hash.json")).unwrap();
    let released = Config {
        n_layers: want.layer_ids.iter().max().unwrap() + 1,
        engram_layer_ids: want.layer_ids.clone(),
        engram_max_ngram_size: want.max_ngram_size,
        engram_vocab_size: want.engram_vocab_size,
        engram_n_heads: want.n_heads,
        engram_compressed_vocab_size: want.compressed_vocab_size as usize,
        engram_num_embeddings: want.table_rows.clone(),
        ..config(&golden("tiny"))
    };
    let constants = EngramConstants::new(&released).unwrap();
    for (sequence, (ids, mask)) in want.input_ids.iter().zip(&want.token_mask).enumerate() {
        let tokens: Vec<Option<u32>> =
            ids.iter().zip(mask).map(|(&id, &text)| (text == 1).then_some(id as u32)).collect();
        for position in 0..tokens.len() {
            // A prefix is all that a call sees, wherever the sequence is cut into calls.
            let seen = &tokens[..=position];
            for (place, layer) in constants.layers.iter().enumerate() {
                let found = hash_ids(layer, want.pad_id as u32, seen, position);
                assert_eq!(found, want.hash_ids[sequence][position][place], "{sequence} {position} {place}");
            }
        }
    }
}
