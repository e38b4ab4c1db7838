//! The parts of the machine that data passes on its way: what they carry at most, and what the kernel has counted for them.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::words::words;

words! {
    /// What kind of part of the machine.
    pub enum PartKind {
        /// The link of a network interface: full duplex, each direction by itself.
        Link = "link",
        /// The PCIe slot of a network card, with all ports of it: full duplex.
        Slot = "slot",
        /// A drive: what it reads and what it writes share its time.
        Drive = "drive",
        /// A pool: its drives are parts of their own, and what it carries is what they do.
        Pool = "pool",
    }
}

/// A part of the machine that data passes between initiators and storage.
///
/// Counts run since the part came, like those of the kernel: two answers tell of the time between them. Bytes of a link are
/// those on its wire, with all headers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Part {
    /// What it is.
    pub kind: PartKind,
    /// Its name: `enp65s0f0np0`, `nvme0n1`; of a slot, its PCIe address.
    pub name: String,
    /// What the kernel counts for it: block devices, network interfaces, and RDMA ports as `mlx5_0/ports/1`. Nothing is
    /// counted for a pool.
    pub counted: Vec<String>,
    /// The pool that a drive belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// The volumes that are kept in a pool, or on a drive without one; empty for links and slots, which all share.
    pub volumes: Vec<String>,
    /// True if it turns: one request at a time keeps it busy.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub rotational: bool,
    /// What it carries at most towards the initiators, in bytes per second: what a drive reads, what an interface sends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reads_at_most: Option<u64>,
    /// The same in the other direction: what a drive writes, what an interface receives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub writes_at_most: Option<u64>,
    /// Where these two come from, in words: `10 Gbit/s`, `Samsung data sheet`.
    pub why: String,
    /// Bytes towards the initiators.
    pub read_bytes: u64,
    /// Bytes from the initiators.
    pub written_bytes: u64,
    /// How long a drive had at least one request, in microseconds.
    pub busy_us: u64,
}

/// Of what the parts are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartsOf {
    /// Where the server listens: addresses without ports.
    pub portals: Vec<IpAddr>,
    /// Where volumes are kept.
    pub places: Vec<Place>,
}

/// A volume and where its blocks are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The volume.
    pub volume: String,
    /// Path of its file or block device.
    pub path: String,
}
