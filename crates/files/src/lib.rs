//! Files that are replaced whole or not at all, and stay so after a power loss.
//!
//! New content is written to a temporary file beside the old one, flushed, and takes its name by a rename; then the
//! directory is flushed. Where the file system can exchange two names, a directory that cannot be flushed gets the old
//! content back.
#![forbid(unsafe_code)]

use std::cell::Cell;
use std::ffi::OsStr;
use std::fs::{Metadata, Permissions, canonicalize};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use lunet_os::fs;
use lunet_os::fs::Directory;
pub use lunet_os::fs::read_text;
use rustix::fs::{FileType, OFlags, RenameFlags};
use rustix::io::Errno;

/// The mode of a file that was replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The old file's; a new file is its owner's alone, 0600.
    Private,
    /// The old file's; a new file has what the umask leaves of 0666.
    Shared,
    /// These permission bits.
    Exactly(u32),
}

impl Mode {
    /// The bits to set, if the old file has these; `None`: those that the file was created with.
    fn bits(self, old: Option<u32>) -> Option<u32> {
        match self {
            Self::Exactly(bits) => Some(bits),
            Self::Private => old.or(Some(0o600)),
            Self::Shared => old,
        }
    }
}

/// Why a file of the data directory cannot be taken up.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what is wrong")]
pub enum ReadError {
    #[error("{path} is too large")]
    TooLarge { path: PathBuf },
    #[error("cannot read {path}: {error}")]
    Unreadable { path: PathBuf, error: io::Error },
    #[error("{path} is damaged: {error}")]
    Damaged { path: PathBuf, error: serde_json::Error },
    #[error("{path} is of version {found}, not {known}")]
    Version { path: PathBuf, found: u32, known: u32 },
}

/// Reads a file of at most `most` bytes; `None` if there is none.
///
/// # Errors
/// It is too large, or cannot be read.
pub fn read(path: &Path, most: u64) -> Result<Option<Vec<u8>>, ReadError> {
    match look(path) {
        Found::Absent => Ok(None),
        Found::There(_) | Found::Unknown(_) => match fs::read(path, most) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == ErrorKind::FileTooLarge => {
                Err(ReadError::TooLarge { path: path.to_owned() })
            }
            Err(error) => Err(ReadError::Unreadable { path: path.to_owned(), error }),
        },
    }
}

/// What is known of a path.
#[derive(Debug)]
pub enum Found {
    /// It is there; of a link, what it leads to.
    There(Metadata),
    /// There is nothing: ENOENT or ENOTDIR.
    Absent,
    /// It cannot be told. Never taken for [`Absent`](Self::Absent): a file system that does not answer may
    /// hold everything.
    Unknown(io::Error),
}

/// Looks at a path.
pub fn look(path: &Path) -> Found {
    sort(fs::metadata(path))
}

/// Looks at a path; of a link, at the link itself.
pub fn look_at_name(path: &Path) -> Found {
    sort(fs::symlink_metadata(path))
}

fn sort(found: io::Result<Metadata>) -> Found {
    match found {
        Ok(metadata) => Found::There(metadata),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Found::Absent
        }
        Err(error) => Found::Unknown(error),
    }
}

/// Why a file was not replaced.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Unreplaced {
    /// The operating system's reason.
    #[source]
    pub error: io::Error,
    /// The new content is there all the same, but it is not known to be on stable storage. Otherwise the
    /// file is as it was.
    pub visible: bool,
}

/// Somebody else has written a file meanwhile.
#[derive(Debug, thiserror::Error)]
#[error("somebody else has changed it meanwhile")]
struct Changed;

impl Unreplaced {
    /// True if somebody else has changed the file meanwhile.
    pub fn is_changed(&self) -> bool {
        self.error.get_ref().is_some_and(|error| error.is::<Changed>())
    }
}

impl From<io::Error> for Unreplaced {
    fn from(error: io::Error) -> Self {
        Self { error, visible: false }
    }
}

impl From<Unreplaced> for io::Error {
    fn from(unreplaced: Unreplaced) -> Self {
        unreplaced.error
    }
}

/// [`replace_as`] with [`Mode::Private`].
///
/// # Errors
/// As [`replace_as`].
pub fn replace(path: &Path, bytes: &[u8]) -> Result<(), Unreplaced> {
    replace_as(path, bytes, Mode::Private)
}

/// Replaces a file or creates it, and returns when that is on stable storage. A link to the file stays a link. The owner
/// stays, if this process may give files away.
///
/// # Errors
/// [`Unreplaced`]; a file whose new name cannot be made stable is exchanged back.
pub fn replace_as(path: &Path, bytes: &[u8], mode: Mode) -> Result<(), Unreplaced> {
    replace_checked(path, bytes, mode, Directory::sync, |_| Ok(()))
}

