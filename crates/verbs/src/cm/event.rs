//! What happens to connections, copied out of the library's own structures.

use std::ffi::c_uint;
use std::ptr::NonNull;
use std::slice;

use arrayvec::ArrayVec;

use super::{CmId, PRIVATE_MAX};
use crate::ffi::{RdmaCmEvent, RdmaCmId, RdmaConnParam};

/// Something that happened to a listener or a connection.
#[derive(Debug)]
pub struct CmEvent {
    /// The token of the id that it happened to; for a connect request, that of the listener.
    pub token: u64,
    /// What happened.
    pub kind: CmEventKind,
    /// Zero, a negative error number, or for [`CmEventKind::Rejected`] the reason (InfiniBand
    /// Architecture Specification, volume 1, 12.6.7.2).
    pub status: i32,
    /// What the peer's program has sent along, padded with zeroes by some transports.
    pub private: ArrayVec<u8, PRIVATE_MAX>,
}

/// What happened to a listener or a connection.
#[derive(Debug)]
pub enum CmEventKind {
    /// The peer's address leads to a device: the route comes next.
    AddressResolved,
    /// It leads to none.
    AddressError,
    /// There is a route: the endpoint may be made, and connect.
    RouteResolved,
    /// There is none.
    RouteError,
    /// Somebody wants to connect. Dropping the id turns them away without a word.
    ConnectRequest {
        /// The connection to be accepted or rejected.
        id: CmId,
        /// RDMA reads that the peer will serve at a time; the most that this end may have in flight.
        reads: u8,
        /// RDMA reads that the peer wants to have in flight; what this end has to serve at a time.
        reads_served: u8,
    },
    /// The peer's answer, where no endpoint was made: not in use here.
    ConnectResponse,
    /// Connecting failed.
    ConnectError,
    /// Nobody answers at the peer's address.
    Unreachable,
    /// The peer has rejected the connection.
    Rejected,
    /// The connection stands. For the end that connected, with the peer's private data.
    Established,
    /// The connection has ended, orderly or not.
    Disconnected,
    /// The device goes away: all of it must be let go.
    DeviceRemoval,
    /// The address of the id has moved to another device (bonding, failover).
    AddressChange,
    /// The numbers of the connection may be used again. Nothing needs to be done.
    TimewaitExit,
    /// Something that this crate does not ask for.
    Other(u32),
}

impl CmEvent {
    /// Copies an event.
    ///
    /// # Safety
    /// The event must come from `rdma_get_cm_event` and must not be acknowledged yet. `adopt` gets
    /// the id of a connect request, which belongs to nobody yet.
    pub(super) unsafe fn copy(
        raw: &RdmaCmEvent,
        adopt: impl FnOnce(NonNull<RdmaCmId>) -> CmId,
    ) -> Option<Self> {
        let asked = raw.event == CONNECT_REQUEST;
        let about = NonNull::new(if asked { raw.listen_id } else { raw.id })?;
        // SAFETY: an id lives until its events are acknowledged.
        let token = unsafe { CmId::token_of(about) };
        let kind = match NonNull::new(raw.id) {
            Some(id) if asked => {
                let (reads, reads_served) = reads(&raw.conn);
                CmEventKind::ConnectRequest { id: adopt(id), reads, reads_served }
            }
            _ => kind(raw.event),
        };
        // SAFETY: the library's own copy of the private data lives as long as the event.
        let private = unsafe { private_data(raw.event, &raw.conn) };
        Some(Self { token, kind, status: raw.status, private })
    }

    /// Why it failed, in words; empty if nothing has.
    pub fn reason(&self) -> String {
        match (&self.kind, self.status) {
            (_, 0) => String::new(),
            (CmEventKind::Rejected, status) => rejection(status),
            (_, status) => std::io::Error::from_raw_os_error(status.abs()).to_string(),
        }
    }
}

/// The numbers of `enum rdma_cm_event_type`.
const CONNECT_REQUEST: c_uint = 4;
const REJECTED: c_uint = 8;
const ESTABLISHED: c_uint = 9;

