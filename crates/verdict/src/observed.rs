//! What was observed of a volume, or of all, between two looks.

use std::time::Duration;

use lunet_api::{LimitWaits, Operations, ShardLoad, Stage, Stats, VolumeStats, VolumeTime};

use super::parts::PartUse;

/// What takes no longer than so many loop iterations of a shard may be the time of the shard itself.
pub(crate) const ITERATIONS: f64 = 8.0;

/// The processor time of a shard without that in which it polled and found nothing.
const fn worked(load: &ShardLoad) -> u64 {
    load.cpu_us.saturating_sub(load.polled_us)
}

/// What one shard did in the interval.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShardUse {
    /// Its number.
    pub shard: u64,
    /// The part of the time that it used a processor.
    pub used: f64,
    /// The part that it was ready to, and another thread had it.
    pub ready: f64,
    /// The mean length of a loop iteration, in nanoseconds.
    pub iteration_ns: f64,
    /// The part of its buffer memory that is in use at the end.
    pub buffers: f64,
}

impl ShardUse {
    /// Each shard.
    pub fn all(before: &Stats, after: &Stats, elapsed: Duration) -> Vec<Self> {
        let pairs = before.loads.iter().zip(&after.loads);
        pairs.map(|(then, now)| Self::between(then, now, elapsed)).collect()
    }

    fn between(then: &ShardLoad, now: &ShardLoad, elapsed: Duration) -> Self {
        // By its own clock: a busy shard answers late, and at one time more so than at the other.
        let own = Duration::from_micros(now.time_us.saturating_sub(then.time_us));
        let elapsed = if own.is_zero() { elapsed } else { own };
        let share =
            |then: u64, now: u64| now.saturating_sub(then) as f64 / 1e6 / elapsed.as_secs_f64();
        let waits = now.waits.saturating_sub(then.waits).max(1);
        Self {
            shard: now.shard,
            // Who polls has nothing to do.
            used: share(worked(then), worked(now)).min(1.0),
            ready: share(then.ready_us, now.ready_us).min(1.0),
            iteration_ns: elapsed.as_nanos() as f64 / waits as f64,
            buffers: now.buffer_used_bytes as f64 / now.buffer_bytes.max(1) as f64,
        }
    }

    /// How long it works in a loop iteration, in nanoseconds.
    fn work_ns(&self) -> f64 {
        self.occupied() * self.iteration_ns
    }

    /// The part of the time in which it had no time left for anything else.
    pub fn occupied(&self) -> f64 {
        (self.used + self.ready).min(1.0)
    }
}

/// A volume in an interval, or all volumes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observed {
    /// The server tells where time goes: an older one does not.
    pub tells: bool,
    /// The interval's length, in seconds.
    pub seconds: f64,
    /// Operations that have ended.
    pub operations: u64,
    /// Those that are at work at the end.
    pub in_flight: u64,
    /// Bytes read and written.
    pub bytes: (u64, u64),
    /// How long operations took, in microseconds.
    pub time_us: f64,
    /// How long there was at least one, in microseconds, without the way of commands and answers.
    busy_us: f64,
    /// How long requests were at the storage.
    storage_busy_us: f64,
    /// Operations that have waited for buffer memory.
    pub memory_waits: u64,
    /// Operations that ended with an error.
    pub errors: u64,
    /// Commands that were refused for want of buffer memory; known for all volumes together.
    pub refused: u64,
    /// How often something has waited for room at the storage.
    pub storage_full: u64,
    /// How often operations have waited for limits: of their volume, their initiator, their session, and for the volume's
    /// share of its storage.
    limit_waits: [u64; 4],
    /// The part of the buffer memory that is in use at the end, of the shard where that is most.
    pub buffers: f64,
    /// Operations that were timed.
    pub timed: u64,
    /// What these have waited for, in nanoseconds, in the order of [`Stage::KNOWN`].
    stages: [f64; 8],
    /// The shard that carries out most of its operations, of all the one that is used most.
    pub shard: Option<ShardUse>,
}

fn added(then: u64, now: u64) -> u64 {
    now.saturating_sub(then)
}

fn index(stage: &Stage) -> Option<usize> {
    Stage::KNOWN.iter().position(|known| known == stage)
}

