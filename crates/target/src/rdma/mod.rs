//! What iSER (RFC 7145) needs beside the protocol: devices, listeners, and the ends of connections.
//!
//! A connection over RDMA lives on a shard like any other, and the engine serves it with the same code. What
//! differs is here and in `shard/rdma/`: its effects are queued on a [`Port`], handed to the device in one
//! call at the end of a turn, and their ends come back in batches. Buffers stay with their work until the
//! device is done with it, or until the queue pair is gone.

#[cfg(test)]
pub mod fake;
mod link;
mod plug;
mod port;
mod scout;
mod start;
mod status;

pub use link::{Link, fault, token};
pub use plug::{Plug, Receives};
pub use port::{Done, Endpoint, Port};
pub use scout::Scout;
pub use start::{Fabric, Listening, Opened, StartFailure, prepare};
pub use status::{OverTcp, PortalStatus, Reason, Status};

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use lunet_iscsi::iser::ConnectData;
use lunet_iscsi::target::{Connection, Options, RdmaOptions};
use lunet_ring::Buf;
use lunet_verbs::{CmId, Device, Error};

use crate::entry::Entry;

/// The data segments of Sends to this target, in bytes at most: what a login may need. Larger ones would
/// make every posted receive larger.
const SEGMENT: u32 = 8192;

/// Sends, RDMA Writes and RDMA Reads of a connection that the device may have at a time.
pub const SENDS: u32 = 256;

/// Completions of one shard's connections on one device, at most.
pub const COMPLETIONS: u32 = 1 << 16;

/// The tokens of connections' events begin with this bit; those of listeners are portals.
pub const CONNECTION: u64 = 1 << 63;

/// A connection as it begins. `invalidate`: responses may take back the initiator's keys.
///
/// Data that is neither in its command nor asked for would come in Sends of its own, more of them than
/// there are receives: the fabric makes an initiator wait for hundreds of milliseconds then. So all of it is
/// fetched by RDMA Reads, whatever the configuration says for TCP.
pub fn connection(options: &Options, invalidate: bool, now: Duration) -> Connection<Buf> {
    let options = Options { initial_r2t: true, ..options.clone() };
    let rdma = RdmaOptions { recv_data_segment_length: SEGMENT, invalidate };
    Connection::over_rdma(options, rdma, now)
}

/// What a connection receives into.
pub fn receives(options: &Options) -> Receives {
    let connection = connection(options, false, Duration::ZERO);
    Receives { len: connection.receive_len(), each: connection.receives() as u32 }
}

/// What becomes of the server's RDMA devices while it runs.
pub enum Change {
    /// Open these, and say whether that worked.
    Open(Arc<Fabric>, SyncSender<Result<(), Error>>),
    /// All shards have opened them: listen there.
    Listen(Arc<Fabric>),
    /// Another shard could not open them: let go of them.
    Close(Arc<Fabric>),
    /// This one is gone: end its connections, and let go of it.
    Lost(Device),
}

/// Somebody wants to connect.
pub struct Request {
    /// The connection that is to be.
    pub id: CmId,
    /// The initiator's address.
    pub peer: SocketAddr,
    /// The address that it came to.
    pub local: SocketAddr,
    /// What it is counted for.
    pub entry: Entry,
    /// Index of the portal that it came in by.
    pub portal: usize,
    /// RDMA Reads that the initiator serves at a time, and those that it wants to have served.
    pub reads: (u8, u8),
    /// The log has a line for each of its steps.
    pub logged: bool,
    /// What it says of itself.
    pub data: ConnectData,
}
