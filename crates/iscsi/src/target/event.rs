//! What a connection tells the layer above, and what it is told.

use super::rdma::{RdmaFault, SendFault};
use super::site::LoginIdentity;
use super::task::Tag;
use crate::pdu::{TaskAttribute, TmfFunction};
use alloc::boxed::Box;
use core::time::Duration;
use thiserror::Error;

/// Something happened.
#[derive(Debug)]
pub enum Event<B> {
    /// The login is complete but for the answer: call `admit` or `refuse`.
    LoginFinished(Box<LoginIdentity>),
    /// A command is to be executed; its unsolicited data is complete.
    Command(Command<B>),
    /// Data that was asked for with `solicit` is complete.
    Data {
        /// Names the command's task at this connection.
        tag: Tag,
        /// Where the data belongs in the command's transfer, in bytes.
        offset: u32,
        /// Length in bytes.
        len: u32,
        /// The buffer that was handed to `solicit`, filled from its first byte.
        buf: B,
    },
    /// The data transfer of a command broke; no more data will come. Call `respond` with
    /// [`Response::transfer_error`] when the task's own operations have ended.
    TransferFailed {
        /// Names the command's task at this connection.
        tag: Tag,
        /// What happened.
        error: TransferError,
    },
    /// A task management function is to be executed; answer with `respond_tmf`. The tasks of this
    /// connection that it reaches are told by `older_than`; some of them may come as
    /// [`Event::Command`] behind it, which are not to be executed if they have been aborted.
    TaskManagement {
        /// Names the function for `respond_tmf`.
        tag: Tag,
        /// What to do.
        function: TmfFunction,
        /// Logical unit number as in [`Command::lun`], where the function has one.
        lun: u64,
        /// The task to abort: given with ABORT TASK, and only then.
        referenced: Option<Tag>,
    },
    /// The question of [`Connection::ask`](super::Connection::ask) was answered: what comes behind the answer was sent
    /// later than the question.
    Answered {
        /// What `ask` has given.
        asked: Asked,
        /// How many questions have been answered on this connection, with this one: see [`Command::answers`].
        answers: u32,
    },
    /// The connection is over: flush what is to be sent, then close. Nothing follows.
    Close(CloseReason),
}

/// A question that was sent to the initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked(pub(super) u32);

/// A SCSI command.
#[derive(Debug)]
pub struct Command<B> {
    /// Names the task.
    pub tag: Tag,
    /// Logical unit number: the 8 bytes of SAM-5 as a big-endian number.
    pub lun: u64,
    /// The first 16 bytes of the CDB.
    pub cdb: [u8; 16],
    /// The whole CDB, when it is longer than 16 bytes.
    pub long_cdb: Option<Box<[u8]>>,
    /// Task attribute; codes that SAM-5 does not define count as simple.
    pub attribute: TaskAttribute,
    /// Bytes that the initiator expects to read at most.
    pub expects_read: u32,
    /// Bytes that the initiator expects to write at most.
    pub expects_write: u32,
    /// Unsolicited data: a buffer and how much of it, from offset 0 of the transfer, is data.
    pub data: Option<(B, usize)>,
    /// When its header was there, on the clock of [`Cx::now`](super::Cx::now): the command is handed up when its
    /// unsolicited data has come, too.
    pub arrived: Duration,
    /// How many [questions](Event::Answered) the initiator had answered on this connection when the header was there.
    pub answers: u32,
}

impl<B> Command<B> {
    /// The CDB, at least 16 bytes.
    pub fn cdb(&self) -> &[u8] {
        self.long_cdb.as_deref().unwrap_or(&self.cdb)
    }
}

/// How many bytes a command moves, as its CDB says; residuals are counted from this.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Bytes to the initiator.
    pub read: u32,
    /// Bytes from the initiator.
    pub write: u32,
}

/// The end of a command.
#[derive(Clone, Copy, Debug, Default)]
pub struct Response<'a> {
    /// SCSI status (SAM-5).
    pub status: u8,
    /// Sense data, at most 252 bytes of it are sent.
    pub sense: &'a [u8],
    /// What the command wanted to move. None, for commands that failed: what it did move.
    pub wanted: Option<Wanted>,
}

