//! The folder that the interface keeps accounts, keys and the audit log in: nobody else writes or reads there.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// O_NOFOLLOW and O_NONBLOCK: a link is not followed, and a pipe is not waited for.
const FLAGS: i32 =
    (rustix::fs::OFlags::NOFOLLOW.bits() | rustix::fs::OFlags::NONBLOCK.bits()) as i32;

/// The modes of the folder, and of what is in it.
const FOLDER: u32 = 0o700;
const FILE: u32 = 0o600;

/// Why a folder is not used.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what is wrong")]
pub enum FolderError {
    #[error(
        "{path} is a symbolic link, which is not followed: put the folder or file itself there"
    )]
    Link { path: PathBuf },
    #[error("{path} is no folder: move it away")]
    NoFolder { path: PathBuf },
    #[error("cannot look at {path}: {error}")]
    Look { path: PathBuf, error: io::Error },
    #[error("others may use {path}, and its mode cannot be changed: {error}: chmod {mode:o} it")]
    Mode { path: PathBuf, mode: u32, error: io::Error },
}

/// Looks whether a folder and what is in it are only for who runs this. Modes that let others in are changed, with a
/// warning. A folder that is not there has nothing to lose.
///
/// # Errors
/// It is a symbolic link or no folder, has a link in it, or cannot be changed.
pub(crate) fn keep_to_ourselves(folder: &Path) -> Result<(), FolderError> {
    let look = |path: &Path, error| FolderError::Look { path: path.to_owned(), error };
    let found = match fs::symlink_metadata(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        found => found.map_err(|error| look(folder, error))?,
    };
    if found.is_symlink() {
        return Err(FolderError::Link { path: folder.to_owned() });
    }
    if !found.is_dir() {
        return Err(FolderError::NoFolder { path: folder.to_owned() });
    }
    close(folder, FOLDER)?;
    let entries = fs::read_dir(folder).map_err(|error| look(folder, error))?;
    for entry in entries {
        let entry = entry.map_err(|error| look(folder, error))?;
        let kind = entry.file_type().map_err(|error| look(&entry.path(), error))?;
        if kind.is_symlink() {
            return Err(FolderError::Link { path: entry.path() });
        }
        if kind.is_file() {
            close(&entry.path(), FILE)?;
        }
    }
    Ok(())
}

/// Takes from others what they may do with a file or folder.
fn close(path: &Path, mode: u32) -> Result<(), FolderError> {
    let failed = |error| FolderError::Look { path: path.to_owned(), error };
    let file: File = match OpenOptions::new().read(true).custom_flags(FLAGS).open(path) {
        // Gone meanwhile.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        opened => opened.map_err(failed)?,
    };
    let found = file.metadata().map_err(failed)?.permissions().mode() & 0o7777;
    if found & 0o077 == 0 {
        return Ok(());
    }
    let closed = file.set_permissions(Permissions::from_mode(mode));
    closed.map_err(|error| FolderError::Mode { path: path.to_owned(), mode, error })?;
    tracing::warn!(
        "{} was open to others (mode {found:04o}), and is not any more (mode {mode:04o}): see whether they have changed what \
         is in it",
        path.display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn modes_are_repaired_and_links_are_not_followed() {
        let home = tempfile::TempDir::new().unwrap();
        let folder = home.path().join("control");
        keep_to_ourselves(&folder).expect("it is not there");
        fs::create_dir(&folder).unwrap();
        let (accounts, audit) = (folder.join("accounts.json"), folder.join("audit.jsonl"));
        for (path, bits) in [(&folder, 0o777), (&accounts, 0o666), (&audit, 0o640)] {
            if path != &folder {
                fs::write(path, "x").unwrap();
            }
            fs::set_permissions(path, Permissions::from_mode(bits)).unwrap();
        }
        keep_to_ourselves(&folder).unwrap();
        assert_eq!([mode(&folder), mode(&accounts), mode(&audit)], [0o700, 0o600, 0o600]);
        assert_eq!(fs::read(&accounts).unwrap(), b"x");
        let outside = home.path().join("outside");
        fs::write(&outside, "y").unwrap();
        fs::set_permissions(&outside, Permissions::from_mode(0o644)).unwrap();
        symlink(&outside, folder.join("key.pem")).unwrap();
        let refused = keep_to_ourselves(&folder).unwrap_err();
        assert!(matches!(refused, FolderError::Link { .. }), "{refused}");
        assert_eq!(mode(&outside), 0o644);
        let link = home.path().join("link");
        symlink(&folder, &link).unwrap();
        assert!(matches!(keep_to_ourselves(&link), Err(FolderError::Link { .. })));
        assert!(matches!(keep_to_ourselves(&outside), Err(FolderError::NoFolder { .. })));
    }
}
