//! Opens a volume on a block device.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use rustix::fs::{ioctl_blkpbszget, ioctl_blksszget, major, minor};
use rustix::io::Errno;

use crate::disk::{Abilities, Discard, Disk, Handle, Known};
use crate::file::describe;
use crate::geometry::Geometry;
use crate::passthrough;
use crate::sysfs::{How, Queue};
use crate::{OpenError, Volume, VolumeSpec, retry};

pub(crate) fn open(spec: &VolumeSpec, path: &Path) -> Result<Volume, OpenError> {
    open_with(spec, path, Path::new("/sys"))
}

/// As [`crate::foresee`].
pub(crate) fn foresee(path: &Path) -> Result<(), OpenError> {
    find(path).map(drop)
}

/// `sys` is where the kernel tells about devices.
fn open_with(spec: &VolumeSpec, path: &Path, sys: &Path) -> Result<Volume, OpenError> {
    let found = passthrough::find(spec, path, sys)?;
    let Claimed { device, number } = found.claimed;
    let disk = disk(spec, path, sys, Arc::new(device), number)?;
    Ok(Arc::new(disk.passing(found.passing, found.notes)))
}

/// The volume on the device that another one has open, with the size that the device has by now. Where its reads and writes go is not
/// looked for again: they are under way.
pub(crate) fn again(spec: &VolumeSpec, path: &Path, old: &Disk) -> Result<Volume, OpenError> {
    let fail = |e| OpenError::from_io(path, "look at the device", e);
    let device = old.opened();
    let number = device.metadata().map_err(fail)?.rdev();
    if path.metadata().map_err(fail)?.rdev() != number {
        return Err(OpenError::Replaced { path: path.to_path_buf() });
    }
    let disk = disk(spec, path, Path::new("/sys"), Arc::clone(device), number)?;
    Ok(Arc::new(disk.passing(old.is_passing().cloned(), old.notes().to_vec())))
}

fn disk(
    spec: &VolumeSpec,
    path: &Path,
    sys: &Path,
    device: Arc<File>,
    number: u64,
) -> Result<Disk, OpenError> {
    let fail = |action, e: io::Error| OpenError::from_io(path, action, e);
    let size = (&*device).seek(SeekFrom::End(0)).map_err(|e| fail("ask for the size", e))?;
    let logical = ioctl_blksszget(&device).map_err(|e| fail("ask for the block size", e.into()))?;
    let physical =
        ioctl_blkpbszget(&device).map_err(|e| fail("ask for the physical block size", e.into()))?;
    // A device may have blocks that no initiator knows (2048 on optical media).
    let own = if logical <= 512 { 512 } else { 4096 };
    let block_size = spec.block_size.unwrap_or(own);
    if logical == 0 || block_size % logical != 0 {
        let path = path.to_path_buf();
        return Err(OpenError::DeviceBlockSize { path, device: logical, block_size });
    }
    let geometry = Geometry::new(spec, &path.display().to_string(), size, own, physical)?;
    let queue = Queue::read(sys, major(number), minor(number));
    let unmap = queue.unmap.filter(|_| !spec.read_only);
    let discard = unmap.and_then(|unmap| match unmap.how {
        How::Zeroing => None,
        How::Discard { first, zeroes } => {
            let granularity = u64::from(unmap.granularity.max(1));
            Some(Discard { granularity, first: u64::from(first), zeroes, works: true })
        }
    });
    let able = Abilities {
        size,
        read_only: spec.read_only,
        write_cache: queue.write_cache && !spec.read_only,
        punch_hole: unmap.is_some_and(|unmap| unmap.how == How::Zeroing),
        // The kernel writes zeroes itself if the device has no command for it.
        zero_range: true,
        discard,
    };
    let unmap = unmap.map(|unmap| unmap.granularity.max(geometry.block_size));
    let known = Known { alignment: logical, unmap };
    Ok(Disk::new(&geometry, able, known, Handle::Shared(device)))
}

/// Looks at the device, which must be one.
pub(crate) fn find(path: &Path) -> Result<Metadata, OpenError> {
    let found = path.metadata().map_err(|e| match e.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            OpenError::MissingDevice { path: path.to_path_buf() }
        }
        _ => OpenError::from_io(path, "look at the device", e),
    })?;
    let kind = found.file_type();
    if !kind.is_block_device() {
        let advice = if kind.is_file() { "configure a file volume" } else { "name another path" };
        let (path, kind) = (path.to_path_buf(), describe(kind));
        return Err(OpenError::NotABlockDevice { path, kind, advice });
    }
    Ok(found)
}

/// A device that is open for lunet alone.
pub(crate) struct Claimed {
    pub device: File,
    /// Its number, of both kinds.
    pub number: u64,
}

impl Claimed {
    /// The path may have led to another device when it was looked at.
    fn of(device: File) -> io::Result<Self> {
        let number = device.metadata()?.rdev();
        Ok(Self { device, number })
    }
}

