//! What RDMA needs beside the protocol: devices, listeners, and the ends of connections.
//!
//! A connection over RDMA lives on a shard like any other, and its front serves it with the same code. What
//! differs is here and in `shard/rdma/`: its effects are queued on a [`Port`], handed to the device in one
//! call at the end of a turn, and their ends come back in batches. Buffers stay with their work until the
//! device is done with it, or until the queue pair is gone.

#[cfg(any(test, feature = "fake"))]
pub mod fake;
mod link;
mod plug;
mod port;
mod scout;
mod start;
mod status;

pub use link::{Fault, Link, RemoteRead, fault, token};
pub use plug::{Plug, Receives};
pub use port::{Done, Endpoint, NotOpened, Port};
pub use scout::Scout;
pub use start::{Fabric, Listening, Opened, StartFailure, prepare};
pub use status::{OverTcp, PortalStatus, Reason, Status};

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use arrayvec::ArrayVec;
use lunet_verbs::{CmId, Device, Error, PRIVATE_MAX};

use crate::entry::Entry;
use crate::front::Front;

/// Sends, RDMA Writes and RDMA Reads of a connection that the device may have at a time.
pub const SENDS: u32 = 256;

/// Completions of one shard's connections on one device, at most.
pub const COMPLETIONS: u32 = 1 << 16;

/// The tokens of connections' events begin with this bit; those of listeners are portals.
pub const CONNECTION: u64 = 1 << 63;

/// How a protocol calls what the log and reports tell of.
#[derive(Clone, Copy, Debug)]
pub struct Words {
    /// The protocol over RDMA.
    pub rdma: &'static str,
    /// The same in the `transport` of a portal.
    pub transport: &'static str,
    /// The other end of a connection.
    pub client: &'static str,
    /// The setting that makes a connection need less memory.
    pub fewer: &'static str,
}

impl Words {
    /// Those of nobody.
    pub const PLAIN: Self =
        Self { rdma: "RDMA", transport: "rdma", client: "client", fewer: "the queue depth" };
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
pub struct Request<F: Front> {
    /// The connection that is to be.
    pub id: CmId,
    /// The client's address.
    pub peer: SocketAddr,
    /// The address that it came to.
    pub local: SocketAddr,
    /// What it is counted for.
    pub entry: Entry<F>,
    /// Index of the portal that it came in by.
    pub portal: usize,
    /// RDMA Reads that the client serves at a time, and those that it wants to have served.
    pub reads: (u8, u8),
    /// The log has a line for each of its steps.
    pub logged: bool,
    /// What it says of itself, in the words of its protocol.
    pub private: ArrayVec<u8, PRIVATE_MAX>,
}

/// Why a connection over RDMA is refused.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// No more connections are taken in.
    #[error("this server stops")]
    Stopping,
    /// The protocol does not speak RDMA.
    #[error("the protocol is not served over RDMA")]
    NotServed,
    /// Its device was lost meanwhile.
    #[error("the RDMA device is gone")]
    Gone,
    /// Its queues need more than the memory that is left for connections.
    #[error(
        "its queues need {} KiB, and half of this shard's buffer memory is for data: give \
         server.buffer-memory more, or {fewer} less",
        needed / 1024
    )]
    Memory {
        /// Bytes that its queues need.
        needed: usize,
        /// The setting that makes a connection need less.
        fewer: &'static str,
    },
    /// The device refuses it.
    #[error(transparent)]
    Device(#[from] Error),
}
