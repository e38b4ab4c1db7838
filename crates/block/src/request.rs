//! One operation on a volume, and its outcome.

use crate::ByteRange;

/// What to do. Offsets and lengths are those of [`Request::range`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Fill the buffer from the volume.
    Read,
    /// Like `Read`, but the backend may answer with a reference to its own memory instead of a
    /// filled buffer; the request carries none. Only where `Caps::mapped_reads` says so.
    ReadMapped,
    /// Write the buffer's first `range.len` bytes to the volume.
    Write {
        /// The data is on stable storage at completion.
        fua: bool,
    },
    /// Every write completed before this request was submitted is on stable storage at completion.
    Flush,
    /// Give the space of the range back. It reads as zeroes afterwards where
    /// `Caps::unmap_zeroes` says so.
    Unmap,
    /// Make the range read as zeroes.
    WriteZeroes {
        /// Space may be given back.
        may_unmap: bool,
    },
}

impl Op {
    /// True if it changes what the volume holds.
    #[inline]
    pub const fn changes(self) -> bool {
        !matches!(self, Self::Read | Self::ReadMapped | Self::Flush)
    }
}

/// Why an operation failed. Each has one SCSI sense code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The storage below has no room left (ENOSPC, EDQUOT).
    #[error("no space left on the storage below the volume")]
    OutOfSpace,
    /// The volume does not take writes (EROFS, EPERM).
    #[error("the volume is read-only")]
    ReadOnly,
    /// The range does not lie on the volume.
    #[error("the range lies beyond the end of the volume")]
    OutOfRange,
    /// The storage below failed; the operating system's error number.
    #[error("the storage below failed (errno {0})")]
    Io(i32),
    /// The storage below failed to make data stable (fdatasync); the operating system's error number. What was
    /// acknowledged before, by this request's volume to anybody, may be lost.
    #[error("the storage below failed to make data stable (errno {0})")]
    NotStable(i32),
    /// The storage below is not the volume's any more: its file was removed, exchanged or cut short.
    #[error("the storage of the volume is gone")]
    Gone,
    /// The backend has no such operation.
    #[error("the backend does not support the operation")]
    Unsupported,
    /// Cancelled before it took effect.
    #[error("cancelled before it took effect")]
    Cancelled,
}

impl Error {
    /// The error for a Linux error number.
    pub const fn from_errno(errno: i32) -> Self {
        match errno {
            28 | 122 => Self::OutOfSpace, // ENOSPC, EDQUOT
            30 | 1 => Self::ReadOnly,     // EROFS, EPERM
            125 => Self::Cancelled,       // ECANCELED
            95 | 22 => Self::Unsupported, // EOPNOTSUPP, EINVAL
            e => Self::Io(e),
        }
    }

    /// A Linux error number for the error.
    pub const fn errno(self) -> i32 {
        match self {
            Self::OutOfSpace => 28, // ENOSPC
            Self::ReadOnly => 30,   // EROFS
            Self::OutOfRange => 34, // ERANGE
            Self::Io(e) | Self::NotStable(e) => e,
            Self::Gone => 116,       // ESTALE
            Self::Unsupported => 95, // EOPNOTSUPP
            Self::Cancelled => 125,  // ECANCELED
        }
    }
}

/// One operation on its way to a backend. It owns its buffer until it is answered, and panics in
/// debug builds if it is dropped unanswered: a lost request would be a command without a reply.
#[derive(Debug)]
#[must_use = "a request must be submitted or completed"]
pub struct Request<B> {
    /// Chosen by the submitter, handed back in the [`Completion`].
    pub tag: u64,
    /// What to do.
    pub op: Op,
    /// Where: bytes, whole logical blocks. Ignored by `Flush`.
    pub range: ByteRange,
    /// The data of `Write`, the room of `Read` (at least `range.len` bytes); else `None`.
    pub buf: Option<B>,
    bomb: Bomb,
}

impl<B> Request<B> {
    /// A request that must be answered by [`complete`](Self::complete).
    pub const fn new(tag: u64, op: Op, range: ByteRange, buf: Option<B>) -> Self {
        Self { tag, op, range, buf, bomb: Bomb { armed: true } }
    }

    /// Answers the request and hands its buffer back.
    pub fn complete(mut self, result: Result<(), Error>) -> Completion<B> {
        self.bomb.armed = false;
        Completion { tag: self.tag, op: self.op, range: self.range, buf: self.buf.take(), result }
    }
}

/// The outcome of one [`Request`].
#[derive(Debug)]
pub struct Completion<B> {
    /// As in the request.
    pub tag: u64,
    /// As in the request.
    pub op: Op,
    /// As in the request.
    pub range: ByteRange,
    /// The request's buffer. For `Read` its first `range.len` bytes are filled if `result` is
    /// `Ok`; for `ReadMapped` it is a reference to the backend's memory.
    pub buf: Option<B>,
    /// Done, or why not. After an error the affected range holds old or new data, block by block.
    pub result: Result<(), Error>,
}

#[derive(Debug)]
struct Bomb {
    armed: bool,
}

impl Drop for Bomb {
    fn drop(&mut self) {
        debug_assert!(!self.armed, "a block request was dropped without an answer");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(debug_assertions, should_panic = "without an answer")]
    fn a_request_dropped_unanswered_is_a_bug() {
        let request = Request::<()>::new(1, Op::Flush, ByteRange::new(0, 0), None);
        drop(request);
    }

    #[test]
    fn an_answer_hands_back_the_buffer() {
        let request = Request::new(7, Op::Read, ByteRange::new(0, 512), Some([0u8; 512]));
        let done = request.complete(Err(Error::Io(5)));
        assert_eq!((done.tag, done.buf.is_some(), done.result), (7, true, Err(Error::Io(5))));
    }
}
