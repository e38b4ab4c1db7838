//! RDMA devices.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use serde::{Deserialize, Serialize};

use super::parse::{colon_lines, leading, sorted};
use super::pcie;
use crate::source::Source;

/// A port of an RDMA device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rdma {
    /// `mlx5_0`, `rxe0`.
    pub device: String,
    /// Number of the port, from 1.
    pub port: i64,
    /// Driver: `mlx5_core`, `irdma`, `bnxt_re`, `rdma_rxe`, `siw`.
    pub driver: Option<String>,
    /// Whether it is done in software: rxe or siw.
    pub soft: Option<bool>,
    /// Version of its firmware.
    pub firmware: Option<String>,
    /// Board: `MT_0000000080`.
    pub board: Option<String>,
    /// `CA` (InfiniBand or RoCE) or `RNIC` (iWARP).
    pub node_type: Option<String>,
    /// `Ethernet` or `InfiniBand`.
    pub link_layer: Option<String>,
    /// `ACTIVE`, `DOWN`, `INIT`, `ARMED`.
    pub state: Option<String>,
    /// `LinkUp`, `Disabled`, `Polling`.
    pub physical_state: Option<String>,
    /// Rate in Gbit/s.
    pub rate_gbit: Option<i64>,
    /// Largest payload of an RDMA packet now, in bytes; 4096 needs an interface MTU of 4200 or so.
    pub mtu: Option<i64>,
    /// The largest that it could be.
    pub mtu_max: Option<i64>,
    /// Name of the port's network interface.
    pub netdev: Option<String>,
    /// GIDs of the port.
    pub gids: Vec<Gid>,
    /// What connections are made with unless they say otherwise: `RoCE v2`, `IB/RoCE v1`.
    pub default_roce_mode: Option<String>,
    /// Type of service of connections that do not choose: DSCP times 4.
    pub default_tos: Option<i64>,
    /// Whether a subnet manager has set an InfiniBand port up.
    pub subnet_manager: Option<bool>,
    /// NUMA node that the card is next to.
    pub numa_node: Option<i64>,
    /// The hardware's counters, as far as they are about loss and congestion:
    /// `out_of_sequence`, `packet_seq_err`, `local_ack_timeout_err`, `np_cnp_sent`,
    /// `rp_cnp_handled`, `np_ecn_marked_roce_packets`, `rnr_nak_retry_err`...
    pub counters: BTreeMap<String, i64>,
}

/// An address of an RDMA port.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Gid {
    /// Index in the GID table.
    pub index: i64,
    /// As the kernel writes it: `0000:0000:0000:0000:0000:ffff:0a00:0001`.
    pub gid: String,
    /// The IP address that it stands for: `10.0.0.1`, `fe80::...`.
    pub address: Option<String>,
    /// `RoCE v2` or `IB/RoCE v1`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// The network interface that it belongs to: a VLAN has its own.
    pub netdev: Option<String>,
}

const SYS: &str = "/sys/class/infiniband";
/// The table has 256 places or more, filled from the front.
const EMPTY_IN_A_ROW: usize = 8;

/// Reads about the RDMA devices.
pub(super) fn read(source: &dyn Source) -> Vec<Rdma> {
    let devices = sorted(source.names(SYS));
    let verbs = match devices.is_empty() {
        true => String::new(),
        false => source.output("ibv_devinfo", &[]).unwrap_or_default(),
    };
    let mut all = Vec::new();
    for device in devices {
        for port in sorted(source.names(&format!("{SYS}/{device}/ports"))) {
            let Ok(number) = port.parse() else { continue };
            all.push(read_port(source, &device, number, &verbs));
        }
    }
    all
}

