//! Snapshots and clones of volumes in files: copies that share their blocks with the original
//! (reflinks), on XFS, btrfs and ZFS. For ZFS volumes see [`zfs`](crate::zfs).
//!
//! A copy is made whole under a temporary name, stored, and renamed. So a crash leaves what was
//! there before or what was asked for, and perhaps a temporary file, which the next try and
//! [`tidy`] remove. All functions block.
//!
//! A volume may be served while a snapshot of it is taken. The snapshot has every write that was
//! answered before, flushed or not, and of those in flight any.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use lunet_os::{fs as os, thread, time};
use rustix::fs::{FlockOperation, IFlags, RenameFlags};
use rustix::io::Errno;

use crate::Volume;

/// How the names of temporary files end; they begin with a dot.
const TEMPORARY: &str = ".lunet-new";

/// How long a file system may take to store what it is to share: ZFS does so every 5 seconds.
const STORING: Duration = Duration::from_secs(20);

/// Why a snapshot or clone could not be made, in one sentence that says what to do.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the variants' messages say what they and their fields mean")]
pub enum SnapshotError {
    #[error("{path}: no such file")]
    Missing { path: PathBuf },
    #[error("{path}: it exists already: choose another name, or remove it first")]
    Exists { path: PathBuf },
    #[error("{path}: it is not a regular file")]
    NotAFile { path: PathBuf },
    #[error(
        "{path}: the file system cannot share blocks between files: keep the volume on XFS or \
         btrfs, or in a ZFS volume, to have snapshots and clones"
    )]
    NoReflink { path: PathBuf },
    #[error(
        "{path}: it must be on the same file system as {other}, because they share their blocks"
    )]
    OtherFileSystem { path: PathBuf, other: PathBuf },
    #[error(
        "{path}: ZFS shares only what it has stored, and this file is being written all the time: \
         let it wait (`echo 1 >/sys/module/zfs/parameters/zfs_bclone_wait_dirty`), or keep the \
         volume in a ZFS volume"
    )]
    NeverStored { path: PathBuf },
    #[error("{path}: no space left on the file system: make room first")]
    NoSpace { path: PathBuf },
    #[error("{path}: permission denied: give the user that runs lunet access to it")]
    Permission { path: PathBuf },
    #[error(
        "{path}: it is done, but it may not survive a power loss: its directory cannot be synced ({error})"
    )]
    Unsynced { path: PathBuf, error: io::Error },
    #[error("{path}: cannot {action}: {error}")]
    Io { path: PathBuf, action: &'static str, error: io::Error },
}

impl SnapshotError {
    fn new(path: &Path, action: &'static str, error: io::Error) -> Self {
        let path = path.to_path_buf();
        match Errno::from_io_error(&error) {
            Some(Errno::NOENT | Errno::NOTDIR) => Self::Missing { path },
            Some(Errno::EXIST) => Self::Exists { path },
            Some(Errno::NOSPC | Errno::DQUOT) => Self::NoSpace { path },
            Some(Errno::ACCESS | Errno::PERM) => Self::Permission { path },
            _ => Self::Io { path, action, error },
        }
    }
}

/// Keeps the present content of a volume in a new file, which is not meant to be written.
///
/// # Errors
/// [`SnapshotError`]; there is no new file then.
pub fn snapshot(volume: &Path, snapshot: &Path) -> Result<(), SnapshotError> {
    keep(volume, snapshot)?.publish()
}

/// Makes the same without its name: it can be looked at before anybody can see it.
///
/// # Errors
/// [`SnapshotError`]; there is no new file then.
pub fn keep(volume: &Path, snapshot: &Path) -> Result<Copy, SnapshotError> {
    Source::open(volume)?.kept(snapshot)
}

/// Makes a snapshot, without its name, of the file that a volume has open, whatever is at `path` by now.
///
/// # Errors
/// [`SnapshotError`]; there is no new file then.
pub fn keep_open(volume: &Volume, path: &Path, snapshot: &Path) -> Result<Copy, SnapshotError> {
    Source::of(volume, path)?.kept(snapshot)
}

