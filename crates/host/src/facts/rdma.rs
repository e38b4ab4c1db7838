//! RDMA devices.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

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
    /// Its network interface.
    pub netdev: Option<String>,
    /// Its addresses.
    pub gids: Vec<Gid>,
    /// What connections are made with unless they say otherwise: `RoCE v2`, `IB/RoCE v1`.
    pub default_roce_mode: Option<String>,
    /// Type of service of connections that do not choose: DSCP times 4.
    pub default_tos: Option<i64>,
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
    /// Its place in the table.
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

/// Reads about the RDMA devices.
pub(super) fn read(_source: &dyn Source) -> Vec<Rdma> {
    Vec::new()
}
