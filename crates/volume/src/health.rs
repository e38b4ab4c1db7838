//! Whether the storage of a volume has kept what it promised.
//!
//! Linux reports a failed write-back once for each open file, to whoever flushes next, and marks the lost pages clean.
//! The second flush of the same file succeeds, over blocks that are gone. So a failure is kept here, once for
//! each open storage and for all shards: every request passes [`Health::refuses`] on its way to a channel, and
//! every answer passes [`Health::judge`] on its way back. Only an administrator ends it, by opening the volume anew
//! (`lunet volume reopen`). A mark beside the volume's reservations keeps it through a restart: sessions come
//! back after one, and flush what they wrote before.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use lunet_block::{Error, Op, Size};
use lunet_os::sync::Mutex;
use serde::{Deserialize, Serialize};

use lunet_files::{self as files, ReadError};

/// Bits of [`Health::word`].
const WRITE_BACK: u32 = 1;
const STORAGE: u32 = 1 << 1;
/// The content is nobody's.
const CONTENT: u32 = 1 << 2;

/// A larger mark is none of ours, in bytes.
const MAX_MARK: u64 = 4096;

/// The version of the mark.
const VERSION: u32 = 1;

const EIO: i32 = 5;

/// How long answers wait for a mark that cannot be kept. After that it is tried once in this time.
const PATIENCE: Duration = Duration::from_secs(20);

/// When a mark is tried again until then.
const AGAIN: Duration = Duration::from_millis(500);

/// What went wrong with the storage of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Cause {
    /// The storage has failed to make stable what was acknowledged: some of it may be lost. Reads and buffered
    /// writes go on; every flush and every write with FUA fails.
    WriteBack {
        /// What was asked of the storage when it told.
        during: During,
        /// The operating system's error number.
        errno: i32,
    },
    /// The storage could not be opened, so nothing is read or written.
    NotServed,
    /// The file or device is no more at its path. Reads go on; nothing is written or flushed.
    Missing,
    /// Another file or device is at its path. Reads go on; nothing is written or flushed.
    Replaced,
    /// Another client of Ceph has the image, or this one was shut out of the cluster. Nothing is read, written or flushed.
    TakenOver {
        /// The error number by which it was found out.
        errno: i32,
    },
    /// The file or device has become smaller than the volume. Reads go on; nothing is written or flushed.
    CutShort {
        /// Its size now, in bytes.
        bytes: u64,
    },
    /// A rollback was cut off, or has failed: the content is anything between both. Nothing is read, written or flushed.
    RolledBackInPart,
}

/// What was asked of the storage when it told of a failed write-back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum During {
    /// A flush.
    Flush,
    /// The flush that belongs to a write with FUA.
    FuaWrite,
}

impl Cause {
    const fn bit(&self) -> u32 {
        match self {
            Self::WriteBack { .. } => WRITE_BACK,
            Self::NotServed
            | Self::Missing
            | Self::Replaced
            | Self::TakenOver { .. }
            | Self::CutShort { .. } => STORAGE,
            Self::RolledBackInPart => CONTENT,
        }
    }
}

/// What it means, as the end of a sentence about the volume.
impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WriteBack { during, errno } => {
                let during = match during {
                    During::Flush => "a flush",
                    During::FuaWrite => "a write with FUA",
                };
                let error = std::io::Error::from_raw_os_error(*errno);
                write!(
                    f,
                    "write-back failed during {during} ({error}): acknowledged writes that were not \
                     flushed before may be lost, and every flush fails until the volume is reopened"
                )
            }
            Self::NotServed => f.write_str(
                "its storage could not be opened, so the volume is not served: see `lunet volume list`",
            ),
            Self::Missing => f.write_str(
                "the file or device is no longer at its path: nothing is written to it any more",
            ),
            Self::Replaced => f.write_str(
                "another file or device is at its path: nothing is written to it any more",
            ),
            Self::TakenOver { errno } => write!(
                f,
                "its image of Ceph was taken over by another client, or this one was shut out of the cluster ({}): \
                 nothing is read from it or written to it any more",
                std::io::Error::from_raw_os_error(*errno)
            ),
            Self::CutShort { bytes } => write!(
                f,
                "the file or device was cut to {}, which is less than the volume: nothing is \
                 written to it any more",
                Size(*bytes)
            ),
            Self::RolledBackInPart => f.write_str(
                "a rollback of it was cut off, or has failed, so what it holds is neither of both: nothing is read from it or \
                 written to it until a rollback has ended",
            ),
        }
    }
}

