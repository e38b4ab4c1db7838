//! What is counted, and how it is reported.
//!
//! Each shard counts for itself in plain integers; a report adds the shards up.

use std::time::Duration;

use lunet_volume::{Fault, Kind, LimitWaits, StageTimes, VolumeCount};

use crate::rdma::PortalStatus;

/// What one shard reports.
#[derive(Clone, Default)]
pub struct ShardStats<C> {
    /// Per volume, with its name.
    pub(crate) volumes: Vec<(String, VolumeCount)>,
    /// What its protocol has counted.
    pub(crate) protocol: C,
    /// What it has on its hands.
    pub(crate) load: ShardLoad,
}

/// What a shard has on its hands, and what it has used so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct ShardLoad {
    /// Number of the shard among those of all servers of the process, from 0.
    pub shard: usize,
    /// When this was counted, in microseconds since the server's start.
    pub time_us: u64,
    /// Processor time of its thread, in microseconds. Work that may block runs on other threads.
    pub cpu_us: u64,
    /// How much of that went into polling that found nothing, in microseconds.
    pub polled_us: u64,
    /// How long its thread was ready to run and another one had the processor, in microseconds; 0 if the system does
    /// not tell.
    pub ready_us: u64,
    /// How often it has waited for events.
    pub waits: u64,
    /// Operations given to the kernel.
    pub operations: u64,
    /// Messages that it has read of other shards and threads, without questions for reports.
    pub messages: u64,
    /// Bytes that the kernel has sent without a copy.
    pub zero_copy_bytes: u64,
    /// Bytes that it was to send so, and has copied after all.
    pub zero_copy_copied_bytes: u64,
    /// Reads and writes that went to drives past the block layer, as commands of the drive.
    pub passthrough_commands: u64,
    /// Of these, those that have failed and were done again by the block layer.
    pub passthrough_failed: u64,
    /// Connections right now.
    pub connections: usize,
    /// Commands at work right now, those without a client included.
    pub commands_in_flight: usize,
    /// Bytes of buffer memory in use right now.
    pub buffer_used_bytes: usize,
    /// Bytes of buffer memory that the system has given, as far as it was needed lately.
    pub buffer_resident_bytes: usize,
    /// Bytes of buffer memory that there may be.
    pub buffer_bytes: usize,
}

/// A shard that does not answer: the storage of a volume may hold it up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SilentShard {
    /// Number of the shard among those of all servers of the process, from 0.
    pub shard: usize,
    /// For how long.
    pub silence: Duration,
}

/// What a protocol counts.
pub trait Counts: Clone + Copy + Default + Send + 'static {
    /// A connection has come.
    fn connected(&mut self);

    /// A connection was turned away because a limit was reached.
    fn turned_away(&mut self);

    /// Adds another shard's counts.
    fn add(&mut self, other: &Self);
}

/// Of a protocol that counts nothing.
impl Counts for () {
    fn connected(&mut self) {}

    fn turned_away(&mut self) {}

    fn add(&mut self, (): &Self) {}
}

/// The statistics of a running server. `C` is what its protocol counts.
#[derive(Clone, Debug)]
pub struct Stats<C> {
    /// Seconds since the server started.
    pub uptime_seconds: u64,
    /// The event loop's driver.
    pub driver: &'static str,
    /// How many shards run.
    pub shards: usize,
    /// How many sessions there are, with those that only ask what there is.
    pub sessions: usize,
    /// Each portal, and whether it is served over RDMA.
    pub portals: Vec<PortalStatus>,
    /// Each shard that has answered.
    pub loads: Vec<ShardLoad>,
    /// The shards that have not answered for long: what lives on them is missing here.
    pub silent: Vec<SilentShard>,
    /// Counts of the protocol, of all shards.
    pub protocol: C,
    /// Each volume.
    pub volumes: Vec<VolumeStats>,
}

/// The statistics of one volume.
#[derive(Clone, Debug)]
pub struct VolumeStats {
    /// Name of the volume in the configuration.
    pub name: String,
    /// Capacity in bytes.
    pub size_bytes: u64,
    /// Reads, with data moved and latency.
    pub read: OpStats,
    /// Writes, with data moved and latency.
    pub write: OpStats,
    /// Flushes.
    pub flushes: u64,
    /// Commands that unmap.
    pub unmaps: u64,
    /// Other commands.
    pub others: u64,
    /// Bytes that copies have written, without the network.
    pub copied_bytes: u64,
    /// Commands that have failed.
    pub errors: u64,
    /// Commands at work right now.
    pub commands_in_flight: usize,
    /// What is wrong with its storage; empty while nothing is.
    pub faults: Vec<Fault>,
    /// Where the time of its operations goes.
    pub time: VolumeTime,
}

/// Where the time of a volume's operations goes.
#[derive(Clone, Debug, Default)]
pub struct VolumeTime {
    /// How long all operations that have ended have taken together, in microseconds.
    pub operations_us: u64,
    /// How long at least one operation was at work, added up over the shards, in microseconds.
    pub busy_us: u64,
    /// How long at least one request was at the storage, added up over the shards, in microseconds.
    pub storage_busy_us: u64,
    /// Operations that have waited for buffer memory.
    pub memory_waits: u64,
    /// How often something waited because the volume had as much at its storage as it may have.
    pub storage_full: u64,
    /// How often operations have waited for limits that are configured, and for how long.
    pub limits: LimitWaits,
    /// What the operations that were timed have waited for.
    pub stages: StageTimes,
    /// Operations of each shard that had any, by its number.
    pub shards: Vec<(usize, u64)>,
}

