//! What the kernel tells about a block device's queue.

use std::fs;
use std::path::{Path, PathBuf};

/// The properties of a device's queue that matter here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Queue {
    /// The device may keep acknowledged writes in a volatile cache. True if it is not known.
    pub write_cache: bool,
    /// The unit of space in bytes that the device gives back when a range is zeroed; `None` if it
    /// gives nothing back, or cannot zero a range by itself.
    pub unmap_granularity: Option<u32>,
    /// The unit in bytes that the device writes whole or not at all, if it is known.
    pub physical_block_size: Option<u32>,
}

impl Queue {
    /// Of the device with these numbers. `root` is `/sys`.
    pub fn read(root: &Path, major: u32, minor: u32) -> Self {
        let device = root.join(format!("dev/block/{major}:{minor}"));
        let own = device.join("queue");
        // A partition has none of its own but that of its drive, the directory above.
        let queue = if own.is_dir() { own } else { device.join("../queue") };
        let physical = number(queue.join("physical_block_size"));
        Self {
            write_cache: write_cache(&queue),
            unmap_granularity: unmap_granularity(&queue),
            physical_block_size: physical.and_then(|size| u32::try_from(size).ok()),
        }
    }

    /// The most bytes, a power of two, that one aligned write changes whole or not at all. 1 if
    /// it is not known: the file system may lie on several drives, or in memory.
    pub fn atomic(&self) -> u32 {
        self.physical_block_size.filter(|size| size.is_power_of_two()).unwrap_or(1)
    }
}

fn write_cache(queue: &Path) -> bool {
    let text = fs::read_to_string(queue.join("write_cache"));
    text.map_or(true, |text| text.trim() != "write through")
}

fn unmap_granularity(queue: &Path) -> Option<u32> {
    // The kernel punches a hole into a device by the device's own zeroing: discard alone does not
    // promise zeroes, zeroing alone gives nothing back.
    let discards = number(queue.join("discard_max_bytes"))? > 0;
    let zeroes = number(queue.join("write_zeroes_max_bytes"))? > 0;
    let granularity = number(queue.join("discard_granularity")).unwrap_or(0);
    (discards && zeroes).then(|| u32::try_from(granularity).unwrap_or(u32::MAX))
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
            ("physical_block_size", "8192\n"),
        ]);
        let queue = Queue {
            write_cache: false,
            unmap_granularity: Some(4096),
            physical_block_size: Some(8192),
        };
        assert_eq!(queue.atomic(), 8192);
        assert_eq!(Queue::read(root.path(), 8, 0), queue);
        assert_eq!(Queue::read(root.path(), 8, 1), queue);
    }

    #[test]
    fn what_is_not_known_is_taken_for_a_volatile_cache_without_unmap() {
        let cautious =
            Queue { write_cache: true, unmap_granularity: None, physical_block_size: None };
        assert_eq!(cautious.atomic(), 1);
        assert_eq!(Queue::read(sysfs(&[]).path(), 8, 0), cautious);
        let odd = sysfs(&[("write_cache", "write back\n"), ("discard_max_bytes", "x")]);
        assert_eq!(Queue::read(odd.path(), 8, 0), cautious);
        assert_eq!(Queue::read(Path::new("/nonexistent"), 8, 0), cautious);
    }

    #[test]
    fn discard_without_zeroing_is_no_unmap() {
        let root = sysfs(&[
            ("write_cache", "write back\n"),
            ("discard_max_bytes", "134217728\n"),
            ("write_zeroes_max_bytes", "0\n"),
            ("discard_granularity", "16384\n"),
        ]);
        assert_eq!(Queue::read(root.path(), 8, 0).unmap_granularity, None);
    }
}
