//! Which targets this machine uses.

mod multipath;
mod nvme;
mod open_iscsi;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Value;
use crate::source::Source;

/// The initiators of this machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Initiators {
    /// open-iscsi; `null` if it is not there.
    pub open_iscsi: Option<OpenIscsi>,
    /// NVMe subsystems that are used over a network.
    pub nvme_hosts: Vec<NvmeHost>,
    /// dm-multipath.
    pub multipath: Multipath,
}

/// open-iscsi.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OpenIscsi {
    /// Version of open-iscsi.
    pub version: Option<String>,
    /// Name of this machine.
    pub initiator_name: Option<String>,
    /// What new sessions start with, from iscsid.conf: `settings["node.session.queue_depth"]`.
    /// A setting that the file does not have is not here.
    pub settings: BTreeMap<String, Value>,
    /// Sessions.
    pub sessions: Vec<IscsiSession>,
}

/// A session of open-iscsi.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct IscsiSession {
    /// Number of the session in /sys/class/iscsi_session.
    pub sid: i64,
    /// Name of the target.
    pub target: String,
    /// Address of the portal.
    pub address: Option<String>,
    /// Port of the portal.
    pub port: Option<i64>,
    /// `tcp`, `iser`.
    pub transport: Option<String>,
    /// Own address.
    pub local_address: Option<String>,
    /// Network interface that it goes out by.
    pub netdev: Option<String>,
    /// `LOGGED_IN`, `FAILED`, `FREE`.
    pub state: Option<String>,
    /// Commands at once in the whole session.
    pub cmds_max: Option<i64>,
    /// How long commands wait for a lost connection before they fail, in seconds.
    pub replacement_timeout_seconds: Option<i64>,
    /// How long an abort may take, in seconds.
    pub abort_timeout_seconds: Option<i64>,
    /// How often an idle connection is tried, in seconds; 0 = never.
    pub noop_interval_seconds: Option<i64>,
    /// How long the answer to that may take, in seconds.
    pub noop_timeout_seconds: Option<i64>,
    /// Whether CHAP was used.
    pub chap: Option<bool>,
    /// What was agreed on: `MaxRecvDataSegmentLength`, `MaxXmitDataSegmentLength`,
    /// `FirstBurstLength`, `MaxBurstLength`, `MaxOutstandingR2T`, `HeaderDigest`, `DataDigest`,
    /// `ImmediateData`, `InitialR2T`.
    pub params: BTreeMap<String, Value>,
    /// Disks that are attached by the session.
    pub disks: Vec<IscsiDisk>,
}

/// A disk of a session.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct IscsiDisk {
    /// `sdb`.
    pub name: String,
    /// Its LUN.
    pub lun: Option<i64>,
    /// `running`, `offline`, `transport-offline`.
    pub state: Option<String>,
    /// Commands at once.
    pub queue_depth: Option<i64>,
    /// Time-out of a command in seconds.
    pub timeout_seconds: Option<i64>,
    /// The multipath map that it belongs to: `dm-3`.
    pub map: Option<String>,
}

/// An NVMe subsystem that is used over a network.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NvmeHost {
    /// Name of the subsystem.
    pub nqn: String,
    /// `numa`, `round-robin`, `queue-depth`.
    pub io_policy: Option<String>,
    /// Controllers by which it is reached.
    pub paths: Vec<NvmePath>,
    /// Its namespaces: `nvme3n1`.
    pub namespaces: Vec<String>,
}

/// A controller of such a subsystem.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NvmePath {
    /// `nvme3`.
    pub name: String,
    /// `tcp`, `rdma`, `fc`.
    pub transport: Option<String>,
    /// Address of the portal.
    pub address: Option<String>,
    /// Port of the portal.
    pub port: Option<i64>,
    /// `live`, `connecting`, `dead`.
    pub state: Option<String>,
    /// Queues, the admin queue among them.
    pub queue_count: Option<i64>,
    /// Commands for each queue.
    pub queue_size: Option<i64>,
    /// How often the connection is proved alive, in seconds; 0 = never.
    pub keep_alive_seconds: Option<i64>,
    /// How long commands wait for a lost path, in seconds; `null` = until it is given up.
    pub fast_io_fail_seconds: Option<i64>,
    /// When a lost path is given up, in seconds; -1 = never.
    pub ctrl_loss_seconds: Option<i64>,
    /// What the target says of the path for each namespace (ANA): `optimized`, `non-optimized`, `inaccessible`...
    /// Empty unless the kernel joins paths.
    pub ana_states: Vec<String>,
    /// Whether it has a key of TLS.
    pub tls: Option<bool>,
}

/// dm-multipath.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Multipath {
    /// Whether its daemon runs.
    pub running: Option<bool>,
    /// Whether it has a configuration file.
    pub configured: Option<bool>,
    /// Whether the kernel joins the paths of NVMe namespaces by itself.
    pub nvme_native: Option<bool>,
    /// Multipath devices.
    pub maps: Vec<MultipathMap>,
}

/// A device made of several paths.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MultipathMap {
    /// `dm-3`.
    pub device: String,
    /// Its name: `mpatha`.
    pub name: Option<String>,
    /// Kernel names of its paths: `sdb`.
    pub paths: Vec<String>,
    /// Whether commands wait for ever when all paths are lost.
    pub queue_if_no_path: Option<bool>,
    /// How the paths are chosen: `service-time 0`, `round-robin 0`, `queue-length 0`.
    pub path_selector: Option<String>,
}

/// Reads about the initiators.
pub(super) fn read(source: &dyn Source) -> Initiators {
    let maps = multipath::maps(source);
    Initiators {
        open_iscsi: open_iscsi::read(source, &maps),
        nvme_hosts: nvme::read(source),
        multipath: multipath::read(source, maps),
    }
}
