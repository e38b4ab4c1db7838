//! What is counted, and how it is reported.
//!
//! Each shard counts for itself in plain integers; a report adds the shards up.

use lunet_iscsi::chap::Proof;
use lunet_volume::{Fault, Kind, VolumeCount};

use crate::access::Origin;
use crate::rdma::{OverTcp, PortalStatus};

/// What one shard reports.
#[derive(Clone, Default)]
pub struct ShardStats {
    /// Per volume, with its name.
    pub volumes: Vec<(String, VolumeCount)>,
    /// The shard's own figures.
    pub protocol: Protocol,
    /// What it has on its hands.
    pub load: ShardLoad,
}

/// What a shard has on its hands, and what it has used so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct ShardLoad {
    /// Its number.
    pub shard: usize,
    /// Processor time of its thread, in microseconds. Work that may block runs on other threads.
    pub cpu_us: u64,
    /// How often it has waited for events.
    pub waits: u64,
    /// Operations given to the kernel.
    pub operations: u64,
    /// Connections right now.
    pub connections: usize,
    /// Commands at work right now, those without an initiator included.
    pub commands_in_flight: usize,
    /// Bytes of buffer memory in use right now.
    pub buffer_used_bytes: usize,
    /// Bytes of buffer memory.
    pub buffer_bytes: usize,
}

/// Counts of the protocol: what went wrong, and how often.
#[derive(Clone, Copy, Debug, Default)]
pub struct Protocol {
    /// Connections accepted.
    pub connections: u64,
    /// Connections turned away because a limit was reached.
    pub turned_away: u64,
    /// Logins that came to full feature phase.
    pub logins: u64,
    /// Logins refused, for whatever reason.
    pub login_failures: u64,
    /// Of these: the initiator could not prove who it is (status 0201).
    pub login_auth_failures: u64,
    /// Of these: discovery that is not for this initiator (status 0202).
    pub login_forbidden: u64,
    /// Of these: a target that is not there, or not for this initiator (status 0203).
    pub login_not_found: u64,
    /// Of these: the client had failed too often shortly before (status 0301).
    pub login_throttled: u64,
    /// Connections that were closed for a protocol error, a wrong digest or a missed time limit.
    pub dropped: u64,
    /// Protocol data units received.
    pub pdus: u64,
    /// Reject PDUs sent.
    pub rejects: u64,
    /// Header and data digests that did not match.
    pub digest_errors: u64,
    /// Commands answered TASK SET FULL for want of buffer memory.
    pub task_set_full: u64,
    /// Commands answered BUSY because an abandoned write still held their blocks.
    pub busy: u64,
    /// Commands aborted by task management or by the end of their session.
    pub aborted: u64,
}

impl Protocol {
    /// Adds what a connection has counted.
    pub fn add_counters(&mut self, counters: &lunet_iscsi::target::Counters) {
        self.pdus += counters.pdus_in;
        self.rejects += counters.rejects();
        self.digest_errors += counters.header_digest_errors + counters.data_digest_errors;
        self.task_set_full += counters.task_set_full;
    }

    /// Adds another shard's counts.
    pub fn add(&mut self, other: &Self) {
        self.connections += other.connections;
        self.turned_away += other.turned_away;
        self.logins += other.logins;
        self.login_failures += other.login_failures;
        self.login_auth_failures += other.login_auth_failures;
        self.login_forbidden += other.login_forbidden;
        self.login_not_found += other.login_not_found;
        self.login_throttled += other.login_throttled;
        self.dropped += other.dropped;
        self.pdus += other.pdus;
        self.rejects += other.rejects;
        self.digest_errors += other.digest_errors;
        self.task_set_full += other.task_set_full;
        self.busy += other.busy;
        self.aborted += other.aborted;
    }
}

