//! Network interfaces.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Facts, Pcie};
use crate::source::Source;

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
    /// Its interrupts.
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
    /// Packets that were lost since start: `rx_dropped`, `rx_errors`, `rx_missed_errors`,
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

/// Reads about the interfaces.
pub(super) fn read(_source: &dyn Source) -> Vec<Nic> {
    Vec::new()
}

/// Says over which interfaces storage traffic goes.
pub(super) fn mark_storage(_facts: &mut Facts) {}
