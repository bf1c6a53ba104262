//! What this computer allows a process: cores, memory. Where the system does not say, nothing is assumed.

use std::fs;

/// Cores that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// The numbers of cores that this process may use; none where the system does not say.
pub fn allowed_cores() -> Vec<usize> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.map(ranges).unwrap_or_default()
}

/// Numbers as the kernel writes them: `0-3,8`.
fn ranges(list: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
    };
    list.split(',').filter_map(range).flatten().collect()
}

/// What this computer is called, and what its processor is, as far as the system says.
pub fn name() -> String {
    let read = |path: &str| fs::read_to_string(path).ok();
    let host = read("/etc/hostname").map(|text| text.trim().to_string()).filter(|text| !text.is_empty());
    let info = read("/proc/cpuinfo").unwrap_or_default();
    let model =
        info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':').map(|(_, name)| name.trim()));
    format!("{} ({})", host.unwrap_or("this computer".into()), model.unwrap_or("unknown processor"))
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
    fn lists_of_cores_are_read() {
        assert_eq!(ranges("\t0-3,8\n"), [0, 1, 2, 3, 8]);
        assert!(ranges("").is_empty());
        assert!(!cfg!(target_os = "linux") || !allowed_cores().is_empty());
    }

    #[test]
    fn numbers_are_found_in_the_kernels_text() {
        let text = "VmPeak:\t  200 kB\nVmHWM:\t  1234 kB\n";
        assert_eq!(kibibytes(text, "VmHWM:"), Some(1234 * 1024));
        assert_eq!(kibibytes(text, "VmSwap:"), None);
    }
}
