//! NVMe over TCP and RDMA as the front of the server: controllers, queues, namespaces.
//!
//! Start at [`start`]; the way of a command is `lunet_server::shard` (bytes in), `session` and `lunet_nvme` (a command),
//! `engine` (decoded by `lunet_nvme`, carried out by `lunet_volume`), and back. Volumes are shown as any other protocol
//! shows them that serves them, too: this crate knows of their [`Face`] only.
#![forbid(unsafe_code)]

mod config;
mod connection;
mod engine;
mod generated;
mod group;
#[cfg(test)]
#[path = "../../front-iscsi/tests/it/support/gateway.rs"]
mod machine;
mod message;
mod notices;
#[cfg(test)]
mod order_tests;
#[cfg(test)]
mod rdma_tests;
mod registry;
mod report;
mod reservations;
mod session;
mod world;

use lunet_server::Member;
use lunet_server::refusals::Refusal;
use lunet_volume::Face;

pub use config::{
    Concatenation, Config, Host, Hosts, Layout, MAX_NAMESPACES, Options, SubsystemEntry, Tls,
    TlsKey,
};
pub use group::{
    Answered, ENTRIES, EXCHANGE, Execution, GroupError, GroupHandle, GroupRequest, HASH, Members,
    News, Nvme, RelayFor, RelayNews, RelayRequest, Relayed, RelayedPart, Relays,
    busy as busy_answer, names, secrets, volume_of,
};
pub use report::{Protocol, QueueInfo, RdmaPath, SessionInfo};

/// A server that serves NVMe.
pub type Server<Fc> = lunet_server::server::Server<engine::Engine<Fc>>;

/// Starts a server in its place among those that share its volumes.
///
/// # Errors
/// The first thing that failed; nothing is left running.
pub fn start<Fc: Face>(
    member: Member,
    config: Config<Fc>,
) -> Result<Server<Fc>, lunet_server::StartError> {
    Server::start_as(member, config)
}

/// A server that is ready to serve.
pub type Standby<Fc> = lunet_server::server::Standby<engine::Engine<Fc>>;

/// All of [`start`] that can fail: the server listens, and has not begun.
///
/// # Errors
/// The first thing that failed; nothing is left running.
pub fn prepare<Fc: Face>(
    member: Member,
    config: Config<Fc>,
) -> Result<Standby<Fc>, lunet_server::StartError> {
    Server::prepare_as(member, config)
}

/// Asks a running server.
pub type Handle<Fc> = lunet_server::server::Handle<engine::Engine<Fc>>;

/// The hosts that were refused lately, the newest first. Their names are as they were sent.
pub fn refusals<Fc: Face>(handle: &Handle<Fc>) -> Vec<Refusal> {
    handle.shared().refusals.list()
}

/// A change that every shard is ready for.
pub type Prepared<'a, Fc> = lunet_server::change::Prepared<'a, engine::Engine<Fc>>;

/// The statistics of a running server.
pub type Stats = lunet_server::stats::Stats<Protocol>;
