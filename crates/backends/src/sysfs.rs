//! What the kernel tells about a block device's queue.

use std::fs;
use std::path::{Path, PathBuf};

/// The properties of a device's queue that matter here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Queue {
    /// The device may keep acknowledged writes in a volatile cache. True if it is not known.
    pub write_cache: bool,
    /// How the device gives space back, if it does.
    pub unmap: Option<Unmap>,
}

/// How a device gives space back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unmap {
    /// The unit in bytes.
    pub granularity: u32,
    pub how: How,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// Zeroing a range gives its space back.
    Zeroing,
    /// Only discarding does.
    Discard {
        /// Where the first whole unit starts, in bytes.
        first: u32,
        /// Whole units read as zeroes afterwards.
        zeroes: bool,
    },
}

impl Queue {
    /// Of the device with these numbers. `root` is `/sys`.
    pub fn read(root: &Path, major: u32, minor: u32) -> Self {
        let device = root.join(format!("dev/block/{major}:{minor}"));
        let own = device.join("queue");
        // A partition has none of its own but that of its drive, the directory above.
        let queue = if own.is_dir() { own } else { device.join("../queue") };
        Self { write_cache: write_cache(&queue), unmap: unmap(&device, &queue) }
    }
}

/// What a device calls itself, wherever and in whatever order it is attached: its UUID with the device mapper, or
/// the world-wide name or serial number of its drive and its number as a partition. `root` is `/sys`.
pub(crate) fn identity(root: &Path, major: u32, minor: u32) -> Option<String> {
    let device = root.join(format!("dev/block/{major}:{minor}")).canonicalize().ok()?;
    let word = |path: PathBuf| {
        let text = fs::read_to_string(path).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    };
    if let Some(uuid) = word(device.join("dm/uuid")) {
        return Some(format!("dm {uuid}"));
    }
    let partition = word(device.join("partition"));
    let drive = if partition.is_some() { device.parent()?.to_path_buf() } else { device };
    let name = ["wwid", "device/wwid", "serial", "device/serial"]
        .iter()
        .find_map(|file| word(drive.join(file)))?;
    Some(partition.map_or_else(|| name.clone(), |number| format!("{name} partition {number}")))
}

fn write_cache(queue: &Path) -> bool {
    let text = fs::read_to_string(queue.join("write_cache"));
    text.map_or(true, |text| text.trim() != "write through")
}

fn unmap(device: &Path, queue: &Path) -> Option<Unmap> {
    if number(queue.join("discard_max_bytes"))? == 0 {
        return None;
    }
    let granularity = number(queue.join("discard_granularity")).unwrap_or(0);
    let granularity = u32::try_from(granularity).unwrap_or(u32::MAX);
    // The kernel punches a hole into a device by the device's own zeroing: discard alone does not
    // promise zeroes, zeroing alone gives nothing back.
    if number(queue.join("write_zeroes_max_bytes"))? > 0 {
        return Some(Unmap { granularity, how: How::Zeroing });
    }
    // The kernel gives 0 or less than a unit, and nonsense for a device that gives nothing back.
    let first = number(device.join("discard_alignment")).and_then(|at| u32::try_from(at).ok());
    let zeroes = granularity.is_power_of_two() && is_zvol(queue);
    let first = first.unwrap_or(0) % granularity.max(1);
    Some(Unmap { granularity, how: How::Discard { first, zeroes } })
}

/// A zvol is named zd0, zd16 and so on; its queue lies below the name of the whole device.
fn is_zvol(queue: &Path) -> bool {
    let found = queue.canonicalize().ok();
    let name = found.as_deref().and_then(Path::parent).and_then(Path::file_name);
    let digits = name.and_then(|name| name.to_str()).and_then(|name| name.strip_prefix("zd"));
    digits.is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
}

fn number(path: PathBuf) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn sysfs(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let drive = root.path().join("devices/sda");
        fs::create_dir_all(drive.join("queue")).unwrap();
        fs::create_dir_all(drive.join("sda1")).unwrap();
        fs::create_dir_all(root.path().join("dev/block")).unwrap();
        symlink("../../devices/sda", root.path().join("dev/block/8:0")).unwrap();
        symlink("../../devices/sda/sda1", root.path().join("dev/block/8:1")).unwrap();
        for (name, text) in files {
            fs::write(drive.join("queue").join(name), text).unwrap();
        }
        root
    }

    #[test]
    fn a_drive_and_its_partition_have_the_same_queue() {
        let root = sysfs(&[
            ("write_cache", "write through\n"),
            ("discard_max_bytes", "2147450880\n"),
            ("write_zeroes_max_bytes", "2147450880\n"),
            ("discard_granularity", "4096\n"),
        ]);
        let queue = Queue {
            write_cache: false,
            unmap: Some(Unmap { granularity: 4096, how: How::Zeroing }),
        };
        assert_eq!(Queue::read(root.path(), 8, 0), queue);
        assert_eq!(Queue::read(root.path(), 8, 1), queue);
    }

    #[test]
    fn what_is_not_known_is_taken_for_a_volatile_cache_without_unmap() {
        let cautious = Queue { write_cache: true, unmap: None };
        assert_eq!(Queue::read(sysfs(&[]).path(), 8, 0), cautious);
        let odd = sysfs(&[("write_cache", "write back\n"), ("discard_max_bytes", "x")]);
        assert_eq!(Queue::read(odd.path(), 8, 0), cautious);
        assert_eq!(Queue::read(Path::new("/nonexistent"), 8, 0), cautious);
    }

    const DISCARDS: [(&str, &str); 4] = [
        ("write_cache", "write back\n"),
        ("discard_max_bytes", "134217728\n"),
        ("write_zeroes_max_bytes", "0\n"),
        ("discard_granularity", "16384\n"),
    ];

    #[test]
    fn discard_without_zeroing_promises_no_zeroes() {
        let root = sysfs(&DISCARDS);
        let how = How::Discard { first: 0, zeroes: false };
        let expected = Some(Unmap { granularity: 16384, how });
        assert_eq!(Queue::read(root.path(), 8, 0).unmap, expected);
        fs::write(root.path().join("devices/sda/sda1/discard_alignment"), "12288\n").unwrap();
        let how = How::Discard { first: 12288, zeroes: false };
        assert_eq!(Queue::read(root.path(), 8, 1).unmap, Some(Unmap { granularity: 16384, how }));
        let root = sysfs(&[("discard_max_bytes", "0\n"), ("write_zeroes_max_bytes", "0\n")]);
        assert_eq!(Queue::read(root.path(), 8, 0).unmap, None);
    }

    #[test]
    fn a_zvol_is_known_to_read_as_zeroes_after_a_discard() {
        let root = sysfs(&DISCARDS);
        for (name, zeroes) in [("zd16", true), ("zd", false), ("zdx", false), ("dm-16", false)] {
            fs::rename(root.path().join("devices/sda"), root.path().join("devices").join(name))
                .unwrap();
            let link = root.path().join("dev/block/230:16");
            symlink(format!("../../devices/{name}"), &link).unwrap();
            let how = How::Discard { first: 0, zeroes };
            let found = Queue::read(root.path(), 230, 16).unmap;
            assert_eq!(found, Some(Unmap { granularity: 16384, how }), "{name}");
            fs::remove_file(&link).unwrap();
            fs::rename(root.path().join("devices").join(name), root.path().join("devices/sda"))
                .unwrap();
        }
    }
}
