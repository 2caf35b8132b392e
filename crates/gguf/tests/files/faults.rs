//! Files that are not what they should be, and what is said of them.

use std::fs;
use std::path::Path;

use dsv41_gguf::{Array, Gguf};

use crate::raw::Raw;

/// Types of metadata values.
const U32: u32 = 4;
const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;
/// Types of tensors.
const F32: u32 = 0;
const Q2_K: u32 = 10;
const IQ2_XXS: u32 = 16;

#[test]
fn a_file_of_another_format_is_refused() {
    for (bytes, expected) in [
        (&b"PK\x03\x04 and more"[..], r"begins with `PK\x03\x04`, expected `GGUF`"),
        (b"GGU", "begins with `GGU`, expected `GGUF`"),
        (b"", "the file is empty, expected `GGUF`"),
    ] {
        assert_eq!(Raw(bytes.to_vec()).message(), format!("m.gguf: header, at byte 0: {expected}"));
    }
}

#[test]
fn a_file_of_another_version_is_refused() {
    for (version, expected) in [
        (1_u32, "version 1, expected 2 or 3"),
        (4, "version 4, expected 2 or 3"),
        (0, "version 0, expected 2 or 3"),
        (3_u32.swap_bytes(), "big-endian, expected a little-endian file"),
    ] {
        let raw = Raw(b"GGUF".to_vec()).u32(version).u64(0).u64(0);
        assert_eq!(raw.message(), format!("m.gguf: header, at byte 4: {expected}"));
    }
}

#[test]
fn version_2_is_read() {
    let raw = Raw(b"GGUF".to_vec()).u32(2).u64(0).u64(1).key("a", U32).u32(7);
    assert_eq!(raw.open().unwrap().metadata().u32("a").unwrap(), Some(7));
}

#[test]
fn a_header_that_ends_too_early_is_refused() {
    let key = Raw::new(0, 1).key("a.long.enough.key", U32);
    let tensor = Raw::new(1, 0).tensor("t", &[4, 4], F32, 0);
    let cut = |raw: &Raw, bytes: usize| Raw(raw.0[..raw.0.len() - bytes].to_vec());
    for (raw, expected) in [
        (Raw(b"GGUF".to_vec()), "header, at byte 4: takes 4 bytes, and 0 are left in the file"),
        (Raw(b"GGUF".to_vec()).u32(3).u32(0), "header, at byte 8: takes 8 bytes, and 4 are left in the file"),
        (
            key.clone().bytes(&[1, 2]),
            "value of `a.long.enough.key`, at byte 53: takes 4 bytes, and 2 are left in the file",
        ),
        (cut(&key, 4), "value of `a.long.enough.key`, at byte 49: takes 4 bytes, and 0 are left in the file"),
        (cut(&key, 6), "metadata key 0, at byte 24: takes 17 bytes, and 15 are left in the file"),
        (cut(&tensor, 1), "tensor `t`, at byte 57: takes 8 bytes, and 7 are left in the file"),
        (cut(&tensor, 9), "tensor `t`, at byte 53: takes 4 bytes, and 3 are left in the file"),
    ] {
        assert_eq!(raw.message(), format!("m.gguf: {expected}"));
    }
}

#[test]
fn counts_that_the_file_cannot_hold_are_refused() {
    let array = |id: u32, count: u64| Raw::new(0, 1).key("a", ARRAY).u32(id).u64(count).bytes(&[0; 16]);
    for (raw, expected) in [
        (
            Raw::new(u64::MAX, 0),
            "header, at byte 8: 18446744073709551615 tensors of at least 32 bytes, and 8 bytes are left in the file",
        ),
        (
            Raw::new(0, 2).key("a", U32).u32(7),
            "header, at byte 16: 2 metadata keys of at least 13 bytes, and 17 bytes are left in the file",
        ),
        (array(U32, 5), "value of `a`, at byte 41: 5 elements of at least 4 bytes, and 16 bytes are left in the file"),
        (
            array(STRING, 1 << 60),
            "value of `a`, at byte 41: 1152921504606846976 elements of at least 8 bytes, and 16 bytes are left in the \
             file",
        ),
    ] {
        assert_eq!(raw.message(), format!("m.gguf: {expected}"));
    }
}

#[test]
fn strings_that_are_too_long_are_refused() {
    let long = "k".repeat(65_536);
    for (raw, expected) in [
        (
            Raw::new(0, 1).key("a", STRING).u64(u64::MAX).bytes(b"abc"),
            "value of `a`, at byte 37: takes 18446744073709551615 bytes, and 3 are left in the file",
        ),
        (Raw::new(0, 1).key(&long, U32).u32(7), "metadata key 0, at byte 24: 65536 bytes long, expected at most 65535"),
        (
            Raw::new(1, 0).tensor(&long, &[4], F32, 0),
            "name of tensor 0, at byte 24: 65536 bytes long, expected at most 65535",
        ),
    ] {
        assert_eq!(raw.message(), format!("m.gguf: {expected}"));
    }
}

