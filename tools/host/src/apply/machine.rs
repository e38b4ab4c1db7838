//! A machine that can be changed: the live one, or one that tests make up.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use lunet_files::{self as files, Mode};
use lunet_os::process::{self, Failed};

use crate::source::{Live, Source};

/// How long a program may take that changes something: `zfs set` waits for its pool, an adapter starts anew with other rings.
const ACT_TIME: Duration = Duration::from_secs(120);

/// Most of the output of such a program that is kept, in bytes: `midclt` tells all start scripts.
const LONGEST: u64 = 4 << 20;

/// What a change failed for, in words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Fault(pub String);

/// An ordinary file as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// What is in it.
    pub bytes: Vec<u8>,
    /// Permission bits, as of chmod(2).
    pub mode: u32,
}

/// A machine that can be looked at and changed.
pub trait Machine {
    /// The same machine, to be looked at.
    fn source(&self) -> &dyn Source;

    /// Writes a value into a file of the kernel's.
    ///
    /// # Errors
    /// The kernel refuses, or there is no such file.
    fn write(&self, path: &str, value: &str) -> Result<(), Fault>;

    /// An ordinary file; `None` if it is not there.
    ///
    /// # Errors
    /// It cannot be read.
    fn get(&self, path: &str) -> Result<Option<Kept>, Fault>;

    /// Puts an ordinary file there, or takes it away, so that after a crash it is either as before
    /// or as wanted, and as wanted once this has returned.
    ///
    /// # Errors
    /// It cannot be written.
    fn put(&self, path: &str, kept: Option<&Kept>) -> Result<(), Fault>;

    /// Takes away what a `put` that was killed has left beside the file.
    ///
    /// # Errors
    /// It is there and cannot be removed.
    fn tidy(&self, path: &str) -> Result<(), Fault>;

    /// Takes a directory away if it is empty.
    fn prune(&self, directory: &str);

    /// Runs a program that changes something.
    ///
    /// # Errors
    /// It is not there or fails; the message is its own.
    fn act(&self, program: &str, args: &[&str]) -> Result<String, Fault>;
}

/// The machine that this runs on.
#[derive(Clone, Copy, Debug, Default)]
pub struct LiveMachine;

/// Keeps everybody else from changing the machine until it is dropped.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "held open")] File);

impl Lock {
    /// Takes the lock of a directory of the journal, which is made if it is missing.
    ///
    /// # Errors
    /// Somebody else has it, or the directory cannot be written.
    pub fn take(directory: &str) -> Result<Self, Fault> {
        let path = Path::new(directory).join("lock");
        let open = || {
            fs::create_dir_all(directory)?;
            OpenOptions::new().create(true).append(true).mode(0o600).open(&path)
        };
        let file = open().map_err(|error| {
            let next = match error.kind() {
                io::ErrorKind::PermissionDenied => ": run it as root",
                _ => "",
            };
            Fault(format!("the journal cannot be kept in {directory}: {}{next}", words(&error).0))
        })?;
        let exclusive = rustix::fs::FlockOperation::NonBlockingLockExclusive;
        match rustix::fs::flock(&file, exclusive) {
            Ok(()) => Ok(Self(file)),
            Err(_) => Err(Fault(format!("another lunet is changing this machine ({directory})"))),
        }
    }
}

impl Lock {
    /// The same with a directory that is for this user alone. What is there has to be this user's own: whoever else had made it could
    /// let two at the machine at once.
    ///
    /// # Errors
    /// The same; and directory or lock are another user's, or links.
    pub fn take_private(directory: &str) -> Result<Self, Fault> {
        let (path, lock) = (Path::new(directory), Path::new(directory).join("lock"));
        let wrong = |error| Fault(format!("{directory} cannot be made: {}", words(&error)));
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(wrong(error)),
            _ => Ok(()),
        }?;
        let own = rustix::process::geteuid().as_raw();
        let found = fs::symlink_metadata(path).map_err(wrong)?;
        let is_lock = match fs::symlink_metadata(&lock) {
            Ok(lock) => lock.is_file() && lock.uid() == own,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        };
        if !found.is_dir() || found.uid() != own || !is_lock {
            return Err(Fault(format!(
                "{directory} or the lock in it is not of this user's own making, and is not believed: see who made it, and remove it"
            )));
        }
        if found.mode() & 0o777 != 0o700 {
            fs::set_permissions(path, Permissions::from_mode(0o700)).map_err(wrong)?;
        }
        Self::take(directory)
    }
}

