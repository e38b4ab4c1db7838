//! What can go wrong on a connection.

use super::{ChapError, Data};
use crate::keys::Key;
use crate::text::TextError;
use alloc::string::String;
use thiserror::Error;

/// Why a connection failed. It is over then; a new one may be tried.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// The target refused the login. `status` is Status-Class and Status-Detail, see
    /// [`LoginStatus`](crate::pdu::LoginStatus); `address` is where the target moved to.
    #[error("the target refused the login with status {status:#06x}")]
    LoginRefused {
        /// Status-Class and Status-Detail.
        status: u16,
        /// TargetAddress of a redirection.
        address: Option<String>,
    },
    /// The target wants an authentication that this side does not offer.
    #[error("the target wants the authentication method '{0}'")]
    Authentication(String),
    /// The authentication failed on this side.
    #[error("authentication: {0}")]
    Chap(#[from] ChapError),
    /// An answer contradicts the offer, is outside its range, or comes twice.
    #[error("the target's answer to {0} is not valid")]
    Answer(Key),
    /// A field of a Login Response is wrong.
    #[error("a login response has a wrong {0}")]
    LoginResponse(&'static str),
    /// The login went on for too many rounds.
    #[error("the login made no progress")]
    LoginRounds,
    /// The login took too long.
    #[error("the target did not finish the login in time")]
    LoginTimeout,
    /// The logout took too long.
    #[error("the target did not answer the logout in time")]
    LogoutTimeout,
    /// A keep-alive ping was not answered.
    #[error("the target did not answer a ping in time")]
    PingTimeout,
    /// The transport was closed.
    #[error("the connection was closed")]
    TransportClosed,
    /// Key data is malformed.
    #[error("malformed text: {0}")]
    Text(#[from] TextError),
    /// A text answer is too long.
    #[error("the target's text answer is too long")]
    TextTooLong,
    /// A PDU has additional header segments, which a target never sends.
    #[error("a PDU has additional header segments")]
    AdditionalHeader,
    /// A header digest is wrong.
    #[error("wrong header digest")]
    HeaderDigest,
    /// A data digest is wrong.
    #[error("wrong data digest")]
    DataDigest,
    /// A PDU arrived that a target never sends, or not in this phase.
    #[error("unexpected PDU with opcode {0:#04x}")]
    Unexpected(u8),
    /// A data segment is longer than this side's MaxRecvDataSegmentLength.
    #[error("a data segment of {0} bytes is too long")]
    DataSegmentLength(usize),
    /// A PDU names a task that does not exist, or not of this kind.
    #[error("no such task: {0:#010x}")]
    NoSuchTask(u32),
    /// StatSN is not the next one.
    #[error("StatSN is not the next one")]
    StatSn,
    /// ExpCmdSN is beyond what was sent.
    #[error("ExpCmdSN is beyond the last command")]
    ExpCmdSn,
    /// DataSN, R2TSN or ExpDataSN does not fit the PDUs seen.
    #[error("DataSN, R2TSN or ExpDataSN is wrong")]
    DataSn,
    /// Data or an R2T lies outside the transfer, is out of order, or exceeds MaxBurstLength.
    #[error("data out of order or out of range")]
    DataRange,
    /// A command ended with status GOOD, but not all its data moved and the residual count does
    /// not say so.
    #[error("a command ended well without all its data")]
    DataMissing,
    /// A Send is no PDU of iSCSI behind an iSER header.
    #[error("a Send has no iSER header or ends before its PDU does")]
    Send,
    /// A Send took back a steering tag that is not the one of its command.
    #[error("the target took back the steering tag {0:#010x}, which is not its to take")]
    Invalidated(u32),
    /// The caller went on receiving while it held the buffer of an
    /// [`RxTarget`](super::RxTarget).
    #[error("a receive buffer was not given back")]
    BufferNotReturned,
}

/// Why a request was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SubmitError {
    /// The connection is not in the full feature phase.
    #[error("the connection is not in the full feature phase")]
    NotReady,
    /// The command window is closed; try again after the next answer.
    #[error("the target's command window is closed")]
    WindowClosed,
    /// [`Options::max_tasks`](super::Options::max_tasks) requests are unanswered.
    #[error("too many requests are unanswered")]
    TooManyTasks,
    /// The CDB is empty or does not fit into a PDU, or the data is longer than 4 GiB - 1, or
    /// ping data is longer than the target's MaxRecvDataSegmentLength.
    #[error("the request does not fit into a PDU")]
    TooLong,
    /// A text exchange is going on; there is one at a time.
    #[error("another text exchange is going on")]
    TextBusy,
    /// The session type does not take this request.
    #[error("a discovery session takes no commands")]
    DiscoverySession,
    /// Over RDMA: the command has data to move, and no memory was opened for it.
    #[error("the command's memory is not registered with the RDMA device")]
    NotRegistered,
    /// Over RDMA: the target may have no receive buffer left for a PDU that nothing announces; try
    /// again after the next answer.
    #[error("the target takes no more unannounced PDUs now")]
    NoCredit,
    /// The referenced command is not outstanding.
    #[error("the referenced command is not outstanding")]
    NoSuchTask,
}

/// A command that was not sent; its data comes back.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{error}")]
pub struct Refused<R, W> {
    /// Why.
    pub error: SubmitError,
    /// What the command brought.
    pub data: Data<R, W>,
}
