//! NVMe hosts: they use the volumes of the iSCSI hosts at the same time, over NVMe/TCP.
//!
//! * [`controller`]: a host's end of a controller: its admin queue and its I/O queues.
//! * [`visit`]: what every host does: it connects, sends commands, disturbs them, and comes back.
//! * [`commands`]: commands on blocks, and what their answers mean to the model.
//! * [`host`]: a host that reads and writes.
//! * [`node`]: a host that is a node of a cluster, beside initiators.
//! * `stranger`: somebody who breaks every rule.

pub mod commands;
pub mod controller;
pub mod host;
pub mod node;
pub(crate) mod stranger;
pub mod visit;

/// The subsystem that every host knows: the target of the iSCSI hosts.
pub const SUBSYSTEM: &str = "nqn.2026-11.local.lunet:sim";

/// The subsystem of discovery.
pub(crate) const DISCOVERY: &str = lunet_nvme::name::DISCOVERY_NQN;

/// The subsystem of those who break rules: the target of `intruder`.
pub const STRANGE: &str = "nqn.2026-11.local.lunet:strangers";

/// The namespace of a volume.
pub const fn nsid(volume: usize) -> u32 {
    volume as u32 + 1
}
