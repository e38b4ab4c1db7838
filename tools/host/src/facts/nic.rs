//! Network interfaces.

mod ethtool;
mod link;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::parse::{cpu_list, in_network, shell_value, sorted};
use super::pcie::{self, is_address};
use super::{Facts, Pcie};
use crate::source::Source;

pub use link::{Bond, BondMember, Fec, Optics, Qdisc, Rss};

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Nic {
    /// `enp65s0f0np0`.
    pub name: String,
    /// `physical`, `virtio`, `bond`, `bridge`, `vlan`, `veth`, `tap`, `dummy` or `other`.
    pub kind: Option<String>,
    /// Whether no hardware of its own is behind it: a bond, bridge, VLAN, veth...
    #[serde(rename = "virtual")]
    pub is_virtual: bool,
    /// Driver: `mlx5_core`, `ice`, `virtio_net`.
    pub driver: Option<String>,
    /// Version of its firmware.
    pub firmware: Option<String>,
    /// `up`, `down`, `unknown`.
    pub operstate: Option<String>,
    /// Whether a cable with somebody at the other end is there.
    pub carrier: Option<bool>,
    /// Speed of the link in Mbit/s.
    pub speed_mbit: Option<i64>,
    /// The fastest that the card and its cable say they could.
    pub max_speed_mbit: Option<i64>,
    /// `full`, `half`.
    pub duplex: Option<String>,
    /// Largest packet in bytes.
    pub mtu: Option<i64>,
    /// Largest packet that it could be set to.
    pub max_mtu: Option<i64>,
    /// Addresses with their prefix length: `10.0.0.1/24`.
    pub addresses: Vec<String>,
    /// Entries of the receive ring now, and at most.
    pub rx_ring: Option<i64>,
    /// See `rx_ring`.
    pub rx_ring_max: Option<i64>,
    /// Entries of the transmit ring now, and at most.
    pub tx_ring: Option<i64>,
    /// See `tx_ring`.
    pub tx_ring_max: Option<i64>,
    /// Pairs of queues in use (or receive queues, where they are not paired).
    pub queues: Option<i64>,
    /// Pairs of queues that there could be.
    pub queues_max: Option<i64>,
    /// What it does for the CPU, by ethtool's names: `tcp-segmentation-offload`,
    /// `generic-receive-offload`, `large-receive-offload`, `rx-checksumming`, `ntuple-filters`...
    pub offloads: BTreeMap<String, bool>,
    /// Interrupt coalescing.
    pub coalesce: Option<Coalesce>,
    /// Whether it sends pause frames when it has no room; whether it obeys those it gets.
    pub pause_rx: Option<bool>,
    /// See `pause_rx`: whether it sends them.
    pub pause_tx: Option<bool>,
    /// Priority flow control.
    pub pfc: Option<Pfc>,
    /// Congestion notification of RoCE.
    pub ecn: Option<Ecn>,
    /// PCIe link of the card.
    pub pcie: Option<Pcie>,
    /// NUMA node that the card is next to.
    pub numa_node: Option<i64>,
    /// Interrupts of its queues, and where they are handled.
    pub irqs: Option<Irqs>,
    /// Length of the queue of packets to be sent.
    pub tx_queue_len: Option<i64>,
    /// The bond, bridge or team that it belongs to.
    pub master: Option<String>,
    /// The interfaces that belong to it.
    pub slaves: Vec<String>,
    /// How a bond spreads its packets: `802.3ad`, `active-backup`.
    pub bond_mode: Option<String>,
    /// What a bond in such a mode looks at: `layer2`, `layer3+4`.
    pub bond_hash: Option<String>,
    /// The interface below a VLAN.
    pub parent: Option<String>,
    /// RDMA device of the same card: `mlx5_0`, `rxe0`.
    pub rdma: Option<String>,
    /// Whether storage traffic goes over it: a portal or session of an initiator or target has
    /// one of its addresses, or one in its network. `null` if there is no such traffic anywhere.
    pub storage: Option<bool>,
    /// Whether the default route goes over it.
    pub default_route: Option<bool>,
    /// How a bond stands.
    pub bond: Option<Bond>,
    /// How received packets are spread over queues.
    pub rss: Option<Rss>,
    /// What queues packets in front of it.
    pub qdiscs: Vec<Qdisc>,
    /// Its transceiver, if that says something.
    pub optics: Option<Optics>,
    /// Forward error correction.
    pub fec: Option<Fec>,
    /// Number of a VLAN.
    pub vlan_id: Option<i64>,
    /// Whether speed and duplex are agreed on with the other end.
    pub autonegotiation: Option<bool>,
    /// Whether software spreads received packets over CPUs (RPS).
    pub rps: Option<bool>,
    /// Packets that were lost since start, and other counters of errors of any driver that are not 0, by the
    /// driver's names without `port.` and `.nic`: `carrier_changes`, `rx_dropped`, `rx_errors`, `rx_missed_errors`,
    /// `rx_fifo_errors`, `rx_crc_errors`, `tx_dropped`, `tx_errors`, `rx_packets`, `tx_packets`, and
    /// of the driver's own `rx_out_of_buffer`, `rx_discards_phy`, `rx_pause_ctrl_phy`,
    /// `tx_pause_ctrl_phy`, `rx_prio3_pause`...
    pub counters: BTreeMap<String, i64>,
}

