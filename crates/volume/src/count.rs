//! What one shard counts of a volume.

use std::time::Duration;

use histogram::Histogram;

use crate::stage::StageTimes;

/// Kinds of operation that are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Data comes from the volume.
    Read,
    /// Data goes to the volume.
    Write,
    /// What was written is made stable.
    Flush,
    /// Space is given back.
    Unmap,
    /// All else: the volume's data is not touched.
    Other,
}

const KINDS: usize = 5;

/// Longer latencies count as this one, in microseconds: a minute.
const LONGEST: u64 = 60_000_000;

/// One shard's count of one volume.
#[derive(Clone)]
pub struct VolumeCount {
    ops: [u64; KINDS],
    bytes: [u64; KINDS],
    errors: u64,
    copied: u64,
    latency: [Histogram; 2],
    /// How long all commands have taken, in microseconds.
    time: u64,
    /// What those that were timed have waited for.
    pub(crate) stages: StageTimes,
    /// Commands that have waited for buffer memory, and those that have waited for room at the storage.
    pub(crate) waits: (u64, u64),
    /// Operations that have waited for a limit, and how long all of them have.
    pub(crate) limit: LimitWaits,
    /// Time with operations at work, and with requests at the storage; known in a report only.
    pub(crate) busy: (Duration, Duration),
    /// Commands at work; known in a report only.
    pub(crate) in_flight: usize,
    /// Commands of each shard that had any; known in a report only.
    pub(crate) shards: Vec<(usize, u64)>,
}

/// The time in which there is at least one of something.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Busy {
    /// Until there was none last.
    total: Duration,
    /// Since when there are some.
    since: Duration,
}

impl Busy {
    /// The first one is there.
    #[inline]
    pub fn begin(&mut self, now: Duration) {
        self.since = now;
    }

    /// The last one has gone.
    #[inline]
    pub fn end(&mut self, now: Duration) {
        self.total += now.saturating_sub(self.since);
    }

    /// The time so far; `some`: there are some now.
    pub fn time(&self, some: bool, now: Duration) -> Duration {
        let open = if some { now.saturating_sub(self.since) } else { Duration::ZERO };
        self.total + open
    }
}

/// Whose limit operations wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// That of their volume.
    Volume,
    /// That of their host.
    Host,
    /// That of their session.
    Session,
    /// None: their volume's share of its storage.
    Share,
}

/// What operations have waited for limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitWaits {
    counts: [u64; 4],
    /// How long all of them have waited.
    pub time: Duration,
}

impl LimitWaits {
    /// How often an operation has waited for such a limit. Whoever stands behind others waits for what these do.
    pub fn of(&self, whose: Whose) -> u64 {
        self.counts[whose as usize]
    }

    /// How often an operation has waited.
    pub fn all(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub(crate) fn count(&mut self, whose: Whose) {
        self.counts[whose as usize] += 1;
    }

    fn add(&mut self, other: &Self) {
        self.counts.iter_mut().zip(other.counts).for_each(|(sum, part)| *sum += part);
        self.time += other.time;
    }
}

impl Default for VolumeCount {
    fn default() -> Self {
        // Below 256 us each microsecond has a bucket, above that a bucket is at most 1/128 wide: 20 KiB each.
        let histogram = || Histogram::new(7, 26).expect("bounds are valid");
        let latency = [histogram(), histogram()];
        Self {
            ops: [0; KINDS],
            bytes: [0; KINDS],
            errors: 0,
            copied: 0,
            latency,
            time: 0,
            stages: StageTimes::default(),
            waits: (0, 0),
            limit: LimitWaits::default(),
            busy: (Duration::ZERO, Duration::ZERO),
            in_flight: 0,
            shards: Vec::new(),
        }
    }
}

impl VolumeCount {
    /// Counts a finished command: bytes moved, and the time from its arrival to its answer.
    pub fn record(&mut self, kind: Kind, bytes: u64, micros: u64, failed: bool) {
        self.ops[kind as usize] += 1;
        self.bytes[kind as usize] += bytes;
        self.errors += u64::from(failed);
        self.time += micros;
        if let Kind::Read | Kind::Write = kind {
            let latency = &mut self.latency[kind as usize];
            if latency.increment(micros.max(1)).is_err() {
                let _ = latency.increment(LONGEST);
            }
        }
    }

    /// Counts bytes that were copied here from a volume of this server, or zeroed by a token.
    pub(crate) fn copied(&mut self, bytes: u64) {
        self.copied += bytes;
    }

    /// For a report of this shard: the same, with who has counted it.
    #[must_use]
    pub fn of_shard(mut self, shard: usize) -> Self {
        let all = self.ops.iter().sum();
        self.shards = if all > 0 { vec![(shard, all)] } else { Vec::new() };
        self
    }

    /// Adds another shard's count.
    pub fn add(&mut self, other: &Self) {
        for kind in 0..KINDS {
            self.ops[kind] += other.ops[kind];
            self.bytes[kind] += other.bytes[kind];
        }
        self.errors += other.errors;
        self.copied += other.copied;
        self.in_flight += other.in_flight;
        self.time += other.time;
        self.stages.add(&other.stages);
        self.waits = (self.waits.0 + other.waits.0, self.waits.1 + other.waits.1);
        self.limit.add(&other.limit);
        self.busy = (self.busy.0 + other.busy.0, self.busy.1 + other.busy.1);
        self.shards.extend_from_slice(&other.shards);
        for (sum, part) in self.latency.iter_mut().zip(&other.latency) {
            // Same bounds on both sides: adding cannot fail.
            let _ = sum.checked_add_assign(part);
        }
    }

    /// Commands of a kind that have ended.
    pub fn ops(&self, kind: Kind) -> u64 {
        self.ops[kind as usize]
    }

    /// Bytes that they have moved.
    pub fn bytes(&self, kind: Kind) -> u64 {
        self.bytes[kind as usize]
    }

    /// Commands that have failed.
    pub fn errors(&self) -> u64 {
        self.errors
    }

    /// Bytes that were [copied](Self::copied).
    pub fn copied_bytes(&self) -> u64 {
        self.copied
    }

    /// Commands at work; 0 but in a report.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// How long all commands that have ended have taken together, in microseconds.
    pub fn time(&self) -> u64 {
        self.time
    }

    /// What the operations that were timed have waited for.
    pub fn stages(&self) -> &StageTimes {
        &self.stages
    }

    /// How long at least one operation was at work, added up over the shards.
    pub fn busy(&self) -> Duration {
        self.busy.0
    }

    /// How long at least one request was at the storage, added up over the shards.
    pub fn storage_busy(&self) -> Duration {
        self.busy.1
    }

    /// Commands that have waited for buffer memory.
    pub fn memory_waits(&self) -> u64 {
        self.waits.0
    }

    /// How often the volume had as much at its storage as it may have, and something waited for that.
    pub fn storage_full(&self) -> u64 {
        self.waits.1
    }

    /// How often an operation has waited for a limit that is configured, and how long all of them have waited. Those that
    /// wait now are counted without their time.
    pub fn limit_waits(&self) -> &LimitWaits {
        &self.limit
    }

    /// Commands of each shard that had any, by its number; empty but in a report.
    pub fn shards(&self) -> &[(usize, u64)] {
        &self.shards
    }

    /// How long reads or writes have taken, in microseconds. It is not known of other kinds: to ask for those is a
    /// mistake.
    pub fn latency(&self, kind: Kind) -> &Histogram {
        &self.latency[kind as usize]
    }
}
