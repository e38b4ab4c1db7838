//! A Ceph cluster, as a client or a node of it sees it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::source::Source;

/// The configuration of Ceph's clients and nodes.
const CONF: &str = "/etc/ceph/ceph.conf";

/// Settings that the file may have for clients, and that the monitors are asked for: by whom they are used, and their names.
const SETTINGS: &[(&str, &str)] = &[
    ("client", "rados_osd_op_timeout"),
    ("client", "rbd_blocklist_expire_seconds"),
    ("client", "rbd_cache_policy"),
    ("client", "rbd_plugins"),
    ("client", "rbd_read_from_replica_policy"),
    ("mon", "mon_osd_reporter_subtree_level"),
    ("mon", "osd_heartbeat_grace"),
    ("osd", "osd_heartbeat_grace"),
];

/// A Ceph cluster that this machine uses or is a part of.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ceph {
    /// What holds, by `WHO.NAME`: `client.rados_osd_op_timeout`, `mon.osd_heartbeat_grace`. For clients the file counts before what
    /// the monitors say; what is in neither is not there, unless the monitors answer, who tell the default.
    pub settings: BTreeMap<String, String>,
    /// Where those stand that are in the file: `/etc/ceph/ceph.conf, line 12`.
    pub places: BTreeMap<String, String>,
    /// `HEALTH_OK`, `HEALTH_WARN` or `HEALTH_ERR`; `null` if the cluster does not answer this user.
    pub health: Option<String>,
    /// Why, without what somebody has muted.
    pub warnings: Vec<CephWarning>,
    /// Monitors, and how many of them agree.
    pub mons: Option<i64>,
    /// See `mons`.
    pub mons_in_quorum: Option<i64>,
    /// OSDs, and how many of them run.
    pub osds: Option<i64>,
    /// See `osds`.
    pub osds_up: Option<i64>,
    /// Machines that have OSDs.
    pub osd_hosts: Option<i64>,
    /// Space in use, in percent of all.
    pub used_percent: Option<i64>,
    /// Flags that an administrator sets for a while: `noout`, `pause`...
    pub flags: Vec<String>,
    /// Its pools.
    pub pools: Vec<CephPool>,
    /// Clients that are shut out.
    pub blocked: Vec<CephBlocked>,
}

/// A client that is shut out of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CephBlocked {
    /// As the cluster has it: `10.0.0.1:0/2412`.
    pub entry: String,
    /// The address of its machine.
    pub address: String,
    /// All clients of that address are.
    pub all: bool,
}

/// Something that the cluster complains of.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CephWarning {
    /// `OSD_DOWN`, `SLOW_OPS`...
    pub code: String,
    /// `HEALTH_WARN` or `HEALTH_ERR`.
    pub severity: String,
    /// In its words.
    pub text: String,
}

/// A pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CephPool {
    /// Its name.
    pub name: String,
    /// Copies, or the parts of an erasure code.
    pub size: i64,
    /// Below so many of them nothing is written or read.
    pub min_size: i64,
    /// Its data is in an erasure code.
    pub erasure: bool,
    /// It has images of block devices.
    pub rbd: bool,
}

/// Flags that are set for work on the cluster, and forgotten. What every cluster has is left out.
const FLAGS: &[&str] = &[
    "nobackfill",
    "nodeep-scrub",
    "nodown",
    "noin",
    "noout",
    "norebalance",
    "norecover",
    "noscrub",
    "noup",
    "pauserd",
    "pausewr",
];

/// Reads it; `None` if there is no configuration of Ceph.
pub(super) fn read(source: &dyn Source) -> Option<Ceph> {
    let mut ceph = Ceph::default();
    for (name, (value, place)) in conf(&source.read(CONF)?) {
        ceph.places.insert(name.clone(), place);
        ceph.settings.insert(name, value);
    }
    let Some(status) = ask(source, &["status"]) else { return Some(ceph) };
    of_status(&mut ceph, &status);
    if let Some(dump) = ask(source, &["osd", "dump"]) {
        of_dump(&mut ceph, &dump);
    }
    if let Some(tree) = ask(source, &["osd", "tree"]) {
        let nodes = tree["nodes"].as_array().map_or(&[][..], Vec::as_slice);
        let full = |node: &&Value| node["children"].as_array().is_some_and(|osds| !osds.is_empty());
        ceph.osd_hosts =
            Some(count(nodes.iter().filter(|node| node["type"] == "host").filter(full)));
    }
    for (who, name) in SETTINGS {
        let value = source.output("ceph", &["config", "get", who, name, "--connect-timeout=5"]);
        if let Some(value) = value {
            let value = value.trim().to_owned();
            ceph.settings.entry(format!("{who}.{name}")).or_insert(value);
        }
    }
    Some(ceph)
}

/// What the cluster answers. It is not waited for long: without a quorum it answers nobody.
fn ask(source: &dyn Source, what: &[&str]) -> Option<Value> {
    let args = [what, &["--format=json", "--connect-timeout=5"]].concat();
    serde_json::from_str(source.output("ceph", &args)?.trim()).ok()
}