/// How a NIC saves interrupts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Coalesce {
    /// Whether the driver chooses for received packets.
    pub adaptive_rx: Option<bool>,
    /// Whether the driver chooses for sent packets.
    pub adaptive_tx: Option<bool>,
    /// How long a received packet may wait, in microseconds.
    pub rx_usecs: Option<i64>,
    /// How long a sent packet's completion may wait, in microseconds.
    pub tx_usecs: Option<i64>,
}

/// Priority flow control (802.1Qbb) of a NIC.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pfc {
    /// Priorities that are paused on their own: lossless.
    pub priorities: Vec<i64>,
    /// What a packet's priority is taken from: `pcp` or `dscp`.
    pub trust: Option<String>,
}

/// RoCE's congestion notification, where the driver shows it (Mellanox' own).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ecn {
    /// Priorities for which it tells the sender of marked packets (notification point).
    pub notify: Vec<i64>,
    /// Priorities for which it slows down when told (reaction point).
    pub react: Vec<i64>,
}

/// Interrupts of a device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Irqs {
    /// How many.
    pub count: i64,
    /// How many CPUs take them.
    pub cpus: Option<i64>,
    /// How many of them go to CPUs of another NUMA node than the device's.
    pub off_node: Option<i64>,
}

const SYS: &str = "/sys/class/net";

/// Reads about the interfaces.
pub(super) fn read(source: &dyn Source) -> Vec<Nic> {
    let links = links(source);
    let default = default_routes(source);
    let names = sorted(source.names(SYS));
    names
        .into_iter()
        .filter(|name| name != "lo" && name != "bonding_masters")
        .map(|name| {
            let mut nic = nic(source, &name);
            let link = links.get(&name).cloned().unwrap_or_default();
            (nic.addresses, nic.max_mtu, nic.vlan_id) = link;
            nic.default_route = default.as_ref().map(|names| names.contains(&name));
            ethtool::read(source, &mut nic);
            link::read(source, &mut nic);
            nic
        })
        .collect()
}

/// What sysfs says.
fn nic(source: &dyn Source, name: &str) -> Nic {
    let sys = format!("{SYS}/{name}");
    let positive = |file: &str| source.int(&format!("{sys}/{file}")).filter(|&number| number > 0);
    let mut nic = Nic {
        name: name.to_owned(),
        is_virtual: source.link(&sys).is_some_and(|link| link.contains("/virtual/")),
        driver: source.link_name(&format!("{sys}/device/driver")),
        operstate: source.text(&format!("{sys}/operstate")),
        carrier: source.flag(&format!("{sys}/carrier")),
        // -1 or 4294967295 when nobody knows.
        speed_mbit: positive("speed").filter(|&speed| speed < i64::from(u32::MAX)),
        duplex: source.text(&format!("{sys}/duplex")).filter(|duplex| duplex != "unknown"),
        mtu: positive("mtu"),
        tx_queue_len: source.int(&format!("{sys}/tx_queue_len")),
        master: source.link_name(&format!("{sys}/master")),
        counters: counters(source, &sys),
        ..Nic::default()
    };
    nic.kind = Some(kind(source, &sys, &nic).to_owned());
    let lower = source.names(&sys);
    let mut lower: Vec<String> =
        lower.iter().filter_map(|file| file.strip_prefix("lower_").map(str::to_owned)).collect();
    match nic.kind.as_deref() {
        Some("bond" | "bridge") => nic.slaves = sorted(lower),
        _ => nic.parent = (lower.len() == 1).then(|| lower.remove(0)),
    }
    nic.rps = source
        .text(&format!("{sys}/queues/rx-0/rps_cpus"))
        .map(|mask| mask.bytes().any(|byte| !matches!(byte, b'0' | b',')));
    nic.bond_mode = first_word(source, &format!("{sys}/bonding/mode"));
    nic.bond_hash = first_word(source, &format!("{sys}/bonding/xmit_hash_policy"));
    let rdma = source.names(&format!("{sys}/device/infiniband"));
    nic.rdma = rdma.into_iter().next().or_else(|| soft_rdma(source, name));
    if let Some(address) = source.link_name(&format!("{sys}/device")).filter(|n| is_address(n)) {
        nic.numa_node = pcie::numa_node(source, &address);
        nic.irqs = irqs(source, &address, nic.numa_node);
        nic.pcie = pcie::read(source, &address);
    }
    nic
}