/// The same, but only while the file has the content `before`; `None`: while there is none. It is compared once the
/// new content waits beside it, and what the exchange has displaced is compared again. So a file that somebody else
/// has put there meanwhile comes back, where the file system can exchange names.
///
/// # Errors
/// [`Unreplaced`], which [says](Unreplaced::is_changed) if the content was another one.
pub fn replace_known(path: &Path, before: Option<&[u8]>, bytes: &[u8]) -> Result<(), Unreplaced> {
    replace_checked(path, bytes, Mode::Private, Directory::sync, |path| is_still(path, before))
}

/// # Errors
/// The content is another one, or cannot be read.
fn is_still(path: &Path, before: Option<&[u8]>) -> io::Result<()> {
    // One that is longer is another one.
    let most = before.map_or(0, <[u8]>::len) as u64;
    let same = match (fs::read(path, most), before) {
        (Ok(found), Some(before)) => found == before,
        (Ok(_), None) => false,
        (Err(error), _) if error.kind() == ErrorKind::FileTooLarge => false,
        (Err(error), before) if error.kind() == ErrorKind::NotFound => before.is_none(),
        (Err(error), _) => return Err(error),
    };
    if same { Ok(()) } else { Err(io::Error::other(Changed)) }
}

/// Writes a file and flushes it. `old`: the file that it will replace.
fn write_fresh(
    (directory, fresh): (&Directory, &OsStr),
    bytes: &[u8],
    mode: Mode,
    old: Option<&Metadata>,
) -> io::Result<()> {
    let bits = mode.bits(old.map(|old| old.permissions().mode() & 0o7777));
    let created = if bits.is_some() { 0o600 } else { 0o666 };
    let file = directory.create(fresh, created)?;
    fs::write(&file, bytes)?;
    if let Some(old) = old {
        // Fails without privileges: the file is this process's own then.
        let _ = fchown(&file, Some(old.uid()), Some(old.gid()));
    }
    if let Some(bits) = bits {
        // After the owner, which takes away set-user-ID.
        file.set_permissions(Permissions::from_mode(bits))?;
    }
    fs::sync(&file)
}

/// [`replace_as`], with a function that makes the names in a directory stable, and a check of what is replaced: before
/// the exchange, and after it.
fn replace_checked(
    path: &Path,
    bytes: &[u8],
    mode: Mode,
    sync: impl Fn(&Directory) -> io::Result<()>,
    check: impl Fn(&Path) -> io::Result<()>,
) -> Result<(), Unreplaced> {
    let path = real(path)?;
    let name = path.file_name().ok_or(io::Error::from(ErrorKind::InvalidInput))?;
    // Whoever may rename what leads there does not decide where it is written.
    let directory = Directory::open(parent(&path))?;
    let path = directory.path().join(name);
    // A link that leads nowhere is replaced itself.
    let (old, is_there) = match look_at_name(&path) {
        Found::There(found) if found.is_symlink() => (None, true),
        Found::There(found) => (Some(found), true),
        Found::Absent => (None, false),
        Found::Unknown(error) => return Err(error.into()),
    };
    let fresh_path = fresh(&path);
    let fresh = fresh_path.file_name().unwrap_or_default();
    let written = write_fresh((&directory, fresh), bytes, mode, old.as_ref());
    let ready = written.and_then(|()| check(&path)).map_err(Unreplaced::from);
    // What was displaced and is another one comes back, as after a sync that has failed.
    let looked = Cell::new(false);
    let stable = || match looked.replace(true) {
        false => check(&fresh_path).and_then(|()| sync(&directory)),
        true => sync(&directory),
    };
    let rename = |flags| directory.rename(fresh, name, flags);
    let put = || {
        rename(RenameFlags::empty())?;
        sync(&directory).map_err(|error| Unreplaced { error, visible: true })
    };
    let mut result = ready.and_then(|()| match is_there {
        true => match exchange_by(|| rename(RenameFlags::EXCHANGE), stable) {
            // What cannot exchange replaces: NFS, and ZFS before 2.2.
            Err(Unreplaced { error, .. }) if is_unknown(&error) => put(),
            other => other,
        },
        // There was nothing before, so nothing is what it goes back to.
        false => put().map_err(|failed| Unreplaced {
            visible: failed.visible && directory.remove(name).is_err(),
            ..failed
        }),
    });
    match &mut result {
        Err(failed) if failed.visible && failed.is_changed() => {
            // Whoever has changed it has removed it since: what they wrote first is better than none of it.
            failed.visible = rename(RenameFlags::empty()).is_err();
        }
        _ => {}
    }
    // It is the old file now, or the new one that is of no use.
    let _ = directory.remove(fresh);
    result
}