fn read_port(source: &dyn Source, device: &str, port: i64, verbs: &str) -> Rdma {
    let sys = format!("{SYS}/{device}");
    let at = format!("{sys}/ports/{port}");
    let gids = gids(source, &at);
    let driver =
        source.link_name(&format!("{sys}/device/driver")).or_else(|| soft_driver(source, device));
    let text = |path: String| source.text(&path);
    let interfaces = source.names(&format!("{sys}/device/net"));
    let netdev = gids
        .iter()
        .find_map(|gid| gid.netdev.clone())
        .or_else(|| (interfaces.len() == 1).then(|| interfaces[0].clone()))
        .or_else(|| text(format!("{sys}/parent")));
    // The directory is there once somebody has made it, as the programs that set the mode do.
    let choice = format!("/sys/kernel/config/rdma_cm/{device}/ports/{port}");
    Rdma {
        device: device.to_owned(),
        port,
        soft: driver.as_deref().map(|driver| matches!(driver, "rdma_rxe" | "siw")),
        driver,
        firmware: text(format!("{sys}/fw_ver")),
        board: text(format!("{sys}/board_id")),
        node_type: text(format!("{sys}/node_type")).map(|text| after_colon(&text)),
        link_layer: text(format!("{at}/link_layer")),
        state: text(format!("{at}/state")).map(|text| after_colon(&text)),
        physical_state: text(format!("{at}/phys_state")).map(|text| after_colon(&text)),
        rate_gbit: text(format!("{at}/rate"))
            .and_then(|rate| rate.split([' ', '.']).next()?.parse().ok()),
        mtu: verbs_value(verbs, device, port, "active_mtu"),
        mtu_max: verbs_value(verbs, device, port, "max_mtu"),
        netdev,
        gids,
        default_roce_mode: text(format!("{choice}/default_roce_mode")),
        default_tos: source.int(&format!("{choice}/default_roce_tos")),
        numa_node: source
            .link_name(&format!("{sys}/device"))
            .and_then(|address| pcie::numa_node(source, &address)),
        subnet_manager: source
            .text(&format!("{at}/sm_lid"))
            .map(|lid| lid.trim_start_matches("0x") != "0"),
        counters: counters(source, &format!("{at}/hw_counters"))
            .into_iter()
            .chain(counters(source, &format!("{at}/counters")))
            .collect(),
    }
}

/// `4: ACTIVE` is ACTIVE.
fn after_colon(text: &str) -> String {
    text.split_once(':').map_or(text, |(_, word)| word).trim().to_owned()
}

/// Devices in software have no driver's link; their names and modules tell.
fn soft_driver(source: &dyn Source, device: &str) -> Option<String> {
    let class = source.link(&format!("{SYS}/{device}"))?;
    if !class.contains("/virtual/") {
        return None;
    }
    let modules = source.names("/sys/module");
    let loaded = |module: &str| modules.iter().any(|name| name == module);
    match (loaded("rdma_rxe"), loaded("siw")) {
        (true, true) => Some(if device.starts_with("siw") { "siw" } else { "rdma_rxe" }),
        (true, false) => Some("rdma_rxe"),
        (false, true) => Some("siw"),
        (false, false) => None,
    }
    .map(str::to_owned)
}

/// The addresses of a port.
fn gids(source: &dyn Source, port: &str) -> Vec<Gid> {
    let mut all = Vec::new();
    let mut empty = 0;
    for index in sorted(source.names(&format!("{port}/gids"))) {
        let gid = source.text(&format!("{port}/gids/{index}")).unwrap_or_default();
        if gid.bytes().all(|byte| matches!(byte, b'0' | b':')) {
            empty += 1;
            if empty == EMPTY_IN_A_ROW {
                break;
            }
            continue;
        }
        empty = 0;
        all.push(Gid {
            index: index.parse().unwrap_or(-1),
            address: gid.parse::<Ipv6Addr>().ok().map(|ip| match ip.to_ipv4_mapped() {
                Some(ip) => ip.to_string(),
                None => ip.to_string(),
            }),
            kind: source.text(&format!("{port}/gid_attrs/types/{index}")),
            netdev: source.text(&format!("{port}/gid_attrs/ndevs/{index}")),
            gid,
        });
    }
    all
}

/// A number from ibv_devinfo: `active_mtu: 4096 (5)`, below `hca_id: mlx5_0` and `port: 1`.
fn verbs_value(verbs: &str, device: &str, port: i64, wanted: &str) -> Option<i64> {
    let (mut here, mut there) = (false, false);
    for (key, value) in colon_lines(verbs) {
        match key {
            "hca_id" => (here, there) = (value == device, false),
            "port" => there = value.parse() == Ok(port),
            _ if here && there && key == wanted => {
                return leading(value);
            }
            _ => {}
        }
    }
    None
}

