//! What this machine serves.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Value;
use crate::source::Source;

/// An iSCSI target or an NVMe subsystem of this machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Target {
    /// What serves it: `lunet`, `scst`, `lio`, `nvmet`, `tgt`.
    pub kind: String,
    /// Its version.
    pub version: Option<String>,
    /// IQN or NQN.
    pub name: String,
    /// Whether it takes connections.
    pub enabled: Option<bool>,
    /// Where it listens.
    pub portals: Vec<Portal>,
    /// Who is connected.
    pub sessions: Vec<TargetSession>,
    /// What it serves.
    pub luns: Vec<Lun>,
    /// Commands that an initiator may have waiting: SCST's QueuedCommands, LIO's
    /// default_cmdsn_depth, nvmet's queue size, lunet's queue_depth.
    pub queue_depth: Option<i64>,
    /// The most that its kind allows.
    pub queue_depth_max: Option<i64>,
    /// How initiators prove who they are: `none`, `chap`, `mutual-chap`, `dhchap`.
    pub auth: Option<String>,
    /// Whether everybody may use it: no list of initiators.
    pub demo_mode: Option<bool>,
    /// Whether everybody may also write (only asked of a target in demo mode).
    pub demo_mode_writable: Option<bool>,
    /// Initiators on its list.
    pub acl: Vec<String>,
    /// Its other settings, by its own names: `MaxBurstLength`, `ImmediateData`, `RspTimeout`...
    pub params: BTreeMap<String, Value>,
}

/// Where a target listens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Portal {
    /// Address; `0.0.0.0` and `::` are all of the machine's.
    pub address: String,
    /// Port.
    pub port: Option<i64>,
    /// `tcp`, `iser`, `rdma` (NVMe), `fc`.
    pub transport: Option<String>,
    /// Whether the address (or one of the machine's, for all of them) can be reached from the
    /// Internet: it is neither private, link-local nor loopback.
    pub public: Option<bool>,
}

/// A session of an initiator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TargetSession {
    /// Name of the initiator.
    pub initiator: String,
    /// Its address.
    pub address: Option<String>,
    /// `tcp`, `iser` or `rdma`; `null` where it cannot be seen.
    pub transport: Option<String>,
    /// Connections in it.
    pub connections: Option<i64>,
    /// Commands that it is allowed to have waiting.
    pub queue_depth: Option<i64>,
    /// What was agreed on, by its own names: `MaxRecvDataSegmentLength`, `FirstBurstLength`...
    pub params: BTreeMap<String, Value>,
    /// Commands that are waiting now.
    pub active_commands: Option<i64>,
}

/// What a target serves under one number.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Lun {
    /// Its number: the LUN, or the namespace.
    pub lun: i64,
    /// The target's own name for it.
    pub device: Option<String>,
    /// File or block device behind it.
    pub path: Option<String>,
    /// What that is: `zvol`, `block`, `file`, `memory`, `null`, `rbd`.
    pub backing: Option<String>,
    /// The volume, if it is one: `tank/vm/disk1`.
    pub zvol: Option<String>,
    /// Size in bytes.
    pub size_bytes: Option<i64>,
    /// Logical block in bytes.
    pub block_bytes: Option<i64>,
    /// Whether it may only be read.
    pub read_only: Option<bool>,
    /// Whether writes are told to be done before they are stable.
    pub write_cache: Option<bool>,
    /// Whether flushes are ignored as well, because the cache is said to survive a power cut.
    pub nv_cache: Option<bool>,
    /// Threads that work for it; `null` where there is no such number.
    pub threads: Option<i64>,
    /// Who shares them: `per_initiator`, `shared`.
    pub threads_pool: Option<String>,
    /// Whether it takes UNMAP or deallocate.
    pub unmap: Option<bool>,
    /// Whether it says that it turns: initiators then read ahead and sort.
    pub rotational: Option<bool>,
    /// Commands for it at once, if it has a limit of its own.
    pub queue_depth: Option<i64>,
}

/// Reads about all targets.
pub(super) fn read(_source: &dyn Source) -> Vec<Target> {
    Vec::new()
}
