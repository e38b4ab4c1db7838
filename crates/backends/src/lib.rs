//! Where the blocks of a volume are kept.
//!
//! | storage | answers | stable after |
//! |---|---|---|
//! | sparse file | through the kernel | a flush (fdatasync), or a write with FUA |
//! | block device | through the kernel, O_DIRECT | the same, or at once if the device has no volatile cache |
//! | image of Ceph | from librbd's threads | at once: there is no cache |
//! | memory | on the spot, reads by reference | never: nothing survives a restart |
//! | null | on the spot, zeroes | never |
//!
//! [`open`] checks everything that can be checked beforehand, and says in one sentence what is
//! wrong. An open [`Volume`] is shared by all shards; each opens a channel of its own on its own
//! event loop.
#![forbid(unsafe_code)]

// The tests share code that sees this crate from outside.
#[cfg(test)]
extern crate self as lunet_backends;

#[cfg(test)]
#[path = "../tests/suite/common.rs"]
mod common;
mod device;
mod disk;
mod error;
mod file;
mod geometry;
pub mod layers;
mod lock;
pub mod mark;
mod memory;
mod null;
mod passthrough;
pub mod rbd;
pub mod retry;
pub mod sidecar;
pub mod snapshot;
mod spec;
mod sysfs;
pub mod zfs;

use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use lunet_block::Backend;
use lunet_ring::{Payload, Ring};

pub use device::{Opener, open_devices_with};
pub use disk::{disk_token, parse_disk_token};
pub use error::OpenError;
pub use lock::holding;
pub use null::absent;
pub use passthrough::generic_of;
pub use spec::{Access, FileSpec, Known, Provisioning, Storage, VolumeSpec};

/// An open volume. Its storage is let go with the last clone and the last channel.
pub type Volume = Arc<dyn Backend<Payload, Ring>>;

/// One shard's way to a volume. `Read` and `Write` need a [`Payload::Buf`]; the answer to a
/// `ReadMapped` carries a [`Payload::Mapped`].
pub type Channel = dyn lunet_block::Channel<Payload, Ring>;

/// Opens a volume. Blocks: it is for the start of the program, not for a running event loop.
///
/// # Errors
/// [`OpenError`]: what is wrong with the specification, the path or the storage.
pub fn open(spec: &VolumeSpec) -> Result<Volume, OpenError> {
    open_with(spec, None)
}

