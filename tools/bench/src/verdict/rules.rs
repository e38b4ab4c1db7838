//! The rules.

use super::Evidence;
use crate::model::{Bound, Ceiling, CeilingKind, Load, Unit};

/// A layer binds from here on: measured ceilings are medians of runs that differ by a tenth.
const NEAR: f64 = 0.85;
/// A limit that somebody set is kept to a few parts of a hundred.
const AT_LIMIT: f64 = 0.95;
/// A thread that has less idle time cannot take more: what is left are its wake-ups.
const BUSY_THREAD: f64 = 0.90;
/// The same of a generator while a ceiling was measured: the beginning of such a short run counts for a tenth.
const BUSY_GENERATOR: f64 = 0.80;
/// The same of all processors: the scheduler always leaves some idle.
const BUSY_MACHINE: f64 = 0.95;
/// All processors may be busy with what gives way to everybody else: only who waits for one so long is held back.
const WAITED: f64 = 0.15;
/// A quota that is used up in so many of its periods holds the program back.
const THROTTLED: f64 = 0.2;
/// What a run exceeds by so much was no ceiling: a cache, or a measurement that was disturbed.
const NO_CEILING: f64 = 1.25;
/// The part of an operation's time that makes a layer the one that it waits for.
const MOST_OF_TIME: f64 = 0.5;
/// So few operations in flight are few: each one's own time shows, whatever the layers could do at once.
const FEW: u64 = 8;
/// A drive that takes longer for one operation is slow, in microseconds: flash takes 20 to 200.
const SLOW_DRIVE_US: f64 = 1000.0;
/// A round trip of a local network takes less, in microseconds.
const FAR_US: f64 = 500.0;
/// The part of its depth that a client has in flight if nothing but the depth holds it back.
const FULL: f64 = 0.8;
/// What would be so much faster otherwise is worth naming.
const WORTH: f64 = 1.15;
/// The part of a processor's time for digests from which they are the cost.
const DIGEST_TIME: f64 = 0.3;
/// Copies of each byte between a socket, a program and another socket on one machine.
const COPIES: f64 = 2.0;

/// All layers of which something is known.
pub(super) fn layers(of: &Evidence<'_>) -> Vec<Load> {
    let mut layers: Vec<Load> =
        of.ceilings.iter().filter_map(|ceiling| measured(of, ceiling)).collect();
    layers.extend(processors(of));
    layers.extend(times(of));
    // One line for each layer: the ceiling that is nearest.
    layers.sort_by(|a, b| a.bound.cmp(&b.bound).then(b.share.total_cmp(&a.share)));
    layers.dedup_by_key(|load| load.bound);
    layers
}

/// A ceiling in MiB/s or operations per second.
fn measured(of: &Evidence<'_>, ceiling: &Ceiling) -> Option<Load> {
    let bound = match ceiling.kind {
        CeilingKind::Limit => Bound::Limit,
        CeilingKind::Drive => Bound::Drive,
        CeilingKind::Network => Bound::Network,
        CeilingKind::Memory => Bound::Memory,
        CeilingKind::Protocol => Bound::Protocol,
        // What a processor can compute is part of its time: see `digest_time`.
        CeilingKind::Cpu => return None,
    };
    let rate = match (ceiling.unit, ceiling.kind) {
        // A network carries both directions at once.
        (Unit::MibPerS, CeilingKind::Network) => of.read_mib_per_s.max(of.write_mib_per_s),
        (Unit::MibPerS, CeilingKind::Memory) => of.mib_per_s() * COPIES,
        (Unit::MibPerS, _) => of.mib_per_s(),
        (Unit::Iops, _) => of.iops,
    };
    if ceiling.value <= 0.0 {
        return None;
    }
    // A generator that was busy all the time measured its own processor, and not what it asked.
    if ceiling.generator_busy.is_some_and(|busy| busy >= BUSY_GENERATOR) {
        return None;
    }
    let share = rate / ceiling.value;
    let limit = ceiling.kind == CeilingKind::Limit;
    if share > NO_CEILING && !limit {
        return None;
    }
    let (unit, name) = (ceiling.unit.text(), &ceiling.name);
    let what = match ceiling.kind {
        CeilingKind::Memory => " (each byte copied twice)",
        _ => "",
    };
    let how = format!(
        "{rate:.0} of {:.0} {unit}{what}; the ceiling: {}",
        ceiling.value,
        ceiling.how.trim_end_matches('.')
    );
    Some(Load { bound, name: name.clone(), share, how: how + "." })
}

