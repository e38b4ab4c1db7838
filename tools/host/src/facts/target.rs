//! What this machine serves.

mod lio;
mod lunet;
mod nvmet;
mod scst;
mod tgt;

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{Listener, Lunet, Nic, Value};
use crate::source::Source;

/// An iSCSI target or an NVMe subsystem of this machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Target {
    /// What serves it: `lunet`, `scst`, `lio`, `nvmet`, `tgt`.
    pub kind: String,
    /// Version of the target software.
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
    /// What each initiator or group of initiators sees.
    pub views: Vec<View>,
    /// Its other settings, by its own names: `MaxBurstLength`, `ImmediateData`, `RspTimeout`...
    pub params: BTreeMap<String, Value>,
}

/// What an initiator of LIO's list, or a group of SCST's, sees.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct View {
    /// Name of the target.
    pub target: String,
    /// Name of the initiator or group.
    pub name: String,
    /// Numbers of its LUNs.
    pub luns: Vec<i64>,
    /// Those of them that it may only read.
    pub read_only_luns: Vec<i64>,
    /// Initiators that belong to it.
    pub initiators: Vec<String>,
    /// Commands that the initiator may have waiting (LIO's cmdsn_depth).
    pub queue_depth: Option<i64>,
    /// Whether it has a name and a secret for CHAP.
    pub chap: Option<bool>,
}

/// A port of the kernel's NVMe target.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NvmetPort {
    /// Its number.
    pub id: String,
    /// `tcp`, `rdma`, `loop`, `fc`.
    pub transport: Option<String>,
    /// Address.
    pub address: Option<String>,
    /// Port.
    pub port: Option<String>,
    /// Subsystems that it serves.
    pub subsystems: Vec<String>,
    /// Commands for each queue.
    pub queue_size: Option<i64>,
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
    /// IP address of the initiator.
    pub address: Option<String>,
    /// `tcp`, `iser` or `rdma`; `null` where it cannot be seen.
    pub transport: Option<String>,
    /// On TCP: whether this end would have taken it over RDMA, by iSER or, of a controller, by NVMe over RDMA (only
    /// lunet tells).
    pub iser_offered: Option<bool>,
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
    /// Whether its storage has failed: `ok`, or lunet's word for what is wrong, as `write-back-failed`.
    pub storage: Option<String>,
    /// The same in the target's own sentence.
    pub storage_why: Option<String>,
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
    /// Of a namespace: whether it has an NGUID that is not zero.
    pub nguid: Option<bool>,
    /// Whether it is switched on.
    pub enabled: Option<bool>,
    /// Whether a file is written through the page cache, and only flushes make it stable.
    pub buffered: Option<bool>,
    /// Other settings, by the target's own names: `emulate_caw`, `emulate_3pc`, `max_unmap_lba_count`, `o_direct`...
    pub settings: BTreeMap<String, Value>,
}

/// Reads the ports of the kernel's NVMe target.
pub(super) fn nvmet_ports(source: &dyn Source) -> Vec<NvmetPort> {
    nvmet::ports(source)
}

/// Reads about all targets.
pub(super) fn read(source: &dyn Source, listeners: &[Listener], lunets: &[Lunet]) -> Vec<Target> {
    let mut all = scst::read(source, listeners);
    all.extend(lio::read(source));
    all.extend(nvmet::read(source));
    all.extend(tgt::read(source, listeners));
    all.extend(lunet::read(source, lunets));
    for target in &mut all {
        for view in &mut target.views {
            view.target.clone_from(&target.name);
        }
    }
    all
}

/// Says of each portal whether the Internet can reach its address. A portal on all addresses has
/// those of the machine.
pub(super) fn mark_public(targets: &mut [Target], nics: &[Nic]) {
    let own: Vec<IpAddr> = nics
        .iter()
        .flat_map(|nic| &nic.addresses)
        .filter_map(|address| address.split('/').next()?.parse().ok())
        .collect();
    for portal in targets.iter_mut().flat_map(|target| &mut target.portals) {
        portal.public = match portal.address.parse::<IpAddr>() {
            Ok(IpAddr::V4(any)) if any.is_unspecified() => {
                Some(own.iter().any(|own| own.is_ipv4() && is_public(*own)))
            }
            Ok(any) if any.is_unspecified() => Some(own.iter().any(|own| is_public(*own))),
            Ok(address) => Some(is_public(address)),
            Err(_) => None,
        };
    }
}