fn kind(source: &dyn Source, sys: &str, nic: &Nic) -> &'static str {
    let uevent = source.read(&format!("{sys}/uevent")).unwrap_or_default();
    match shell_value(&uevent, "DEVTYPE").as_deref() {
        Some("bond") => return "bond",
        Some("bridge") => return "bridge",
        Some("vlan") => return "vlan",
        _ => {}
    }
    if source.read(&format!("{sys}/tun_flags")).is_some() {
        return "tap";
    }
    match nic.driver.as_deref() {
        Some("virtio_net") => "virtio",
        Some(_) => "physical",
        None if nic.name.starts_with("veth") => "veth",
        None if nic.name.starts_with("dummy") => "dummy",
        None => "other",
    }
}

/// `802.3ad 4`, `layer3+4 1`
fn first_word(source: &dyn Source, path: &str) -> Option<String> {
    source.text(path)?.split_whitespace().next().map(str::to_owned)
}

/// The RDMA device in software above an interface.
fn soft_rdma(source: &dyn Source, name: &str) -> Option<String> {
    source.names("/sys/class/infiniband").into_iter().find(|d| {
        source.text(&format!("/sys/class/infiniband/{d}/parent")).as_deref() == Some(name)
    })
}

/// Losses since start.
fn counters(source: &dyn Source, sys: &str) -> BTreeMap<String, i64> {
    let names = [
        "rx_packets",
        "tx_packets",
        "rx_dropped",
        "rx_errors",
        "rx_missed_errors",
        "rx_fifo_errors",
        "rx_crc_errors",
        "tx_dropped",
        "tx_errors",
        "collisions",
        "rx_over_errors",
        "rx_length_errors",
        "tx_carrier_errors",
        "tx_aborted_errors",
    ];
    let mut all: BTreeMap<String, i64> = names
        .iter()
        .filter_map(|name| {
            Some(((*name).to_owned(), source.int(&format!("{sys}/statistics/{name}"))?))
        })
        .collect();
    if let Some(changes) = source.int(&format!("{sys}/carrier_changes")) {
        all.insert("carrier_changes".to_owned(), changes);
    }
    all
}

/// Addresses, the largest MTU, the number of a VLAN.
type Link = (Vec<String>, Option<i64>, Option<i64>);

/// What `ip` says of each interface.
fn links(source: &dyn Source) -> BTreeMap<String, Link> {
    let text = source.output("ip", &["-d", "-j", "addr"]).unwrap_or_default();
    let links: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    let mut all = BTreeMap::new();
    for link in links.as_array().into_iter().flatten() {
        let Some(name) = link["ifname"].as_str() else { continue };
        let list: Vec<String> = link["addr_info"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|info| Some(format!("{}/{}", info["local"].as_str()?, info["prefixlen"])))
            .collect();
        // 0 = no limit of its own.
        let max_mtu = link["max_mtu"].as_i64().filter(|&mtu| mtu > 0);
        let vlan = &link["linkinfo"];
        let vlan = vlan["info_data"]["id"].as_i64().filter(|_| vlan["info_kind"] == "vlan");
        all.insert(name.to_owned(), (list, max_mtu, vlan));
    }
    all
}

