//! The sidecar: a hidden file next to a volume's file. It carries the volume's lock, and its mark where
//! the file system has no extended attributes.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Its owner's alone: who cannot open it cannot lock it.
const MODE: u32 = 0o600;

/// The path of a volume file's sidecar; a link to the volume's file has the same one.
pub fn path(volume: &Path) -> PathBuf {
    let place = volume.canonicalize().unwrap_or_else(|_| volume.to_path_buf());
    let mut name = OsString::from(".");
    name.push(place.file_name().unwrap_or_default());
    name.push(".lunet");
    place.with_file_name(name)
}

/// Opens it to be written; makes it if it is missing. `None` if it belongs to neither root, this process's user
/// nor the owner of the volume's file: somebody else has put it there.
///
/// # Errors
/// The operating system's.
pub(crate) fn open(volume: &Path) -> io::Result<Option<File>> {
    let path = path(volume);
    let mut how = OpenOptions::new();
    how.read(true).write(true).create(true).truncate(false).mode(MODE);
    // Not through a link that somebody has laid there.
    how.custom_flags(libc::O_NOFOLLOW);
    let file = lunet_os::fs::open(&path, &how)?;
    let (found, ours) = (file.metadata()?, rustix::process::geteuid().as_raw());
    if ![0, ours, volume.metadata()?.uid()].contains(&found.uid()) || !found.is_file() {
        return Ok(None);
    }
    if found.mode() & 0o777 != MODE && found.uid() == ours {
        file.set_permissions(fs::Permissions::from_mode(MODE))?;
    }
    Ok(Some(file))
}
