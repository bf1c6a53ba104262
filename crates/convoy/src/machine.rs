//! What this computer allows a process: cores, memory. Where the system does not say, nothing is assumed.

use std::fs;

/// Cores that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// The most memory this process has had in use so far.
pub fn peak_rss_bytes() -> Option<u64> {
    kibibytes(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM:")
}

/// Memory that could be had now: what the system has free, or what the limit of this process' group leaves.
pub fn available_bytes() -> Option<u64> {
    let system = kibibytes(&fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:")?;
    let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let group = number("/sys/fs/cgroup/memory.max").zip(number("/sys/fs/cgroup/memory.current"));
    Some(group.map_or(system, |(limit, used)| system.min(limit.saturating_sub(used))))
}

fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|n| n * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_in_the_kernels_text() {
        let text = "VmPeak:\t  200 kB\nVmHWM:\t  1234 kB\n";
        assert_eq!(kibibytes(text, "VmHWM:"), Some(1234 * 1024));
        assert_eq!(kibibytes(text, "VmSwap:"), None);
    }
}