impl VolumeTime {
    fn of(count: &VolumeCount) -> Self {
        let us = |time: std::time::Duration| time.as_micros() as u64;
        Self {
            operations_us: count.time(),
            busy_us: us(count.busy()),
            storage_busy_us: us(count.storage_busy()),
            memory_waits: count.memory_waits(),
            storage_full: count.storage_full(),
            limits: *count.limit_waits(),
            stages: *count.stages(),
            shards: count.shards().to_vec(),
        }
    }
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

/// Counts of a volume, by its name.
pub(crate) type Part = (String, VolumeCount);

/// Adds the shards' counts of every volume up, with those that shards of another server have. `names` gives name, size in
/// bytes, and what is wrong with it.
pub(crate) fn merge<C: Counts>(
    shards: &[ShardStats<C>],
    others: &[Part],
    names: &[Named],
) -> (C, Vec<VolumeStats>) {
    let mut protocol = C::default();
    let mut sums = vec![VolumeCount::default(); names.len()];
    shards.iter().for_each(|shard| protocol.add(&shard.protocol));
    for (name, part) in shards.iter().flat_map(|shard| &shard.volumes).chain(others) {
        if let Some(at) = names.iter().position(|(known, ..)| known == name) {
            sums[at].add(part);
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
        time: VolumeTime::of(sum),
    }
}

fn op_stats(sum: &VolumeCount, kind: Kind) -> OpStats {
    let latency = sum.latency(kind);
    let percentiles = [50.0, 90.0, 99.0, 99.9, 100.0].into_iter().filter_map(|percentile| {
        let bucket = latency.quantile_bucket(percentile / 100.0).ok()??;
        Some(Percentile { percentile, us: bucket.end() })
    });
    let (mut histogram, mut total, mut time) = (Vec::<Bucket>::new(), 0, 0.0);
    for bucket in latency.iter().filter(|bucket| bucket.count() > 0) {
        let (count, width) = (bucket.count(), bucket.end() - bucket.start() + 1);
        total += count;
        time += count as f64 * (bucket.start() + width / 2) as f64;
        // A bar ends below a power of two. No bucket spans two bars.
        let up_to_us = (bucket.end() + 1).next_power_of_two() - 1;
        match histogram.last_mut() {
            Some(bar) if bar.up_to_us == up_to_us => bar.count += count,
            _ => histogram.push(Bucket { up_to_us, count }),
        }
    }
    OpStats {
        ops: sum.ops(kind),
        bytes: sum.bytes(kind),
        mean_us: if total == 0 { 0.0 } else { time / total as f64 },
        percentiles: percentiles.collect(),
        histogram,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Default)]
    struct Logins(u64);

    impl Counts for Logins {
        fn connected(&mut self) {}

        fn turned_away(&mut self) {}

        fn add(&mut self, other: &Self) {
            self.0 += other.0;
        }
    }

    #[test]
    fn shards_add_up_and_every_operation_is_in_one_bar() {
        let mut shards = vec![ShardStats::default(), ShardStats::default()];
        for (n, shard) in shards.iter_mut().enumerate() {
            shard.volumes = vec![("vm".into(), VolumeCount::default())];
            for micros in [0, 1, 2, 3, 100, 5_000] {
                shard.volumes[0].1.record(Kind::Read, 4096, micros + n as u64, false);
            }
            shard.volumes[0].1.record(Kind::Flush, 0, 9, true);
            shard.volumes[0].1 = shard.volumes[0].1.clone().of_shard(n);
            shard.protocol = Logins(2);
        }
        let names = [("vm".into(), 1 << 20, Vec::new())];
        let others = shards[0].volumes.clone();
        let (_, with_others) = merge(&shards, &others, &names);
        assert_eq!((with_others[0].read.ops, with_others[0].flushes), (18, 3));
        let (protocol, volumes) = merge(&shards, &[], &names);
        assert_eq!(protocol.0, 4);
        let volume = &volumes[0];
        assert_eq!((volume.read.ops, volume.read.bytes), (12, 12 * 4096));
        assert_eq!((volume.flushes, volume.errors, volume.write.ops), (2, 2, 0));
        assert_eq!(volume.time.operations_us, 2 * (5106 + 9) + 6);
        assert_eq!(volume.time.shards, [(0, 7), (1, 7)]);
        assert_eq!(volume.read.histogram.iter().map(|b| b.count).sum::<u64>(), 12);
        assert!(volume.read.percentiles.iter().any(|p| p.percentile == 50.0 && p.us <= 4));
        assert!(volume.write.percentiles.is_empty());
    }

    #[test]
    fn latencies_are_reported_as_the_upper_bound_of_their_bucket() {
        let mut count = VolumeCount::default();
        for micros in [0, 255, 256, 5_000, 1 << 40] {
            count.record(Kind::Write, 0, micros, false);
        }
        let stats = op_stats(&count, Kind::Write);
        let us: Vec<u64> = stats.percentiles.iter().map(|p| p.us).collect();
        assert_eq!(us, [257, 60_030_975, 60_030_975, 60_030_975, 60_030_975]);
        let bars: Vec<_> = stats.histogram.iter().map(|b| (b.up_to_us, b.count)).collect();
        assert_eq!(bars, [(1, 1), (255, 1), (511, 1), (8191, 1), ((1 << 26) - 1, 1)]);
        // The middle of each bucket: 1, 255, 257, 5008 and 59899904.
        assert_eq!(stats.mean_us, 59_905_425.0 / 5.0);
    }
}
