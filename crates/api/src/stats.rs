//! What a server has counted, and how its portals are served.

use serde::{Deserialize, Serialize};

use crate::Fault;
use crate::part::Part;
use crate::verdict::Stage;
use crate::words::words;

/// The statistics of a running server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Stats {
    /// Seconds since the server started.
    pub uptime_seconds: u64,
    /// The event loop's driver: `io_uring` or `epoll`.
    pub driver: String,
    /// How many shards run.
    pub shards: u64,
    /// How many sessions there are, discovery sessions included.
    pub sessions: u64,
    /// Each portal, and whether it is served over iSER.
    pub portals: Vec<Portal>,
    /// Each shard.
    pub loads: Vec<ShardLoad>,
    /// The shards that have not answered for two seconds: their sessions and counts are missing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub silent_shards: Vec<SilentShard>,
    /// Counts of iSCSI of all shards.
    pub protocol: Protocol,
    /// Counts of NVMe of all shards; `None` if it is not served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvme: Option<NvmeCounts>,
    /// Each volume.
    pub volumes: Vec<VolumeStats>,
    /// The links, slots and drives that its data passes, as far as they are known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Part>,
    /// True while they are being found out: they come with a later answer.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub parts_wanted: bool,
    /// The room for new volumes: that of the file system of the data directory. `None` if that cannot be asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub room: Option<Room>,
    /// True if the helper process, which the server may not start again, has ended.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub helper_ended: bool,
}

/// The room in a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Room {
    /// Bytes that it can hold.
    pub size_bytes: u64,
    /// Bytes that are free for lunet.
    pub available_bytes: u64,
}

impl Stats {
    /// True if these counts go on from earlier ones: the server was not started anew in between.
    pub fn goes_on_from(&self, before: &Self) -> bool {
        let mut loads = before.loads.iter().zip(&self.loads);
        before.uptime_seconds <= self.uptime_seconds
            && before.loads.len() == self.loads.len()
            && loads.all(|(before, now)| before.cpu_us <= now.cpu_us)
    }
}

/// What a shard has to do, and what it has used so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct ShardLoad {
    /// Number of the shard, from 0.
    pub shard: u64,
    /// When this was counted, in microseconds since the server's start: a busy shard answers late. 0 from an older server.
    #[serde(skip_serializing_if = "is_zero")]
    pub time_us: u64,
    /// Processor time of its thread, in microseconds. Work that may block runs on other threads.
    pub cpu_us: u64,
    /// How much of that went into polling (`busy-poll`) that found nothing, in microseconds: the shard had nothing to do then.
    #[serde(skip_serializing_if = "is_zero")]
    pub polled_us: u64,
    /// How long its thread was ready to run and another one had the processor, in microseconds; 0 if the kernel does not
    /// count it.
    #[serde(skip_serializing_if = "is_zero")]
    pub ready_us: u64,
    /// How often it has waited for events.
    pub waits: u64,
    /// Operations given to the kernel.
    pub operations: u64,
    /// Messages that it has read of other shards and threads, without questions for reports such as this one.
    #[serde(skip_serializing_if = "is_zero")]
    pub messages: u64,
    /// Bytes that the kernel has sent to clients without a copy (`zero-copy-send`).
    #[serde(skip_serializing_if = "is_zero")]
    pub zero_copy_bytes: u64,
    /// Bytes that it was to send without a copy, and has copied after all: the connections go on with ordinary sends.
    #[serde(skip_serializing_if = "is_zero")]
    pub zero_copy_copied_bytes: u64,
    /// Reads and writes that went to NVMe drives as commands, past the block layer (`passthrough`).
    #[serde(skip_serializing_if = "is_zero")]
    pub passthrough_commands: u64,
    /// Of these, those that have failed and were done again by the block layer.
    #[serde(skip_serializing_if = "is_zero")]
    pub passthrough_failed: u64,
    /// Connections right now.
    pub connections: u64,
    /// Commands that are being carried out right now, those without an initiator included.
    pub commands_in_flight: u64,
    /// Bytes of buffer memory in use right now.
    pub buffer_used_bytes: u64,
    /// Bytes of buffer memory that the system has given, as far as it was needed lately; 0 if the server is too old to tell.
    #[serde(skip_serializing_if = "is_zero")]
    pub buffer_resident_bytes: u64,
    /// Bytes of buffer memory that there may be.
    pub buffer_bytes: u64,
}

