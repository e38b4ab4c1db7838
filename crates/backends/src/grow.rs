//! Gives a volume that is served more room.

use std::fs::Metadata;
use std::io;

use crate::disk::Disk;
use crate::null::Null;
use crate::{OpenError, Storage, Volume, VolumeSpec, device, file, layers, null};

/// Makes a volume larger, and gives what is to be served in its place: with the same file or
/// device, under the same lock. The old volume stays valid, with its old size, until it is
/// dropped. A crash leaves the old size or the new one.
///
/// `spec` is what the volume is to be, with the same path as before and the new size. Without a
/// size, and on a block device, the volume gets the size that its file or device has by now.
/// Blocks; one call at a time.
///
/// # Errors
/// [`OpenError::Shrink`] if the new size is smaller, [`OpenError::Fixed`] for a volume in memory or
/// a storage of another kind, else as [`open`](crate::open). The volume is as it was then.
pub fn grow(volume: &Volume, spec: &VolumeSpec) -> Result<Volume, OpenError> {
    if let Some(layered) = layers::of(volume) {
        return Ok(layered.over(grow(layered.inner(), spec)?));
    }
    let any = volume.slow().as_any();
    let disk = any.and_then(|any| any.downcast_ref::<Disk>());
    let old = volume.caps().bytes();
    let grown = match (&spec.storage, disk) {
        (Storage::File(what), Some(disk)) => file::grow(spec, what, disk)?,
        (Storage::Block { path }, Some(disk)) => device::again(spec, path, disk.opened())?,
        (Storage::Null { size }, _) if any.is_some_and(|any| any.is::<Null>()) => {
            null::open(spec, *size)?
        }
        (Storage::Memory { size }, _) if *size == old => return Ok(volume.clone()),
        (storage, _) => return Err(OpenError::Fixed { volume: storage.to_string() }),
    };
    let wanted = grown.caps().bytes();
    if wanted < old {
        let volume = spec.storage.to_string();
        return Err(OpenError::Shrink { volume, size: old, wanted });
    }
    Ok(grown)
}

/// What the file system says about the file or device that a volume has open, whatever its path leads to by
/// now; `None` for a volume without one.
///
/// # Errors
/// The operating system's.
pub fn opened(volume: &Volume) -> io::Result<Option<Metadata>> {
    if let Some(layered) = layers::of(volume) {
        return opened(layered.inner());
    }
    let disk = volume.slow().as_any().and_then(|any| any.downcast_ref::<Disk>());
    disk.map(|disk| disk.opened().metadata()).transpose()
}