/// Whether the address is one of the Internet's.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(ip) => {
            let [a, b, ..] = ip.octets();
            // 100.64.0.0/10 is for providers, 192.0.0.0/24 and 198.18.0.0/15 are for tests.
            let shared = a == 100 && (64..128).contains(&b);
            let tests = a == 198 && (b == 18 || b == 19) || ip.octets()[..3] == [192, 0, 0];
            !(ip.is_private()
                || ip.is_loopback()
                || ip.is_link_local()
                || ip.is_documentation()
                || ip.is_unspecified()
                || shared
                || tests)
        }
        IpAddr::V6(ip) => {
            let first = ip.segments()[0];
            // Only 2000::/3 is given out; 2001:db8::/32 is for examples.
            first & 0xe000 == 0x2000 && !(first == 0x2001 && ip.segments()[1] == 0xdb8)
        }
    }
}

/// What a file or device is to a target.
fn backing(source: &dyn Source, path: &str) -> (&'static str, Option<String>) {
    if let Some(zvol) = path.strip_prefix("/dev/zvol/") {
        return ("zvol", Some(zvol.replace('+', " ")));
    }
    match path.strip_prefix("/dev/") {
        Some(name) if name.starts_with("zd") => ("zvol", zvol_of(source, name)),
        Some(_) => ("block", None),
        None => ("file", None),
    }
}

/// The volume whose device is `zd16`.
fn zvol_of(source: &dyn Source, device: &str) -> Option<String> {
    let list = ["list", "-Hp", "-t", "volume", "-o", "name"];
    let list = source.output("zfs", &list)?;
    list.lines()
        .find(|name| source.link_name(&format!("/dev/zvol/{name}")).as_deref() == Some(device))
        .map(str::to_owned)
}

/// The size of a block device in bytes.
fn device_size(source: &dyn Source, path: &str) -> Option<i64> {
    let name = match path.strip_prefix("/dev/zvol/") {
        Some(_) => source.link_name(path)?,
        None => path.strip_prefix("/dev/")?.to_owned(),
    };
    Some(source.int(&format!("/sys/block/{name}/size"))? * 512)
}

/// `10.0.0.1:3260`, `[fd00::1]:3260`
fn portal(text: &str, transport: &str) -> Portal {
    let (address, port) = text.rsplit_once(':').unwrap_or((text, ""));
    Portal {
        address: address.trim_matches(['[', ']']).to_owned(),
        port: port.parse().ok(),
        transport: Some(transport.to_owned()),
        public: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_addresses_of_the_internet() {
        for public in ["8.8.8.8", "2a00:1450::1", "172.32.0.1"] {
            assert!(is_public(public.parse().unwrap()), "{public}");
        }
        let private = ["10.0.0.1", "192.168.1.1", "172.31.0.1", "100.64.1.1", "fd00::1", "fe80::1"];
        for private in private {
            assert!(!is_public(private.parse().unwrap()), "{private}");
        }
    }

    #[test]
    fn a_portal_everywhere_is_as_public_as_the_machine() {
        let portal = portal("0.0.0.0:3260", "tcp");
        let mut targets = vec![Target { portals: vec![portal], ..Target::default() }];
        let mut nic = Nic { addresses: vec!["10.0.0.1/24".to_owned()], ..Nic::default() };
        mark_public(&mut targets, &[nic.clone()]);
        assert_eq!(targets[0].portals[0].public, Some(false));
        nic.addresses.push("8.8.8.8/24".to_owned());
        mark_public(&mut targets, &[nic]);
        assert_eq!(targets[0].portals[0].public, Some(true));
    }
}
