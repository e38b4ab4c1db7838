//! Memory and processors, by their facts and by a short measurement.

use std::time::Duration;

use super::assumed::{Assumption, Level};
use super::{Kind, Layer, View};
use crate::expr::rate;
use crate::facts::rdma_used;

/// How often a byte that is read crosses memory: from the drive, checksum, copy out of the cache
/// (read and write), to the card.
const READ_CROSSINGS: f64 = 5.0;
/// How often a byte that is written crosses memory: from the card, copy into the cache (read and
/// write), checksum, parity, to the drive; over TCP the copy out of the socket (read and write)
/// comes before.
const WRITE_CROSSINGS: f64 = 6.0;
/// See `WRITE_CROSSINGS`.
const TCP_WRITE_CROSSINGS: f64 = 8.0;

/// Processor time of lunet for a byte over TCP, in cycles: 0.17 s for a GiB of reads and 0.13 s for
/// one of writes in requests of 128 KiB at 4.0 GHz (docs/performance.md).
const TCP_READ_CYCLES: f64 = 0.17 * 4.0e9 / 1_073_741_824.0;
/// See `TCP_READ_CYCLES`.
const TCP_WRITE_CYCLES: f64 = 0.13 * 4.0e9 / 1_073_741_824.0;
/// Cycles of OpenZFS for a byte: fletcher4 and a copy, and for writes the parity as well, each
/// about a third of a cycle where AVX2 is there (its own start-up benchmarks in
/// /proc/spl/kstat/zfs/fletcher_4_bench and vdev_raidz_bench give 10 to 15 GB/s for a core).
const ZFS_READ_CYCLES: f64 = 0.7;
/// See `ZFS_READ_CYCLES`.
const ZFS_WRITE_CYCLES: f64 = 1.1;

/// Memory: each byte crosses it several times.
pub(super) fn memory(view: &View<'_>) -> Layer {
    let View { facts, measured, .. } = *view;
    let mut layer = Layer::new(Kind::Memory, "memory");
    let level = view.assumed.level(Assumption::Memory);
    let moved = match (measured, facts.memory.bandwidth_max_bytes_per_second) {
        (Some(measured), _) => {
            // A quarter of a second, beside whatever else the machine does.
            let moved = measured.copy_bytes_per_second * 2.0 * level.of(0.9, 1.0, 1.1);
            layer.step(format!(
                "Measured: {} threads copy {}, which reads and writes each byte: {}.",
                measured.threads,
                rate(measured.copy_bytes_per_second),
                rate(moved)
            ));
            moved
        }
        (None, Some(most)) => {
            // What programs reach of what the modules could move: STREAM's usual share.
            let moved = most as f64 * level.of(0.7, 0.8, 0.9);
            layer.step(format!(
                "{} modules could move {}; programs reach about 80 % of that: {}.",
                facts.memory.dimms.len(),
                rate(most as f64),
                rate(moved)
            ));
            moved
        }
        (None, None) => {
            layer.missing = Some("the memory modules (dmidecode needs root)".to_owned());
            return layer;
        }
    };
    // Processors that take what devices send into their cache (DDIO) save two crossings at best.
    let saved = if level == Level::High { 2.0 } else { 0.0 };
    let reads = READ_CROSSINGS - saved;
    let crossings = if rdma_used(facts) { WRITE_CROSSINGS } else { TCP_WRITE_CROSSINGS };
    let writes = crossings - saved;
    layer.read = Some(moved / reads);
    layer.write = Some(moved / writes);
    layer.both = Some(moved / (reads + writes));
    layer.step(format!(
        "A byte that is read crosses memory {reads} times (drive, checksum, copy out of the cache, \
         card), one that is written {writes} times: reads {}, writes {}, both at once {} each way.",
        rate(moved / reads),
        rate(moved / writes),
        rate(moved / (reads + writes)),
    ));
    layer
}

/// All cores, by cycles for a byte.
pub(super) fn processor(view: &View<'_>) -> Layer {
    let facts = view.facts;
    let mut layer = Layer::new(Kind::Processor, "processor");
    let mhz = facts.cpu.max_mhz.or(facts.cpu.now_mhz);
    let (Some(cores), Some(mhz)) = (facts.cpu.cores.or(facts.cpu.threads), mhz) else {
        layer.missing = Some("the number of cores and their clock".to_owned());
        return layer;
    };
    let cycles = cores as f64 * mhz as f64 * 1e6;
    let zfs = facts.zfs.as_ref().is_some_and(|zfs| !zfs.pools.is_empty());
    let tcp = !rdma_used(facts);
    let spread = view.assumed.level(Assumption::Processor).of(2.0, 1.0, 0.75);
    let sum = |parts: [(bool, f64); 2]| -> f64 {
        let counted: f64 = parts.iter().filter(|(on, _)| *on).map(|(_, cycles)| cycles).sum();
        counted * spread
    };
    let reads = sum([(tcp, TCP_READ_CYCLES), (zfs, ZFS_READ_CYCLES)]);
    let writes = sum([(tcp, TCP_WRITE_CYCLES), (zfs, ZFS_WRITE_CYCLES)]);
    if reads == 0.0 {
        layer.step("RDMA without OpenZFS costs the processors next to nothing.".to_owned());
        return layer;
    }
    layer.read = Some(cycles / reads);
    layer.write = Some(cycles / writes);
    layer.both = Some(cycles / (reads + writes));
    layer.step(format!(
        "{cores} cores of {mhz} MHz; a byte that is read costs {reads:.2} cycles, one that is \
         written {writes:.2} ({}{}{}): reads {}, writes {}, both at once {} each way.",
        if tcp { "TCP and target as measured with lunet" } else { "RDMA costs next to nothing" },
        if zfs { ", " } else { "" },
        if zfs { "OpenZFS checksum, copy and parity" } else { "" },
        rate(cycles / reads),
        rate(cycles / writes),
        rate(cycles / (reads + writes)),
    ));
    layer
}

/// How long each thread copies.
const LONG: Duration = Duration::from_millis(250);

/// What was measured on this machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// What all threads copied together, in bytes per second. A copy reads and writes each byte.
    pub copy_bytes_per_second: f64,
    /// How many threads copied.
    pub threads: usize,
}

/// Copies memory for a quarter of a second on as many threads as there are processors.
pub fn measure() -> Measured {
    let (copy_bytes_per_second, threads) = lunet_bench::ceiling::copies(LONG);
    Measured { copy_bytes_per_second, threads }
}