/// An event loop that does not answer: the storage of a volume may hold it up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct SilentShard {
    /// Number of the shard, from 0.
    pub shard: u64,
    /// For how long it has not answered, in milliseconds.
    pub silent_ms: u64,
}

impl SilentShard {
    /// A sentence about these; `None` if there are none.
    pub fn sentence(all: &[Self]) -> Option<String> {
        let one = |one: &Self| {
            format!("event loop {} has not answered for {} s", one.shard, one.silent_ms / 1000)
        };
        let all: Vec<String> = all.iter().map(one).collect();
        (!all.is_empty()).then(|| {
            all.join(", ")
                + ": the storage of a volume may hang, and the sessions and counts there are missing here"
        })
    }
}

/// Counts of the protocol: what went wrong, and how often.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
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

/// What went wrong over NVMe, and how often.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct NvmeCounts {
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
    pub pdus: u64,
    /// Data digests that did not match.
    pub digest_errors: u64,
}

impl NvmeCounts {
    /// Each count with its name, in the order of the alphabet.
    pub const fn counts(&self) -> [(&'static str, u64); 11] {
        let Self {
            connections,
            turned_away,
            controllers,
            refused,
            refused_hosts,
            keep_alive_expired,
            dropped,
            aborted,
            busy,
            pdus,
            digest_errors,
        } = *self;
        [
            ("aborted", aborted),
            ("busy", busy),
            ("connections", connections),
            ("controllers", controllers),
            ("digest errors", digest_errors),
            ("dropped", dropped),
            ("keep alive expired", keep_alive_expired),
            ("PDUs", pdus),
            ("refused", refused),
            ("refused hosts", refused_hosts),
            ("turned away", turned_away),
        ]
    }
}

impl Protocol {
    /// Each count with its name, in the order of the alphabet.
    pub const fn counts(&self) -> [(&'static str, u64); 15] {
        let Self {
            connections,
            turned_away,
            logins,
            login_failures,
            login_auth_failures,
            login_forbidden,
            login_not_found,
            login_throttled,
            dropped,
            pdus,
            rejects,
            digest_errors,
            task_set_full,
            busy,
            aborted,
        } = *self;
        [
            ("aborted", aborted),
            ("busy", busy),
            ("connections", connections),
            ("digest errors", digest_errors),
            ("dropped", dropped),
            ("login auth failures", login_auth_failures),
            ("login failures", login_failures),
            ("login forbidden", login_forbidden),
            ("login not found", login_not_found),
            ("login throttled", login_throttled),
            ("logins", logins),
            ("pdus", pdus),
            ("rejects", rejects),
            ("task set full", task_set_full),
            ("turned away", turned_away),
        ]
    }
}

/// The statistics of one volume.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct VolumeStats {
    /// Name of the volume in the configuration.
    pub name: String,
    /// Capacity in bytes.
    pub size_bytes: u64,
    /// Reads, with data moved and latency.
    pub read: Operations,
    /// Writes, with data moved and latency.
    pub write: Operations,
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
    /// Commands that are being carried out right now.
    pub commands_in_flight: u64,
    /// What is wrong with its storage; empty while nothing is.
    pub faults: Vec<Fault>,
    /// Where the time of its operations goes.
    #[serde(skip_serializing_if = "VolumeTime::is_unknown")]
    pub time: VolumeTime,
}

/// Where the time of a volume's operations goes. Counted since the start, like everything here: two answers tell of the
/// time between them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct VolumeTime {
    /// How long all operations that have ended have taken together, in microseconds.
    pub operations_us: u64,
    /// How long at least one operation was at work, in microseconds. Shards are added up.
    pub busy_us: u64,
    /// How long at least one request was at the storage, in microseconds, those that a limit holds back included. Shards
    /// are added up.
    pub storage_busy_us: u64,
    /// Operations that have waited for buffer memory.
    pub memory_waits: u64,
    /// How often something waited because the volume had as much at its storage as it may have.
    pub storage_full: u64,
    /// How often an operation has waited for a limit of its volume, its initiator or its session.
    pub limit_waits: u64,
    /// How long those that wait no longer have waited together, in microseconds.
    pub limit_us: u64,
    /// Which limit those waited for.
    pub limit_waits_of: LimitWaits,
    /// Operations that were timed, and have ended: one in 64, and more while there are few.
    pub timed: u64,
    /// What those have waited for.
    pub stages: Vec<StageTime>,
    /// How often data and answers were handed to the network, over TCP.
    pub sent: u64,
    /// How long that took until all of it was taken, in nanoseconds.
    pub sent_ns: u64,
    /// The shards that have carried out operations.
    pub shards: Vec<ShardOperations>,
}

