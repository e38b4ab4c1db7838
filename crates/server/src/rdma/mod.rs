//! RDMA as a transport: devices, listeners, queue pairs and their completions.
//!
//! An RDMA connection lives on a shard like any other, and its front serves it with the same code. What
//! differs is here and in `shard/rdma/`: its output is queued on an [`Adapter`], posted to the device in one
//! call at the end of a loop iteration, and completions are handled in batches. The device owns a buffer until
//! its operation has completed, or until the queue pair is destroyed.

mod adapter;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
mod invalidate;
mod monitor;
mod queue_pair;
mod receives;
mod start;
mod status;

pub use adapter::{Adapter, Completion, Endpoint};
pub use invalidate::SendWithInvalidate;
pub use lunet_verbs::{Remote, Sysfs};
pub(crate) use monitor::DeviceMonitor;
pub(crate) use queue_pair::fault;
pub use queue_pair::{Fault, QueuePair, RemoteRead, token};
pub use receives::{ReceivePool, Receives};
pub(crate) use start::{DeviceInfo, DeviceSet, Listeners, StartFailure, prepare};
pub use status::{OverTcp, PortalStatus, Reason, Status};

use std::net::SocketAddr;
use std::sync::Arc;

use arrayvec::ArrayVec;
use lunet_os::sync::mpsc::SyncSender;
use lunet_verbs::{CmId, Device, Error, PRIVATE_MAX};

use crate::front::Front;
use crate::places::Entry;

/// Depth of a connection's send queue: Sends, RDMA Writes and RDMA Reads.
pub(crate) const SENDS: u32 = 256;

/// Entries of a shard's completion queues on one device, at most.
pub(crate) const COMPLETIONS: u32 = 1 << 16;

/// This bit is set in the event tokens of connections; those of listeners are indices of portals.
pub(crate) const CONNECTION: u64 = 1 << 63;

/// A change of the server's RDMA devices while it runs.
pub enum Change {
    /// Open these, and reply whether that worked.
    Open(Arc<DeviceSet>, SyncSender<Result<(), Error>>),
    /// All shards have opened them: listen there.
    Listen(Arc<DeviceSet>),
    /// Another shard could not open them: close them.
    Close(Arc<DeviceSet>),
    /// This one is lost: end its connections and close it.
    Lost(Device),
}

/// A connect request.
pub struct Request<F: Front> {
    /// The connection's identifier, not accepted yet.
    pub(crate) id: CmId,
    /// The client's address.
    pub(crate) peer: SocketAddr,
    /// The address that the client connects to.
    pub(crate) local: SocketAddr,
    /// Its count at the shard and the client's address.
    pub(crate) entry: Entry<F>,
    /// Index of the portal.
    pub(crate) portal: usize,
    /// Concurrent RDMA Reads that the client serves, and that it asks the server to serve.
    pub(crate) reads: (u8, u8),
    /// Each step of the connection is logged.
    pub(crate) logged: bool,
    /// The private data of the connect request: the protocol's.
    pub(crate) private: ArrayVec<u8, PRIVATE_MAX>,
}

/// Why an RDMA connection is refused.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The server stops.
    #[error("this server stops")]
    Stopping,
    /// The protocol does not accept it.
    #[error("{0}")]
    Protocol(&'static str),
    /// Its device was lost in the meantime.
    #[error("the RDMA device is gone")]
    Gone,
    /// Its queues need more than what is left of the connections' half of the arena.
    #[error(
        "its queues need {} KiB, and half of this shard's buffer memory is for data: give \
         server.buffer-memory more, or {fewer} less",
        needed / 1024
    )]
    Memory {
        /// Bytes that its queues need.
        needed: usize,
        /// The setting that reduces what a connection needs.
        fewer: &'static str,
    },
    /// The device refuses it.
    #[error(transparent)]
    Device(#[from] Error),
}