fn processors(of: &Evidence<'_>) -> Vec<Load> {
    let mut told = Vec::new();
    let both = [("client", Bound::ClientCpu, of.client), ("server", Bound::ServerCpu, of.server)];
    for (who, bound, used) in both {
        let Some(used) = used else { continue };
        let how = format!(
            "The {who}'s busiest thread used {:.0} % of a processor, all of it {:.2} processors.",
            used.busiest_thread * 100.0,
            used.processors
        );
        let name = format!("the {who}'s processor");
        told.push(Load { bound, name, share: used.busiest_thread, how });
        if used.quota_throttled > 0.0 {
            let how = format!(
                "The {who}'s control group had used up its quota in {:.0} % of the periods.",
                used.quota_throttled * 100.0
            );
            let name = format!("the {who}'s processor quota");
            told.push(Load { bound: Bound::Quota, name, share: used.quota_throttled, how });
        }
    }
    if let Some(busy) = of.machine_busy {
        let mut how = format!("{:.0} % of {} processors were busy.", busy * 100.0, of.cpus);
        if let (used, Some(name)) = (of.others.0, &of.others.1) {
            how += &format!(" Other programs used {used:.2} of them, most of it {name}.");
        }
        let waited = |who: &str, used: Option<super::CpuUse>| {
            let waited = used.and_then(|used| used.waited)?;
            Some(format!(
                " The {who} was ready and got none for {:.0} % of the time.",
                waited * 100.0
            ))
        };
        how.extend(
            [waited("client", of.client), waited("server", of.server)].into_iter().flatten(),
        );
        let name = "all processors of the machine".to_owned();
        told.push(Load { bound: Bound::MachineCpu, name, share: busy, how });
    }
    told.extend(digest_time(of));
    told
}

/// The part of one processor that computes CRC32C.
fn digest_time(of: &Evidence<'_>) -> Option<Load> {
    let crc = of.ceilings.iter().find(|ceiling| ceiling.kind == CeilingKind::Cpu)?;
    if !of.data_digest || crc.value <= 0.0 {
        return None;
    }
    let share = of.mib_per_s() / crc.in_unit(Unit::MibPerS, of.workload.block_bytes);
    let how = format!(
        "CRC32C of {:.0} MiB/s takes {:.0} % of a processor on each side, which computes {:.0} MiB/s.",
        of.mib_per_s(),
        share * 100.0,
        crc.value
    );
    Some(Load { bound: Bound::Digest, name: "the data digest".to_owned(), share, how })
}

/// What an operation waits for: parts of its time.
fn times(of: &Evidence<'_>) -> Vec<Load> {
    let mut told = Vec::new();
    let cycle = of.cycle_us();
    let mut part = |bound, name: &str, us: Option<f64>, what: &str| {
        // What takes longer alone than the whole was measured at a worse moment.
        let credible = |us: &f64| *us > 0.0 && *us <= cycle * NO_CEILING;
        let Some(us) = us.filter(credible).map(|us| us.min(cycle)) else { return };
        let share = us / cycle;
        let how = format!(
            "{us:.0} of the {cycle:.0} us that an operation takes are {what} ({:.0} %).",
            share * 100.0
        );
        told.push(Load { bound, name: name.to_owned(), share, how });
    };
    part(Bound::DriveLatency, "the drive's latency", drive_us(of), "the drive's");
    part(
        Bound::NetworkLatency,
        "the network's round trip",
        latency(of, CeilingKind::Network),
        "the network round trip",
    );
    if let Some(occupancy) = of.occupancy() {
        let outstanding = of.workload.outstanding();
        let how = format!(
            "{:.1} of {outstanding} operations were in flight on average: {:.0} IOPS times {cycle:.0} us.",
            occupancy * outstanding as f64,
            of.iops
        );
        let (bound, name) = (Bound::QueueDepth, "the queue depth in use".to_owned());
        told.push(Load { bound, name, share: occupancy.min(1.0), how });
    }
    told
}

