//! What reports show of controllers, and what NVMe counts.

use std::net::SocketAddr;
use std::time::Duration;

use lunet_server::rdma::OverTcp;
use lunet_server::stats::Counts;

/// Counts of the protocol: what went wrong, and how often.
#[derive(Clone, Copy, Debug, Default)]
pub struct Protocol {
    /// Connections accepted.
    pub connections: u64,
    /// Connections turned away because a limit was reached.
    pub turned_away: u64,
    /// Controllers that hosts have connected to, those for discovery included.
    pub controllers: u64,
    /// Connects refused, for whatever reason.
    pub refused: u64,
    /// Of these: the host is not one of those that may connect.
    pub refused_hosts: u64,
    /// Controllers whose host was silent for longer than its keep alive timeout.
    pub keep_alive_expired: u64,
    /// Connections that ended because of a fault of the host or the network.
    pub dropped: u64,
    /// Commands that were aborted.
    pub aborted: u64,
    /// Commands that the host has to try again: a volume or a lock is busy.
    pub busy: u64,
    /// PDUs received.
    pub pdus_in: u64,
    /// PDUs sent.
    pub pdus_out: u64,
    /// Bytes of data received.
    pub bytes_in: u64,
    /// Bytes of data sent.
    pub bytes_out: u64,
    /// Data digests that were wrong.
    pub data_digest_errors: u64,
    /// RDMA Reads: data of writes.
    pub rdma_reads: u64,
    /// RDMA Writes: data of reads.
    pub rdma_writes: u64,
}

impl Counts for Protocol {
    fn connected(&mut self) {
        self.connections += 1;
    }

    fn turned_away(&mut self) {
        self.turned_away += 1;
    }

    fn add(&mut self, other: &Self) {
        self.connections += other.connections;
        self.turned_away += other.turned_away;
        self.controllers += other.controllers;
        self.refused += other.refused;
        self.refused_hosts += other.refused_hosts;
        self.keep_alive_expired += other.keep_alive_expired;
        self.dropped += other.dropped;
        self.aborted += other.aborted;
        self.busy += other.busy;
        self.pdus_in += other.pdus_in;
        self.pdus_out += other.pdus_out;
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
        self.data_digest_errors += other.data_digest_errors;
        self.rdma_reads += other.rdma_reads;
        self.rdma_writes += other.rdma_writes;
    }
}

/// A queue of a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueInfo {
    /// Its identifier; 0 is the admin queue.
    pub qid: u16,
    /// The shard that it is on, counted from 0 in this server.
    pub shard: usize,
}

/// The way of a queue over RDMA.
#[derive(Clone, Debug)]
pub struct RdmaPath {
    /// The device's name.
    pub device: String,
    /// This end's GID.
    pub gid: String,
    /// The largest payload of a packet, in bytes.
    pub path_mtu_bytes: u32,
    /// Commands that the host may have outstanding on a queue.
    pub queue_depth: u32,
}

/// A controller, by its admin queue.
#[derive(Clone, Debug)]
pub struct SessionInfo {
    /// CNTLID, which is the handle to end it by.
    pub cntlid: u16,
    /// The subsystem's NQN; the discovery NQN for a discovery controller.
    pub subsystem: String,
    /// The host's NQN.
    pub host_nqn: String,
    /// HOSTID.
    pub host_id: [u8; 16],
    /// The host has proved who it is (DH-HMAC-CHAP).
    pub authenticated: bool,
    /// The host's address.
    pub peer: SocketAddr,
    /// The address by which the host came.
    pub local: SocketAddr,
    /// The slot of the portal by which it came.
    pub portal: usize,
    /// What carries it: `tcp` or `rdma`.
    pub transport: &'static str,
    /// Over RDMA: the way of the admin queue.
    pub rdma: Option<RdmaPath>,
    /// Over TCP: why not over RDMA.
    pub tcp: Option<OverTcp>,
    /// The cipher suite, if it is by TLS.
    pub tls: Option<&'static str>,
    /// Header digests, and data digests, are in use on the admin queue.
    pub digests: (bool, bool),
    /// The keep alive timeout; zero: none.
    pub kato: Duration,
    /// Its queues, ascending.
    pub queues: Vec<QueueInfo>,
    /// Namespaces that the host sees.
    pub namespaces: usize,
    /// Since when it is there.
    pub age: Duration,
}
