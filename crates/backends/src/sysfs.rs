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

/// The NVMe namespace that a block device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Nvme {
    /// The name of its generic character device.
    pub generic: String,
    /// That device's major and minor number.
    pub number: (u32, u32),
    /// The number of the namespace.
    pub id: u32,
    /// Bytes that a command may have at most.
    pub most: u32,
    /// The drive has queues to be polled.
    pub polls: bool,
}

impl Nvme {
    /// True if commands that were made for the other one mean the same here. Queues to be polled may come and go, and a command may have
    /// more bytes.
    pub(crate) fn takes_what_was_made_for(&self, other: &Self) -> bool {
        let alike = Self { polls: other.polls, most: other.most, ..self.clone() };
        alike == *other && self.most >= other.most
    }
}

/// What a block device is by itself that says it is a whole NVMe namespace. `root` is `/sys`.
///
/// # Errors
/// It is none, or not one whose blocks are read and written by plain commands: for an administrator.
pub(crate) fn nvme(root: &Path, major: u32, minor: u32) -> Result<Nvme, &'static str> {
    const NONE: &str = "the device is not a whole NVMe namespace";
    let device =
        root.join(format!("dev/block/{major}:{minor}")).canonicalize().map_err(|_| NONE)?;
    let name = device.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let numbers = name.strip_prefix("nvme").ok_or(NONE)?;
    // A partition has no number of a namespace.
    let id = number(device.join("nsid")).and_then(|id| u32::try_from(id).ok()).ok_or(NONE)?;
    if has_metadata(&device) {
        return Err(
            "the namespace has metadata or protection information, or the kernel does not say that it has none",
        );
    }
    if word(device.join("queue/zoned")).is_some_and(|zoned| zoned != "none") {
        return Err("the namespace has zones");
    }
    // Both devices of a namespace have the same parent: the controller, or the subsystem of several.
    let generic = format!("ng{numbers}");
    let dev = device.parent().and_then(|parent| word(parent.join(&generic).join("dev")));
    let number_of = |dev: String| {
        let (major, minor) = dev.split_once(':')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    };
    let missing = "the kernel has no generic character device for it (Linux 5.13)";
    let numbers = dev.and_then(number_of).ok_or(missing)?;
    let queue = device.join("queue");
    Ok(Nvme {
        generic,
        number: numbers,
        id,
        most: most(&queue),
        polls: number(queue.join("io_poll")) == Some(1),
    })
}

/// Metadata of a namespace's blocks. Linux says so since 6.8; before, it is known only of a kernel that has code for them.
fn has_metadata(device: &Path) -> bool {
    match number(device.join("metadata_bytes")) {
        Some(bytes) => bytes > 0,
        None => word(device.join("integrity/format")).is_none_or(|format| format != "none"),
    }
}

/// What the kernel takes in one command: no more than the drive does, and no more pieces of memory, of which each page may be one.
fn most(queue: &Path) -> u32 {
    const PAGE: u64 = 4096;
    let whole = number(queue.join("max_hw_sectors_kb")).map_or(u64::MAX, |kib| kib << 10);
    // Memory that does not begin with a page takes one piece more.
    let pieces = number(queue.join("max_segments"));
    let pieces = pieces.map_or(u64::MAX, |pieces| pieces.saturating_sub(1).saturating_mul(PAGE));
    let known = whole.min(pieces);
    // Of a kernel that says nothing: what every drive takes.
    if known == u64::MAX { PAGE as u32 } else { u32::try_from(known).unwrap_or(u32::MAX) }
}

/// The text of a file, if it has one.
fn word(path: PathBuf) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
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
pub(crate) use tests::nvme_tree;

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

    /// A controller with a namespace, a partition of it, and a head of several paths.
    pub(crate) fn nvme_tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let one = root.path().join("devices/pci/nvme/nvme0");
        let head = root.path().join("devices/virtual/nvme-subsystem/nvme-subsys3");
        for (parent, name) in [(&one, "nvme0n1"), (&head, "nvme3n2")] {
            let device = parent.join(name);
            for folder in ["queue", "integrity", &format!("{name}p1")] {
                fs::create_dir_all(device.join(folder)).unwrap();
            }
            fs::write(device.join("nsid"), "1\n").unwrap();
            fs::write(device.join("integrity/format"), "none\n").unwrap();
            for (file, text) in files {
                fs::write(device.join(file), text).unwrap();
            }
        }
        for (generic, dev) in [(one.join("ng0n1"), "242:0\n"), (head.join("ng3n2"), "242:7\n")] {
            fs::create_dir_all(&generic).unwrap();
            fs::write(generic.join("dev"), dev).unwrap();
        }
        fs::create_dir_all(root.path().join("dev/block")).unwrap();
        for (number, device) in [
            (1, one.join("nvme0n1")),
            (2, one.join("nvme0n1/nvme0n1p1")),
            (3, head.join("nvme3n2")),
        ] {
            symlink(device, root.path().join(format!("dev/block/259:{number}"))).unwrap();
        }
        root
    }

    #[test]
    fn a_namespace_has_a_generic_device_beside_it() {
        let root = nvme_tree(&[
            ("queue/max_hw_sectors_kb", "512\n"),
            ("queue/max_segments", "33\n"),
            ("queue/io_poll", "1\n"),
            ("queue/zoned", "none\n"),
            ("metadata_bytes", "0\n"),
            // Of 6.12 and later, with no metadata at all.
            ("integrity/format", "nop\n"),
        ]);
        let most = 32 * 4096;
        let found = Nvme { generic: "ng0n1".into(), number: (242, 0), id: 1, most, polls: true };
        assert_eq!(nvme(root.path(), 259, 1), Ok(found.clone()));
        let head = Nvme { generic: "ng3n2".into(), number: (242, 7), ..found };
        assert_eq!(nvme(root.path(), 259, 3), Ok(head));
        for other in [2, 9] {
            let refused = nvme(root.path(), 259, other).unwrap_err();
            assert!(refused.contains("not a whole NVMe namespace"), "{refused}");
        }
        let unknown = nvme(nvme_tree(&[]).path(), 259, 1).unwrap();
        assert_eq!((unknown.most, unknown.polls), (4096, false));
    }

    #[test]
    fn a_namespace_of_other_blocks_is_refused() {
        for (file, text, why) in [
            ("metadata_bytes", "8\n", "metadata"),
            ("integrity/format", "T10-DIF-TYPE1-CRC\n", "metadata"),
            ("queue/zoned", "host-managed\n", "zones"),
        ] {
            let refused = nvme(nvme_tree(&[(file, text)]).path(), 259, 1).unwrap_err();
            assert!(refused.contains(why), "{file}: {refused}");
        }
        let silent = nvme_tree(&[]);
        fs::remove_file(silent.path().join("devices/pci/nvme/nvme0/nvme0n1/integrity/format"))
            .unwrap();
        assert!(nvme(silent.path(), 259, 1).unwrap_err().contains("does not say"));
        let alone = nvme_tree(&[]);
        fs::remove_dir_all(alone.path().join("devices/pci/nvme/nvme0/ng0n1")).unwrap();
        let refused = nvme(alone.path(), 259, 1).unwrap_err();
        assert!(refused.contains("no generic character device"), "{refused}");
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