/// The statistics of a running server.
#[derive(Clone, Debug)]
pub struct Stats {
    /// Seconds since the server started.
    pub uptime_seconds: u64,
    /// The event loop's driver.
    pub driver: &'static str,
    /// How many shards run.
    pub shards: usize,
    /// How many sessions there are, discovery sessions included.
    pub sessions: usize,
    /// Each portal, and whether it is served over iSER.
    pub portals: Vec<PortalStatus>,
    /// Each shard.
    pub loads: Vec<ShardLoad>,
    /// Protocol counts of all shards.
    pub protocol: Protocol,
    /// Each volume.
    pub volumes: Vec<VolumeStats>,
}

/// The statistics of one volume.
#[derive(Clone, Debug)]
pub struct VolumeStats {
    /// Its name.
    pub name: String,
    /// Capacity in bytes.
    pub size_bytes: u64,
    /// Reads, with data moved and latency.
    pub read: OpStats,
    /// Writes, with data moved and latency.
    pub write: OpStats,
    /// Flushes.
    pub flushes: u64,
    /// UNMAP commands.
    pub unmaps: u64,
    /// Other commands.
    pub others: u64,
    /// Bytes that EXTENDED COPY and WRITE USING TOKEN have written, without the network.
    pub copied_bytes: u64,
    /// Commands that ended with CHECK CONDITION, unit attentions apart.
    pub errors: u64,
    /// Commands at work right now.
    pub commands_in_flight: usize,
    /// What is wrong with its storage; empty while nothing is.
    pub faults: Vec<Fault>,
}

/// Operations of one kind. Latency runs from a command's arrival in full to its answer being
/// queued for the network, measured by the server.
#[derive(Clone, Debug)]
pub struct OpStats {
    /// How many.
    pub ops: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Mean latency in microseconds; 0 if there were none.
    pub mean_us: f64,
    /// Latency at each percentile.
    pub percentiles: Vec<Percentile>,
    /// The histogram: how many operations took at most this long and longer than the one before.
    pub histogram: Vec<Bucket>,
}

/// One point of the latency distribution.
#[derive(Clone, Copy, Debug)]
pub struct Percentile {
    /// 50 means the median.
    pub percentile: f64,
    /// Microseconds.
    pub us: u64,
}

/// One bar of the latency histogram.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    /// Upper bound in microseconds, a power of two minus one.
    pub up_to_us: u64,
    /// Operations.
    pub count: u64,
}

/// Adds the shards' counts of every volume up. `names` gives name, size in bytes, and what is wrong with it.
pub fn merge(shards: &[ShardStats], names: &[Named]) -> (Protocol, Vec<VolumeStats>) {
    let mut protocol = Protocol::default();
    let mut sums = vec![VolumeCount::default(); names.len()];
    for shard in shards {
        protocol.add(&shard.protocol);
        for (name, part) in &shard.volumes {
            if let Some(at) = names.iter().position(|(known, ..)| known == name) {
                sums[at].add(part);
            }
        }
    }
    let volumes = sums.iter().zip(names).map(|(sum, name)| volume_stats(sum, name)).collect();
    (protocol, volumes)
}

/// A volume's name, its size in bytes, and what is wrong with its storage.
pub type Named = (String, u64, Vec<Fault>);

fn volume_stats(sum: &VolumeCount, (name, size, faults): &Named) -> VolumeStats {
    VolumeStats {
        name: name.clone(),
        size_bytes: *size,
        read: op_stats(sum, Kind::Read),
        write: op_stats(sum, Kind::Write),
        flushes: sum.ops(Kind::Flush),
        unmaps: sum.ops(Kind::Unmap),
        others: sum.ops(Kind::Other),
        copied_bytes: sum.copied_bytes(),
        errors: sum.errors(),
        commands_in_flight: sum.in_flight(),
        faults: faults.clone(),
    }
}

