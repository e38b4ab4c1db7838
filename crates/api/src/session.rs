//! Sessions.

use serde::{Deserialize, Serialize};

use crate::words::words;

words! {
    /// What carries a session.
    pub enum Transport {
        /// iSCSI over TCP (RFC 7143).
        Tcp = "tcp",
        /// iSCSI over RDMA (iSER, RFC 7145).
        Iser = "iser",
        /// NVMe over TCP.
        NvmeTcp = "nvme-tcp",
        /// NVMe over RDMA.
        NvmeRdma = "nvme-rdma",
    }
}

/// One session of iSCSI, or one controller of NVMe.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Session {
    /// The initiator's iSCSI name; of a controller, the host's NQN.
    pub initiator: String,
    /// The target's name, or the subsystem's NQN; `None` is a discovery session.
    pub target: Option<String>,
    /// The CHAP name that it has logged in with; `None` if nothing had to be proved.
    pub user: Option<String>,
    /// The initiator's address.
    pub peer: String,
    /// The portal that it came in by.
    pub portal: String,
    /// What carries it.
    pub transport: Transport,
    /// With `iser` and `nvme-rdma`: the path that it takes, of a controller that of its admin queue.
    pub rdma: Option<RdmaPath>,
    /// With `tcp` and `nvme-tcp`: why not over RDMA.
    pub tcp: Option<OverTcp>,
    /// The initiator's session identifier, in hexadecimal; empty for a controller.
    pub isid: String,
    /// The target session identifying handle: it names the session in the server's life. 0 for a controller.
    pub tsih: u16,
    /// Number of the shard that serves the session.
    pub shard: u64,
    /// Seconds since the login.
    pub connected_seconds: u64,
    /// Commands that are being carried out right now.
    pub commands_in_flight: u64,
    /// SCSI commands received so far.
    pub commands: u64,
    /// Bytes of data sent to the initiator so far.
    pub read_bytes: u64,
    /// Bytes of data received from it so far.
    pub written_bytes: u64,
    /// Every negotiated key with its value, digests among them.
    #[cfg_attr(feature = "schema", schema(value_type = Vec<Vec<String>>))]
    pub keys: Vec<(String, String)>,
    /// With `nvme-tcp` and `nvme-rdma`: the controller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller: Option<Controller>,
}

/// A controller of NVMe.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Controller {
    /// CNTLID: it names the controller among those that there are.
    pub cntlid: u16,
    /// The host's identifier, as a UUID.
    pub host_id: String,
    /// The host has proved who it is.
    pub authenticated: bool,
    /// The cipher suite, if it is by TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<String>,
    /// The keep alive timeout in milliseconds; 0: none.
    pub keep_alive_ms: u64,
    /// Namespaces that the host sees.
    pub namespaces: u64,
    /// Its queues, ascending.
    pub queues: Vec<Queue>,
}

/// A queue of a controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Queue {
    /// Its number; 0 is the admin queue.
    pub qid: u16,
    /// Number of the shard that serves it.
    pub shard: u64,
}

/// The path of a session over RDMA.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct RdmaPath {
    /// The device's name.
    pub device: String,
    /// This end's GID.
    pub gid: String,
    /// The largest payload of a packet, in bytes.
    pub path_mtu_bytes: u32,
    /// Commands that the initiator may have outstanding.
    pub queue_depth: u32,
    /// RDMA Reads so far: data of writes. Not counted for a controller.
    pub rdma_reads: u64,
    /// RDMA Writes so far: data of reads. Not counted for a controller.
    pub rdma_writes: u64,
}

/// Why a session is on TCP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct OverTcp {
    /// The RDMA device that carries this end's address.
    pub rdma_device: Option<String>,
    /// True if this end would have taken the session over iSER. Whether the initiator can do it
    /// is not known.
    pub iser_offered: bool,
    /// The same for a controller, and NVMe over RDMA.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub nvme_rdma_offered: bool,
    /// Why the session is on TCP, in a sentence; `None` on a loopback address, where nobody
    /// expects anything else.
    pub why: Option<String>,
}
