//! The iSCSI target: shards that join sockets, protocol, device server and volumes.
//!
//! Start at [`Server::start`]; the way of a command is `shard` (bytes in), `lunet_iscsi` (a
//! command), `engine` (decoded by `lunet_scsi`, carried out by `lunet_backends`), and back.
#![forbid(unsafe_code)]

mod access;
mod change;
mod config;
mod conn;
mod core;
mod engine;
mod entrance;
mod entry;
pub mod interfaces;
mod keeper;
mod mail;
mod marks;
mod monitor;
mod places;
mod portals;
mod ports;
mod rationed;
mod rdma;
mod registry;
mod reservations;
mod server;
mod shard;
mod site;
mod stats;
mod throttle;
mod tokens;
mod transmit;
mod world;

pub use access::{Access, Guard, Initiators, Network, Objection, Origin, User};
pub use change::{ApplyError, Committed, Prepared};
pub use config::{Config, Layout, Limits, Portal, TargetEntry, Transports, VolumeEntry};
pub use entrance::{Entrance, Fate, Visitor};
pub use portals::MOST as MAX_PORTALS;
pub use rdma::{OverTcp, PortalStatus, Reason};
pub use server::{Handle, Server, StartError, StopReport};
pub use stats::{Bucket, OpStats, Percentile, Protocol, RdmaPath, SessionInfo, Stats, VolumeStats};