/// How often operations have waited, by what they waited for. Whoever stands behind others waits for what these do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct LimitWaits {
    /// The limit of their volume.
    pub volume: u64,
    /// That of their initiator.
    pub initiator: u64,
    /// That of their session.
    pub session: u64,
    /// The volume's share of its storage, or that others there have a latency target.
    pub share: u64,
}

impl VolumeTime {
    /// How long the operations that were timed have waited for one thing, in nanoseconds: for the network, with the way out
    /// of what was sent.
    pub fn waited_ns(&self, of: &StageTime) -> u64 {
        let sent = if of.stage == Stage::NetworkOut { self.sent_ns } else { 0 };
        of.ns.saturating_add(sent)
    }

    /// True if nothing is known of it: an older server does not tell.
    fn is_unknown(&self) -> bool {
        *self == Self::default()
    }
}

const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// How long operations that were timed have waited for one thing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct StageTime {
    /// For what.
    pub stage: Stage,
    /// How long, in nanoseconds.
    pub ns: u64,
}

/// How many operations of a volume a shard has carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct ShardOperations {
    /// Number of the shard, from 0.
    pub shard: u64,
    /// How many.
    pub operations: u64,
}

/// Operations of one kind. Latency runs from a command's arrival in full to its answer being
/// queued for the network, measured by the server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Operations {
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Percentile {
    /// 50 means the median.
    pub percentile: f64,
    /// Microseconds.
    pub us: u64,
}

/// One bar of the latency histogram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Bucket {
    /// Upper bound in microseconds, a power of two minus one.
    pub up_to_us: u64,
    /// Operations.
    pub count: u64,
}

words! {
    /// Why a portal is not served over iSER.
    pub enum NoIser {
        /// Its `transport` leaves iSER out.
        SwitchedOff = "switched-off",
        /// No RDMA device carries its address.
        NoDevice = "no-device",
        /// The device has the address for RoCE v1 alone.
        NoRoceV2 = "no-roce-v2",
        /// The port of the device has no link.
        LinkDown = "link-down",
        /// The libraries of rdma-core are missing or too old.
        NoLibrary = "no-library",
        /// rdma-core has no driver for the device.
        NoProvider = "no-provider",
        /// The kernel's connection manager (rdma_ucm) does not answer.
        NoConnectionManager = "no-connection-manager",
        /// The limit of locked memory is too low.
        LockedMemory = "locked-memory",
        /// The device has failed, or went away.
        DeviceGone = "device-gone",
        /// The portal came while the server ran: nobody has looked for iSER there yet.
        NextStart = "next-start",
        /// The portal was removed.
        Removed = "removed",
        /// Another reason, which the sentence tells.
        Unnamed = "other",
    }
}

/// A portal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Portal {
    /// Where it listens.
    pub address: String,
    /// Portal group tag (RFC 7143), which is also the target port group of its LUNs.
    pub tag: u16,
    /// True if iSCSI is served over TCP.
    pub tcp: bool,
    /// True if NVMe is served over TCP, and iSCSI is not served.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub nvme_tcp: bool,
    /// True if NVMe is served over RDMA, and iSCSI is not served.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub nvme_rdma: bool,
    /// True if the configuration names NVMe over RDMA: it is missed if it is not there.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub nvme_rdma_wanted: bool,
    /// True if it is served over iSER.
    pub iser: bool,
    /// True if the configuration names iSER: it is missed if it is not there.
    pub iser_wanted: bool,
    /// With iSER or NVMe over RDMA: the RDMA devices.
    pub devices: Vec<String>,
    /// Those of them that are used without Send with Invalidate, because they fail with it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub without_invalidate: Vec<String>,
    /// Without it, where it is wanted or expected: why, in a word.
    pub reason: Option<NoIser>,
    /// The same in a sentence; `None` on a loopback address, where nobody expects anything else.
    pub why: Option<String>,
}
