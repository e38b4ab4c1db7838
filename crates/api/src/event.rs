//! What happens to a server, interval by interval: a line of `lunet stats --follow --json` each, and what `lunet top` draws.

use serde::{Deserialize, Serialize};

/// An interval has ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Interval {
    /// When, in seconds since 1970, UTC.
    pub time: u64,
    /// What the server did meanwhile.
    pub rates: Rates,
}

/// What a server did in an interval. Rates are means over it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Rates {
    /// The interval's length, in seconds.
    pub seconds: f64,
    /// Each volume.
    pub volumes: Vec<VolumeRates>,
    /// Each session that was there all the time.
    pub sessions: Vec<SessionRates>,
    /// Each shard.
    pub shards: Vec<ShardRates>,
}

/// One volume.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct VolumeRates {
    /// Name of the volume.
    pub name: String,
    /// Reads.
    pub read: OperationRates,
    /// Writes.
    pub write: OperationRates,
    /// Flushes per second.
    pub flushes_per_second: f64,
    /// Operations per second that had to wait for a limit, or for the volume's share of its storage.
    pub limit_waits_per_second: f64,
    /// Failed commands, in the whole interval.
    pub errors: u64,
    /// Commands that are being carried out at its end.
    pub commands_in_flight: u64,
}

/// Operations of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct OperationRates {
    /// Operations per second.
    pub ops_per_second: f64,
    /// Bytes per second.
    pub bytes_per_second: f64,
    /// Mean latency in the server, in microseconds; `None` without an operation.
    pub mean_us: Option<f64>,
    /// 99 of 100 took at most so long, in microseconds: the bound of a bar of the histogram.
    pub p99_us: Option<u64>,
}

/// One session.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct SessionRates {
    /// The initiator's iSCSI name.
    pub initiator: String,
    /// The initiator's address.
    pub peer: String,
    /// Number of the shard that serves the session.
    pub shard: u64,
    /// SCSI commands per second.
    pub commands_per_second: f64,
    /// Bytes per second to the initiator.
    pub read_bytes_per_second: f64,
    /// Bytes per second from it.
    pub written_bytes_per_second: f64,
    /// Commands that are being carried out at the interval's end.
    pub commands_in_flight: u64,
}

/// One shard.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct ShardRates {
    /// Number of the shard, from 0.
    pub shard: u64,
    /// Processor time of its thread, in percent of one processor.
    pub cpu_percent: f64,
    /// Waits for events, per second.
    pub waits_per_second: f64,
    /// Operations given to the kernel for each wait: how well it batches. `None` without a wait.
    pub operations_per_wait: Option<f64>,
    /// Connections at the interval's end.
    pub connections: u64,
    /// Commands that are being carried out at the interval's end.
    pub commands_in_flight: u64,
    /// Buffer memory in use at the interval's end, in percent.
    pub buffers_percent: f64,
}
