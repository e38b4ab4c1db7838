//! Which targets this machine uses.

mod multipath;
mod nvme;
mod open_iscsi;
mod paths;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Nic, Value};
use crate::source::Source;

pub use paths::{MapPath, PathGroup};

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
    /// How packets go to the targets that are used.
    pub routes: Vec<Route>,
    /// Connection of each NVMe host to each discovery controller or subsystem that is to be there at boot
    /// (/etc/nvme/discovery.conf has lines).
    pub nvme_autoconnect: Option<bool>,
}

/// The way to a target's address.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Route {
    /// Address of the target.
    pub to: String,
    /// The interface that packets leave by.
    pub netdev: Option<String>,
    /// The router that they are given to; `null` if the target is in the same network.
    pub gateway: Option<String>,
    /// Own address.
    pub from: Option<String>,
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
    /// Whether the session comes back by itself after a reboot: node.startup of its record (only root may see it).
    pub startup: Option<String>,
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
    /// Whether it may only be read.
    pub read_only: Option<bool>,
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
    /// How long it waits between two tries to come back, in seconds.
    pub reconnect_delay_seconds: Option<i64>,
    /// Whether it is a discovery controller.
    pub discovery: bool,
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
    /// Groups of paths, in the order of their priority.
    pub groups: Vec<PathGroup>,
    /// Whether it may be written: `rw`, `ro`.
    pub write_protect: Option<String>,
    /// What sets the paths' states at the target: `1 alua`, `0`.
    pub hardware_handler: Option<String>,
    /// How often a path of it has failed since it was made.
    pub path_failures: Option<i64>,
}

/// Reads about the initiators.
pub(super) fn read(source: &dyn Source) -> Initiators {
    let maps = multipath::maps(source);
    let config = |path: &str| {
        let text = source.read(path)?;
        Some(text.lines().any(|line| !line.trim().is_empty() && !line.starts_with('#')))
    };
    Initiators {
        open_iscsi: open_iscsi::read(source, &maps),
        nvme_hosts: nvme::read(source),
        multipath: multipath::read(source, maps),
        routes: Vec::new(),
        nvme_autoconnect: config("/etc/nvme/config.json")
            .or_else(|| config("/etc/nvme/discovery.conf")),
    }
}

/// Asks for the way to each target whose address is in no network of this machine.
pub(super) fn routes(source: &dyn Source, initiators: &Initiators, nics: &[Nic]) -> Vec<Route> {
    let sessions = initiators.open_iscsi.iter().flat_map(|open| &open.sessions);
    let paths = initiators.nvme_hosts.iter().flat_map(|host| &host.paths);
    let mut all: Vec<&String> = sessions
        .filter_map(|s| s.address.as_ref())
        .chain(paths.filter_map(|p| p.address.as_ref()))
        .collect();
    all.sort();
    all.dedup();
    let near = |to: &str| {
        let networks = nics.iter().flat_map(|nic| &nic.addresses);
        networks.into_iter().any(|network| super::in_network(to, network))
    };
    all.retain(|to| !near(to) && to.parse::<std::net::IpAddr>().is_ok());
    let route = |to: &String| {
        // 10.30.0.20 via 192.168.1.1 dev vmbr0 src 192.168.1.31 uid 0
        let text = source.output("ip", &["route", "get", to])?;
        let mut words = text.split_whitespace();
        let mut route = Route { to: to.clone(), ..Route::default() };
        while let Some(word) = words.next() {
            match word {
                "via" => route.gateway = words.next().map(str::to_owned),
                "dev" => route.netdev = words.next().map(str::to_owned),
                "src" => route.from = words.next().map(str::to_owned),
                _ => {}
            }
        }
        Some(route)
    };
    all.into_iter().filter_map(route).collect()
}
