//! What a connection asks of its surroundings.

use super::authentication::Credentials;
use super::event::Event;
use crate::Through;
use crate::chap::Proof;
use crate::digest::Crc32c;
use crate::iser::Remote;
use crate::pdu::LoginStatus;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use core::time::Duration;

/// The surroundings of a connection: buffers and targets.
pub trait Site {
    /// A buffer for write data.
    type Buf: AsRef<[u8]> + AsMut<[u8]>;

    /// A buffer of exactly `len` bytes, or none when memory is short.
    fn alloc(&mut self, len: usize) -> Option<Self::Buf>;

    /// Over RDMA: a command is to keep this buffer, in which its data has come, as one from [`alloc`](Self::alloc). False
    /// if memory is short: then the data is copied into one that is as long as it is.
    fn keep(&mut self, buf: &mut Self::Buf) -> bool {
        let _ = buf;
        false
    }

    /// Looks up the target of a normal session, for this initiator on this portal.
    fn find_target(&self, identity: &LoginIdentity) -> Result<TargetInfo, LoginRefusal>;

    /// What the initiator has to prove before it gets on; none: nothing. Asked when a login begins,
    /// of a normal session after its target was found, and again before a response is checked.
    fn credentials(
        &self,
        identity: &LoginIdentity,
    ) -> Result<Option<Arc<Credentials>>, LoginRefusal>;

    /// Fills `bytes` with random bytes that nobody can guess. False if there are none to be had;
    /// the login is refused then.
    fn random(&self, bytes: &mut [u8]) -> bool;

    /// Calls `each` with target name, `address:port` and portal group tag of every portal asked
    /// for; the portals of one target follow each other.
    fn send_targets(&self, which: SendTargets<'_>, each: &mut dyn FnMut(&str, &str, u16));
}

/// Where a connection writes what is to be sent, in order: bytes of a stream, or Sends and RDMA
/// Writes.
pub trait Transmit {
    /// Data that is sent without being copied.
    type Payload: Payload;

    /// Appends a copy of `bytes`.
    fn bytes(&mut self, bytes: &[u8]);

    /// Takes a payload over for as long as its slices need it; nothing is appended yet.
    fn payload(&mut self, payload: Self::Payload) -> usize;

    /// Appends a part of the payload with this identifier.
    fn slice(&mut self, id: usize, range: Range<usize>);

    /// Over RDMA: what was appended since the last call is one Send, which takes back the
    /// initiator's steering tag `invalidate`, if there is one. A stream has no such ends, and is not
    /// told of them.
    fn end_send(&mut self, invalidate: Option<u32>) {
        debug_assert!(false, "a Send on a stream, which takes back {invalidate:?}");
    }

    /// Over RDMA: appends an RDMA Write of a part of a payload into the initiator's memory. It is
    /// done before the Sends that are appended later. Not called on a stream.
    fn write(&mut self, id: usize, range: Range<usize>, to: Remote) {
        debug_assert!(false, "an RDMA Write on a stream: {range:?} of {id} to {to:?}");
    }
}

/// Data of a Data-In.
pub trait Payload {
    /// Length in bytes.
    fn len(&self) -> usize;

    /// True when there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a part of the data to a digest.
    fn crc32c(&self, range: Range<usize>, crc: &mut Crc32c);
}

/// What a call may use.
pub struct Cx<'a, S: Site, T: Transmit> {
    /// The time, on any clock that never goes back.
    pub now: Duration,
    /// Buffers and targets.
    pub site: &'a mut S,
    /// Where to write.
    pub tx: &'a mut T,
    /// Where events are appended.
    pub events: &'a mut Vec<Event<S::Buf>>,
}

/// Where the next bytes of the stream belong.
#[derive(Debug)]
pub struct RxTarget<B> {
    /// The buffer, lent for the time of the receive.
    pub buf: B,
    /// The part of the buffer to fill; never empty.
    pub range: Range<usize>,
}

/// Discovery or normal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SessionType {
    /// Only to ask for targets.
    Discovery,
    /// For SCSI commands.
    #[default]
    Normal,
}

/// Who logs in, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoginIdentity {
    /// InitiatorName.
    pub initiator_name: String,
    /// InitiatorAlias.
    pub initiator_alias: Option<String>,
    /// Initiator part of the session identifier.
    pub isid: [u8; 6],
    /// TSIH: 0 asks for a new session, which takes the place of one with the same names and ISID; any
    /// other names the session that the connection belongs to (RFC 7143 section 6.3.1).
    pub tsih: u16,
    /// Connection ID.
    pub cid: u16,
    /// Type of the session.
    pub session_type: SessionType,
    /// TargetName; a normal session has one.
    pub target_name: Option<String>,
    /// Of a login of a gateway, on behalf of this initiator: which one.
    pub through: Option<Through>,
    /// The account that the initiator has proved to be its own, when the login is complete.
    pub proof: Option<Proof>,
}

/// What a login response says about a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetInfo {
    /// Portal group of the portal that the connection came in on.
    pub portal_group_tag: u16,
    /// TargetAlias.
    pub alias: Option<String>,
}

/// Why a login is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginRefusal {
    /// Status class and detail.
    pub status: LoginStatus,
    /// `address:port` (with `,portal group` if known) of a target that moved.
    pub moved_to: Option<String>,
}

impl From<LoginStatus> for LoginRefusal {
    fn from(status: LoginStatus) -> Self {
        Self { status, moved_to: None }
    }
}

/// Which targets SendTargets asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendTargets<'a> {
    /// All that the initiator may see.
    All,
    /// One, if it exists.
    Named(&'a str),
}