impl Response<'static> {
    /// Status GOOD of a command that wanted to move this much.
    #[must_use]
    pub const fn good(wanted: Wanted) -> Self {
        Self { status: 0, sense: &[], wanted: Some(wanted) }
    }

    /// CHECK CONDITION for a broken data transfer.
    #[must_use]
    pub const fn transfer_error(error: TransferError) -> Self {
        Self { status: CHECK_CONDITION, sense: error.sense(), wanted: None }
    }
}

/// SCSI status CHECK CONDITION.
pub(super) const CHECK_CONDITION: u8 = 0x02;
/// SCSI status TASK SET FULL.
pub(super) const TASK_SET_FULL: u8 = 0x28;

/// Why the data transfer of a command broke (RFC 7143 section 11.4.7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TransferError {
    /// Unsolicited data came that was not agreed on.
    #[error("unexpected unsolicited data")]
    UnexpectedUnsolicitedData,
    /// Data-Out PDUs do not add up to what was asked for, or are out of order.
    #[error("incorrect amount of data")]
    IncorrectAmountOfData,
    /// A data digest was wrong.
    #[error("protocol service CRC error")]
    ProtocolServiceCrcError,
}

impl TransferError {
    /// Fixed-format sense data: ABORTED COMMAND with the code of RFC 7143.
    #[must_use]
    pub const fn sense(self) -> &'static [u8] {
        const fn fixed(asc: u8, ascq: u8) -> [u8; 18] {
            [0x70, 0, 0x0b, 0, 0, 0, 0, 10, 0, 0, 0, 0, asc, ascq, 0, 0, 0, 0]
        }
        match self {
            Self::UnexpectedUnsolicitedData => const { &fixed(0x0c, 0x0c) },
            Self::IncorrectAmountOfData => const { &fixed(0x0c, 0x0d) },
            Self::ProtocolServiceCrcError => const { &fixed(0x47, 0x05) },
        }
    }
}

/// Why a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CloseReason {
    /// The initiator logged out.
    #[error("the initiator logged out")]
    LoggedOut,
    /// The first PDU was not a Login Request.
    #[error("the first PDU is not a Login Request")]
    NotALogin,
    /// The login was refused.
    #[error("the login was refused with status {0:#06x}")]
    LoginRefused(u16),
    /// The login took too long.
    #[error("the login took too long")]
    LoginTimeout,
    /// PDUs came while the login waited for its answer.
    #[error("the initiator sent PDUs before the login was answered")]
    EarlyPdu,
    /// The initiator does not answer any more.
    #[error("the initiator does not answer a ping")]
    PingTimeout,
    /// Data that the initiator was asked for, or has announced, makes no progress.
    #[error("the initiator does not send the data that it was asked for or has announced")]
    DataTimeout,
    /// The initiator takes no answers.
    #[error("the initiator does not take what is sent to it")]
    OutputTimeout,
    /// The initiator takes data so slowly that it keeps a lock waiting.
    #[error(
        "the initiator takes too long for data that another initiator's exclusive command waits for"
    )]
    KeepsLockWaiting,
    /// The initiator did not log out in time when it was asked to.
    #[error("the initiator did not log out in time")]
    LogoutTimeout,
    /// A header digest was wrong, so the next header cannot be found.
    #[error("a header digest is wrong")]
    HeaderDigest,
    /// A data segment is longer than this target takes.
    #[error("a data segment of {len} bytes is longer than the {limit} bytes that were agreed on")]
    SegmentTooLong {
        /// DataSegmentLength.
        len: u32,
        /// What this target declared.
        limit: u32,
    },
    /// An additional header segment where none may be.
    #[error("a PDU has an additional header segment that its opcode may not have")]
    UnexpectedAhs,
    /// A Data-Out names an R2T that is not outstanding.
    #[error("a Data-Out names a transfer that does not exist")]
    UnknownTransfer,
    /// A Login Request in the full feature phase.
    #[error("a Login Request came after the login")]
    LoginAgain,
    /// A Send is no PDU of iSCSI behind an iSER header.
    #[error("a Send is not what iSER allows: {0}")]
    Send(SendFault),
    /// The RDMA connection broke.
    #[error("the RDMA connection broke: {0}")]
    Rdma(RdmaFault),
    /// Held PDUs need too much memory.
    #[error("too much is held back by a gap in the command numbers")]
    HeldTooMuch,
}