/// How often operations have waited for limits in the interval, as in [`Observed::limit_waits`].
fn limit_waits(before: &VolumeTime, after: &VolumeTime) -> [u64; 4] {
    let counts = |time: &VolumeTime| {
        let LimitWaits { volume, initiator, session, share } = time.limit_waits_of;
        [volume, initiator, session, share]
    };
    let (then, now) = (counts(before), counts(after));
    std::array::from_fn(|at| added(then[at], now[at]))
}

impl Observed {
    /// One volume.
    pub fn between(
        then: Option<&VolumeStats>,
        now: &VolumeStats,
        shards: &[ShardUse],
        elapsed: Duration,
    ) -> Self {
        let nothing = VolumeStats::default();
        // A volume that was made anew has fewer than before.
        let then = then.filter(|then| operations(then) <= operations(now)).unwrap_or(&nothing);
        let (before, after) = (&then.time, &now.time);
        let bytes = |then: &Operations, now: &Operations| added(then.bytes, now.bytes);
        let us = |then: u64, now: u64| added(then, now) as f64;
        let shard = most_used(before, after, shards);
        let mut observed = Self {
            tells: !after.stages.is_empty(),
            seconds: elapsed.as_secs_f64(),
            operations: operations(now) - operations(then),
            in_flight: now.commands_in_flight,
            bytes: (bytes(&then.read, &now.read), bytes(&then.write, &now.write)),
            time_us: us(before.operations_us, after.operations_us),
            busy_us: us(before.busy_us, after.busy_us),
            storage_busy_us: us(before.storage_busy_us, after.storage_busy_us),
            errors: added(then.errors, now.errors),
            refused: 0,
            memory_waits: added(before.memory_waits, after.memory_waits),
            storage_full: added(before.storage_full, after.storage_full),
            limit_waits: limit_waits(before, after),
            timed: added(before.timed, after.timed),
            stages: [0.0; 8],
            buffers: shard.map_or(0.0, |shard| shard.buffers),
            shard,
        };
        observed.take_stages(before, after);
        observed
    }

    /// What was waited for, with the way out of as many answers as were timed.
    fn take_stages(&mut self, before: &VolumeTime, after: &VolumeTime) {
        for now in &after.stages {
            let then = before.stages.iter().find(|then| then.stage == now.stage);
            if let Some(at) = index(&now.stage) {
                self.stages[at] += added(then.map_or(0, |then| then.ns), now.ns) as f64;
            }
        }
        let sent = added(before.sent, after.sent).max(1);
        // Part of it may be that of answers that are on their way still.
        let way_out = added(before.sent_ns, after.sent_ns) as f64 / sent as f64;
        let way_in = self.waited(&Stage::NetworkIn) / self.timed.max(1) as f64;
        // A shard hears of both in its next loop iterations: what takes no longer than a few of these took no time.
        let floor = self.shard.map_or(0.0, |shard| ITERATIONS * shard.work_ns());
        let [way_in, way_out] = [way_in, way_out].map(|ns| if ns < floor { 0.0 } else { ns });
        let timed = self.timed.max(1) as f64;
        self.set(&Stage::NetworkIn, way_in * timed);
        self.set(&Stage::NetworkOut, self.waited(&Stage::NetworkOut) + way_out * timed);
        // On both ways an operation is not counted as one at work.
        self.busy_us += (way_in + way_out) / 1e3 * self.operations.max(1) as f64;
    }

    fn set(&mut self, stage: &Stage, ns: f64) {
        if let Some(at) = index(stage) {
            self.stages[at] = ns;
        }
    }

    /// How long operations that were timed have waited for this, in nanoseconds.
    fn waited(&self, stage: &Stage) -> f64 {
        index(stage).map_or(0.0, |at| self.stages[at])
    }