/// An error of the operating system's in words, without its number.
fn words(error: &io::Error) -> Fault {
    let text = error.to_string();
    let plain = text.split(" (os error").next().unwrap_or_default();
    let mut letters = plain.chars();
    let first = letters.next().map(|letter| letter.to_lowercase().to_string());
    Fault(first.unwrap_or_default() + letters.as_str())
}

impl Machine for LiveMachine {
    fn source(&self) -> &dyn Source {
        &Live
    }

    fn write(&self, path: &str, value: &str) -> Result<(), Fault> {
        let file = OpenOptions::new().write(true).open(path);
        let written = file.and_then(|mut file| file.write_all(format!("{value}\n").as_bytes()));
        written.map_err(|error| words(&error))
    }

    fn get(&self, path: &str) -> Result<Option<Kept>, Fault> {
        let read = || -> io::Result<Kept> {
            let mode = fs::metadata(path)?.permissions().mode() & 0o7777;
            Ok(Kept { bytes: fs::read(path)?, mode })
        };
        match read() {
            Ok(kept) => Ok(Some(kept)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(words(&error)),
        }
    }

    fn put(&self, path: &str, kept: Option<&Kept>) -> Result<(), Fault> {
        put(&real(Path::new(path)), kept).map_err(|error| words(&error))
    }

    fn tidy(&self, path: &str) -> Result<(), Fault> {
        let left = files::fresh(&real(Path::new(path)));
        files::remove(&left).map(drop).map_err(|error| words(&error.into()))
    }

    fn prune(&self, directory: &str) {
        // It stays if somebody has put something there.
        let _ = fs::remove_dir(directory);
    }

    fn act(&self, program: &str, args: &[&str]) -> Result<String, Fault> {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = std::process::Command::new(program);
        command
            .args(args)
            .env("LC_ALL", "C")
            .env("PATH", format!("{path}:/usr/local/sbin:/usr/sbin:/sbin"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let done =
            process::run(&mut command, ACT_TIME, LONGEST).map_err(|failed| match failed {
                Failed::Start(error) => Fault(format!("{program}: {}", words(&error))),
                late => Fault(format!("{program} {late}")),
            })?;
        if done.status.success() {
            return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
        }
        let told = String::from_utf8_lossy(&done.stderr);
        let line = told.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it failed");
        Err(Fault(format!("{program}: {}", line.trim())))
    }
}

/// A link, as /etc/default/grub may be one, stays a link: what is behind it is meant.
fn real(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// Replaces or removes a file; the directory is made if it is missing.
fn put(path: &Path, kept: Option<&Kept>) -> io::Result<()> {
    let Some(kept) = kept else { return Ok(files::remove(path).map(drop)?) };
    fs::create_dir_all(files::parent(path))?;
    Ok(files::replace_as(path, &kept.bytes, Mode::Exactly(kept.mode))?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};

    use super::*;

    #[test]
    fn a_private_lock_is_in_a_directory_of_its_own() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name).to_str().expect("UTF-8").to_owned();
        let mode = |path: &str| fs::metadata(path).expect("there").mode() & 0o777;
        let (fresh, wide, link, with_link) = (at("fresh"), at("wide"), at("link"), at("with-link"));
        let held = Lock::take_private(&fresh).expect("the lock");
        assert_eq!((mode(&fresh), mode(&format!("{fresh}/lock"))), (0o700, 0o600));
        let error = Lock::take_private(&fresh).expect_err("it is taken");
        assert!(error.0.contains("another lunet"), "{error}");
        drop(held);
        Lock::take_private(&fresh).expect("it is free");
        fs::create_dir(&wide).expect("a directory");
        fs::set_permissions(&wide, Permissions::from_mode(0o755)).expect("a mode");
        Lock::take_private(&wide).expect("the lock");
        assert_eq!(mode(&wide), 0o700);
        symlink(&fresh, &link).expect("a link");
        fs::create_dir(&with_link).expect("a directory");
        symlink(format!("{fresh}/lock"), format!("{with_link}/lock")).expect("a link");
        let mut refused = vec![link, with_link];
        // Where this user may give files away.
        let (of_other, other) = (at("of-other"), at("lock-of-other"));
        fs::create_dir(&of_other).expect("a directory");
        fs::create_dir(&other).expect("a directory");
        File::create(format!("{other}/lock")).expect("a file");
        let given = [(&of_other, of_other.clone()), (&other, format!("{other}/lock"))];
        let given = given.iter().filter(|(_, file)| chown(file, Some(65534), None).is_ok());
        refused.extend(given.map(|(directory, _)| (*directory).clone()));
        for directory in refused {
            let error = Lock::take_private(&directory).expect_err("not ours");
            assert!(error.0.contains("is not believed"), "{error}");
        }
    }
}
