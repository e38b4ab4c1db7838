//! How much memory volumes may take: what the machine has available, and what the process's control groups allow.
//!
//! Memory is taken as blocks are written, so a volume that is too large would be found out much later, by the kernel
//! killing the process.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// The sizes of all volumes that are open, together.
static OPEN: AtomicU64 = AtomicU64::new(0);

/// Room for a volume, as long as this lives.
pub(super) struct Room(u64);

impl Room {
    /// Room for a volume of `size` bytes besides those that are open.
    ///
    /// # Errors
    /// How much is available for it, in bytes.
    pub fn take(size: u64) -> Result<Self, u64> {
        let others = OPEN.fetch_add(size, Ordering::Relaxed);
        let room = Self(size);
        // What the open volumes have taken of their sizes is part of what the process has.
        let Some(available) = available(Path::new("/")) else { return Ok(room) };
        let all = available.saturating_add(resident().unwrap_or(0));
        if others.saturating_add(size) > all {
            return Err(all.saturating_sub(others));
        }
        Ok(room)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        OPEN.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// What the process has in memory, in bytes.
fn resident() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    field(&text, "VmRSS:").map(|kib| kib << 10)
}

/// What could still be taken, in bytes; `None` if it is not known. `root` is `/`.
fn available(root: &Path) -> Option<u64> {
    let machine = fs::read_to_string(root.join("proc/meminfo")).ok();
    let machine = machine.and_then(|text| field(&text, "MemAvailable:")).map(|kib| kib << 10);
    let group = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let group = group.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    let top = root.join("sys/fs/cgroup");
    let path = top.join(group);
    // A limit of any group above counts too.
    let groups = path.ancestors().take_while(|group| group.starts_with(&top));
    groups.filter_map(left).chain(machine).min()
}

/// What a control group allows besides what it has, whose caches could be given up; `None` without a limit.
fn left(group: &Path) -> Option<u64> {
    let read = |name: &str| fs::read_to_string(group.join(name)).ok();
    let limit: u64 = read("memory.max")?.trim().parse().ok()?;
    let used: u64 = read("memory.current")?.trim().parse().ok()?;
    let stat = read("memory.stat").unwrap_or_default();
    let caches =
        field(&stat, "active_file").unwrap_or(0) + field(&stat, "inactive_file").unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(caches)))
}

/// The number behind a word.
fn field(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_whitespace);
    lines.find_map(|mut line| (line.next()? == name).then(|| line.next()?.parse().ok())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_limit_counts() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert_eq!(available(root.path()), None);
        write("proc/meminfo", "MemTotal: 100 kB\nMemAvailable:   50 kB\n");
        write("proc/self/cgroup", "0::/a/b\n");
        assert_eq!(available(root.path()), Some(50 << 10));
        write("sys/fs/cgroup/a/b/memory.max", "max\n");
        write("sys/fs/cgroup/a/b/memory.current", "4096\n");
        assert_eq!(available(root.path()), Some(50 << 10));
        write("sys/fs/cgroup/a/memory.max", "20480\n");
        write("sys/fs/cgroup/a/memory.current", "16384\n");
        write("sys/fs/cgroup/a/memory.stat", "anon 8192\nactive_file 4096\ninactive_file 4096\n");
        assert_eq!(available(root.path()), Some(12288));
        let most = Room::take(u64::MAX / 2).err().expect("no machine has that");
        assert!(most > 0 && Room::take(4096).is_ok());
    }
}
