//! What goes in and what comes out.

use super::{Error, Negotiated, Tag};
use crate::pdu::{AsyncEvent, Bhs, LogoutResponse, TaskAttribute, TmfResponse};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

/// The data of a command. The length of the buffer is the Expected Data Transfer Length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Data<R, W> {
    /// No data.
    #[default]
    None,
    /// Data-In fills this buffer.
    Read(R),
    /// So many bytes of Data-In are taken and thrown away: for measurements.
    Discard(u32),
    /// This data is sent.
    Write(W),
}

/// A SCSI command to send.
#[derive(Clone, Debug)]
pub struct Command<'a, R, W> {
    /// Given back with the outcome; means nothing here.
    pub token: u64,
    /// The 8 bytes of the logical unit number (SAM-5), big-endian.
    pub lun: u64,
    /// The command descriptor block: 1 to 1032 bytes.
    pub cdb: &'a [u8],
    /// Task attribute.
    pub attribute: TaskAttribute,
    /// For immediate delivery: outside the command window.
    pub immediate: bool,
    /// What moves.
    pub data: Data<R, W>,
}

/// Difference between the Expected Data Transfer Length and what the command moved, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Residual {
    /// None.
    #[default]
    None,
    /// So much less was moved.
    Underflow(u32),
    /// So much more would have been moved.
    Overflow(u32),
}

/// The answer of the target to a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// iSCSI response: 0 command completed at target, 1 target failure.
    pub response: u8,
    /// SCSI status (SAM-5); 0 is GOOD.
    pub status: u8,
    /// The residual count.
    pub residual: Residual,
    /// Bytes of Data-In received, all from offset 0 on.
    pub received: u32,
    /// Sense data; empty without.
    pub sense: Vec<u8>,
}

impl Completion {
    /// True when the command completed with status GOOD.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.response == 0 && self.status == 0
    }
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The target answered.
    Completed(Completion),
    /// A task management function ended it; it may or may not have been executed.
    Aborted,
    /// The target rejected its PDU for this reason, see
    /// [`RejectReason`](crate::pdu::RejectReason).
    Rejected(u8),
    /// The connection ended before the answer.
    Lost,
}

/// A command that ended. Each submitted command ends exactly once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished<R, W> {
    /// The tag that submitting it gave. It may be used for a new request from now on.
    pub tag: Tag,
    /// The caller's token.
    pub token: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// The buffer that it brought.
    pub data: Data<R, W>,
}

/// What a finished login gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginInfo {
    /// Target Session Identifying Handle.
    pub tsih: u16,
    /// TargetPortalGroupTag, if the target declared it.
    pub portal_group_tag: Option<u16>,
    /// TargetAlias, if the target declared it.
    pub target_alias: Option<String>,
    /// What was agreed.
    pub negotiated: Negotiated,
    /// Every pair that the target sent, in order.
    pub answers: Vec<(String, String)>,
}

/// A target that SendTargets named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveredTarget {
    /// TargetName.
    pub name: String,
    /// TargetAddress values: `host:port,portal-group-tag`.
    pub addresses: Vec<String>,
}

/// An Asynchronous Message (RFC 7143 section 11.9).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AsyncNotice {
    /// The event code.
    pub code: u8,
    /// The event, if RFC 7143 defines it.
    pub event: Option<AsyncEvent>,
    /// Logical unit number of a SCSI event.
    pub lun: u64,
    /// AsyncVCode.
    pub vendor_code: u8,
    /// Parameter1, Parameter2 and Parameter3.
    pub parameters: [u16; 3],
    /// The data segment: sense data of a SCSI event.
    pub data: Vec<u8>,
}

/// What happened on a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<R, W> {
    /// The full feature phase began.
    LoggedIn(Box<LoginInfo>),
    /// A command ended.
    Finished(Finished<R, W>),
    /// A task management function was answered; `None` when the connection ended before.
    Managed {
        /// The tag of the function.
        tag: Tag,
        /// The answer: `Err` holds a code that RFC 7143 does not define.
        response: Option<Result<TmfResponse, u8>>,
    },
    /// SendTargets was answered.
    Targets {
        /// The tag of the exchange.
        tag: Tag,
        /// In the portal's order.
        targets: Vec<DiscoveredTarget>,
    },
    /// Another text request was answered: complete key data, see [`pairs`](crate::text::pairs).
    Text {
        /// The tag of the exchange.
        tag: Tag,
        /// The answer.
        text: Vec<u8>,
    },
    /// A ping that the caller sent was answered.
    Pong {
        /// The tag of the ping.
        tag: Tag,
        /// True when the data came back as it was sent.
        intact: bool,
    },
    /// An Asynchronous Message. After one that asks for it, call
    /// [`Connection::logout`](super::Connection::logout).
    Async(AsyncNotice),
    /// The target rejected a PDU. If it was a request, its outcome follows.
    Rejected {
        /// The reason, see [`RejectReason`](crate::pdu::RejectReason).
        reason: u8,
        /// The header that was rejected, if the target sent it back.
        header: Option<Bhs>,
    },
    /// The target answered the logout. The connection is over: close the transport.
    LoggedOut {
        /// The answer: `Err` holds a code that RFC 7143 does not define.
        response: Result<LogoutResponse, u8>,
        /// Time2Wait in seconds.
        time2wait: u16,
        /// Time2Retain in seconds.
        time2retain: u16,
    },
    /// The connection failed and is over: close the transport.
    Failed(Error),
}