/// Opens the device for lunet alone.
pub(crate) fn claim(spec: &VolumeSpec, path: &Path) -> Result<Claimed, OpenError> {
    find(path)?;
    let mut how = OpenOptions::new();
    how.read(true).write(!spec.read_only).custom_flags(libc::O_DIRECT | libc::O_EXCL);
    let open = || match (how.open(path), opener()) {
        (Err(error), Some(open)) if error.kind() == io::ErrorKind::PermissionDenied => {
            Ok(open(path, !spec.read_only, false)?.0)
        }
        (opened, _) => opened,
    };
    let device =
        retry::while_in_use(open, is_busy).map_err(|e| match Errno::from_io_error(&e) {
            Some(Errno::BUSY) => OpenError::InUse { path: path.to_path_buf() },
            Some(Errno::NXIO | Errno::NODEV) => {
                OpenError::MissingDevice { path: path.to_path_buf() }
            }
            _ => OpenError::from_io(path, "open the device", e),
        })?;
    Claimed::of(device).map_err(|e| OpenError::from_io(path, "look at the device", e))
}

/// The same by an opener, and the generic character device of the NVMe namespace that it is.
pub(crate) fn claim_both(
    spec: &VolumeSpec,
    path: &Path,
    open: Opener,
) -> io::Result<(Claimed, File)> {
    let opened = retry::while_in_use(|| open(path, !spec.read_only, true), is_busy)?;
    let (device, Some(generic)) = opened else {
        return Err(io::ErrorKind::UnexpectedEof.into());
    };
    Ok((Claimed::of(device)?, generic))
}

pub(crate) fn is_busy(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::BUSY)
}

/// Opens a block device for a process that may not open it, alone (`O_EXCL`) and with `O_DIRECT`: by its path, for writing too if the
/// second argument is true. If the third one is true, it opens the generic character device of the NVMe namespace that the
/// device is as well (see [`generic_of`](crate::generic_of)).
pub type Opener = fn(&Path, bool, bool) -> io::Result<(File, Option<File>)>;

static OPENER: OnceLock<Opener> = OnceLock::new();

/// Has devices that this process may not open opened by somebody else. The first of a process counts.
pub fn open_devices_with(opener: Opener) {
    let _ = OPENER.set(opener);
}

pub(crate) fn opener() -> Option<Opener> {
    OPENER.get().copied()
}

/// On a loop device that the kernel, so the tests say, tells other things about.
#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use lunet_block::conformance::{self, Contents};
    use lunet_block::{ByteRange, Op, Support};
    use lunet_ring::DriverChoice;

    use super::*;
    use crate::Storage;
    use crate::common::{LoopDevice, OnLoop};

    const SIZE: u64 = 16 << 20;
    const UNIT: u64 = 16384;

    /// A device that discards and cannot zero, of this name.
    fn sys(device: &Path, name: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let number = device.metadata().unwrap().rdev();
        fs::create_dir_all(root.path().join("dev/block")).unwrap();
        let queue = root.path().join("devices").join(name).join("queue");
        fs::create_dir_all(&queue).unwrap();
        let link = format!("dev/block/{}:{}", major(number), minor(number));
        symlink(queue.parent().unwrap(), root.path().join(link)).unwrap();
        for (file, text) in [
            ("write_cache", "write back"),
            ("discard_max_bytes", "1073741824"),
            ("write_zeroes_max_bytes", "0"),
            ("discard_granularity", "16384"),
        ] {
            fs::write(queue.join(file), text).unwrap();
        }
        root
    }

    fn volume(device: &LoopDevice, name: &str) -> Volume {
        let path = device.path();
        let spec = VolumeSpec::new(Storage::Block { path: path.to_path_buf() });
        open_with(&spec, path, sys(path, name).path()).unwrap_or_else(|e| panic!("{e}"))
    }

    #[test]
    fn a_device_without_a_zeroing_command_unmaps() {
        for name in ["zd16", "sda"] {
            let Some(device) = LoopDevice::new(SIZE, 4096) else { return };
            let volume = volume(&device, name);
            let caps = volume.caps();
            assert_eq!((caps.unmap, caps.unmap_granularity), (Support::Native, UNIT as u32));
            assert_eq!(caps.unmap_zeroes, name == "zd16");
            for driver in [DriverChoice::Auto, DriverChoice::Epoll] {
                conformance::run(&mut OnLoop::new(volume.clone(), driver), Contents::Kept);
            }
        }
    }

    #[test]
    fn space_comes_back_on_both_drivers() {
        for driver in [DriverChoice::Auto, DriverChoice::Epoll] {
            let Some(device) = LoopDevice::new(SIZE, 4096) else { return };
            let mut on_loop = OnLoop::new(volume(&device, "zd0"), driver);
            on_loop.write(0, &vec![0xAB; SIZE as usize]).unwrap();
            on_loop.run(Op::Flush, ByteRange::new(0, 0), None).unwrap();
            let before = device.used();
            on_loop.run(Op::Unmap, ByteRange::new(4096, SIZE / 2), None).unwrap();
            let read = on_loop.read(0, SIZE).unwrap();
            let (head, rest) = read.split_at(4096);
            let (gone, tail) = rest.split_at(SIZE as usize / 2);
            assert!(head.iter().chain(tail).all(|byte| *byte == 0xAB));
            assert!(gone.iter().all(|byte| *byte == 0));
            let given = before - device.used();
            assert!((SIZE / 2 - 2 * UNIT..=SIZE / 2).contains(&given), "{given} bytes");
        }
    }
}