#[test]
fn strings_that_are_no_text_are_refused() {
    let bad = |raw: Raw| raw.u64(4).bytes(b"ab\xff\xfe");
    for (raw, expected) in [
        (bad(Raw::new(0, 1)).u32(U32).u32(7), "metadata key 0, at byte 24: not UTF-8 after 2 bytes"),
        (bad(Raw::new(0, 1).key("a", STRING)), "value of `a`, at byte 37: not UTF-8 after 2 bytes"),
        (bad(Raw::new(1, 0)).u32(1).u64(4).u32(F32).u64(0), "name of tensor 0, at byte 24: not UTF-8 after 2 bytes"),
    ] {
        assert_eq!(raw.message(), format!("m.gguf: {expected}"));
    }
}

#[test]
fn values_that_the_format_does_not_have_are_refused() {
    for (raw, expected) in [
        (Raw::new(0, 1).key("a", 13).u32(0), "value of `a`, at byte 33: type 13, expected 0 to 12"),
        (Raw::new(0, 1).key("a", ARRAY).u32(99).u64(0), "value of `a`, at byte 37: type 99, expected 0 to 12"),
        (Raw::new(0, 1).key("a", BOOL).bytes(&[2]), "value of `a`, at byte 37: bool 2, expected 0 or 1"),
        (Raw::new(0, 2).key("a", BOOL).bytes(&[1]).key("a", BOOL).bytes(&[1]), "metadata key 1, at byte 38: `a` again"),
    ] {
        assert_eq!(raw.message(), format!("m.gguf: {expected}"));
    }
}

#[test]
fn arrays_go_only_so_deep() {
    let nested = |depth: usize| {
        let inner = (1..depth).fold(Raw::new(0, 1).key("a", ARRAY), |raw, _| raw.u32(ARRAY).u64(1));
        inner.u32(U32).u64(1).u32(7)
    };
    assert!(nested(Array::MAX_DEPTH).open().is_ok());
    assert_eq!(
        nested(Array::MAX_DEPTH + 1).message(),
        "m.gguf: value of `a`, at byte 133: arrays within arrays more than 8 deep"
    );
    assert!(nested(100_000).message().ends_with("arrays within arrays more than 8 deep"));
}

#[test]
fn an_alignment_that_no_file_has_is_refused() {
    for alignment in [0, 4, 33, 48] {
        assert_eq!(
            Raw::new(0, 1).key("general.alignment", U32).u32(alignment).message(),
            format!("m.gguf: metadata key `general.alignment` is {alignment}, expected a power of two of at least 8")
        );
    }
    assert_eq!(
        Raw::new(0, 1).key("general.alignment", STRING).string("32").message(),
        "m.gguf: metadata key `general.alignment` is string, expected an integer"
    );
    // The largest there is puts the data behind the end of every file.
    let largest = Raw::new(1, 1).key("general.alignment", 10).u64(1 << 63).tensor("t", &[8], F32, 0).data(32, 32);
    assert_eq!(
        largest.message(),
        "m.gguf: tensor `t` takes bytes 9223372036854775808 to 9223372036854775840, and the file ends after 128"
    );
}

#[test]
fn shapes_that_no_tensor_has_are_refused() {
    let tensor = |axes: &[u64], id: u32| Raw::new(1, 0).tensor("t", axes, id, 0).data(32, 4096);
    for (raw, expected) in [
        (tensor(&[], F32).bytes(&[0; 8]), ", at byte 33: 0 dimensions, expected 1 to 4"),
        (tensor(&[1; 5], F32), ", at byte 33: 5 dimensions, expected 1 to 4"),
        (tensor(&[4, 0, 2], F32), " has shape [2, 0, 4], expected no dimension of 0"),
        (
            tensor(&[1 << 40, 1 << 40], F32),
            " has shape [1099511627776, 1099511627776], which does not fit this machine's memory",
        ),
        (
            tensor(&[1 << 40, 1 << 40], IQ2_XXS),
            " has shape [1099511627776, 1099511627776], which does not fit this machine's memory",
        ),
        (
            tensor(&[128, 3], Q2_K),
            " does not hold what its shape and type say: q2_k holds blocks of 256, and a row has 128 values",
        ),
    ] {
        assert_eq!(raw.message(), format!("m.gguf: tensor `t`{expected}"));
    }
}

#[test]
fn data_that_are_not_in_the_file_are_refused() {
    let tensor = |offset: u64| Raw::new(1, 0).tensor("t", &[8, 2], F32, offset);
    assert!(tensor(32).data(32, 96).open().is_ok());
    for (raw, expected) in [
        (tensor(0).data(32, 63), "takes bytes 96 to 160, and the file ends after 159"),
        (tensor(64).data(32, 64), "takes bytes 160 to 224, and the file ends after 160"),
        (
            tensor(u64::MAX - 31).data(32, 64),
            "takes bytes 18446744073709551615 to 18446744073709551615, and the file ends after 160",
        ),
        (tensor(0), "takes bytes 96 to 160, and the file ends after 65"),
    ] {
        assert_eq!(raw.message(), format!("m.gguf: tensor `t` {expected}"));
    }
}

