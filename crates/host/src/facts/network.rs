//! Ports and connections of storage protocols.

use serde::{Deserialize, Serialize};

use crate::source::Source;

/// A TCP port of a storage protocol that somebody listens on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Listener {
    /// `iscsi` (3260), `nvme` (4420, 8009), `nfs` (2049), `smb` (445), `lunet`.
    pub protocol: String,
    /// Address; `0.0.0.0` and `::` are all of the machine's.
    pub address: String,
    /// Port.
    pub port: i64,
    /// The program, if it can be seen; a kernel target has none.
    pub program: Option<String>,
}

/// A TCP connection of a storage protocol.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TcpConnection {
    /// `iscsi` (3260), `nvme` (4420).
    pub protocol: String,
    /// Whether this machine is the server.
    pub serves: bool,
    /// Own address.
    pub local_address: String,
    /// Own port.
    pub local_port: i64,
    /// Address of the other end.
    pub remote_address: String,
    /// Port of the other end.
    pub remote_port: i64,
    /// Largest segment now, in bytes: the MTU of the path less 40 to 60.
    pub mss: Option<i64>,
    /// MTU of the path, as far as it is known.
    pub path_mtu: Option<i64>,
    /// How congestion is met: `cubic`, `dctcp`, `bbr`.
    pub congestion_control: Option<String>,
    /// Whether both ends use ECN.
    pub ecn: Option<bool>,
    /// Round trip in microseconds.
    pub rtt_us: Option<i64>,
    /// The smallest that was seen.
    pub min_rtt_us: Option<i64>,
    /// Segments that had to be sent again.
    pub retransmits: Option<i64>,
    /// Whether timestamps are used.
    pub timestamps: Option<bool>,
    /// Whether selective acknowledgements are used.
    pub sack: Option<bool>,
    /// Whether windows beyond 64 KiB are possible.
    pub window_scaling: Option<bool>,
}

/// Reads who listens.
pub(super) fn listeners(_source: &dyn Source) -> Vec<Listener> {
    Vec::new()
}

/// Reads who is connected.
pub(super) fn connections(_source: &dyn Source) -> Vec<TcpConnection> {
    Vec::new()
}