/// A failure, and when lunet learned of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// What went wrong.
    pub cause: Cause,
    /// Seconds since 1970, UTC.
    pub since: u64,
}

/// The health of an open storage, shared by all shards and helper threads. It outlives a resize, which keeps the
/// storage open, and ends with the storage: what is opened anew has a new one.
#[derive(Debug)]
pub struct Health {
    /// The volume's name, for the log.
    volume: String,
    /// Which kinds of fault there are. Written when something fails, so every core keeps its own copy.
    word: AtomicU32,
    /// The first of each kind.
    faults: Mutex<Vec<Fault>>,
    mark: Arc<Mutex<Option<MarkFile>>>,
    /// The mark is being made stable: nobody is told of the failure before that has ended, since a server that is
    /// killed after an answer has to know of it when it starts again.
    marking: Arc<AtomicBool>,
}

/// Which storage a mark is about: the failure is that of the storage, not of the volume's name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StorageId {
    /// Path of the file or device.
    pub path: PathBuf,
    /// What it is known by wherever it is: the mark of a file, the identity of a device.
    pub known_by: Option<String>,
}

impl StorageId {
    /// True if both are the same, as far as it can be told.
    pub fn is(&self, other: &Self) -> bool {
        match (&self.known_by, &other.known_by) {
            (Some(one), Some(other)) => one == other,
            _ => self.path == other.path,
        }
    }
}

/// Where the failed write-back of a volume is kept, and what that is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkFile {
    /// Path of the mark.
    pub path: PathBuf,
    /// The storage of the volume; `None` if nothing is known of it.
    pub storage: Option<StorageId>,
}

impl From<PathBuf> for MarkFile {
    fn from(path: PathBuf) -> Self {
        Self { path, storage: None }
    }
}

/// The mark of a failed write-back.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mark {
    version: u32,
    fault: Fault,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    storage: Option<StorageId>,
}

/// Reads a mark: what has failed, and of which storage. `None` if there is no such file.
///
/// # Errors
/// It cannot be read, is damaged, or of another version.
pub fn read_mark(path: &Path) -> Result<Option<(Fault, Option<StorageId>)>, ReadError> {
    let Some(text) = files::read(path, MAX_MARK)? else { return Ok(None) };
    let mark: Mark = serde_json::from_slice(&text)
        .map_err(|error| ReadError::Damaged { path: path.to_owned(), error })?;
    match mark.version {
        VERSION => Ok(Some((mark.fault, mark.storage))),
        found => Err(ReadError::Version { path: path.to_owned(), found, known: VERSION }),
    }
}

impl Health {
    /// The health of a storage that is sound, and is forgotten with the server.
    pub fn new(volume: &str) -> Arc<Self> {
        Self::with_mark(volume, None)
    }

    /// The health of a storage that was just opened on purpose, and is sound. From now on a failed write-back is
    /// kept in the file `mark`; the one of before is [taken away](Self::forget) by its own health.
    pub fn kept(volume: &str, mark: impl Into<MarkFile>) -> Arc<Self> {
        Self::with_mark(volume, Some(mark.into()))
    }

    fn with_mark(volume: &str, mark: Option<MarkFile>) -> Arc<Self> {
        let (word, faults) = (AtomicU32::new(0), Mutex::default());
        let mark = Arc::new(Mutex::new(mark));
        let marking = Arc::default();
        Arc::new(Self { volume: volume.to_owned(), word, faults, mark, marking })
    }