fn counters(source: &dyn Source, directory: &str) -> BTreeMap<String, i64> {
    let told = |name: &&String| COUNTERS.contains(&name.as_str());
    let names = source.names(directory);
    names
        .iter()
        .filter(told)
        .filter_map(|name| Some((name.clone(), source.int(&format!("{directory}/{name}"))?)))
        .collect()
}

/// Counters about loss and congestion.
const COUNTERS: &[&str] = &[
    "duplicate_request",
    "implied_nak_seq_err",
    "local_ack_timeout_err",
    "np_cnp_sent",
    "np_ecn_marked_roce_packets",
    "out_of_buffer",
    "out_of_sequence",
    "packet_seq_err",
    "req_cqe_error",
    "rnr_nak_retry_err",
    "roce_adp_retrans",
    "roce_slow_restart",
    "rp_cnp_handled",
    "rp_cnp_ignored",
    "rx_icrc_encapsulated",
    "completer_retry_err",
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "port_xmit_discards",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "VL15_dropped",
    "resp_cqe_error",
    "resp_local_length_error",
    "resp_remote_access_errors",
    "req_remote_invalid_request",
    "rdmacg_charge_failed",
    "retry_exceeded_err",
    "send_rnr_err",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Tree;

    #[test]
    fn reads_a_roce_port() {
        let tree = Tree::parse(
            "/sys/class/infiniband/mlx5_0/fw_ver: 16.35.3006
/sys/class/infiniband/mlx5_0/board_id: MT_0000000012
/sys/class/infiniband/mlx5_0/node_type: 1: CA
/sys/class/infiniband/mlx5_0/device -> ../../../0000:41:00.0
/sys/class/infiniband/mlx5_0/device/driver -> ../../../../bus/pci/drivers/mlx5_core
/sys/bus/pci/devices/0000:41:00.0/numa_node: 0
/sys/class/infiniband/mlx5_0/ports/1/state: 4: ACTIVE
/sys/class/infiniband/mlx5_0/ports/1/phys_state: 5: LinkUp
/sys/class/infiniband/mlx5_0/ports/1/link_layer: Ethernet
/sys/class/infiniband/mlx5_0/ports/1/rate: 100 Gb/sec (4X EDR)
/sys/class/infiniband/mlx5_0/ports/1/gids/0: fe80:0000:0000:0000:0e42:a1ff:fe11:2233
/sys/class/infiniband/mlx5_0/ports/1/gids/3: 0000:0000:0000:0000:0000:ffff:0a00:0001
/sys/class/infiniband/mlx5_0/ports/1/gids/4: 0000:0000:0000:0000:0000:0000:0000:0000
/sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/0: IB/RoCE v1
/sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/3: RoCE v2
/sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/3: enp65s0f0np0
/sys/class/infiniband/mlx5_0/ports/1/hw_counters/out_of_sequence: 17
/sys/class/infiniband/mlx5_0/ports/1/hw_counters/lifespan: 10
$ ibv_devinfo
| hca_id:	mlx5_0
| 	transport:			InfiniBand (0)
| 	phys_port_cnt:			1
| 		port:	1
| 			state:			PORT_ACTIVE (4)
| 			max_mtu:		4096 (5)
| 			active_mtu:		1024 (3)
",
        )
        .unwrap();
        let ports = read(&tree);
        assert_eq!(ports.len(), 1);
        let port = &ports[0];
        assert_eq!(port.state.as_deref(), Some("ACTIVE"));
        assert_eq!(port.driver.as_deref(), Some("mlx5_core"));
        assert_eq!(port.soft, Some(false));
        assert_eq!(port.rate_gbit, Some(100));
        assert_eq!((port.mtu, port.mtu_max), (Some(1024), Some(4096)));
        assert_eq!(port.netdev.as_deref(), Some("enp65s0f0np0"));
        assert_eq!(port.numa_node, Some(0));
        assert_eq!(port.gids.len(), 2);
        assert_eq!(port.gids[1].index, 3);
        assert_eq!(port.gids[1].address.as_deref(), Some("10.0.0.1"));
        assert_eq!(port.gids[1].kind.as_deref(), Some("RoCE v2"));
        assert_eq!(port.counters.len(), 1);
    }
}
