//! Small files that are written anew and renamed: whole or not at all, also if the machine fails.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Reads a file of at most `most` bytes; `None` if there is none.
///
/// # Errors
/// A plain sentence: it is too large, or cannot be read.
pub fn read(path: &Path, most: u64) -> Result<Option<Vec<u8>>, String> {
    let name = path.display();
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Ok(metadata) if metadata.len() > most => Err(format!("{name} is too large")),
        Ok(_) | Err(_) => {
            fs::read(path).map(Some).map_err(|error| format!("cannot read {name}: {error}"))
        }
    }
}

/// Puts this text into a file, on stable storage. Only its owner may read it.
///
/// # Errors
/// The operating system's. What was there before is there still.
pub fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let fresh = fresh(path);
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(&fresh, path)?;
    sync_directory(path)
}

/// Removes a file for good. It need not be there.
///
/// # Errors
/// The operating system's.
pub fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Ok(()) => sync_directory(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Where the next text is written before it takes the place of the last.
pub fn fresh(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

/// Makes a rename or a removal stable.
fn sync_directory(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}
