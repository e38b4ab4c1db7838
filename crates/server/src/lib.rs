//! The server, which knows no protocol: shards with their connections, messages between them, what is served and how
//! that changes, and the transports.
//!
//! A protocol is a [`Front`](front::Front). Start at [`Server::start`](server::Server::start); what a shard does is in
//! [`shard`], and what it asks its front for in [`front`].
#![forbid(unsafe_code)]

pub mod change;
pub mod conn;
pub mod core;
pub mod fleet;
pub mod front;
mod heap;
pub mod hosting;
pub mod inherited;
pub mod interfaces;
pub mod mail;
mod monitor;
pub mod network;
pub mod part;
pub mod places;
pub mod portals;
pub mod rationed;
pub mod rdma;
pub mod refusals;
mod scratch;
pub mod served;
pub mod server;
pub mod shard;
mod silence;
pub mod stats;
mod throttle;
pub mod transmit;

pub use change::{ApplyError, Committed};
pub use fleet::Member;
pub use hosting::{Limits, Portal, Processors, Transports};
pub use network::{Network, Origin};
pub use portals::MOST as MAX_PORTALS;
pub use rdma::{OverTcp, PortalStatus, Reason, SendWithInvalidate};
pub use server::StartError;
pub use stats::{Bucket, OpStats, Percentile, VolumeStats, VolumeTime};