/// Makes a new volume with the content of a snapshot, or of another volume.
///
/// # Errors
/// [`SnapshotError`]; there is no new file then.
pub fn clone(from: &Path, to: &Path) -> Result<(), SnapshotError> {
    copy(from, to)?.publish()
}

/// Makes the same without its name: it can be told apart from every other file before anybody can see it.
///
/// # Errors
/// [`SnapshotError`]; there is no new file then.
pub fn copy(from: &Path, to: &Path) -> Result<Copy, SnapshotError> {
    Source::open(from)?.copied(to)
}

/// Makes a copy, without its name, of the file that a volume has open, whatever is at `path` by now.
///
/// # Errors
/// [`SnapshotError`]; there is no new file then.
pub fn copy_open(volume: &Volume, path: &Path, to: &Path) -> Result<Copy, SnapshotError> {
    Source::of(volume, path)?.copied(to)
}

/// Makes the same for a file that is to take the place of one with this mode.
///
/// # Errors
/// [`SnapshotError`]; there is no new file then.
pub fn successor(from: &Path, to: &Path, mode: u32) -> Result<Copy, SnapshotError> {
    let from = Source::open(from)?;
    let made = from.share_all(to, mode & 0o777, from.file_len()?)?;
    Ok(Copy { made, to: to.to_path_buf() })
}

/// A complete copy that has not got its name yet. Dropping it removes it.
pub struct Copy {
    made: Temporary,
    to: PathBuf,
}

impl Copy {
    /// What the file system says about it.
    ///
    /// # Errors
    /// [`SnapshotError`].
    pub fn metadata(&self) -> Result<fs::Metadata, SnapshotError> {
        let found = self.made.file.metadata();
        found.map_err(|e| SnapshotError::new(&self.to, "look at the copy", e))
    }

    /// Gives it its name.
    ///
    /// # Errors
    /// [`SnapshotError`]; there is no new file then, unless it is [`SnapshotError::Unsynced`].
    pub fn publish(self) -> Result<(), SnapshotError> {
        let Self { made, to } = self;
        match made.publish(&to, RenameFlags::NOREPLACE) {
            // There was nothing before, so nothing is what it goes back to.
            Err(SnapshotError::Unsynced { path, error }) => match os::remove(&to) {
                Ok(()) => {
                    // Which of both a crash would leave cannot be told if this fails as well.
                    drop(sync_parent(&to));
                    let action = "sync its directory, so nothing was kept";
                    Err(SnapshotError::Io { path, action, error })
                }
                Err(_) => Err(SnapshotError::Unsynced { path, error }),
            },
            other => other,
        }
    }
}

/// Gives a volume the content of a snapshot. The volume's file is exchanged: who has it open keeps
/// the old content, so the volume must be opened again. It keeps its size if the snapshot
/// is smaller; what lies behind the snapshot's end reads as zeroes.
///
/// # Errors
/// [`SnapshotError`]; the volume is as it was then, unless it is [`SnapshotError::Unsynced`].
pub fn rollback(volume: &Path, snapshot: &Path) -> Result<(), SnapshotError> {
    let action = "find the volume";
    // A link to the volume stays a link.
    let path = volume.canonicalize().map_err(|e| SnapshotError::new(volume, action, e))?;
    let old = Source::open(&path)?;
    let from = Source::open(snapshot)?;
    let size = from.file_len()?.max(old.file_len()?);
    from.share_all(&path, old.mode, size)?.publish(&path, RenameFlags::empty())
}

/// Removes a snapshot, or the file of a volume. That it is gone is on stable storage then.
///
/// # Errors
/// [`SnapshotError::Missing`], or what the file system says. The file is gone if it is [`SnapshotError::Unsynced`].
pub fn remove(path: &Path) -> Result<(), SnapshotError> {
    os::remove(path).map_err(|e| SnapshotError::new(path, "remove the file", e))?;
    sync_parent(path)
}