/// The file that a path leads to, which may be missing. A link is only followed if it is root's or this user's:
/// otherwise somebody else would decide what is replaced.
///
/// # Errors
/// The operating system's; the link is another user's.
fn real(path: &Path) -> io::Result<PathBuf> {
    /// As many as the system follows.
    const LINKS: usize = 40;
    let mut at = path.to_owned();
    for _ in 0..LINKS {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = match rustix::fs::open(&at, flags, rustix::fs::Mode::empty()) {
            // A link that leads nowhere is meant itself.
            Err(Errno::NOENT) => return Ok(path.to_owned()),
            found => found?,
        };
        let is = rustix::fs::fstat(&found)?;
        if FileType::from_raw_mode(is.st_mode) != FileType::Symlink {
            return Ok(at);
        }
        trusted(&at, is.st_uid, rustix::process::geteuid().as_raw())?;
        let to = rustix::fs::readlinkat(&found, "", Vec::new())?;
        at = parent(&at).join(OsStr::from_bytes(to.as_bytes()));
    }
    Err(Errno::LOOP.into())
}

/// # Errors
/// A link of this owner is not followed by this user.
fn trusted(link: &Path, owner: u32, user: u32) -> io::Result<()> {
    if [0, user].contains(&owner) {
        return Ok(());
    }
    let text =
        format!("{} is a symbolic link of user {owner}, which is not followed", link.display());
    Err(io::Error::new(ErrorKind::PermissionDenied, text))
}

/// True if the file system cannot exchange names.
fn is_unknown(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP))
}

/// Lets two files change their names, and makes that stable. Whatever cannot be made stable is exchanged back.
///
/// # Errors
/// [`Unreplaced`].
pub fn exchange(
    one: &Path,
    other: &Path,
    sync: impl Fn(&Path) -> io::Result<()>,
) -> Result<(), Unreplaced> {
    exchange_by(|| fs::rename_with(one, other, RenameFlags::EXCHANGE), || sync(other))
}

/// The same, by functions that exchange the names and make them stable.
fn exchange_by(
    swap: impl Fn() -> io::Result<()>,
    sync: impl Fn() -> io::Result<()>,
) -> Result<(), Unreplaced> {
    swap()?;
    let Err(error) = sync() else { return Ok(()) };
    let visible = swap().is_err();
    // Which of both a crash would leave cannot be told if this fails as well.
    let _ = sync();
    Err(Unreplaced { error, visible })
}

/// Why a file was not removed.
#[derive(Debug, thiserror::Error)]
pub enum Unremoved {
    /// It is there still.
    #[error("{0}")]
    There(#[source] io::Error),
    /// It is gone, but its directory cannot be made stable.
    #[error(
        "it is gone, but it may be there again after a power loss: its directory cannot be synced ({0})"
    )]
    Unsynced(#[source] io::Error),
}

impl From<Unremoved> for io::Error {
    fn from(unremoved: Unremoved) -> Self {
        match unremoved {
            Unremoved::There(error) | Unremoved::Unsynced(error) => error,
        }
    }
}

/// Removes a file that may be there. True if it was; that it is gone is on stable storage then, also if it was gone
/// before: who removed it may have failed to make that stable, or have ended before.
///
/// # Errors
/// [`Unremoved`].
pub fn remove(path: &Path) -> Result<bool, Unremoved> {
    remove_by(path, sync_parent)
}

fn remove_by(path: &Path, sync: impl Fn(&Path) -> io::Result<()>) -> Result<bool, Unremoved> {
    let was_there = match fs::remove(path) {
        Ok(()) => true,
        // A file system that takes no writes refuses to remove even what is not there.
        Err(_) if is_gone(path) => false,
        Err(error) => return Err(Unremoved::There(error)),
    };
    match sync(path) {
        Ok(()) => Ok(was_there),
        // Nor is there a directory where it could be.
        Err(error) if !was_there && error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Unremoved::Unsynced(error)),
    }
}