/// Opens a volume whose file will take the place of that of `old`, by a rename: the new volume keeps
/// the lock on the place, which `old` has.
///
/// # Errors
/// As [`open`].
pub fn open_in_place_of(old: &Volume, spec: &VolumeSpec) -> Result<Volume, OpenError> {
    if let Storage::Rbd(place) = &spec.storage {
        let place = rbd::after(old, place);
        let is_fenced = place.is_open;
        let anew = open_with(&VolumeSpec { storage: Storage::Rbd(place), ..spec.clone() }, None)?;
        if is_fenced {
            rbd::cannot_land(old);
        }
        return Ok(anew);
    }
    open_with(spec, disk_of(old, |disk| disk.place().cloned()).flatten())
}

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
/// a storage of another kind, else as [`open`]. The volume is as it was then.
pub fn grow(volume: &Volume, spec: &VolumeSpec) -> Result<Volume, OpenError> {
    if let Some(layered) = layers::of(volume) {
        return Ok(layered.over(grow(layered.inner(), spec)?));
    }
    let any = volume.slow().as_any();
    let disk = any.and_then(|any| any.downcast_ref::<disk::Disk>());
    let old = volume.caps().bytes();
    let grown = match (&spec.storage, disk) {
        (Storage::File(what), Some(disk)) => file::grow(spec, what, disk)?,
        (Storage::Block { path }, Some(disk)) => device::again(spec, path, disk)?,
        (Storage::Rbd(place), _) => match any.and_then(|any| any.downcast_ref::<rbd::Rbd>()) {
            Some(old) => rbd::grow(spec, place, old)?,
            None => return Err(OpenError::Fixed { volume: spec.storage.to_string() }),
        },
        (Storage::Null { size }, _) if any.is_some_and(|any| any.is::<null::Null>()) => {
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
    disk_of(volume, |disk| disk.opened().metadata()).transpose()
}

/// What should be known of an open volume besides, a sentence each: who else may read its file, or
/// has a lock on it.
pub fn notes(volume: &Volume) -> Vec<String> {
    disk_of(volume, |disk| disk.notes().to_vec()).unwrap_or_default()
}

/// Looks whether a volume whose reads and writes are NVMe commands, past the block layer, can stay with that, and ends it if not. The
/// answer is why, once: the namespace is not what it was when the volume was opened.
pub fn end_of_passthrough(volume: &Volume) -> Option<String> {
    disk_of(volume, |disk| disk.is_passing().and_then(|passing| passing.look(disk.opened())))?
}

/// How the storage of an open volume stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is where it was, and as large.
    Sound,
    /// It has become smaller than the volume.
    CutShort {
        /// Its size in bytes.
        bytes: u64,
    },
    /// The file has no name any more, and goes when it is closed.
    Removed,
    /// Nothing is at the file's path; it has another name.
    Elsewhere,
    /// Another file is at its path.
    Replaced,
}

/// Looks at the storage of an open volume, whose path this is. A device may be reached by other names, so
/// only its size is looked at. Blocks.
///
/// # Errors
/// The operating system's.
pub fn standing(volume: &Volume, path: &Path) -> io::Result<Standing> {
    let size = volume.caps().bytes();
    disk_of(volume, |disk| look(disk.opened(), size, path)).unwrap_or(Ok(Standing::Sound))
}

fn look(mut file: &File, size: u64, path: &Path) -> io::Result<Standing> {
    let found = file.metadata()?;
    let bytes = match found.file_type().is_block_device() {
        true => file.seek(SeekFrom::End(0))?,
        false => found.len(),
    };
    if bytes < size {
        return Ok(Standing::CutShort { bytes });
    }
    if !found.is_file() {
        return Ok(Standing::Sound);
    }
    if found.nlink() == 0 {
        return Ok(Standing::Removed);
    }
    match path.metadata() {
        Ok(there) if (there.dev(), there.ino()) == (found.dev(), found.ino()) => {
            Ok(Standing::Sound)
        }
        Ok(_) => Ok(Standing::Replaced),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(Standing::Elsewhere)
        }
        Err(error) => Err(error),
    }
}

/// Says whether a new volume could be opened, as far as that can be told without opening or making anything.
///
/// # Errors
/// [`OpenError`], as [`open`] would give it.
pub fn foresee(spec: &VolumeSpec) -> Result<(), OpenError> {
    let named = |name: &str, size| geometry::Geometry::new(spec, name, size, 512, 512).map(drop);
    match &spec.storage {
        Storage::File(file) => file::foresee(spec, file),
        Storage::Block { path } => device::foresee(path),
        // Only the cluster can tell.
        Storage::Rbd(_) => Ok(()),
        Storage::Memory { size } => named("memory volume", *size),
        Storage::Null { size } => named("null volume", *size),
    }
}

/// What the block device below a volume calls itself; `None` if it says nothing, or is none.
pub fn device_identity(volume: &Volume) -> Option<String> {
    let number = disk_of(volume, |disk| disk.opened().metadata().ok().map(|found| found.rdev()))??;
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    // A file has the number 0.
    if number == 0 { None } else { sysfs::identity(Path::new("/sys"), major, minor) }
}

/// Asks the file or device below a volume; `None` if there is none.
fn disk_of<T>(volume: &Volume, ask: impl Fn(&disk::Disk) -> T) -> Option<T> {
    if let Some(layered) = layers::of(volume) {
        return disk_of(layered.inner(), ask);
    }
    volume.slow().as_any().and_then(|any| any.downcast_ref::<disk::Disk>()).map(ask)
}

fn open_with(spec: &VolumeSpec, place: Option<Arc<lock::Lock>>) -> Result<Volume, OpenError> {
    let volume = match &spec.storage {
        Storage::File(file) => file::open(spec, file, place),
        Storage::Block { path } => device::open(spec, path),
        Storage::Rbd(place) => rbd::open(spec, place),
        Storage::Memory { size } => memory::open(spec, *size),
        Storage::Null { size } => null::open(spec, *size),
    }?;
    if spec.layers.is_empty() {
        return Ok(volume);
    }
    Ok(layers::wrap(volume, &spec.layers).0)
}
