//! How much memory the program has used.

/// The most memory that was resident at once, in bytes, where the system tells (Linux).
pub fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

/// Forgets what [`peak`] has seen so far, where the system lets it (Linux).
pub fn reset_peak() {
    // Elsewhere the peak goes on from the beginning of the process.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// The memory that programs could still take, in bytes, where the system tells (Linux).
pub fn available() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    #[cfg(target_os = "linux")]
    #[test]
    fn memory_that_was_used_counts_after_it_is_given_back() {
        let before = super::peak().unwrap();
        let pages = vec![1_u8; 64 << 20];
        assert_eq!(pages.iter().map(|&byte| u64::from(byte)).sum::<u64>(), 64 << 20);
        drop(pages);
        assert!(super::peak().unwrap() >= before.max(64 << 20));
    }
}
