//! What a running server has counted, at one moment.

use std::time::Instant;

use serde::Deserialize;
use serde_json::Value;

/// Two answers of the server, to `stats` and `sessions`. What is not shown is left out.
#[derive(Clone, Debug)]
pub struct Sample {
    /// When the counts were asked for.
    pub at: Instant,
    /// Everything but the sessions.
    pub stats: Stats,
    /// Normal and discovery sessions.
    pub sessions: Vec<Session>,
}

/// The answer to `stats`.
#[derive(Clone, Debug, Deserialize)]
pub struct Stats {
    /// Since the server's start.
    pub uptime_seconds: u64,
    /// `io_uring` or `epoll`.
    pub driver: String,
    /// Each shard.
    pub loads: Vec<Load>,
    /// Each volume.
    pub volumes: Vec<Volume>,
}

/// One shard.
#[derive(Clone, Debug, Deserialize)]
pub struct Load {
    /// Its number.
    pub shard: usize,
    /// Processor time of its thread, in microseconds.
    pub cpu_us: u64,
    /// How often it has waited for events.
    pub waits: u64,
    /// Operations given to the kernel.
    pub operations: u64,
    /// Connections right now.
    pub connections: usize,
    /// Commands at work right now.
    pub commands_in_flight: usize,
    /// Bytes of buffer memory in use right now.
    pub buffer_used_bytes: u64,
    /// Bytes of buffer memory.
    pub buffer_bytes: u64,
}

/// One volume.
#[derive(Clone, Debug, Deserialize)]
pub struct Volume {
    /// Its name.
    pub name: String,
    /// Commands that read.
    pub read: Operations,
    /// Commands that write.
    pub write: Operations,
    /// SYNCHRONIZE CACHE.
    pub flushes: u64,
    /// Commands that failed.
    pub errors: u64,
    /// Commands at work right now.
    pub commands_in_flight: usize,
}

/// Operations of one kind.
#[derive(Clone, Debug, Deserialize)]
pub struct Operations {
    /// How many.
    pub ops: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Mean latency, in microseconds.
    pub mean_us: f64,
    /// How many took at most so long.
    pub histogram: Vec<Bucket>,
}

/// One bar of a histogram of latencies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Bucket {
    /// Upper bound in microseconds, a power of two minus one.
    pub up_to_us: u64,
    /// Operations.
    pub count: u64,
}

/// One session.
#[derive(Clone, Debug, Deserialize)]
pub struct Session {
    /// The initiator's iSCSI name.
    pub initiator: String,
    /// `None` is a discovery session.
    pub target: Option<String>,
    /// The initiator's address.
    pub peer: String,
    /// Names the session in the server's life.
    pub tsih: u16,
    /// The shard that serves it.
    pub shard: usize,
    /// Commands at work right now.
    pub commands_in_flight: usize,
    /// SCSI commands so far.
    pub commands: u64,
    /// Bytes sent to the initiator so far.
    pub read_bytes: u64,
    /// Bytes received from it so far.
    pub written_bytes: u64,
}

impl Sample {
    /// Reads the server's answers to `stats` and `sessions`.
    ///
    /// # Errors
    /// They are not what this version of lunet expects.
    pub fn new(at: Instant, stats: &Value, sessions: &Value) -> serde_json::Result<Self> {
        Ok(Self { at, stats: Stats::deserialize(stats)?, sessions: Vec::deserialize(sessions)? })
    }
}
