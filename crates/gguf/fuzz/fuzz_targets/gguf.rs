//! Any bytes are a GGUF file that is read or refused: `cargo +nightly fuzz run gguf` in the folder of the crate.

#![no_main]

use dsv41_gguf::Gguf;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(gguf) = Gguf::from_bytes("fuzz", bytes.to_vec().into()) else { return };
    for info in gguf.tensors() {
        let Ok(bytes) = gguf.bytes(info) else { continue };
        assert_eq!(Ok(bytes.len()), info.byte_len().map_err(|error| error.to_string()));
        let _ = gguf.matrix(&info.name).map(|matrix| matrix.dequantise());
        let _ = gguf.expert(&info.name, 0).map(|matrix| matrix.dequantise());
    }
});
