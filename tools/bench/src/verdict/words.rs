//! What the verdict says.

use super::Evidence;
use super::rules::waits_for_processor;
use crate::model::{Bound, Load};

/// For people.
pub(super) fn name(bound: Bound) -> &'static str {
    match bound {
        Bound::Limit => "a limit that was set",
        Bound::Throttling => "hardware that slows itself down",
        Bound::Quota => "a processor quota",
        Bound::ClientCpu => "the client's processor",
        Bound::ServerCpu => "the server's processor",
        Bound::MachineCpu => "the machine's processors",
        Bound::Digest => "the data digest",
        Bound::Drive => "the drive",
        Bound::DriveLatency => "the drive's latency",
        Bound::Network => "the network",
        Bound::NetworkLatency => "the network's round trip",
        Bound::Memory => "the memory bus",
        Bound::Protocol => "the protocol",
        Bound::QueueDepth => "the queue depth",
        Bound::SingleSession => "the single session",
    }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// `bound by X at n % of its ceiling; next Y at m %`.
pub(super) fn sentence(of: &Evidence<'_>, bound: Option<Bound>, layers: &[Load]) -> String {
    let own = layers.iter().find(|load| Some(load.bound) == bound);
    let share = own.map_or(0.0, |load| load.share);
    // Parts of an operation's time, and how full the queue is, are no ceilings that come next.
    let ceiling = |load: &&Load| {
        let time = matches!(
            load.bound,
            Bound::DriveLatency | Bound::NetworkLatency | Bound::QueueDepth | Bound::Digest
        );
        // Nor are processors that are busy with what gives way.
        let gives_way = load.bound == Bound::MachineCpu && !waits_for_processor(of);
        Some(load.bound) != bound && !time && !gives_way
    };
    let next = layers.iter().find(ceiling).map_or_else(String::new, |load| {
        format!("; next: {} at {}", name(load.bound), percent(load.share))
    });
    let Some(bound) = bound else {
        let nearest = match layers.iter().find(ceiling) {
            Some(load) => format!("the nearest is {} at {}", name(load.bound), percent(load.share)),
            None => "no ceiling is known".to_owned(),
        };
        return format!(
            "The bottleneck cannot be determined: nothing is near its ceiling, {nearest}."
        );
    };
    let head = format!("Bound by {}", name(bound));
    let (depth, cycle) = (of.workload.outstanding(), of.cycle_us());
    let waits = |what: &str| {
        format!("{head}: {} of the {cycle:.0} us of an operation are {what}", percent(share))
    };
    let told = match bound {
        Bound::QueueDepth => {
            format!("{head}: {depth} in flight and {cycle:.0} us each make {:.0} IOPS", of.iops)
        }
        Bound::DriveLatency => waits("the drive's"),
        Bound::NetworkLatency => waits("the network round trip"),
        Bound::MachineCpu => {
            let others = match of.others.0 {
                used if used >= 0.1 => format!(", {used:.1} of them with other programs"),
                _ => String::new(),
            };
            format!("{head}: {} of {} are busy{others}", percent(share), of.cpus)
        }
        Bound::Quota => format!("{head}: it was used up in {} of its periods", percent(share)),
        Bound::Throttling => {
            let (what, times) = of.throttled.clone().unwrap_or_default();
            format!("{head}: {what} did so {times} times")
        }
        Bound::Digest => match of.extras.without_digest_mib_per_s {
            Some(rate) => {
                format!("{head}: without it {rate:.0} instead of {:.0} MiB/s", of.mib_per_s())
            }
            None => format!("{head}: it takes {} of a processor", percent(share)),
        },
        Bound::SingleSession => {
            let (sessions, rate) = of.extras.more_sessions.unwrap_or_default();
            format!(
                "{head}: {sessions} sessions move {rate:.0} instead of {:.0} MiB/s",
                of.mib_per_s()
            )
        }
        _ => format!("{head} at {} of its ceiling", percent(share)),
    };
    format!("{told}{next}.")
}

/// What to do about it.
pub(super) fn advice(of: &Evidence<'_>, bound: Option<Bound>) -> &'static str {
    match bound {
        Some(Bound::Limit) => "Raise the limit, if it is not what you want.",
        Some(Bound::Throttling) => {
            "Check cooling and power: the machine was throttled while it was measured."
        }
        Some(Bound::Quota) => "Give the control group more processor time (cpu.max, CPUQuota=).",
        Some(Bound::ClientCpu) => {
            "Use more jobs or sessions, a more efficient I/O engine, or a faster client: the target could do more."
        }
        Some(Bound::ServerCpu) => {
            "Use more sessions, which other shards serve, larger blocks, or a faster processor."
        }
        Some(Bound::MachineCpu) => {
            "Stop other programs, or measure from another machine: client and server share these processors."
        }
        Some(Bound::Digest) => "Switch data digests off where the network can be trusted.",
        Some(Bound::Drive) => "More or faster drives; nothing else in this machine helps.",
        Some(Bound::DriveLatency) => {
            "A drive with a lower latency, or more operations in flight if it can work on them in parallel."
        }
        Some(Bound::Network) => "A faster network, or several paths (multipath).",
        Some(Bound::NetworkLatency) => {
            "More operations in flight, larger blocks, or a network with a lower latency: each operation waits for a round trip."
        }
        Some(Bound::Memory) => "More memory channels, or RDMA, which copies less.",
        Some(Bound::Protocol) => {
            "The storage is not the bottleneck: a volume that stores nothing is no faster. More sessions may help."
        }
        Some(Bound::QueueDepth) => {
            "More operations in flight: a greater depth, more jobs, more sessions."
        }
        Some(Bound::SingleSession) => "Several sessions (multipath, or one for each job).",
        None if of.ceilings.is_empty() => {
            "Measure the ceilings: network, drive, and a volume that stores nothing."
        }
        None => "Measure with greater depth and more sessions, and the ceilings that are missing.",
    }
}