fn is_gone(path: &Path) -> bool {
    path.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

/// Removes what a replacement has left that was cut short.
pub fn clear(path: &Path) {
    let path = canonicalize(path).unwrap_or_else(|_| path.to_owned());
    // It is in nobody's way: the next replacement writes over it.
    let _ = fs::remove(&fresh(&path));
}

/// Makes a directory with this mode, and those above it that are missing. That it is there is on stable storage then.
///
/// # Errors
/// The operating system's. One that is there already is none.
pub fn make_directory(path: &Path, mode: u32) -> io::Result<()> {
    match fs::create_directory(path, mode) {
        Ok(()) => sync_parent(path),
        // Who made it may have failed to make that stable. Where the directory above cannot be opened, it was not us.
        Err(_) if path.is_dir() => match sync_parent(path) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(()),
            other => other,
        },
        Err(error) if error.kind() == ErrorKind::NotFound && parent(path) != path => {
            make_directory(parent(path), mode)?;
            fs::create_directory(path, mode)?;
            sync_parent(path)
        }
        Err(error) => Err(error),
    }
}

/// Makes a rename or a removal stable.
///
/// # Errors
/// The operating system's.
pub fn sync_parent(path: &Path) -> io::Result<()> {
    fs::sync_directory(parent(path))
}