const fn kind(number: c_uint) -> CmEventKind {
    match number {
        0 => CmEventKind::AddressResolved,
        1 => CmEventKind::AddressError,
        2 => CmEventKind::RouteResolved,
        3 => CmEventKind::RouteError,
        5 => CmEventKind::ConnectResponse,
        6 => CmEventKind::ConnectError,
        7 => CmEventKind::Unreachable,
        REJECTED => CmEventKind::Rejected,
        ESTABLISHED => CmEventKind::Established,
        10 => CmEventKind::Disconnected,
        11 => CmEventKind::DeviceRemoval,
        14 => CmEventKind::AddressChange,
        15 => CmEventKind::TimewaitExit,
        other => CmEventKind::Other(other),
    }
}

/// RDMA reads that this end may have in flight, and those that it has to serve. The request says them as
/// the peer sees them; in the event the kernel has changed the two round (rdma_get_cm_event).
const fn reads(conn: &RdmaConnParam) -> (u8, u8) {
    (conn.initiator_depth, conn.responder_resources)
}

/// # Safety
/// The private data of the event must still be there.
unsafe fn private_data(event: c_uint, conn: &RdmaConnParam) -> ArrayVec<u8, PRIVATE_MAX> {
    let mut private = ArrayVec::new();
    // Other events have another member of the union, or nothing.
    if matches!(event, CONNECT_REQUEST..=ESTABLISHED) && !conn.private_data.is_null() {
        let len = usize::from(conn.private_data_len);
        // SAFETY: the caller's promise, and the length is that of the data.
        let data = unsafe { slice::from_raw_parts(conn.private_data.cast::<u8>(), len) };
        // 255 bytes fit, and the length is a byte.
        private.extend(data.iter().copied());
    }
    private
}

/// The reasons that occur (`enum ib_cm_rej_reason`).
fn rejection(status: i32) -> String {
    match status {
        1..=3 => "the peer has no queue pair left for it".into(),
        4 => "the peer took too long".into(),
        5..=7 => "the numbers of an old connection are still in use".into(),
        8 => "nobody listens there".into(),
        10 => "the peer holds the connection for one of old".into(),
        12..=14 | 24..=27 => "the peer cannot be reached by this path".into(),
        28 => "the program at the other end refused it".into(),
        // iWARP answers with error numbers.
        status if status < 0 => std::io::Error::from_raw_os_error(-status).to_string(),
        status => format!("reason {status}"),
    }
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;

    fn conn(data: &[u8]) -> RdmaConnParam {
        RdmaConnParam {
            private_data: data.as_ptr().cast(),
            private_data_len: data.len() as u8,
            responder_resources: 4,
            initiator_depth: 8,
            flow_control: 0,
            retry_count: 0,
            rnr_retry_count: 0,
            srq: 0,
            qp_num: 0,
        }
    }

    #[test]
    fn private_data_is_copied_from_events_that_have_some() {
        let data = [7u8; 255];
        // SAFETY: the data is there.
        let seen = unsafe { private_data(CONNECT_REQUEST, &conn(&data)) };
        assert_eq!(seen.as_slice(), data);
        // SAFETY: as above; this event has none.
        assert!(unsafe { private_data(10, &conn(&data)) }.is_empty());
        let mut none = conn(&data);
        none.private_data = ptr::null();
        // SAFETY: null is none.
        assert!(unsafe { private_data(ESTABLISHED, &none) }.is_empty());
    }

    #[test]
    fn reads_are_told_as_this_end_sees_them() {
        // The kernel's initiator serves many and asks for one at a time.
        let asked = RdmaConnParam { responder_resources: 1, initiator_depth: 128, ..conn(&[]) };
        assert_eq!(reads(&asked), (128, 1));
    }

    #[test]
    fn reasons_are_words() {
        let event = |kind, status| CmEvent { token: 0, kind, status, private: ArrayVec::new() };
        let reason = |kind, status| event(kind, status).reason();
        assert_eq!(reason(CmEventKind::Rejected, 8), "nobody listens there");
        assert_eq!(reason(CmEventKind::Rejected, 28), "the program at the other end refused it");
        assert_eq!(reason(CmEventKind::Rejected, 99), "reason 99");
        let silent = reason(CmEventKind::Unreachable, -libc::ETIMEDOUT);
        assert!(silent.contains("timed out"), "{silent}");
        assert_eq!(reason(CmEventKind::Established, 0), "");
    }
}