fn latency(of: &Evidence<'_>, kind: CeilingKind) -> Option<f64> {
    of.ceilings.iter().find(|ceiling| ceiling.kind == kind)?.latency_us
}

fn drive_us(of: &Evidence<'_>) -> Option<f64> {
    of.server_latency_us.or_else(|| latency(of, CeilingKind::Drive))
}

/// The bottleneck.
pub(super) fn binds(of: &Evidence<'_>, layers: &[Load]) -> Option<Bound> {
    let share = |bound: Bound| {
        layers.iter().find(|load| load.bound == bound).map_or(0.0, |load| load.share)
    };
    // What somebody set comes before what that leads to.
    if share(Bound::Limit) >= AT_LIMIT {
        return Some(Bound::Limit);
    }
    if share(Bound::Quota) >= THROTTLED {
        return Some(Bound::Quota);
    }
    let few = of.workload.outstanding() < FEW;
    let thresholds = [
        (Bound::Drive, NEAR),
        (Bound::Network, NEAR),
        (Bound::Memory, NEAR),
        (Bound::Protocol, NEAR),
        (Bound::ClientCpu, BUSY_THREAD),
        (Bound::ServerCpu, BUSY_THREAD),
        (Bound::MachineCpu, BUSY_MACHINE),
    ];
    // A ceiling that was measured with as few operations in flight says the same as the run itself.
    let counts = |bound: Bound| match bound {
        Bound::Drive | Bound::Protocol => !(few && shallow(of, bound)),
        Bound::MachineCpu => waits_for_processor(of),
        _ => true,
    };
    let near = thresholds.into_iter();
    let near = near.filter(|(bound, from)| share(*bound) >= *from && counts(*bound));
    // A volume that stores nothing is behind the same network and processors: these have the word if they are near too. Who
    // waits for a processor for a part of the time loses no more than that part, however busy all of them are.
    let strength = |bound: Bound| match bound {
        Bound::MachineCpu => waited(of).unwrap_or(share(bound)),
        _ => share(bound),
    };
    let key = |bound: Bound| (bound != Bound::Protocol, strength(bound));
    let nearest = near.map(|(bound, _)| bound).max_by(|a, b| {
        let ((a, share_a), (b, share_b)) = (key(*a), key(*b));
        a.cmp(&b).then(share_a.total_cmp(&share_b))
    });
    let longer = (nearest == Some(Bound::MachineCpu)).then(|| slow_part(of, &share)).flatten();
    if let Some(slow) = longer.filter(|slow| share(*slow) > strength(Bound::MachineCpu)) {
        return Some(slow);
    }
    refine(of, nearest, &share).or_else(|| waits(of, &share))
}

/// The part of the time in which client or server was ready and got no processor, whichever is more.
fn waited(of: &Evidence<'_>) -> Option<f64> {
    let waited = [of.client, of.server].into_iter().flatten().filter_map(|used| used.waited);
    waited.max_by(f64::total_cmp)
}

/// Whether client or server were ready for a while and got no processor; also if the kernel does not say.
pub(super) fn waits_for_processor(of: &Evidence<'_>) -> bool {
    waited(of).is_none_or(|waited| waited >= WAITED)
}

