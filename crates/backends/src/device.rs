//! Opens a volume on a block device.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{ioctl_blkpbszget, ioctl_blksszget, major, minor};
use rustix::io::Errno;

use crate::disk::{Abilities, Disk, Handle, Known};
use crate::file::describe;
use crate::geometry::Geometry;
use crate::sysfs::Queue;
use crate::{OpenError, Volume, VolumeSpec, patience};

pub(crate) fn open(spec: &VolumeSpec, path: &Path) -> Result<Volume, OpenError> {
    let fail = |action, e: io::Error| OpenError::from_io(path, action, e);
    let (mut device, number) = claim(spec, path)?;
    let size = device.seek(SeekFrom::End(0)).map_err(|e| fail("ask for the size", e))?;
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
    let queue = Queue::read(Path::new("/sys"), major(number), minor(number));
    let unmap = queue.unmap_granularity.filter(|_| !spec.read_only);
    let able = Abilities {
        size,
        read_only: spec.read_only,
        write_cache: queue.write_cache && !spec.read_only,
        punch_hole: unmap.is_some(),
        // The kernel writes zeroes itself if the device has no command for it.
        zero_range: true,
    };
    let unmap = unmap.map(|granularity| granularity.max(geometry.block_size));
    let handle = Handle::Shared(Arc::new(device));
    let known = Known { alignment: logical, unmap, atomic: queue.atomic() };
    Ok(Arc::new(Disk::new(&geometry, able, known, handle)))
}

/// Opens the device for lunet alone. Returns its number too.
fn claim(spec: &VolumeSpec, path: &Path) -> Result<(File, u64), OpenError> {
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
    let mut how = OpenOptions::new();
    how.read(true).write(!spec.read_only).custom_flags(libc::O_DIRECT | libc::O_EXCL);
    let busy = |e: &io::Error| Errno::from_io_error(e) == Some(Errno::BUSY);
    let device =
        patience::retry(|| how.open(path), busy).map_err(|e| match Errno::from_io_error(&e) {
            Some(Errno::BUSY) => OpenError::InUse { path: path.to_path_buf() },
            Some(Errno::NXIO | Errno::NODEV) => {
                OpenError::MissingDevice { path: path.to_path_buf() }
            }
            _ => OpenError::from_io(path, "open the device", e),
        })?;
    Ok((device, found.rdev()))
}
