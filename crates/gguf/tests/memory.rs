//! Memory for headers is in proportion to the file, whatever the file claims.
//!
//! One test in a process of its own: it counts every allocation.

#[path = "files/raw.rs"]
mod raw;

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};

use dsv41_gguf::Safetensors;
use raw::Raw;

/// The system's allocator, with a count of what is allocated and of the most that was.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn grow(bytes: usize) {
    let now = NOW.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(now, Ordering::Relaxed);
}

// SAFETY: every call is the system allocator's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grow(layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // The old and the new may be there at once.
        grow(size);
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.realloc(place, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most that was allocated meanwhile, beside what was there before.
fn peak(work: impl FnOnce()) -> usize {
    let before = NOW.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    work();
    PEAK.load(Ordering::Relaxed) - before
}

/// Files of many of the smallest things there are, each of which takes more in memory than in the file; each says
/// rightly how many there are.
fn crowded() -> [(&'static str, Raw); 5] {
    const MANY: u64 = 20_000;
    // Distinct names of few bytes.
    let name = |index: u64| format!("{index:x}");
    let array = |id: u32| Raw::new(0, 1).key("a", 9).u32(id).u64(MANY);
    [
        ("keys", (0..MANY).fold(Raw::new(0, MANY), |raw, index| raw.key(&name(index), 0).bytes(&[0]))),
        ("strings", array(8).bytes(&vec![0; 8 * MANY as usize])),
        ("arrays", (0..MANY).fold(array(9), |raw, _| raw.u32(0).u64(0))),
        ("flags", array(7).bytes(&vec![0; MANY as usize])),
        (
            "tensors",
            (0..MANY)
                .fold(Raw::new(MANY, 0), |raw, index| raw.tensor(&name(index), &[1], 0, 32 * index))
                .data(32, 32 * MANY as usize),
        ),
    ]
}

/// Files that claim a multitude of things, and hold next to none.
fn boasting() -> Vec<(&'static str, Raw)> {
    let mut files = vec![];
    for count in [1 << 20, 1 << 40, u64::MAX / 24, u64::MAX] {
        files.push(("tensors", Raw::new(count, 0)));
        files.push(("keys", Raw::new(0, count)));
        files.push(("string", Raw::new(0, 1).key("a", 8).u64(count)));
        files.push(("key", Raw::new(0, 1).u64(count)));
        for id in 0..13 {
            files.push(("array", Raw::new(0, 1).key("a", 9).u32(id).u64(count).bytes(&[1; 100])));
        }
    }
    files
}

/// Safetensors files of many of the smallest things there are.
fn crowded_safetensors() -> [(&'static str, String); 3] {
    let entry = |name: &str, more: &str| format!(r#"{name:?}:{{"dtype":"U8","shape":[0],"data_offsets":[0,0]{more}}}"#);
    let tensors: Vec<String> = (0..20_000).map(|index| entry(&format!("{index:x}"), "")).collect();
    let numbers = format!("[0{}]", ",0".repeat(100_000));
    [
        ("tensors", tensors.join(",")),
        ("axes", entry("t", "").replace("[0]", &numbers)),
        ("unknown keys", entry("t", &format!(",\"more\":{numbers}"))),
    ]
    .map(|(what, entries)| (what, format!("{{{entries}}}")))
}

/// Bytes of memory for each byte of a file, and besides for errors and the like.
const FACTOR: usize = 12;
const BESIDES: usize = 4096;
/// For JSON, whose shortest numbers and brackets are a byte or two.
const JSON_FACTOR: usize = 40;

#[test]
fn memory_is_in_proportion_to_the_file() {
    let crowded = crowded().map(|(what, raw)| (what, raw, true));
    let boasting = boasting().into_iter().map(|(what, raw)| (what, raw, false));
    for (what, raw, whole) in crowded.into_iter().chain(boasting) {
        let len = raw.0.len();
        let peak = peak(|| assert_eq!(raw.open().is_ok(), whole, "{what}"));
        assert!(peak <= FACTOR * len + BESIDES, "{what}: {peak} bytes for a file of {len}");
    }

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.safetensors");
    for (what, header) in crowded_safetensors() {
        let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
        fs::write(&path, &file).unwrap();
        let peak = peak(|| drop(Safetensors::open(&path).unwrap()));
        assert!(peak <= JSON_FACTOR * file.len() + BESIDES, "{what}: {peak} bytes for a file of {}", file.len());
    }
}