#[test]
fn data_between_the_places_of_the_alignment_are_refused() {
    let raw = Raw::new(1, 0).tensor("t", &[8], F32, 48).data(32, 96);
    assert_eq!(raw.message(), "m.gguf: tensor `t` begins at byte 48 of the data, expected a multiple of 32");
}

#[test]
fn tensors_that_share_bytes_are_refused() {
    let raw = Raw::new(3, 0).tensor("a", &[8], F32, 128).tensor("b", &[32], F32, 0).tensor("c", &[8], F32, 96);
    assert_eq!(
        raw.data(32, 160).message(),
        "m.gguf: tensor `c` begins at byte 224, within tensor `b`, which ends at 256"
    );
    // How far a tensor of unknown type goes is not known, but where it begins is.
    let known_first = Raw::new(2, 0).tensor("a", &[32], F32, 0).tensor("b", &[256], IQ2_XXS, 64).data(32, 160);
    assert_eq!(known_first.message(), "m.gguf: tensor `b` begins at byte 160, within tensor `a`, which ends at 224");
    assert!(Raw::new(2, 0).tensor("a", &[256], IQ2_XXS, 0).tensor("b", &[8], F32, 32).data(32, 64).open().is_ok());
}

#[test]
fn a_tensor_that_is_there_twice_is_refused() {
    let raw = Raw::new(2, 0).tensor("t", &[8], F32, 0).tensor("t", &[8], F32, 32).data(32, 64);
    assert_eq!(raw.message(), "m.gguf: tensor `t` is also in m.gguf");
}

#[test]
fn a_tensor_of_unknown_type_is_listed_and_refused_when_used() {
    let raw = Raw::new(2, 0).tensor("new", &[256, 2], IQ2_XXS, 0).tensor("t", &[8, 2], F32, 160).data(32, 224);
    let gguf = raw.open().unwrap();
    let listed: Vec<String> =
        gguf.tensors().map(|info| format!("{} {:?} {}", info.name, info.shape, info.ty)).collect();
    assert_eq!(listed, ["new [2, 256] type 16", "t [2, 8] f32"]);
    assert_eq!(gguf.matrix("t").unwrap().dequantise(), [0.0; 16]);
    let expected = "m.gguf: tensor `new` has type 16, expected one of 0 (f32), 1 (f16), 30 (bf16), 2 (q4_0), 8 (q8_0), \
                    10 (q2_k), 11 (q3_k), 12 (q4_k), 13 (q5_k), 14 (q6_k), 39 (mxfp4)";
    let info = gguf.required("new").unwrap();
    for message in [
        gguf.matrix("new").unwrap_err().to_string(),
        gguf.bytes(info).unwrap_err().to_string(),
        gguf.read_row(info, 0, &mut [0; 66]).unwrap_err().to_string(),
        info.byte_len().unwrap_err().to_string(),
    ] {
        assert_eq!(message, expected);
    }
}

#[test]
fn what_is_not_there_is_named() {
    let gguf = Raw::new(1, 0).tensor("t", &[8, 2, 3], F32, 0).data(32, 192).open().unwrap();
    let info = gguf.required("t").unwrap();
    assert_eq!(gguf.expert("t", 2).unwrap().rows(), 2);
    for (message, expected) in [
        (gguf.required("u").unwrap_err().to_string(), "`u` is missing"),
        (gguf.matrix("u").unwrap_err().to_string(), "`u` is missing"),
        (gguf.matrix("t").unwrap_err().to_string(), "`t` has shape [3, 2, 8], expected 2 dimensions"),
        (gguf.expert("t", 3).unwrap_err().to_string(), "`t` has no expert 3: there are 3"),
        (gguf.read_row(info, 6, &mut [0; 32]).unwrap_err().to_string(), "`t` has no row 6: there are 6"),
        (
            gguf.read_row(info, u64::MAX, &mut [0; 32]).unwrap_err().to_string(),
            "`t` has no row 18446744073709551615: there are 6",
        ),
    ] {
        assert_eq!(message, format!("m.gguf: tensor {expected}"));
    }
}

#[test]
fn files_that_cannot_be_opened_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let absent = folder.path().join("absent.gguf");
    assert!(opening(&absent).starts_with(&format!("{}: cannot be opened: ", absent.display())));
    assert!(opening(folder.path()).starts_with(&format!("{}: cannot be opened: ", folder.path().display())));
    let empty = folder.path().join("empty.gguf");
    fs::write(&empty, b"").unwrap();
    assert_eq!(opening(&empty), format!("{}: header, at byte 0: the file is empty, expected `GGUF`", empty.display()));
}

fn opening(path: &Path) -> String {
    Gguf::open(path).unwrap_err().to_string()
}
