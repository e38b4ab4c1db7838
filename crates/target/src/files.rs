//! Files that are replaced whole or not at all, also if the machine fails in between.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The mode of a file that was not there before: its owner's alone.
const MODE: u32 = 0o600;

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

/// Replaces a file, and returns when that is on stable storage. The file keeps its mode, and a
/// link to it stays a link.
///
/// # Errors
/// The operating system's; the file is as it was then.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mode = fs::metadata(&path).map_or(MODE, |found| found.permissions().mode() & 0o7777);
    let fresh = fresh(&path);
    let written = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(MODE)
        .open(&fresh)
        .and_then(|mut file| {
            file.set_permissions(fs::Permissions::from_mode(mode))?;
            file.write_all(bytes)?;
            file.sync_all()
        });
    if let Err(error) = written.and_then(|()| fs::rename(&fresh, &path)) {
        let _ = fs::remove_file(&fresh);
        return Err(error);
    }
    sync_parent(&path)
}

/// Removes a file that may be there. True if it was; that it is gone is on stable storage then.
///
/// # Errors
/// The operating system's.
pub fn remove(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => sync_parent(path).map(|()| true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Removes what a replacement has left that was cut short.
pub fn clear(path: &Path) {
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    // It is in nobody's way: the next replacement writes over it.
    let _ = fs::remove_file(fresh(&path));
}

/// Makes a rename or a removal stable.
///
/// # Errors
/// The operating system's.
pub fn sync_parent(path: &Path) -> io::Result<()> {
    File::open(parent(path))?.sync_all()
}

/// The directory that a path is in.
pub fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Where the next content is written before it takes its place.
pub(crate) fn fresh(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".new");
    parent(path).join(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    #[test]
    fn a_file_is_replaced_and_keeps_its_mode_and_its_link() {
        let dir = TempDir::new().expect("it can");
        let (path, link) = (dir.path().join("file"), dir.path().join("link"));
        replace(&path, b"one").expect("it can");
        let mode = |path: &Path| fs::metadata(path).expect("it can").permissions().mode() & 0o7777;
        assert_eq!(mode(&path), 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("it can");
        std::os::unix::fs::symlink(&path, &link).expect("it can");
        fs::write(fresh(&path), b"left behind by a crash").expect("it can");
        replace(&link, b"two").expect("it can");
        assert_eq!((fs::read(&path).expect("it can"), mode(&path)), (b"two".to_vec(), 0o644));
        assert!(fs::symlink_metadata(&link).expect("it can").is_symlink());
        assert_eq!(fs::read_dir(dir.path()).expect("it can").count(), 2);
        assert_eq!((remove(&path).expect("it can"), remove(&path).expect("it can")), (true, false));
    }

    #[test]
    fn a_failure_leaves_the_file_as_it_was() {
        let dir = TempDir::new().expect("it can");
        let path = dir.path().join("file");
        replace(&path, b"one").expect("it can");
        fs::create_dir(fresh(&path)).expect("it can");
        assert!(replace(&path, b"two").is_err());
        assert_eq!(fs::read(&path).expect("it can"), b"one");
        fs::remove_dir(fresh(&path)).expect("it can");
        fs::write(fresh(&path), b"").expect("it can");
        clear(&path);
        assert!(!fresh(&path).exists());
    }
}
