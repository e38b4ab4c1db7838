//! RDMA for lunet: librdmacm and libibverbs, opened at run time.
//!
//! A program with this crate starts on any machine. [`Library::open`] says in one sentence what is
//! missing, and then there is no RDMA; nothing is linked, and the build needs no header.
//!
//! The way of a connection:
//! 1. [`EventChannel`]: a descriptor to wait for, and what happened to the connections on it.
//! 2. [`CmId`]: one connection, or a listener. It may go to another thread and to that thread's
//!    channel ([`CmId::migrate`]).
//! 3. [`Adapter`]: what one thread has of one device: its memory (registered once), its completion
//!    queue with a descriptor to wait for, its shared receive queue, and its endpoints.
//!    [`Adapter::open_endpoint`] makes one of an id. Work is queued without a system call, and
//!    [`Adapter::flush`] hands a whole list to the device in one call.
//!
//! Only this crate, `lunet-ring` and `lunet-rbd` have unsafe code. The rules here:
//! - Work owns its buffers from the moment it is queued. They are in a slot that only its own
//!   completion frees, or the end of the queue pair, after which the device touches nothing.
//! - A registration keeps its memory mapped, and goes before it.
//! - What another machine may write to is a [`Region`](lunet_ring::Region), into which no
//!   reference exists; the arena's buffers are for local use only.
//! - A foreign object is used by one thread at a time, but for what its library promises to lock.

mod adapter;
mod cm;
mod completion;
mod device;
mod error;
#[cfg(test)]
mod fake;
mod ffi;
mod library;
mod memory;
#[cfg(feature = "simulated")]
pub mod simulated;
mod sysfs;

pub use adapter::{
    Adapter, AdapterConfig, EndpointConfig, EndpointId, HEAD_MAX, NotOpened, NotQueued, Path,
    Pieces, Remote, Scatter, Why,
};
pub use cm::{CmEvent, CmEventKind, CmId, ConnParams, EventChannel, PRIVATE_MAX};
pub use completion::{Completion, Operation, Status};
pub use device::{Device, DeviceEvent, Limits, Mtu, PortState};
pub use error::{Error, Missing};
pub use library::Library;
pub use memory::{Exposed, RemoteAccess};
pub use sysfs::{Gid, GidKind, PortFacts, Sysfs, port_of};