    /// The health of a storage that is opened as a server starts, and failed before if the file `mark` says so. One
    /// that cannot be read counts as a failure: nobody knows what it said.
    pub fn found(volume: &str, mark: impl Into<MarkFile>) -> Arc<Self> {
        let mark = mark.into();
        let read = read_mark(&mark.path).map(|found| found.map(|(fault, _)| fault));
        let fault = read.unwrap_or_else(|error| {
            tracing::error!(volume, "{error}");
            let cause = Cause::WriteBack { during: During::Flush, errno: EIO };
            Some(Fault { cause, since: now() })
        });
        let health = Self::kept(volume, mark);
        if let Some(fault) = fault {
            tracing::error!(volume, since = fault.since, "before this start: {}", fault.cause);
            health.take_up(fault, false);
        }
        health
    }

    /// The storage is not in use any more, or was opened anew on purpose: takes the mark away, for good.
    ///
    /// # Errors
    /// The operating system's; the mark may be there still.
    pub fn forget(&self) -> io::Result<()> {
        let mut mark = self.mark.lock().unwrap_or_else(PoisonError::into_inner);
        mark.take().map_or(Ok(()), |mark| Ok(files::remove(&mark.path).map(drop)?))
    }

    /// Makes the mark stable, on a thread of its own: an event loop cannot wait. Answers wait until
    /// [`is_marking`](Self::is_marking) ends.
    fn keep(&self, fault: Fault) {
        let (volume, mark) = (self.volume.clone(), self.mark.clone());
        let marking = Marking(self.marking.clone());
        let work = move || {
            let mut marking = Some(marking);
            let begun = lunet_os::time::now();
            while let Err(error) = keep_mark(&mark, fault) {
                tracing::error!(%volume, %error, "the mark of its failed write-back cannot be kept yet");
                if marking.is_some() && lunet_os::time::since(begun) > PATIENCE {
                    tracing::error!(%volume, "a restart will forget that its write-back failed");
                    marking = None;
                }
                lunet_os::thread::sleep(if marking.is_some() { AGAIN } else { PATIENCE });
            }
        };
        let thread = lunet_os::thread::spawn("lunet-mark", work);
        if let Err(error) = thread {
            tracing::error!(volume = %self.volume, %error, "no thread to keep the mark");
        }
    }

    /// True while the mark of a failed write-back is being made stable.
    pub(crate) fn is_marking(&self) -> bool {
        self.marking.load(Ordering::Acquire)
    }

