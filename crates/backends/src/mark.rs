//! The mark of a volume in its file: random text that is made once, so that the file is told from every other
//! of the same name and size.
//!
//! It is the extended attribute `user.lunet.mark`. It goes with the file when that is renamed or moved, and with
//! copies that keep attributes (`cp -a`, `rsync -X`, `tar --xattrs`). Where the file system has no extended
//! attributes, the mark is in the [sidecar](crate::sidecar).

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::Path;

use lunet_os::fs;
use rustix::fs::fgetxattr;
use rustix::io::Errno;

use crate::{Volume, disk_of, sidecar};

const ATTRIBUTE: &str = "user.lunet.mark";

/// The longest mark in bytes.
const MOST: usize = 64;

/// The mark of an open volume's file, whose path this is; `None` if it has none.
///
/// # Errors
/// The operating system's.
pub fn of(volume: &Volume, path: &Path) -> io::Result<Option<String>> {
    disk_of(volume, |disk| read(disk.opened(), path)).unwrap_or(Ok(None))
}

/// Why a file was not marked.
#[derive(Debug, thiserror::Error)]
pub enum MarkError {
    /// It has no mark.
    #[error("{0}")]
    NotSet(#[from] io::Error),
    /// The file itself cannot be flushed: the kernel has told that of what was written to it before, and does not
    /// tell it again.
    #[error("the file cannot be flushed: {0}")]
    NotStable(#[source] io::Error),
}

/// Marks an open volume's file, whose path this is. The mark is on stable storage then.
///
/// # Errors
/// [`MarkError`].
pub fn set(volume: &Volume, path: &Path, mark: &str) -> Result<(), MarkError> {
    let set = |disk: &crate::disk::Disk| write(disk.opened(), path, mark);
    disk_of(volume, set).unwrap_or_else(|| Err(io::Error::from(ErrorKind::Unsupported).into()))
}

/// Gives an open volume, whose file will take the place of that of `from`, the mark of that. A mark that is
/// in the sidecar needs nothing done: it stays with the path.
///
/// # Errors
/// The operating system's.
pub fn carry(from: &Volume, to: &Volume) -> io::Result<()> {
    let mark = disk_of(from, |disk| attribute(disk.opened())).transpose()?.flatten();
    let Some(mark) = mark else { return Ok(()) };
    let set = |disk: &crate::disk::Disk| {
        let file = disk.opened();
        fs::set_attribute(file, ATTRIBUTE, mark.as_bytes())?;
        fs::sync(file)
    };
    disk_of(to, set).unwrap_or(Ok(()))
}

/// The mark in the attributes of a file.
fn attribute(file: &File) -> io::Result<Option<String>> {
    let mut bytes = [0; MOST];
    match fgetxattr(file, ATTRIBUTE, &mut bytes[..]) {
        Ok(length) => Ok(text(bytes.get(..length).unwrap_or_default())),
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::RANGE | Errno::PERM) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The mark of an open file.
pub(crate) fn read(file: &File, path: &Path) -> io::Result<Option<String>> {
    if let Some(mark) = attribute(file)? {
        return Ok(Some(mark));
    }
    match fs::read(&sidecar::path(path), MOST as u64) {
        Ok(bytes) => Ok(text(&bytes)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::FileTooLarge) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn write(file: &File, path: &Path, mark: &str) -> Result<(), MarkError> {
    match fs::set_attribute(file, ATTRIBUTE, mark.as_bytes()) {
        Ok(()) => fs::sync(file).map_err(MarkError::NotStable),
        Err(Errno::OPNOTSUPP | Errno::PERM | Errno::NOSPC | Errno::DQUOT) => {
            let kept =
                sidecar::open(path)?.ok_or_else(|| io::Error::from(ErrorKind::PermissionDenied))?;
            fs::write_at(&kept, mark.as_bytes(), 0)?;
            fs::set_len(&kept, mark.len() as u64)?;
            fs::sync(&kept)?;
            Ok(lunet_files::sync_parent(path)?)
        }
        Err(error) => Err(io::Error::from(error).into()),
    }
}

/// What was not written by lunet is no mark.
fn text(bytes: &[u8]) -> Option<String> {
    let fits = !bytes.is_empty() && bytes.len() <= MOST && bytes.iter().all(u8::is_ascii_graphic);
    fits.then(|| String::from_utf8_lossy(bytes).into_owned())
}
