//! What goes in and what comes out.

use crate::auth::Failure;
use crate::command::{Completion, Sqe};
use crate::fabrics::{Connect, Connected};
use crate::pdu::{FatalError, PduError};
use crate::status::Status;
use crate::transmit::Transmit;
use alloc::vec::Vec;
use core::time::Duration;
use thiserror::Error as ThisError;

/// What a host offers and asks for on a connection.
#[derive(Clone, Debug)]
pub struct Options {
    /// The Connect of the queue.
    pub connect: Connect,
    /// HPDA: alignment of data that the host wants, (n + 1) * 4 bytes; up to 31.
    pub alignment: u8,
    /// Header digests are asked for.
    pub header_digest: bool,
    /// Data digests are asked for.
    pub data_digest: bool,
    /// R2Ts of one command that may be outstanding, at least 1.
    pub max_r2t: u32,
    /// Data of a capsule that the controller takes on this queue, in bytes: 8192 on an admin queue,
    /// else what IOCCSZ says.
    pub capsule_data: u32,
    /// How long the controller has to answer ICReq and Connect, and each message of the
    /// authentication.
    pub connect_timeout: Duration,
}

/// What a call may write to and report to.
#[derive(Debug)]
pub struct Cx<'a, R, T: Transmit> {
    /// The time, on any clock that never goes back.
    pub now: Duration,
    /// Takes the bytes to send.
    pub tx: &'a mut T,
    /// Takes what happened.
    pub events: &'a mut Vec<Event<R, T::Payload>>,
}

/// The data of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Data<R, W> {
    /// No data.
    #[default]
    None,
    /// Data of the controller fills this buffer.
    Read(R),
    /// So many bytes of the controller's data, at least 1, are thrown away.
    Discard(u32),
    /// So many bytes of this data, at least 1, are sent.
    Write(W, u32),
}

/// A command to send.
#[derive(Clone, Debug)]
pub struct Command<R, W> {
    /// Given back with the outcome; means nothing here.
    pub token: u64,
    /// The submission queue entry; its identifier and its data are set here.
    pub sqe: Sqe,
    /// What moves.
    pub data: Data<R, W>,
}

/// Names a command: its command identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(pub(super) u16);

impl Tag {
    /// The command identifier, for Abort.
    #[must_use]
    pub const fn cid(self) -> u16 {
        self.0
    }
}

/// Why a command was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ThisError)]
pub enum SubmitError {
    /// The queue is not connected, or not any more.
    #[error("the queue is not connected")]
    NotReady,
    /// The queue has no free entry.
    #[error("the queue is full")]
    QueueFull,
    /// The data is empty, or longer than a command can say.
    #[error("the data of a command is empty or longer than 4 GiB")]
    DataLength,
    /// Over RDMA: the data is in no memory that the controller may reach, or is 16 MiB or longer.
    #[error("the data of a command is in no registered memory, or is 16 MiB or longer")]
    NotRegistered,
}

/// A command that was not sent, and why.
#[derive(Debug)]
pub struct Refused<R, W> {
    /// Why.
    pub error: SubmitError,
    /// What it brought.
    pub data: Data<R, W>,
}

/// A command that ended. Each submitted command ends exactly once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished<R, W> {
    /// The tag that submitting it gave. It may be used for a new command from now on.
    pub tag: Tag,
    /// The caller's token.
    pub token: u64,
    /// How it completed; `None` if the connection ended before.
    pub completion: Option<Completion>,
    /// Bytes of data received, from the first on.
    pub received: u32,
    /// The buffer that it brought.
    pub data: Data<R, W>,
}

/// What happened on a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<R, W> {
    /// The queue is connected: commands may be sent.
    Connected(Connected),
    /// A command ended.
    Finished(Finished<R, W>),
    /// The connection failed and is over: flush what is to be sent, then close.
    Failed(Error),
}

/// Why a connection failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ThisError)]
pub enum Error {
    /// A PDU is not valid.
    #[error("a PDU of the controller is not valid: {0}")]
    Pdu(#[from] PduError),
    /// A PDU that is not allowed at this time.
    #[error("the controller sent a PDU out of sequence")]
    Sequence,
    /// The answer to ICReq has values that it may not have; the offset of the lowest.
    #[error("the controller's answer to ICReq has a value at byte {0} that it may not have")]
    Initialize(u32),
    /// The controller refused the Connect.
    #[error("the controller refused the Connect: {}", .0.status)]
    Refused(Completion),
    /// The controller says that the host did not prove itself.
    #[error("the controller does not take the host's proof: {0}")]
    NotProven(Failure),
    /// The controller did not prove itself.
    #[error("the controller did not prove itself: {0}")]
    ControllerNotProven(Failure),
    /// The controller asks for no authentication, and was to prove itself.
    #[error("the controller asks for no authentication, and was to prove itself")]
    NoProof,
    /// A command of the authentication failed.
    #[error("the controller answers '{0}' to a message of the authentication")]
    AuthenticationCommand(Status),
    /// The controller did not answer ICReq and Connect in time.
    #[error("the controller did not answer in time")]
    ConnectTimeout,
    /// A PDU names a command that is not under way.
    #[error("the controller answers command {0:#06x}, which is not under way")]
    UnknownCommand(u16),
    /// Data that is not the next of its command, or too much.
    #[error("the controller sent, or asked for, data outside of a command's")]
    DataRange,
    /// C2HData whose length is not that of its data.
    #[error("the controller sent data whose length is not the one that its header gives")]
    DataLength,
    /// A data digest is wrong.
    #[error("a data digest is wrong")]
    DataDigest,
    /// The controller terminated the connection.
    #[error("the controller terminated the connection with status {fes}, information {fei:#x}")]
    Terminated {
        /// FES: fatal error status.
        fes: u16,
        /// FEI: fatal error information.
        fei: u32,
    },
    /// Over RDMA: a message that is no completion.
    #[error("the controller sent a message of {0} bytes, which is no completion")]
    Message(usize),
    /// Over RDMA: a message took back a key, which this host never asks for.
    #[error("the controller took back the key {0:#010x} without being asked")]
    Invalidated(u32),
    /// The transport was closed.
    #[error("the connection was closed")]
    TransportClosed,
}

impl Error {
    /// What a termination request says of it; `None` if none is sent.
    pub(super) const fn fatal(self) -> Option<(FatalError, u32)> {
        match self {
            Self::Pdu(error) => Some(error.fatal()),
            Self::Sequence => Some((FatalError::Sequence, 0)),
            Self::Initialize(offset) => Some((FatalError::HeaderField, offset)),
            Self::UnknownCommand(_) => Some((FatalError::HeaderField, 8)),
            Self::DataRange => Some((FatalError::DataOutOfRange, 0)),
            Self::DataLength => Some((FatalError::HeaderField, 16)),
            _ => None,
        }
    }
}
