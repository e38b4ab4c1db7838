//! What operations do: one type for each kind, with its state and its way from step to step.
//!
//! An operation moves data in pieces of 256 KiB, at most four at a time. What it reads goes to a [`Sink`] in order; what
//! it writes comes from a [`Source`] that is asked for it. A protocol implements both for its commands.

mod compare;
mod copy;
mod exclusive;
mod fill;
mod intake;
mod overwrite;
mod read;
mod write;

use lunet_block::{ByteRange, Error, Op};
use lunet_ring::{Buf, Payload};

pub use self::compare::Compare;
pub use self::copy::Copy;
pub use self::exclusive::{Exclusive, Merge};
pub use self::fill::{Fill, Plain};
pub use self::intake::{Intake, Piece};
pub use self::overwrite::Overwrite;
pub use self::read::Read;
pub use self::write::Write;
use crate::memory::Budget;
use crate::open::VolumeId;
use crate::operation::{CHUNK, DEPTH, OperationId};
use crate::stage::Timed;

/// How many bytes an operation pays for at once where there is a limit: what it may have at the storage.
const AT_ONCE: u64 = (DEPTH * CHUNK) as u64;

/// Where data goes that was read.
pub trait Sink {
    /// True if so much waits for the client to take it that it gets nothing more now. The operation goes on when that
    /// has become less.
    fn is_behind(&mut self, operation: OperationId) -> bool;

    /// Takes the next `len` bytes, in order, of which `payload` may hold more. With the `last` goes the answer.
    fn send(&mut self, payload: Payload, len: usize, last: bool);
}

/// Where data comes from that is written, or compared.
pub trait Source {
    /// Asks for `len` bytes from an offset of the command's data on, into this buffer. They come by
    /// [`Executor::data_arrived`](crate::Executor::data_arrived).
    fn ask(&mut self, offset: u64, len: usize, buf: Buf);
}

/// The client of an operation.
pub trait Client: Sink + Source {
    /// What pays for buffers.
    fn budget(&self) -> Budget<'_>;

    /// Bytes of the reserve that are not for data which is asked for: what comes unasked before that may need them, and
    /// nothing could come if they were taken.
    fn keeps(&self) -> usize {
        0
    }

    /// The operation was one of those that are timed, and its answer is on its way.
    fn timed(&mut self, timed: Timed) {
        let _ = timed;
    }
}

/// How an operation has got on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It waits for the storage, its client or memory.
    Waits,
    /// It is over, and can be answered.
    Finished,
    /// It is over, and the answer went with the last data.
    Answered,
}

impl Progress {
    /// Finished, if it is; else it waits.
    pub(crate) const fn finished_if(finished: bool) -> Self {
        if finished { Self::Finished } else { Self::Waits }
    }
}

/// Why an operation has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A request has failed.
    Storage {
        /// Why.
        error: Error,
        /// What was asked.
        op: Op,
        /// Of which part of the volume; empty if that is not known.
        range: ByteRange,
    },
    /// The client's data is not what is on the volume.
    Differs {
        /// The first byte that differs, from the start of the command's data on.
        offset: u64,
    },
    /// The volume is worked on as a whole ([`Face::is_closed`](crate::Face::is_closed)).
    Closed {
        /// The slot of the volume.
        slot: VolumeId,
    },
    /// Too many wait for ranges of the volume: to be tried again.
    Crowded,
    /// What the protocol says by itself.
    Command,
}

/// What an operation does.
pub enum Work {
    /// Nothing.
    None,
    /// Volume to client, or to nowhere.
    Read(Read),
    /// Client to volume.
    Write(Write),
    /// The client's data, or one block of it, against the volume.
    Compare(Compare),
    /// Data that its protocol needs in full before the rest of the work is known.
    Collect(Intake),
    /// One block, again and again.
    Fill(Fill),
    /// Requests without data.
    Plain(Plain),
    /// What no other operation may come between.
    Exclusive(Box<Exclusive>),
    /// Volume to volume, begun by [`Executor::copy`](crate::Executor::copy).
    Copy(Box<Copy>),
    /// Waits for a lock on all of the volume ([`Executor::hold`](crate::Executor::hold)).
    Hold,
    /// Passes over all of the volume.
    Overwrite(Box<Overwrite>),
}

impl Work {
    /// Gives back the memory that it holds itself, not what is in flight.
    pub(crate) fn drop_buffers(&mut self) {
        match self {
            Self::Read(read) => read.drop_buffers(),
            Self::Compare(compare) => compare.drop_buffers(),
            Self::Fill(fill) => fill.pattern = None,
            Self::Exclusive(exclusive) => exclusive.drop_buffers(),
            Self::Overwrite(overwrite) => overwrite.drop_buffers(),
            Self::None
            | Self::Write(_)
            | Self::Collect(_)
            | Self::Plain(_)
            | Self::Copy(_)
            | Self::Hold => {}
        }
    }
}
