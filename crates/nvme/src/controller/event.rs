//! What a connection tells the layer above, what it is told, and what it asks for.

use crate::command::{Fuse, Sqe};
use crate::fabrics::Connect;
use crate::pdu::PduError;
use crate::transmit::Transmit;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;
use core::time::Duration;
use thiserror::Error;

/// Where buffers come from.
pub trait Site {
    /// A buffer for data from the host.
    type Buf: AsRef<[u8]> + AsMut<[u8]>;

    /// A buffer of exactly `len` bytes, or none when memory is short.
    fn alloc(&mut self, len: usize) -> Option<Self::Buf>;

    /// The same for data in a capsule, when the queue has no other: nothing that is behind it can
    /// come before it, so it is worth more than its share.
    fn alloc_only(&mut self, len: usize) -> Option<Self::Buf> {
        self.alloc(len)
    }

    /// Over RDMA: a command is to keep this buffer, in which its data has come, as one from [`alloc`](Self::alloc). False
    /// if memory is short: then the data is copied into one that is as long as it is.
    fn keep(&mut self, buf: &mut Self::Buf) -> bool {
        let _ = buf;
        false
    }
}

/// What a call may use.
pub struct Cx<'a, S: Site, T: Transmit> {
    /// The time, on any clock that never goes back.
    pub now: Duration,
    /// Buffers.
    pub site: &'a mut S,
    /// Where to write.
    pub tx: &'a mut T,
    /// Where events are appended.
    pub events: &'a mut Vec<Event<S::Buf>>,
}

/// Names a command at its connection, until it is completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tag(pub(super) u32);

impl Tag {
    /// A small number that no other command of the connection has at the same time.
    #[must_use]
    pub const fn slot(self) -> usize {
        (self.0 & 0xffff) as usize
    }
}

/// Something happened.
#[derive(Debug)]
pub enum Event<B> {
    /// The host makes a queue: call [`accept`](super::Connection::accept) or
    /// [`refuse`](super::Connection::refuse).
    Connect(Box<Connect>),
    /// A command is to be executed; the data of its capsule is complete. Commands come in the
    /// order of their capsules.
    Command(Command<B>),
    /// Data that was asked for with [`solicit`](super::Connection::solicit) is complete.
    Data {
        /// The command.
        tag: Tag,
        /// Where the data belongs in the command's data, in bytes.
        offset: u32,
        /// Length in bytes.
        len: u32,
        /// The buffer that was handed over, filled from its first byte.
        buf: B,
    },
    /// Data of a command was damaged, and no more will come. Complete it with
    /// [`Status::TRANSPORT`](crate::status::Status::TRANSPORT) when its own operations have ended.
    TransferFailed {
        /// The command.
        tag: Tag,
    },
    /// The connection is over: flush what is to be sent, then close. Nothing follows.
    Close(CloseReason),
}

/// A command.
#[derive(Debug)]
pub struct Command<B> {
    /// Names it.
    pub tag: Tag,
    /// The submission queue entry.
    pub sqe: Sqe,
    /// Its part of a fused operation. One that is the first is followed by the second, as the
    /// next event.
    pub fuse: Fuse,
    /// Bytes that the host takes at most.
    pub expects_read: u32,
    /// Bytes that the host has for the controller, with those of the capsule.
    pub expects_write: u32,
    /// The data of the capsule: a buffer and which part of it. It is all the data there is.
    pub data: Option<(B, Range<usize>)>,
    /// When its entry was there, on the clock of [`Cx::now`]: the command is handed up when the data of its capsule
    /// has come, too.
    pub arrived: Duration,
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CloseReason {
    /// A PDU is not valid, so the stream cannot be followed.
    #[error("a PDU of the host is not valid: {0}")]
    Pdu(#[from] PduError),
    /// The first PDU is not an ICReq.
    #[error("the first PDU is not a request to initialize the connection")]
    NotInitialized,
    /// The version of the PDU format is not supported.
    #[error("the host wants PDU format version {0}, which is not supported")]
    Version(u16),
    /// A value of HPDA that does not exist.
    #[error("the host wants data aligned by HPDA {0}, which does not exist")]
    Alignment(u8),
    /// A PDU that is not allowed at this time.
    #[error("the host sent a PDU out of sequence")]
    Sequence,
    /// A Send over RDMA that is shorter than a submission queue entry.
    #[error("the host sent a capsule that is shorter than a command")]
    ShortCapsule,
    /// The first command is not a Connect.
    #[error("the first command is not a Connect")]
    NotConnected,
    /// The host has not connected in time.
    #[error("the host did not connect in time")]
    ConnectTimeout,
    /// More commands than the queue has entries.
    #[error("the host has more commands outstanding than its queue has entries")]
    QueueOverrun,
    /// H2CData names a transfer that does not exist.
    #[error("the host sent data that no R2T has asked for")]
    UnknownTransfer,
    /// H2CData whose length is not that of its data.
    #[error("the host sent data whose length is not the one that its header gives")]
    DataLength,
    /// H2CData that is not the next of its transfer.
    #[error("the host sent data outside of what an R2T has asked for")]
    DataRange,
    /// Data that the host was asked for does not come.
    #[error("the host does not send the data that it was asked for or has announced")]
    DataTimeout,
    /// The host has terminated the connection.
    #[error("the host terminated the connection with status {fes}, information {fei:#x}")]
    Terminated {
        /// FES: fatal error status.
        fes: u16,
        /// FEI: fatal error information.
        fei: u32,
    },
    /// The layer above gave the connection up.
    #[error("the connection was ended")]
    Ended,
}
