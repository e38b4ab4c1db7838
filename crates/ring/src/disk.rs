//! Disk operations as both drivers know them.

use std::ops::Range;

use crate::Buf;

/// What to do on a file. Offsets and lengths are in bytes.
#[derive(Clone, Debug)]
pub(crate) enum DiskOp {
    Read { offset: u64, len: usize },
    Write { offset: u64, range: Range<usize> },
    SyncData,
    Allocate { mode: i32, offset: u64, len: u64 },
    Discard { offset: u64, len: u64 },
}

/// An operation that was refused on the spot: its buffer, and why.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) buf: Option<Buf>,
    pub(crate) errno: i32,
}

impl DiskOp {
    /// True if the operation stays within its buffer, and its end within what a file offset can
    /// express.
    pub(crate) fn is_valid(&self, buf: Option<&Buf>) -> bool {
        let room = buf.map_or(0, |b| b.len());
        let (offset, len) = match self {
            Self::Read { offset, len } if *len <= room => (*offset, *len as u64),
            Self::Write { offset, range } if range.start <= range.end && range.end <= room => {
                (*offset, range.len() as u64)
            }
            Self::Allocate { offset, len, .. } | Self::Discard { offset, len } => (*offset, *len),
            Self::SyncData => (0, 0),
            Self::Read { .. } | Self::Write { .. } => return false,
        };
        offset.checked_add(len).is_some_and(|end| end <= i64::MAX as u64)
    }
}
