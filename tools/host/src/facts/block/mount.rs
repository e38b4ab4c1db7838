//! File systems that are mounted, those that are to be mounted at boot, and swap space.

use serde::{Deserialize, Serialize};

use crate::source::Source;

/// A mount of a device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Mount {
    /// `/dev/sda2`, `UUID=...`, `rpool/ROOT`, `10.0.0.1:/export`.
    pub device: String,
    /// Where it is mounted.
    pub path: String,
    /// `ext4`, `xfs`, `zfs`, `nfs4`...
    pub kind: String,
    /// Its options.
    pub options: Vec<String>,
}

/// Swap space.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Swap {
    /// `/dev/zd16`.
    pub device: String,
    /// `partition`, `file`.
    pub kind: String,
    /// Size in bytes.
    pub size_bytes: i64,
    /// Bytes in use.
    pub used_bytes: i64,
}

/// What is no data of anybody's.
const NOT: &[&str] = &[
    "autofs",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "fusectl",
    "hugetlbfs",
    "mqueue",
    "nsfs",
    "overlay",
    "proc",
    "pstore",
    "ramfs",
    "rpc_pipefs",
    "securityfs",
    "squashfs",
    "sysfs",
    "tmpfs",
    "tracefs",
    "binfmt_misc",
];

/// Reads /proc/mounts, without the kernel's own file systems.
pub(super) fn mounts(source: &dyn Source) -> Vec<Mount> {
    table(&source.read("/proc/mounts").unwrap_or_default())
}

/// Reads /etc/fstab.
pub(super) fn fstab(source: &dyn Source) -> Vec<Mount> {
    table(&source.read("/etc/fstab").unwrap_or_default())
}

fn table(text: &str) -> Vec<Mount> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [device, path, kind, options] = *words.get(..4)? else { return None };
            Some(Mount {
                device: device.to_owned(),
                path: path.replace("\\040", " "),
                kind: kind.to_owned(),
                options: options.split(',').map(str::to_owned).collect(),
            })
        })
        .filter(|mount| !NOT.contains(&mount.kind.as_str()))
        .collect()
}

/// Reads /proc/swaps: sizes in KiB.
pub(super) fn swaps(source: &dyn Source) -> Vec<Swap> {
    let text = source.read("/proc/swaps").unwrap_or_default();
    text.lines()
        .skip(1)
        .filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let kib = |index: usize| words.get(index)?.parse::<i64>().ok().map(|kib| kib * 1024);
            Some(Swap {
                device: (*words.first()?).to_owned(),
                kind: (*words.get(1)?).to_owned(),
                size_bytes: kib(2)?,
                used_bytes: kib(3)?,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Tree;

    #[test]
    fn reads_mounts_and_swap() {
        let tree = Tree::parse(
            "/proc/mounts:
| /dev/sda2 / ext4 ro,relatime,errors=remount-ro 0 0
| proc /proc proc rw 0 0
| /dev/sdb1 /my\\040data xfs rw 0 0
/proc/swaps:
| Filename\tType\tSize\tUsed\tPriority
| /dev/zd16 partition 8388604 1024 -2
",
        )
        .unwrap();
        let all = mounts(&tree);
        assert_eq!(all.len(), 2);
        assert_eq!((all[0].options[0].as_str(), all[1].path.as_str()), ("ro", "/my data"));
        assert_eq!(swaps(&tree)[0].used_bytes, 1 << 20);
    }
}
