//! Operations that may take their time: no shard calls them, helper threads do.

use alloc::vec;
use alloc::vec::Vec;
use core::any::Any;

use crate::{ByteRange, Error};

/// A part of a volume that is either all allocated or all not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where: whole logical blocks, at least one.
    pub range: ByteRange,
    /// The blocks have space of their own. Blocks that are not mapped read as zeroes, unless
    /// [`Caps::unmap_zeroes`](crate::Caps::unmap_zeroes) says otherwise.
    pub mapped: bool,
}

impl Extent {
    /// The whole range as one mapped part; nothing for an empty range.
    pub fn all_mapped(range: ByteRange) -> Vec<Self> {
        if range.len == 0 { Vec::new() } else { vec![Self { range, mapped: true }] }
    }
}

/// How much room a volume takes and could take. In bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// What the volume takes on the storage below.
    pub used: u64,
    /// What the storage below could still give to it and to others.
    pub available: u64,
    /// The size of the storage below: what it has given and what it could still give, together.
    pub total: u64,
}

/// The operations of a volume that block the calling thread: system calls that wait for a disk,
/// or that walk long tables. A backend has what it can; the rest is [`Error::Unsupported`].
pub trait Slow: Send + Sync {
    /// Which parts of a range are allocated: in order, without gaps, from the start of the range
    /// on, at most `most` entries. Fewer than the range needs only if there are `most`. `range` is
    /// whole logical blocks; a block that holds any data is mapped.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the storage does not tell: take all as mapped.
    /// [`Error::OutOfRange`] beyond the end, else what the storage says.
    fn extents(&self, range: ByteRange, most: usize) -> Result<Vec<Extent>, Error> {
        let _ = (range, most);
        Err(Error::Unsupported)
    }

    /// Copies the bytes of `from`, a range of `source`, to offset `at` of this volume, without
    /// taking them through the program where the storage has a way. Answers how many bytes from
    /// the start were copied: at least one of a range that is not empty, and perhaps not all. They
    /// are as stable as those of a write without FUA: a flush must follow.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if there is no such way between the two, or the ranges overlap on
    /// one volume: copy through buffers then. Else as a write. After an error the target range
    /// holds old or new data, block by block.
    fn copy_from(&self, at: u64, source: &dyn Slow, from: ByteRange) -> Result<u64, Error> {
        let _ = (at, source, from);
        Err(Error::Unsupported)
    }

    /// How much room the volume takes and could take.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where nobody knows, as on a drive; else what the storage says.
    fn space(&self) -> Result<Space, Error> {
        Err(Error::Unsupported)
    }

    /// Makes every write that was answered before stable, apart from all channels: an error that the system
    /// tells each open file once is told here, too.
    ///
    /// # Errors
    /// [`Error::NotStable`] if the storage fails.
    fn sync(&self) -> Result<(), Error> {
        Ok(())
    }

    /// The backend itself, for another backend of the same kind that copies from it. `None` if
    /// it must not be bypassed.
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }
}

/// What a volume has that has none of [`Slow`].
#[derive(Debug)]
pub struct NothingSlow;

impl Slow for NothingSlow {}