/// Interfaces with a default route: those with destination 0 in the kernel's table.
fn default_routes(source: &dyn Source) -> Option<Vec<String>> {
    let table = source.read("/proc/net/route")?;
    let routes = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    Some(
        routes
            .filter(|words| words.get(1) == Some(&"00000000") && words.get(7) == Some(&"00000000"))
            .map(|words| words[0].to_owned())
            .collect(),
    )
}

/// The interrupts of a PCI device and the CPUs that take them.
fn irqs(source: &dyn Source, address: &str, node: Option<i64>) -> Option<Irqs> {
    let numbers = source.list(&format!("/sys/bus/pci/devices/{address}/msi_irqs"))?;
    let near = node
        .and_then(|node| source.text(&format!("/sys/devices/system/node/node{node}/cpulist")))
        .and_then(|text| cpu_list(&text));
    let mut cpus = BTreeSet::new();
    let mut off_node = 0;
    let mut seen = false;
    for number in &numbers {
        let path = format!("/proc/irq/{number}/effective_affinity_list");
        let Some(list) = source.text(&path).and_then(|text| cpu_list(&text)) else { continue };
        seen = true;
        if near.as_ref().is_some_and(|near| !list.iter().any(|cpu| near.contains(cpu))) {
            off_node += 1;
        }
        cpus.extend(list);
    }
    Some(Irqs {
        count: i64::try_from(numbers.len()).unwrap_or(i64::MAX),
        cpus: seen.then(|| i64::try_from(cpus.len()).unwrap_or(i64::MAX)),
        off_node: (seen && near.is_some()).then_some(off_node),
    })
}

/// Says over which interfaces storage traffic goes: by the addresses of portals, and by who is
/// connected. A portal on all addresses says nothing by itself, unless nobody is connected.
pub(super) fn mark_storage(facts: &mut Facts) {
    let text = |address: &String| address.parse::<IpAddr>().ok();
    let sessions: Vec<_> =
        facts.initiators.open_iscsi.iter().flat_map(|iscsi| &iscsi.sessions).collect();
    let mut own: Vec<IpAddr> =
        facts.tcp_connections.iter().filter_map(|tcp| text(&tcp.local_address)).collect();
    own.extend(sessions.iter().filter_map(|session| text(session.local_address.as_ref()?)));
    let names: Vec<&String> =
        sessions.iter().filter_map(|session| session.netdev.as_ref()).collect();
    // RDMA connections have no socket: the interface is that with the other end's network.
    let mut remote: Vec<IpAddr> = Vec::new();
    for target in &facts.targets {
        remote.extend(target.sessions.iter().filter_map(|session| text(session.address.as_ref()?)));
    }
    for path in facts.initiators.nvme_hosts.iter().flat_map(|host| &host.paths) {
        remote.extend(path.address.as_ref().and_then(text));
    }
    let portals: Vec<IpAddr> = facts
        .targets
        .iter()
        .flat_map(|target| &target.portals)
        .filter_map(|portal| text(&portal.address))
        .collect();
    let idle = own.is_empty() && remote.is_empty();
    let everywhere = idle && portals.iter().any(IpAddr::is_unspecified);
    own.extend(portals.iter().filter(|address| !address.is_unspecified()));
    if own.is_empty() && names.is_empty() && remote.is_empty() && !everywhere {
        return;
    }
    let used: Vec<bool> = facts
        .nics
        .iter()
        .map(|nic| {
            names.contains(&&nic.name)
                || nic.addresses.iter().any(|address| {
                    let here = address.split('/').next().and_then(|bare| bare.parse().ok());
                    everywhere
                        || here.is_some_and(|here| own.contains(&here))
                        || remote.iter().any(|&other| in_network(&other.to_string(), address))
                })
        })
        .collect();
    for (nic, used) in facts.nics.iter_mut().zip(used) {
        nic.storage = Some(used);
    }
    mark_carriers(&mut facts.nics);
}

/// What carries a bond, bridge or VLAN carries its traffic.
fn mark_carriers(nics: &mut [Nic]) {
    for _ in 0..3 {
        let carried: Vec<String> = nics
            .iter()
            .filter(|nic| nic.storage == Some(true))
            .flat_map(|nic| nic.slaves.iter().chain(&nic.parent).cloned())
            .collect();
        for nic in nics.iter_mut().filter(|nic| carried.contains(&nic.name)) {
            nic.storage = Some(true);
        }
    }
}
