//! iSCSI over RDMA: iSER (RFC 7145), with the login in Sends from the first byte on.
//!
//! # Where the seam is
//!
//! RFC 5047 puts a *datamover* between iSCSI and its transport. Above it everything is the same
//! on any wire: login, numbers, the command window, tasks, task management, residuals. It is asked
//! for three things, and only they differ:
//!
//! | primitive of RFC 5047 | on a stream (TCP) | over RDMA |
//! |---|---|---|
//! | Send_Control | header, digest, data, padding | a Send: [`Header`], header, data |
//! | Put_Data (a read) | Data-In PDUs | RDMA Write into the initiator's memory |
//! | Get_Data (a write) | R2T, then Data-Out PDUs | RDMA Read from the initiator's memory |
//!
//! At the target these are `Connection::send_data` and `Connection::solicit`, called the same way on
//! both; what they write goes to the same `Transmit`, which gets to know where a Send ends and what to
//! write where. Buffers for RDMA Reads are lent out as those of a receive are. So the layer above
//! drives both transports with the same code, up to who carries the effects out.
//!
//! Neither Data-In nor R2T goes on the wire, digests are off (the fabric has its own), and a status is
//! always a SCSI Response. Unsolicited data comes in Sends: in the command, or in Data-Out PDUs.
//!
//! # What the peers do
//!
//! Linux (initiator and target) and libiscsi send no Hello, send logins with the same header as
//! all else, and say with [`ConnectData`] what their ends can do. They take at most
//! [`SMALL_SEGMENT`] bytes of data in a Send once the login is over, whatever they have declared, and the
//! address that they give for a write is that of its first byte behind the unsolicited data.

mod connect;
mod header;

pub use connect::{CONNECT_DATA_LEN, ConnectData};
pub use header::{HEADER_LEN, Header, HeaderError, Kind};

use crate::pdu::{BHS_LEN, MAX_AHS_LEN};

/// Most bytes of data that Linux and libiscsi take in a Send of a normal session.
pub const SMALL_SEGMENT: usize = 128;

/// Length of a receive buffer for Sends with data segments of `segment` bytes, padding included.
#[must_use]
pub const fn receive_len(segment: usize) -> usize {
    HEADER_LEN + BHS_LEN + MAX_AHS_LEN + segment + crate::pdu::padding(segment)
}

/// Memory that its owner has opened to the other end: the steering tag (R_Key) and the address of
/// the first byte (Base Offset).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Remote {
    /// Steering tag, also called R_Key.
    pub stag: u32,
    /// Where the memory begins, as the steering tag counts.
    pub offset: u64,
}

impl Remote {
    /// The memory from `bytes` further on. An address beyond the last one wraps, and the fabric
    /// refuses it.
    #[must_use]
    pub const fn at(self, bytes: u32) -> Self {
        Self { stag: self.stag, offset: self.offset.wrapping_add(bytes as u64) }
    }
}