    /// Takes another volume in.
    pub fn add(&mut self, other: &Self) {
        self.tells |= other.tells;
        self.seconds = other.seconds;
        self.operations += other.operations;
        self.in_flight += other.in_flight;
        self.errors += other.errors;
        self.bytes = (self.bytes.0 + other.bytes.0, self.bytes.1 + other.bytes.1);
        self.time_us += other.time_us;
        self.busy_us += other.busy_us;
        self.storage_busy_us += other.storage_busy_us;
        self.memory_waits += other.memory_waits;
        self.storage_full += other.storage_full;
        self.limit_waits.iter_mut().zip(other.limit_waits).for_each(|(sum, part)| *sum += part);
        self.timed += other.timed;
        self.buffers = self.buffers.max(other.buffers);
        // A volume with few operations has more of them timed than one with many: those stand for all.
        let scale =
            if other.timed > 0 { other.operations as f64 / other.timed as f64 } else { 1.0 };
        for (sum, part) in self.stages.iter_mut().zip(other.stages) {
            *sum += part * scale;
        }
        let more =
            |shard: &ShardUse| self.shard.is_none_or(|own| own.occupied() < shard.occupied());
        if let Some(shard) = other.shard.filter(more) {
            self.shard = Some(shard);
        }
    }

    /// The part of the interval in which nothing was at work.
    fn idle(&self) -> f64 {
        (1.0 - self.busy_us / 1e6 / self.seconds.max(1e-9)).clamp(0.0, 1.0)
    }

    /// True if there was nothing to do. Answers of operations that had ended before may have been on their way.
    pub fn is_idle(&self) -> bool {
        self.operations == 0
            && self.in_flight == 0
            && self.refused == 0
            && self.stages.iter().all(|ns| *ns == 0.0)
    }

    /// The part of the interval that went to a stage, 0 to 1.
    pub fn share(&self, stage: &Stage) -> f64 {
        if self.is_idle() {
            return 0.0;
        }
        let all: f64 = self.stages.iter().sum();
        match stage {
            Stage::Initiator => self.idle(),
            of if all > 0.0 => (1.0 - self.idle()) * self.waited(of) / all,
            // None was timed.
            Stage::Storage => (1.0 - self.idle()).min(self.storage_busy()),
            _ => 0.0,
        }
    }

    /// How long an operation that was timed waited for the storage, in nanoseconds.
    pub fn storage_ns(&self) -> f64 {
        self.waited(&Stage::Storage) / self.timed.max(1) as f64
    }

    /// How long an operation took inside the server, in microseconds; `None` if none has ended.
    pub fn mean_us(&self) -> Option<f64> {
        (self.operations > 0).then(|| self.time_us / self.operations as f64)
    }

    /// How many operations were at work on the average.
    pub fn depth(&self) -> f64 {
        self.time_us / 1e6 / self.seconds.max(1e-9)
    }

    /// Whether a limit that was set holds operations back more than other commands do.
    pub fn is_held_back(&self) -> bool {
        self.share(&Stage::Limit) >= self.share(&Stage::Queue)
    }

    /// Whose limit most have waited for, if there are any: `volume`, `initiator`, `session` or `share`. None if it is one of
    /// the volume's layers.
    pub fn whose_limit(&self) -> Option<&'static str> {
        let all = ["volume", "initiator", "session", "share"].into_iter().zip(self.limit_waits);
        let (whose, waits) = all.max_by_key(|(_, waits)| *waits)?;
        (waits > 0).then_some(whose)
    }

    /// Whether at least this part of what a link carries is of these operations, in the direction in which it carries more.
    pub fn has_share(&self, link: &PartUse<'_>, least: f64) -> bool {
        let own = if link.sends() { self.bytes.0 } else { self.bytes.1 };
        let carried = if link.sends() { link.rates[0] } else { link.rates[1] };
        own as f64 / self.seconds.max(1e-9) >= least * carried
    }

    /// The part of the time in which a request was at the storage, or held back by a limit.
    pub fn storage_busy(&self) -> f64 {
        (self.storage_busy_us / 1e6 / self.seconds.max(1e-9)).min(1.0)
    }
}

/// Operations of all kinds.
fn operations(volume: &VolumeStats) -> u64 {
    volume.read.ops + volume.write.ops + volume.flushes + volume.unmaps + volume.others
}

/// The shard that has carried out the most operations of a volume since the look before.
fn most_used(before: &VolumeTime, after: &VolumeTime, shards: &[ShardUse]) -> Option<ShardUse> {
    let since = |now: &lunet_api::ShardOperations| {
        let then = before.shards.iter().find(|then| then.shard == now.shard);
        added(then.map_or(0, |then| then.operations), now.operations)
    };
    let most = after.shards.iter().filter(|now| since(now) > 0).max_by_key(|now| since(now))?;
    shards.iter().find(|shard| shard.shard == most.shard).copied()
}