/// A drive or a way that takes most of an operation's time, and so long that no busy processor explains it.
fn slow_part(of: &Evidence<'_>, share: &impl Fn(Bound) -> f64) -> Option<Bound> {
    let parts = [
        (Bound::DriveLatency, drive_us(of), SLOW_DRIVE_US),
        (Bound::NetworkLatency, latency(of, CeilingKind::Network), FAR_US),
    ];
    let slow = parts.into_iter().filter(|(bound, us, from)| {
        share(*bound) >= MOST_OF_TIME && us.is_some_and(|us| us >= *from)
    });
    slow.map(|(bound, ..)| bound).max_by(|a, b| share(*a).total_cmp(&share(*b)))
}

/// Whether all ceilings of this layer were measured with few operations in flight.
fn shallow(of: &Evidence<'_>, bound: Bound) -> bool {
    let kind = if bound == Bound::Drive { CeilingKind::Drive } else { CeilingKind::Protocol };
    let mut own = of.ceilings.iter().filter(|ceiling| ceiling.kind == kind);
    own.all(|ceiling| ceiling.outstanding.is_some_and(|outstanding| outstanding < FEW))
}

/// A busy processor may have a reason that has a name of its own.
fn refine(of: &Evidence<'_>, bound: Option<Bound>, share: &impl Fn(Bound) -> f64) -> Option<Bound> {
    let processor = matches!(bound, Some(Bound::ClientCpu | Bound::ServerCpu | Bound::MachineCpu));
    let faster = |rate: Option<f64>| rate.is_some_and(|rate| rate >= of.mib_per_s() * WORTH);
    if processor && of.throttled.is_some() {
        return Some(Bound::Throttling);
    }
    let digest = match of.extras.without_digest_mib_per_s {
        Some(rate) => faster(Some(rate)),
        None => share(Bound::Digest) >= DIGEST_TIME,
    };
    // What is exceeded without it is no ceiling: the copies for the digest made the memory busy.
    let gives_way = processor || matches!(bound, None | Some(Bound::Protocol | Bound::Memory));
    if of.data_digest && digest && gives_way {
        return Some(Bound::Digest);
    }
    let one_thread =
        matches!(bound, None | Some(Bound::ClientCpu | Bound::ServerCpu | Bound::Protocol));
    let several = of.extras.more_sessions.filter(|(sessions, _)| *sessions > of.workload.jobs);
    let enough = of.workload.outstanding() >= FEW;
    // All of them wait on a long way: over how many sessions makes no difference that is not noise.
    let waits = bound.is_none() && !thin(of) && slow_part(of, share).is_some();
    if one_thread && enough && !waits && faster(several.map(|(_, rate)| rate)) {
        return Some(Bound::SingleSession);
    }
    bound
}

/// Whether something keeps the client from having on its way what it may: a window, or its own processor.
fn thin(of: &Evidence<'_>) -> bool {
    of.occupancy().is_some_and(|occupancy| occupancy < FULL)
}

/// Nothing is near its ceiling: what does an operation wait for?
fn waits(of: &Evidence<'_>, share: &impl Fn(Bound) -> f64) -> Option<Bound> {
    let outstanding = of.workload.outstanding();
    let few = outstanding < FEW;
    let (drive, way) = (share(Bound::DriveLatency), share(Bound::NetworkLatency));
    let slow = |us: Option<f64>, from: f64| !few || us.is_some_and(|us| us >= from);
    if drive >= MOST_OF_TIME && drive >= way && slow(drive_us(of), SLOW_DRIVE_US) {
        return Some(Bound::DriveLatency);
    }
    if way >= MOST_OF_TIME && slow(latency(of, CeilingKind::Network), FAR_US) {
        return Some(Bound::NetworkLatency);
    }
    // With more in flight the drive or the protocol was faster: so the depth was too small.
    let deeper = of.ceilings.iter().any(|ceiling| {
        let kind = matches!(ceiling.kind, CeilingKind::Drive | CeilingKind::Protocol);
        let more = ceiling.outstanding.is_some_and(|ceiling| ceiling > outstanding);
        let rate = if ceiling.unit == Unit::Iops { of.iops } else { of.mib_per_s() };
        kind && more && ceiling.value >= rate * WORTH
    });
    ((few || deeper) && !thin(of)).then_some(Bound::QueueDepth)
}
