//! iSCSI as the front of the server: sessions, SCSI commands, target ports.
//!
//! Start at [`start`]; the way of a command is `lunet_server::shard` (bytes in), `session` and `lunet_iscsi` (a
//! command), `engine` (decoded by `lunet_scsi`, carried out by `lunet_volume`), and back.
#![forbid(unsafe_code)]

mod access;
mod config;
mod connection;
mod engine;
mod entrance;
mod group;
mod keeper;
#[cfg(test)]
#[path = "../tests/it/support/gateway.rs"]
mod machine;
mod marks;
mod message;
pub mod names;
mod ports;
#[cfg(test)]
mod rdma_tests;
mod registry;
mod reservations;
mod session;
mod site;
mod tokens;
mod world;

pub use access::{Access, Guard, Initiators, Objection, User, matches};
pub use config::{Config, Layout, MAX_DISCOVERY, TargetEntry, VolumeEntry};
pub use entrance::{Entrance, Fate, Visitor};
pub use group::{
    Answered, Charge, Execution, FAMILIES, Function, GroupError, GroupHandle, GroupRequest, Iscsi,
    Keep, Kept, News, RelayFor, RelayNews, RelayRequest, Relayed, Relays, accounts, algorithms,
    volume_of,
};
pub use ports::PortsError;
pub use session::{Protocol, RdmaPath, SessionInfo, refusals, sanitations};
pub use world::{LogicalUnit, World};

/// A server that serves iSCSI.
pub type Server = lunet_server::server::Server<engine::Engine>;

/// Starts a server. Shards that speak iSCSI are built in this crate by it, and so with the optimisation that the
/// profiles ask for what moves data.
///
/// # Errors
/// The first thing that failed; nothing is left running.
pub fn start(config: Config) -> Result<Server, lunet_server::StartError> {
    Server::start(config)
}

/// The same for one of several servers that share volumes.
///
/// # Errors
/// The first thing that failed; nothing is left running.
pub fn start_as(
    member: lunet_server::Member,
    config: Config,
) -> Result<Server, lunet_server::StartError> {
    Server::start_as(member, config)
}

/// Asks a running server.
pub type Handle = lunet_server::server::Handle<engine::Engine>;

/// A change that every shard is ready for.
pub type Prepared<'a> = lunet_server::change::Prepared<'a, engine::Engine>;

/// The statistics of a running server.
pub type Stats = lunet_server::stats::Stats<Protocol>;