/// Removes the temporary files that interrupted calls have left in a directory, and tells how many.
/// Those that are being made stay.
///
/// # Errors
/// The directory cannot be read, or a file not be removed.
pub fn tidy(directory: &Path) -> io::Result<usize> {
    let mut count = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.as_encoded_bytes();
        let ours = name.starts_with(b".") && name.ends_with(TEMPORARY.as_bytes());
        if ours && entry.file_type()?.is_file() && discard(&entry.path())? {
            count += 1;
        }
    }
    Ok(count)
}

/// Removes a temporary file unless somebody is at work on it. False if it is or is gone.
fn discard(path: &Path) -> io::Result<bool> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(e),
    };
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => os::remove(path).map(|()| true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// What is copied.
struct Source {
    path: PathBuf,
    file: File,
    mode: u32,
    owner: (u32, u32),
}

impl Source {
    fn open(path: &Path) -> Result<Self, SnapshotError> {
        let fail = |e| SnapshotError::new(path, "open the file", e);
        // Opening a pipe would wait for its other end, so look first.
        let found = path.metadata().map_err(fail)?;
        if !found.is_file() {
            return Err(SnapshotError::NotAFile { path: path.to_path_buf() });
        }
        Self::new(path, File::open(path).map_err(fail)?)
    }

    /// The file that a volume has open.
    fn of(volume: &Volume, path: &Path) -> Result<Self, SnapshotError> {
        let fail = |e| SnapshotError::new(path, "copy the volume's open file", e);
        let file = crate::disk_of(volume, |disk| disk.opened().try_clone());
        let unsupported = || Err(io::ErrorKind::Unsupported.into());
        Self::new(path, file.unwrap_or_else(unsupported).map_err(fail)?)
    }

    fn new(path: &Path, file: File) -> Result<Self, SnapshotError> {
        let found = file.metadata().map_err(|e| SnapshotError::new(path, "look at the file", e))?;
        if !found.is_file() {
            return Err(SnapshotError::NotAFile { path: path.to_path_buf() });
        }
        let mode = found.permissions().mode() & 0o777;
        Ok(Self { path: path.to_path_buf(), file, mode, owner: (found.uid(), found.gid()) })
    }

    /// A snapshot: for its owner alone, whoever may read the volume, and not to be written.
    fn kept(&self, to: &Path) -> Result<Copy, SnapshotError> {
        let made = self.share_all(to, 0o400, self.file_len()?)?;
        Ok(Copy { made, to: to.to_path_buf() })
    }

    /// A new volume: for its owner alone.
    fn copied(&self, to: &Path) -> Result<Copy, SnapshotError> {
        let made = self.share_all(to, 0o600, self.file_len()?)?;
        Ok(Copy { made, to: to.to_path_buf() })
    }

    fn file_len(&self) -> Result<u64, SnapshotError> {
        let found = self.file.metadata();
        Ok(found.map_err(|e| SnapshotError::new(&self.path, "look at the file", e))?.len())
    }

    /// Makes a copy of `size` bytes, for the name `to`: complete and stored, but still under
    /// another name.
    fn share_all(&self, to: &Path, mode: u32, size: u64) -> Result<Temporary, SnapshotError> {
        let made = Temporary::create(to)?;
        let fail = |action| move |e| SnapshotError::new(to, action, e);
        self.share(&made.file, to)?;
        let len = self.file_len()?;
        let shared = made.file.metadata().map_err(fail("look at the copy"))?.len();
        if shared != len {
            // XFS reports a copy that it had to break off as a success.
            return Err(SnapshotError::NoSpace { path: to.to_path_buf() });
        }
        if size != len {
            os::set_len(&made.file, size).map_err(fail("set the size of the copy"))?;
        }
        // An unprivileged lunet cannot give files away, and need not: they are its own.
        let (user, group) = self.owner;
        drop(std::os::unix::fs::fchown(&made.file, Some(user), Some(group)));
        let mode = fs::Permissions::from_mode(mode);
        made.file.set_permissions(mode).map_err(fail("set the permissions of the copy"))?;
        os::sync(&made.file).map_err(fail("store the copy"))?;
        Ok(made)
    }

    fn share(&self, target: &File, to: &Path) -> Result<(), SnapshotError> {
        // btrfs shares blocks only between files of the same kind: with copy-on-write or without.
        if let Ok(flags) = rustix::fs::ioctl_getflags(&self.file) {
            if flags.contains(IFlags::NOCOW) {
                let _ = rustix::fs::ioctl_setflags(target, IFlags::NOCOW);
            }
        }
        match when_stored(STORING, || rustix::fs::ioctl_ficlone(target, &self.file)) {
            Ok(()) => Ok(()),
            Err(Errno::AGAIN) => Err(SnapshotError::NeverStored { path: self.path.clone() }),
            Err(Errno::XDEV) => {
                let (path, other) = (to.to_path_buf(), self.path.clone());
                Err(SnapshotError::OtherFileSystem { path, other })
            }
            Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOTTY | Errno::NOSYS) => {
                Err(SnapshotError::NoReflink { path: self.path.clone() })
            }
            Err(e) => Err(SnapshotError::new(to, "share the blocks", e.into())),
        }
    }
}

