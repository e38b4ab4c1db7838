//! Whether the storage of a volume has kept what it promised.
//!
//! Linux reports a failed write-back once for each open file, to whoever flushes next, and marks the lost pages clean.
//! The second flush of the same file succeeds, over blocks that are gone. So a failure is kept here, once for
//! each open storage and for all shards: every request passes [`Health::refuses`] on its way to a channel, and
//! every answer passes [`Health::judge`] on its way back. Only an administrator ends it, by opening the volume anew
//! (`lunet volume reopen`).

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use lunet_block::{Error, Op};
use serde::{Deserialize, Serialize};

/// Bits of [`Health::word`].
const WRITE_BACK: u32 = 1;
const STORAGE: u32 = 1 << 1;

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
    /// The file or device is no more at its path. Reads go on; nothing is written or flushed.
    Missing,
    /// Another file or device is at its path. Reads go on; nothing is written or flushed.
    Replaced,
    /// The file or device has become smaller than the volume. Reads go on; nothing is written or flushed.
    CutShort {
        /// Its size now, in bytes.
        bytes: u64,
    },
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
            Self::Missing | Self::Replaced | Self::CutShort { .. } => STORAGE,
        }
    }

    /// The state in a word, for programs.
    pub const fn state(&self) -> &'static str {
        match self {
            Self::WriteBack { .. } => "write-back-failed",
            Self::Missing => "storage-missing",
            Self::Replaced => "storage-replaced",
            Self::CutShort { .. } => "storage-cut-short",
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
            Self::Missing => f.write_str(
                "the file or device is no longer at its path: nothing is written to it any more",
            ),
            Self::Replaced => f.write_str(
                "another file or device is at its path: nothing is written to it any more",
            ),
            Self::CutShort { bytes } => write!(
                f,
                "the file or device was cut to {bytes} bytes, which is less than the volume: \
                 nothing is written to it any more"
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
}

impl Health {
    /// The health of a storage that was just opened, and is sound.
    pub fn new(volume: &str) -> Arc<Self> {
        let (word, faults) = (AtomicU32::new(0), Mutex::default());
        Arc::new(Self { volume: volume.to_owned(), word, faults })
    }

    /// Remembers a failure for good, and logs it. True if it is the first of its kind: the others change
    /// nothing, and are not logged.
    pub fn fail(&self, cause: Cause) -> bool {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let first = self.take_up(Fault { cause, since });
        if first {
            tracing::error!(volume = %self.volume, "{cause}");
        }
        first
    }

    /// As [`fail`](Self::fail), for a failure of before, which was logged then.
    pub fn take_up(&self, fault: Fault) -> bool {
        let bit = fault.cause.bit();
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        let first = self.word.load(Ordering::Relaxed) & bit == 0;
        if first {
            faults.push(fault);
            self.word.fetch_or(bit, Ordering::Release);
        }
        first
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
        (!reads && self.word.load(Ordering::Acquire) & STORAGE != 0).then_some(Error::Gone)
    }

    /// What the answer of the storage to a request means. A failure to make data stable is remembered; after
    /// one, nothing is called stable any more, whatever the storage says. The second value is true if this is
    /// the first.
    pub(crate) fn judge(&self, op: Op, result: Result<(), Error>) -> (Result<(), Error>, bool) {
        let during = match op {
            Op::Flush => During::Flush,
            Op::Write { fua: true } => During::FuaWrite,
            Op::Read
            | Op::ReadMapped
            | Op::Write { fua: false }
            | Op::Unmap
            | Op::WriteZeroes { .. } => return (result, false),
        };
        let errno = match (result, during) {
            (Err(Error::Cancelled | Error::Gone), _) => return (result, false),
            (Err(Error::NotStable(errno)), _) => Some(errno),
            // There is nothing else to a flush that could fail.
            (Err(error), During::Flush) => Some(error.errno()),
            // The data of a write that failed by itself is still with the initiator.
            (Err(_), During::FuaWrite) => return (result, false),
            (Ok(()), _) => None,
        };
        match errno {
            Some(errno) => {
                let first = self.fail(Cause::WriteBack { during, errno });
                (Err(Error::NotStable(errno)), first)
            }
            None if self.is_sound() => (result, false),
            None => match self.write_back().map(|fault| fault.cause) {
                Some(Cause::WriteBack { errno, .. }) => (Err(Error::NotStable(errno)), false),
                _ => (result, false),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EIO: i32 = 5;
    const FUA: Op = Op::Write { fua: true };
    const WRITE: Op = Op::Write { fua: false };

    #[test]
    fn after_one_failed_flush_nothing_is_called_stable() {
        let health = Health::new("v");
        assert_eq!(health.judge(Op::Flush, Ok(())), (Ok(()), false));
        let failed = Err(Error::NotStable(EIO));
        assert_eq!(health.judge(Op::Flush, Err(Error::Io(EIO))), (failed, true));
        assert_eq!(health.judge(Op::Flush, failed), (failed, false), "told once");
        for op in [Op::Flush, FUA] {
            assert_eq!(health.judge(op, Ok(())), (failed, false), "{op:?}");
        }
        for op in [Op::Read, Op::ReadMapped, WRITE, Op::Unmap] {
            assert_eq!((health.judge(op, Ok(())), health.refuses(op)), ((Ok(()), false), None));
        }
        let cause = Cause::WriteBack { during: During::Flush, errno: EIO };
        assert_eq!(health.faults().iter().map(|f| f.cause).collect::<Vec<_>>(), [cause]);
        assert!(!health.is_sound());
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
            assert_eq!(health.judge(op, Err(error)), (Err(error), false), "{op:?} {error}");
        }
        assert!(health.is_sound());
        assert!(health.judge(FUA, Err(Error::NotStable(EIO))).1, "the flush of a write with FUA");
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
        assert!(health.fail(Cause::WriteBack { during: During::Flush, errno: EIO }));
        assert_eq!(health.faults().len(), 2);
    }
}