    /// Waits until the mark of a failed write-back is stable, or cannot be, for at most `limit`. For a thread that
    /// is no shard. False if the time is over.
    pub fn wait_for_mark(&self, limit: Duration) -> bool {
        let until = lunet_os::time::now() + limit;
        while self.is_marking() {
            if lunet_os::time::now() >= until {
                return false;
            }
            lunet_os::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// The health of a volume that is not served.
    pub fn absent(volume: &str) -> Arc<Self> {
        let health = Self::new(volume);
        let since = lunet_os::time::unix().as_secs();
        health.take_up(Fault { cause: Cause::NotServed, since }, false);
        health
    }

    /// Remembers a failure for good, and logs it. True if it is the first of its kind: the others change
    /// nothing, and are not logged.
    pub fn fail(&self, cause: Cause) -> bool {
        self.fail_since(Fault { cause, since: now() })
    }

    /// Remembers that making something of the volume stable has failed with this error number, and waits, at most for
    /// `limit`, until that is kept. For a thread that is no shard.
    pub fn not_stable(&self, errno: i32, limit: Duration) {
        self.fail(Cause::WriteBack { during: During::Flush, errno });
        self.wait_for_mark(limit);
    }

    /// As [`fail`](Self::fail), for a failure of which something was known before.
    pub fn fail_since(&self, fault: Fault) -> bool {
        lunet_os::met(&fault.cause);
        let cause = fault.cause;
        let first = self.take_up(fault, cause.bit() == WRITE_BACK);
        if first {
            tracing::error!(volume = %self.volume, "{cause}");
            if cause.bit() == WRITE_BACK {
                self.keep(fault);
            }
        }
        first
    }

    fn take_up(&self, fault: Fault, to_mark: bool) -> bool {
        let bit = fault.cause.bit();
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        let first = self.word.load(Ordering::Relaxed) & bit == 0;
        if first {
            faults.push(fault);
            // Before anybody else can see the failure.
            self.marking.fetch_or(to_mark, Ordering::Release);
            self.word.fetch_or(bit, Ordering::Release);
        }
        first
    }

    /// What has failed in one of these ways is over. A failed write-back is not: see [`forget`](Self::forget).
    pub fn end(&self, over: impl Fn(&Cause) -> bool) {
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        faults.retain(|fault| fault.cause.bit() == WRITE_BACK || !over(&fault.cause));
        let word = faults.iter().fold(0, |word, fault| word | fault.cause.bit());
        self.word.store(word, Ordering::Release);
    }

    /// True if nothing has failed.
    pub fn is_sound(&self) -> bool {
        self.word.load(Ordering::Acquire) == 0
    }

    /// What has failed: the first failure of each kind.
    pub fn faults(&self) -> Vec<Fault> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The failed write-back, if there is one.
    pub fn write_back(&self) -> Option<Fault> {
        self.faults().into_iter().find(|fault| fault.cause.bit() == WRITE_BACK)
    }

    /// Why a request does not go to the storage any more. One load of a line that nobody writes.
    pub(crate) fn refuses(&self, op: Op) -> Option<Error> {
        let reads = matches!(op, Op::Read | Op::ReadMapped);
        let refused = if reads { CONTENT } else { STORAGE | CONTENT };
        (self.word.load(Ordering::Acquire) & refused != 0).then_some(Error::Gone)
    }

    /// What the answer of the storage to a request means. A failure to make data stable is remembered; after
    /// one, nothing is called stable any more, whatever the storage says.
    pub(crate) fn judge(&self, op: Op, result: Result<(), Error>) -> Result<(), Error> {
        let during = match op {
            Op::Flush => During::Flush,
            Op::Write { fua: true } => During::FuaWrite,
            Op::Read
            | Op::ReadMapped
            | Op::Write { fua: false }
            | Op::Unmap
            | Op::WriteZeroes { .. } => return result,
        };
        let errno = match (result, during) {
            (Err(Error::Cancelled | Error::Gone), _) => return result,
            (Err(Error::NotStable(errno)), _) => Some(errno),
            // There is nothing else to a flush that could fail.
            (Err(error), During::Flush) => Some(error.errno()),
            // The data of a write that failed by itself is still with the client.
            (Err(_), During::FuaWrite) => return result,
            (Ok(()), _) => None,
        };
        match errno {
            Some(errno) => {
                self.fail(Cause::WriteBack { during, errno });
                Err(Error::NotStable(errno))
            }
            None if self.is_sound() => result,
            None => match self.write_back().map(|fault| fault.cause) {
                Some(Cause::WriteBack { errno, .. }) => Err(Error::NotStable(errno)),
                _ => result,
            },
        }
    }
}

/// Makes the mark of a failure stable, if there is to be one still.
fn keep_mark(mark: &Mutex<Option<MarkFile>>, fault: Fault) -> io::Result<()> {
    let mark = mark.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(MarkFile { path, storage }) = &*mark else { return Ok(()) };
    let mark = Mark { version: VERSION, fault, storage: storage.clone() };
    Ok(files::replace(path, &serde_json::to_vec(&mark)?)?)
}

/// Ends when the mark is stable, or has not become so for too long.
struct Marking(Arc<AtomicBool>);

impl Drop for Marking {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

fn now() -> u64 {
    lunet_os::time::unix().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FUA: Op = Op::Write { fua: true };
    const WRITE: Op = Op::Write { fua: false };
    const FAILED: Result<(), Error> = Err(Error::NotStable(EIO));
    const CAUSE: Cause = Cause::WriteBack { during: During::Flush, errno: EIO };

    #[test]
    fn a_mark_that_cannot_be_kept_is_tried_until_it_can() {
        let dir = tempfile::TempDir::new().expect("a directory");
        let place = dir.path().join("not/there/yet");
        let health = Health::kept("v", place.join("v.failed"));
        health.fail(Cause::WriteBack { during: During::Flush, errno: EIO });
        assert!(!health.wait_for_mark(Duration::from_millis(50)), "nobody is told yet");
        std::fs::create_dir_all(&place).expect("a directory");
        assert!(health.wait_for_mark(PATIENCE));
        assert!(!Health::found("v", place.join("v.failed")).is_sound());
    }

    #[test]
    fn after_one_failed_flush_nothing_is_called_stable() {
        let health = Health::new("v");
        assert_eq!(health.judge(Op::Flush, Ok(())), Ok(()));
        assert_eq!(health.judge(Op::Flush, Err(Error::Io(EIO))), FAILED);
        assert_eq!(health.judge(Op::Flush, FAILED), FAILED);
        for op in [Op::Flush, FUA] {
            assert_eq!(health.judge(op, Ok(())), FAILED, "{op:?}");
        }
        for op in [Op::Read, Op::ReadMapped, WRITE, Op::Unmap] {
            assert_eq!((health.judge(op, Ok(())), health.refuses(op)), (Ok(()), None));
        }
        assert_eq!(health.faults().iter().map(|f| f.cause).collect::<Vec<_>>(), [CAUSE]);
        assert!(!health.is_sound() && !health.fail(CAUSE), "told once");
    }

    #[test]
    fn what_loses_nothing_that_was_acknowledged_is_no_failure_of_the_volume() {
        let health = Health::new("v");
        for (op, error) in [
            (Op::Read, Error::Io(EIO)),
            (WRITE, Error::Io(EIO)),
            (WRITE, Error::OutOfSpace),
            (FUA, Error::OutOfSpace),
            (FUA, Error::Io(EIO)),
            (Op::Unmap, Error::Io(EIO)),
            (Op::Flush, Error::Cancelled),
            (FUA, Error::Cancelled),
        ] {
            assert_eq!(health.judge(op, Err(error)), Err(error), "{op:?} {error}");
        }
        assert!(health.is_sound());
        assert_eq!(health.judge(FUA, FAILED), FAILED, "the flush of a write with FUA");
        assert!(!health.is_sound());
    }

    #[test]
    fn storage_that_is_gone_takes_no_writes_and_says_so() {
        let health = Health::new("v");
        assert!(health.fail(Cause::Missing));
        assert!(!health.fail(Cause::Replaced), "one of a kind");
        for op in [WRITE, FUA, Op::Flush, Op::Unmap, Op::WriteZeroes { may_unmap: false }] {
            assert_eq!(health.refuses(op), Some(Error::Gone), "{op:?}");
        }
        assert_eq!(health.refuses(Op::Read), None);
        assert!(health.fail(CAUSE));
        assert_eq!(health.faults().len(), 2);
    }

    #[test]
    fn a_content_that_is_nobodys_is_neither_read_nor_written_until_that_is_over() {
        let health = Health::new("v");
        assert!(health.fail(Cause::CutShort { bytes: 512 }) && health.fail(CAUSE));
        assert!(health.fail(Cause::RolledBackInPart));
        for op in [Op::Read, Op::ReadMapped, WRITE, FUA, Op::Flush] {
            assert_eq!(health.refuses(op), Some(Error::Gone), "{op:?}");
        }
        health.end(|cause| *cause == Cause::RolledBackInPart);
        assert_eq!((health.refuses(Op::Read), health.refuses(WRITE)), (None, Some(Error::Gone)));
        health.end(|_| true);
        assert_eq!(health.refuses(WRITE), None);
        assert!(health.write_back().is_some(), "that is not over by itself");
    }

    #[test]
    fn a_failed_write_back_is_found_again_until_the_volume_is_reopened() {
        let dir = tempfile::tempdir().expect("a directory");
        let mark = dir.path().join("v.write-back");
        let health = Health::found("v", mark.clone());
        assert!(health.is_sound());
        assert!(health.fail(CAUSE));
        assert!(health.wait_for_mark(Duration::from_secs(20)), "the mark is written");
        assert!(mark.exists());
        let again = Health::found("v", mark.clone());
        assert_eq!(again.faults(), health.faults());
        assert_eq!(again.judge(Op::Flush, Ok(())), FAILED);
        again.forget().expect("it goes");
        assert!(Health::found("v", mark.clone()).is_sound());
        for nonsense in
            ["", "{}", r#"{"version":2,"fault":{"cause":{"kind":"missing"},"since":1}}"#]
        {
            std::fs::write(&mark, nonsense).expect("written");
            assert_eq!(Health::found("v", mark.clone()).judge(FUA, Ok(())), FAILED, "{nonsense}");
        }
    }
}