/// Shares blocks as soon as all of them are stored: until then ZFS answers EAGAIN.
fn when_stored(limit: Duration, mut share: impl FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
    let start = time::now();
    loop {
        match share() {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if time::since(start) < limit => {
                thread::sleep(Duration::from_millis(50));
            }
            other => return other,
        }
    }
}

/// A file under a temporary name; removed if it does not get its own.
struct Temporary {
    path: PathBuf,
    file: File,
    published: bool,
}

impl Temporary {
    fn create(to: &Path) -> Result<Self, SnapshotError> {
        let path = temporary(to)?;
        let fail = |action| move |e| SnapshotError::new(to, action, e);
        discard(&path).map_err(fail("remove what an interrupted try has left"))?;
        let mut how = OpenOptions::new();
        how.read(true).write(true).create_new(true).mode(0o600);
        let file = os::open(&path, &how).map_err(fail("create the file"))?;
        let made = Self { path, file, published: false };
        // Tells `tidy` that it is being made.
        let locked = rustix::fs::flock(&made.file, FlockOperation::NonBlockingLockExclusive);
        locked.map_err(|e| SnapshotError::new(to, "lock the file", e.into()))?;
        Ok(made)
    }

    /// Gives the file its name.
    fn publish(mut self, to: &Path, flags: RenameFlags) -> Result<(), SnapshotError> {
        let renamed = os::rename_with(&self.path, to, flags);
        renamed.map_err(|e| SnapshotError::new(to, "name the copy", e))?;
        self.published = true;
        sync_parent(to)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.published {
            // If this fails too, the next try removes it.
            drop(os::remove(&self.path));
        }
    }
}

fn temporary(to: &Path) -> Result<PathBuf, SnapshotError> {
    let Some(name) = to.file_name() else {
        return Err(SnapshotError::NotAFile { path: to.to_path_buf() });
    };
    let mut hidden = OsString::from(".");
    hidden.push(name);
    hidden.push(TEMPORARY);
    Ok(to.with_file_name(hidden))
}

fn sync_parent(path: &Path) -> Result<(), SnapshotError> {
    lunet_files::sync_parent(path)
        .map_err(|error| SnapshotError::Unsynced { path: path.to_path_buf(), error })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sharing_waits_for_what_is_not_stored_yet() {
        let tried = |limit, answers: &[Result<(), Errno>]| {
            let mut answers = answers.iter().copied();
            when_stored(limit, || answers.next().unwrap_or(Err(Errno::AGAIN)))
        };
        let long = Duration::from_secs(60);
        assert_eq!(tried(long, &[Err(Errno::AGAIN), Err(Errno::INTR), Ok(())]), Ok(()));
        assert_eq!(tried(long, &[Err(Errno::AGAIN), Err(Errno::XDEV)]), Err(Errno::XDEV));
        assert_eq!(tried(Duration::from_millis(120), &[]), Err(Errno::AGAIN));
    }
}