/// The directory that a path is in.
pub fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The temporary file that new content is written to.
pub fn fresh(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".new");
    parent(path).join(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
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
    fn a_new_file_has_the_mode_that_was_asked_for() {
        let dir = TempDir::new().expect("it can");
        let mode = |path: &Path| fs::metadata(path).expect("it can").permissions().mode() & 0o7777;
        let (own, shared) = (dir.path().join("own"), dir.path().join("shared"));
        replace_as(&own, b"1", Mode::Exactly(0o754)).expect("it can");
        replace_as(&shared, b"1", Mode::Shared).expect("it can");
        fs::write(dir.path().join("plain"), "").expect("it can");
        assert_eq!((mode(&own), mode(&shared)), (0o754, mode(&dir.path().join("plain"))));
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o640)).expect("it can");
        replace_as(&shared, b"2", Mode::Shared).expect("it can");
        replace_as(&own, b"2", Mode::Private).expect("it can");
        assert_eq!((mode(&own), mode(&shared)), (0o754, 0o640));
    }

    /// Whoever may write in the folder cannot have another file written to.
    #[test]
    fn nothing_is_written_through_what_waits_under_the_temporary_name() {
        let dir = TempDir::new().expect("it can");
        let [path, other, chain] = ["file", "other", "chain"].map(|name| dir.path().join(name));
        fs::write(&other, "other").expect("it can");
        std::os::unix::fs::symlink(&other, fresh(&path)).expect("it can");
        replace(&path, b"one").expect("it can");
        let read = |path: &Path| fs::read_to_string(path).expect("it can");
        assert_eq!((read(&path).as_str(), read(&other).as_str()), ("one", "other"));
        assert!(!fs::symlink_metadata(&path).expect("it can").is_symlink());
        // Links of this user lead on, from wherever it is called.
        std::os::unix::fs::symlink("other", &chain).expect("it can");
        assert_eq!(real(&chain).expect("it can"), other);
        std::os::unix::fs::symlink("none", dir.path().join("dangling")).expect("it can");
        assert_eq!(
            real(&dir.path().join("dangling")).expect("it can"),
            dir.path().join("dangling")
        );
        std::os::unix::fs::symlink("loop", dir.path().join("loop")).expect("it can");
        assert!(real(&dir.path().join("loop")).is_err());
    }

    #[test]
    fn a_link_of_another_user_is_not_followed() {
        let trusted = |owner, user| trusted(Path::new("/x"), owner, user);
        assert!(trusted(0, 990).is_ok() && trusted(990, 990).is_ok() && trusted(0, 0).is_ok());
        for (owner, user) in [(990, 0), (1000, 990)] {
            let error = trusted(owner, user).expect_err("another user's");
            assert_eq!(error.kind(), ErrorKind::PermissionDenied);
            assert!(error.to_string().contains(&format!("of user {owner}")), "{error}");
        }
    }

    #[test]
    fn a_directory_is_made_with_those_above_it() {
        let dir = TempDir::new().expect("it can");
        let path = dir.path().join("a/b/c");
        for _ in 0..2 {
            make_directory(&path, 0o700).expect("it can");
        }
        let mode = fs::metadata(dir.path().join("a")).expect("it can").permissions().mode();
        assert_eq!((path.is_dir(), mode & 0o777), (true, 0o700));
        fs::write(path.join("file"), "").expect("it can");
        assert!(make_directory(&path.join("file"), 0o700).is_err());
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

    /// Fails as often as it says, then works.
    fn failing<T: ?Sized>(times: usize) -> impl Fn(&T) -> io::Result<()> {
        let left = std::cell::Cell::new(times);
        move |_| match left.get() {
            0 => Ok(()),
            n => {
                left.set(n - 1);
                Err(io::Error::from_raw_os_error(5))
            }
        }
    }

    /// A removal that was not made stable may come back. To find the file gone says nothing of that.
    #[test]
    fn what_is_gone_already_is_made_stable_all_the_same() {
        let dir = TempDir::new().expect("it can");
        let path = dir.path().join("file");
        replace(&path, b"one").expect("it can");
        let sync = failing(2);
        for _ in 0..2 {
            let failed = remove_by(&path, &sync).expect_err("no sync");
            assert!(matches!(failed, Unremoved::Unsynced(_)) && !path.exists(), "{failed:?}");
        }
        assert!(!remove_by(&path, &sync).expect("it can"));
        assert!(!remove(&dir.path().join("none/file")).expect("nor can it be there"));
    }

    #[test]
    fn what_cannot_be_made_stable_is_exchanged_back() {
        let dir = TempDir::new().expect("it can");
        let path = dir.path().join("file");
        replace(&path, b"one").expect("it can");
        for times in [1, 2] {
            let failed = replace_checked(&path, b"two", Mode::Private, failing(times), |_| Ok(()))
                .expect_err("no sync");
            assert!(!failed.visible, "{failed:?}");
            assert_eq!(fs::read(&path).expect("it can"), b"one");
            assert_eq!(fs::read_dir(dir.path()).expect("it can").count(), 1, "nothing is left");
        }
        replace_checked(&path, b"two", Mode::Private, failing(0), |_| Ok(())).expect("it can");
        assert_eq!(fs::read(&path).expect("it can"), b"two");
        let new = dir.path().join("new");
        assert!(
            !replace_checked(&new, b"new", Mode::Private, failing(1), |_| Ok(()))
                .expect_err("no sync")
                .visible
        );
        assert!(matches!(look(&new), Found::Absent));
    }

    #[test]
    fn what_somebody_else_has_written_meanwhile_stays() {
        let dir = TempDir::new().expect("it can");
        let path = dir.path().join("file");
        let read = || fs::read(&path).expect("it can");
        replace_known(&path, None, b"one").expect("there is none");
        replace_known(&path, Some(b"one"), b"two").expect("it is still that");
        for before in [None, Some(&b"one"[..])] {
            let failed = replace_known(&path, before, b"three").expect_err("it is another");
            assert!(failed.is_changed() && !failed.visible, "{failed:?}");
        }
        // An editor puts its own there after the look before the exchange.
        let looks = Cell::new(0);
        let edited = |at: &Path| {
            let same = is_still(at, Some(b"two"));
            if looks.replace(looks.get() + 1) == 0 {
                let own = dir.path().join("editor");
                fs::write(&own, b"by hand").and_then(|()| fs::rename(&own, &path))?;
            }
            same
        };
        let failed = replace_checked(&path, b"three", Mode::Private, Directory::sync, edited)
            .expect_err("by hand");
        assert!(failed.is_changed() && !failed.visible && looks.get() == 2, "{failed:?}");
        assert_eq!(
            (read(), fs::read_dir(dir.path()).expect("it can").count()),
            (b"by hand".into(), 1)
        );
    }

    #[test]
    fn an_exchange_whose_sync_fails_leaves_both_files_where_they_were() {
        let dir = TempDir::new().expect("it can");
        let (one, other) = (dir.path().join("one"), dir.path().join("other"));
        fs::write(&one, "1").expect("it can");
        fs::write(&other, "2").expect("it can");
        let failed = exchange(&one, &other, failing(2)).expect_err("no sync");
        assert!(!failed.visible);
        assert_eq!(
            (fs::read(&one).expect("one"), fs::read(&other).expect("other")),
            (b"1".to_vec(), b"2".to_vec())
        );
        // The second name has gone when it is to be exchanged back.
        let removes = |path: &Path| {
            fs::remove_file(dir.path().join("one"))?;
            let _ = path;
            Err(io::Error::from_raw_os_error(5))
        };
        let failed = exchange(&one, &other, removes).expect_err("no sync");
        assert!(failed.visible, "it is said that the exchange stands");
        assert_eq!(fs::read(&other).expect("other"), b"1");
    }

    #[test]
    fn what_cannot_be_looked_at_is_not_absent() {
        let dir = TempDir::new().expect("it can");
        let file = dir.path().join("file");
        fs::write(&file, "").expect("it can");
        assert!(matches!(look(&file), Found::There(_)));
        assert!(matches!(look(&file.join("below")), Found::Absent));
        assert!(matches!(look(&dir.path().join("none")), Found::Absent));
        let long = dir.path().join("x".repeat(300));
        assert!(matches!(look(&long), Found::Unknown(_)), "ENAMETOOLONG");
    }
}
