//! Files that the server makes, replaces and removes: its records and marks, and the files of volumes.
//!
//! Each function is the system's call. In a simulated world it takes time, may fail, and what was not synced may be gone
//! after a power loss: contents as well as names. What nobody relies on after a restart need not come this way, nor what
//! a ring does to the blocks of a volume.

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{CWD, FallocateFlags, RenameFlags, XattrFlags};

#[cfg(feature = "simulated")]
use crate::simulated_fs as world;

/// Opens a file, or makes it. The options must not truncate: see [`create`].
///
/// # Errors
/// The operating system's.
#[inline]
pub fn open(path: &Path, options: &OpenOptions) -> io::Result<File> {
    #[cfg(feature = "simulated")]
    if let Some(files) = world::of(path) {
        return files.open(path, options);
    }
    options.open(path)
}

/// Makes an empty file to be written, with this mode; one that is there becomes empty.
///
/// # Errors
/// The operating system's.
#[inline]
pub fn create(path: &Path, mode: u32) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(mode);
    #[cfg(feature = "simulated")]
    if let Some(files) = world::of(path) {
        return files.create(path, &options);
    }
    options.open(path)
}

/// Writes bytes where the file's cursor is.
///
/// # Errors
/// The operating system's; a part of them may be there.
#[inline]
pub fn write(mut file: &File, bytes: &[u8]) -> io::Result<()> {
    #[cfg(feature = "simulated")]
    if let Some(files) = world::here() {
        files.before_write(file, bytes.len())?;
    }
    file.write_all(bytes)
}

/// Writes bytes at an offset.
///
/// # Errors
/// The operating system's; a part of them may be there.
#[inline]
pub fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    #[cfg(feature = "simulated")]
    if let Some(files) = world::here() {
        files.before_write(file, bytes.len())?;
    }
    file.write_all_at(bytes, offset)
}

/// Gives a file this length in bytes.
///
/// # Errors
/// The operating system's.
#[inline]
pub fn set_len(file: &File, len: u64) -> io::Result<()> {
    #[cfg(feature = "simulated")]
    if let Some(files) = world::here() {
        files.before_set_len(file, len)?;
    }
    file.set_len(len)
}

/// Reserves space behind what a file has, without changing its length (fallocate(2), `FALLOC_FL_KEEP_SIZE`).
///
/// # Errors
/// The operating system's.
#[inline]
pub fn reserve(file: &File, len: u64) -> rustix::io::Result<()> {
    #[cfg(feature = "simulated")]
    if let Some(files) = world::here() {
        files.before_reserve()?;
    }
    rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, 0, len)
}

/// Sets an extended attribute of a file (fsetxattr(2)).
///
/// # Errors
/// The operating system's.
#[inline]
pub fn set_attribute(file: &File, name: &str, value: &[u8]) -> rustix::io::Result<()> {
    #[cfg(feature = "simulated")]
    if let Some(files) = world::here() {
        files.before_attribute(file, name)?;
    }
    rustix::fs::fsetxattr(file, name, value, XattrFlags::empty())
}

/// Makes what a file contains stable, and its attributes. Not its name: see [`sync_directory`].
///
/// # Errors
/// The operating system's, which tells of a failed write once.
#[inline]
pub fn sync(file: &File) -> io::Result<()> {
    #[cfg(feature = "simulated")]
    if let Some(files) = world::here() {
        return files.sync(file, true);
    }
    file.sync_all()
}

/// Makes what a file contains stable, and its length, but not its attributes (fdatasync(2)).
///
/// # Errors
/// As [`sync`].
#[inline]
pub fn sync_data(file: &File) -> io::Result<()> {
    #[cfg(feature = "simulated")]
    if let Some(files) = world::here() {
        return files.sync(file, false);
    }
    file.sync_data()
}

/// Makes the names in a directory stable.
///
/// # Errors
/// The operating system's.
#[inline]
pub fn sync_directory(path: &Path) -> io::Result<()> {
    let directory = File::open(path)?;
    #[cfg(feature = "simulated")]
    if let Some(files) = world::here() {
        return files.sync_directory(path);
    }
    directory.sync_all()
}

/// Gives a file another name, in place of what has that name.
///
/// # Errors
/// The operating system's.
#[inline]
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    rename_with(from, to, RenameFlags::empty())
}

/// The same, but lets two files change their names (`RENAME_EXCHANGE`), or replaces nothing (`RENAME_NOREPLACE`).
///
/// # Errors
/// The operating system's.
#[inline]
pub fn rename_with(from: &Path, to: &Path, flags: RenameFlags) -> io::Result<()> {
    #[cfg(feature = "simulated")]
    if let Some(files) = world::of(from) {
        return files.rename(from, to, flags);
    }
    Ok(rustix::fs::renameat_with(CWD, from, CWD, to, flags)?)
}

/// Removes a file.
///
/// # Errors
/// The operating system's.
#[inline]
pub fn remove(path: &Path) -> io::Result<()> {
    #[cfg(feature = "simulated")]
    if let Some(files) = world::of(path) {
        return files.remove(path);
    }
    std::fs::remove_file(path)
}

/// Makes a directory with this mode.
///
/// # Errors
/// The operating system's.
#[inline]
pub fn create_directory(path: &Path, mode: u32) -> io::Result<()> {
    #[cfg(feature = "simulated")]
    if let Some(files) = world::of(path) {
        return files.create_directory(path, mode);
    }
    DirBuilder::new().mode(mode).create(path)
}

/// Removes an empty directory.
///
/// # Errors
/// The operating system's.
#[inline]
pub fn remove_directory(path: &Path) -> io::Result<()> {
    #[cfg(feature = "simulated")]
    if let Some(files) = world::of(path) {
        return files.remove_directory(path);
    }
    std::fs::remove_dir(path)
}

/// What a file contains.
///
/// # Errors
/// The operating system's.
#[inline]
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    #[cfg(feature = "simulated")]
    if let Some(files) = world::of(path) {
        files.before_read()?;
    }
    std::fs::read(path)
}

/// What the file system says of a path; of a link, of what it leads to.
///
/// # Errors
/// The operating system's.
#[inline]
pub fn metadata(path: &Path) -> io::Result<Metadata> {
    #[cfg(feature = "simulated")]
    if let Some(files) = world::of(path) {
        files.before_read()?;
    }
    std::fs::metadata(path)
}

/// The same; of a link, of the link itself.
///
/// # Errors
/// The operating system's.
#[inline]
pub fn symlink_metadata(path: &Path) -> io::Result<Metadata> {
    #[cfg(feature = "simulated")]
    if let Some(files) = world::of(path) {
        files.before_read()?;
    }
    std::fs::symlink_metadata(path)
}