fn op_stats(sum: &VolumeCount, kind: Kind) -> OpStats {
    let latency = sum.latency(kind);
    let percentiles = [50.0, 90.0, 99.0, 99.9, 100.0]
        .map(|p| Percentile { percentile: p, us: latency.value_at_percentile(p) })
        .to_vec();
    let mut histogram = Vec::new();
    let (mut low, mut high) = (0, 1);
    while low <= latency.max() && !latency.is_empty() {
        let count = latency.count_between(low, high);
        if count > 0 {
            histogram.push(Bucket { up_to_us: high, count });
        }
        (low, high) = (high + 1, high * 2 + 1);
    }
    OpStats {
        ops: sum.ops(kind),
        bytes: sum.bytes(kind),
        mean_us: if latency.is_empty() { 0.0 } else { latency.mean() },
        percentiles: if latency.is_empty() { Vec::new() } else { percentiles },
        histogram,
    }
}

/// The way of a session over RDMA.
#[derive(Clone, Debug)]
pub struct RdmaPath {
    /// The device's name.
    pub device: String,
    /// This end's GID.
    pub gid: String,
    /// The largest payload of a packet, in bytes.
    pub path_mtu_bytes: u32,
    /// Commands that the initiator may have outstanding.
    pub queue_depth: u32,
    /// RDMA Reads so far: data of writes.
    pub rdma_reads: u64,
    /// RDMA Writes so far: data of reads.
    pub rdma_writes: u64,
}

/// One session, as `lunet sessions` shows it.
#[derive(Clone, Debug)]
pub struct SessionInfo {
    /// The initiator's iSCSI name.
    pub initiator: String,
    /// The target's name; `None` is a discovery session.
    pub target: Option<String>,
    /// The CHAP name that it has logged in with; `None` if nothing had to be proved.
    pub user: Option<String>,
    /// The initiator's address.
    pub peer: String,
    /// The portal that it came in by.
    pub portal: String,
    /// `tcp` or `iser`.
    pub transport: &'static str,
    /// With `iser`: the way that it takes.
    pub rdma: Option<RdmaPath>,
    /// With `tcp`: why not `iser`.
    pub tcp: Option<OverTcp>,
    /// The portal's place in the configuration.
    pub portal_index: usize,
    /// How it has proved who it is.
    pub proof: Option<Proof>,
    /// Where it comes from.
    pub origin: Origin,
    /// It has lost its target, and is to log out.
    pub leaving: bool,
    /// The initiator's session identifier, in hexadecimal.
    pub isid: String,
    /// The target session identifying handle.
    pub tsih: u16,
    /// The shard that serves it.
    pub shard: usize,
    /// Seconds since the login.
    pub connected_seconds: u64,
    /// Commands at work right now.
    pub commands_in_flight: usize,
    /// SCSI commands received so far.
    pub commands: u64,
    /// Bytes of data sent to the initiator so far.
    pub read_bytes: u64,
    /// Bytes of data received from it so far.
    pub written_bytes: u64,
    /// Every negotiated key with its value, digests among them.
    pub keys: Vec<(&'static str, String)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_add_up_and_every_operation_is_in_one_bar() {
        let mut shards = vec![ShardStats::default(), ShardStats::default()];
        for (n, shard) in shards.iter_mut().enumerate() {
            shard.volumes = vec![("vm".into(), VolumeCount::default())];
            for micros in [0, 1, 2, 3, 100, 5_000] {
                shard.volumes[0].1.record(Kind::Read, 4096, micros + n as u64, false);
            }
            shard.volumes[0].1.record(Kind::Flush, 0, 9, true);
            shard.protocol.logins = 2;
        }
        let (protocol, volumes) = merge(&shards, &[("vm".into(), 1 << 20, Vec::new())]);
        assert_eq!(protocol.logins, 4);
        let volume = &volumes[0];
        assert_eq!((volume.read.ops, volume.read.bytes), (12, 12 * 4096));
        assert_eq!((volume.flushes, volume.errors, volume.write.ops), (2, 2, 0));
        assert_eq!(volume.read.histogram.iter().map(|b| b.count).sum::<u64>(), 12);
        assert!(volume.read.percentiles.iter().any(|p| p.percentile == 50.0 && p.us <= 4));
        assert!(volume.write.percentiles.is_empty());
    }
}