fn count<T>(all: impl Iterator<Item = T>) -> i64 {
    i64::try_from(all.count()).unwrap_or(i64::MAX)
}

fn of_status(ceph: &mut Ceph, status: &Value) {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    ceph.health = text(&status["health"]["status"]);
    let checks = status["health"]["checks"].as_object();
    for (code, check) in checks.into_iter().flatten().filter(|(_, check)| check["muted"] != true) {
        ceph.warnings.push(CephWarning {
            code: code.clone(),
            severity: text(&check["severity"]).unwrap_or_default(),
            text: text(&check["summary"]["message"]).unwrap_or_default(),
        });
    }
    ceph.mons = status["monmap"]["num_mons"].as_i64();
    ceph.mons_in_quorum = status["quorum"].as_array().map(|mons| count(mons.iter()));
    ceph.osds = status["osdmap"]["num_osds"].as_i64();
    ceph.osds_up = status["osdmap"]["num_up_osds"].as_i64();
    let bytes = |name: &str| status["pgmap"][name].as_i64().filter(|bytes| *bytes > 0);
    let used = bytes("bytes_used").zip(bytes("bytes_total"));
    ceph.used_percent = used.map(|(used, total)| used / (total / 100).max(1));
}

fn of_dump(ceph: &mut Ceph, dump: &Value) {
    let flags = dump["flags_set"].as_array().map_or(&[][..], Vec::as_slice);
    let flags = flags.iter().filter_map(Value::as_str).filter(|flag| FLAGS.contains(flag));
    ceph.flags = flags.map(str::to_owned).collect();
    let pool = |pool: &Value| CephPool {
        name: pool["pool_name"].as_str().unwrap_or_default().to_owned(),
        size: pool["size"].as_i64().unwrap_or_default(),
        min_size: pool["min_size"].as_i64().unwrap_or_default(),
        // pg_pool_t::TYPE_ERASURE
        erasure: pool["type"] == 3,
        rbd: pool["application_metadata"].get("rbd").is_some(),
    };
    ceph.pools = dump["pools"].as_array().into_iter().flatten().map(pool).collect();
    // Before Ceph 16 it had another name.
    let blocked = dump["blocklist"].as_object().or_else(|| dump["blacklist"].as_object());
    // `10.0.0.1:0/2412`, `[fd00::1]:0/0`; a range has a length in place of the port.
    let one = |(entry, _): (&String, &Value)| CephBlocked {
        entry: entry.clone(),
        address: entry
            .rsplit_once(':')
            .map_or("", |(address, _)| address)
            .trim_matches(['[', ']'])
            .to_owned(),
        all: entry.ends_with(":0/0"),
    };
    ceph.blocked = blocked.into_iter().flatten().map(one).collect();
}

/// The settings of the file that are looked at, with their values and places, of the sections for all and for clients: the
/// latter count.
fn conf(text: &str) -> BTreeMap<String, (String, String)> {
    let mut all = BTreeMap::new();
    // [client.lunet] before [client] before [global] (Ceph's configuration reference).
    let rank = |section: &str| match section {
        "global" => Some(0),
        "client" => Some(1),
        _ => section.starts_with("client.").then_some(2),
    };
    let mut section = None;
    for (number, line) in (1..).zip(text.lines().map(str::trim)) {
        if let Some(name) = line.strip_prefix('[') {
            section = rank(name.trim_end_matches(']').trim());
            continue;
        }
        let Some((rank, (name, value))) = section.zip(line.split_once('=')) else { continue };
        // `rbd cache policy`, `rbd-cache-policy` and `rbd_cache_policy` are one.
        let name = name.trim().replace([' ', '-'], "_").to_lowercase();
        if line.starts_with(['#', ';']) || !SETTINGS.contains(&("client", &name)) {
            continue;
        }
        let value = value.split([';', '#']).next().unwrap_or_default().trim().trim_matches('"');
        let setting = (value.to_owned(), format!("{CONF}, line {number}"));
        let known = all.entry(format!("client.{name}")).or_insert((rank, setting.clone()));
        if known.0 <= rank {
            *known = (rank, setting);
        }
    }
    all.into_iter().map(|(name, (_, setting))| (name, setting)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_section_nearest_to_the_client_counts() {
        let text = "[global]\n rados osd op timeout = 30 ; old\n[client]\nrados-osd-op-timeout = 0\n[osd]\n\
                    rados_osd_op_timeout = 7\n[client.lunet]\n# rbd_plugins = x\nRBD_plugins = \"pwl_cache\"\nkey = hidden\n[global]\nrbd plugins =\n";
        let found = conf(text);
        let value =
            |name: &str| found.get(name).map(|(value, place)| (value.as_str(), place.as_str()));
        assert_eq!(
            value("client.rados_osd_op_timeout"),
            Some(("0", "/etc/ceph/ceph.conf, line 4"))
        );
        assert_eq!(value("client.rbd_plugins"), Some(("pwl_cache", "/etc/ceph/ceph.conf, line 9")));
        assert_eq!(found.len(), 2, "nothing else is kept: {found:?}");
    }
}
