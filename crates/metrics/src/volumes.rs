//! The volumes: operations, storage, where their time goes, and what binds them.

use lunet_api::{
    Binding, BoundBy, Bucket, FaultState, LimitKind, Operations, Stats, Verdict, VolumeStats,
};

use super::Snapshot;
use super::text::{Kind, Text};

/// The bounds of the histograms, in microseconds: every second one of the server's. Always all of them, so that a
/// quantile over time compares like with like.
const BOUNDS: [u64; 13] = [
    3, 15, 63, 255, 1023, 4095, 16_383, 65_535, 262_143, 1_048_575, 4_194_303, 16_777_215,
    67_108_863,
];

/// What was done.
pub(crate) fn operations(text: &mut Text, stats: &Stats) {
    let volumes = &stats.volumes;
    let mut metric =
        text.metric("lunet_volume_operations", Kind::Counter, "Operations that have ended.");
    for volume in volumes {
        let kinds = [
            ("read", volume.read.ops),
            ("write", volume.write.ops),
            ("flush", volume.flushes),
            ("unmap", volume.unmaps),
            ("other", volume.others),
        ];
        for (kind, count) in kinds {
            metric.count(&[("volume", &volume.name), ("operation", kind)], count);
        }
    }
    let help = "Bytes moved; copied without the network: copy.";
    let mut metric = text.metric("lunet_volume_bytes", Kind::Counter, help);
    for volume in volumes {
        let kinds = [
            ("read", volume.read.bytes),
            ("write", volume.write.bytes),
            ("copy", volume.copied_bytes),
        ];
        for (kind, count) in kinds {
            metric.count(&[("volume", &volume.name), ("operation", kind)], count);
        }
    }
    let help = "Time of an operation inside the server, from its arrival in full to its answer.";
    let mut metric = text.metric("lunet_volume_operation_duration_seconds", Kind::Histogram, help);
    for volume in volumes {
        for (kind, of) in [("read", &volume.read), ("write", &volume.write)] {
            let labels = [("volume", volume.name.as_str()), ("operation", kind)];
            metric.buckets(&labels, &buckets(&of.histogram), sum(of));
        }
    }
    let mut metric =
        text.metric("lunet_volume_errors", Kind::Counter, "Operations that have failed.");
    for volume in volumes {
        metric.count(&[("volume", &volume.name)], volume.errors);
    }
    let help = "Operations that are being carried out.";
    let mut metric = text.metric("lunet_volume_operations_in_flight", Kind::Gauge, help);
    for volume in volumes {
        metric.count(&[("volume", &volume.name)], volume.commands_in_flight);
    }
}

/// How many took no longer than each bound, in seconds.
fn buckets(histogram: &[Bucket]) -> [(f64, u64); BOUNDS.len()] {
    BOUNDS.map(|bound| {
        let within = histogram.iter().filter(|bucket| bucket.up_to_us <= bound);
        (bound as f64 / 1e6, within.map(|bucket| bucket.count).sum())
    })
}

/// The time of all operations in seconds, and their number, by the histogram.
fn sum(of: &Operations) -> (f64, u64) {
    let count = of.histogram.iter().map(|bucket| bucket.count).sum();
    (of.mean_us * count as f64 / 1e6, count)
}

/// How large volumes are, and what is wrong with their storage.
pub(crate) fn storage(text: &mut Text, snapshot: &Snapshot<'_>) {
    let volumes = &snapshot.stats.volumes;
    let mut metric = text.metric("lunet_volume_size_bytes", Kind::Gauge, "Capacity.");
    for volume in volumes {
        metric.count(&[("volume", &volume.name)], volume.size_bytes);
    }
    let help = "What a volume takes up, if that is known.";
    let mut metric = text.metric("lunet_volume_used_bytes", Kind::Gauge, help);
    for volume in snapshot.volumes {
        if let Some(used) = volume.used_bytes {
            metric.count(&[("volume", &volume.name)], used);
        }
    }
    let help = "1 if the storage has failed to make stable what was acknowledged.";
    let mut metric = text.metric("lunet_volume_write_back_failed", Kind::Gauge, help);
    for volume in volumes {
        let failed = volume.faults.iter().any(|fault| fault.state == FaultState::WriteBackFailed);
        metric.count(&[("volume", &volume.name)], u64::from(failed));
    }
    let help = "1 for each thing that is wrong with a volume's storage.";
    let mut metric = text.metric("lunet_volume_fault", Kind::Gauge, help);
    for volume in volumes {
        for fault in &volume.faults {
            let labels = [("volume", volume.name.as_str()), ("state", fault.state.as_str())];
            metric.count(&labels, 1);
        }
    }
}

/// Where the time of operations goes, of those that are timed.
pub(crate) fn time(text: &mut Text, stats: &Stats) {
    let known = |volume: &&VolumeStats| !volume.time.stages.is_empty();
    let volumes: Vec<&VolumeStats> = stats.volumes.iter().filter(known).collect();
    let help = "What the operations that were timed have waited for: one in 64, and more while there are few.";
    let mut metric = text.metric("lunet_volume_stage_seconds", Kind::Counter, help);
    for volume in &volumes {
        for stage in &volume.time.stages {
            let labels = [("volume", volume.name.as_str()), ("stage", stage.stage.as_str())];
            metric.value(&labels, volume.time.waited_ns(stage) as f64 / 1e9);
        }
    }
    let mut each = |name: &str, help: &str, value: &dyn Fn(&VolumeStats) -> f64| {
        let mut metric = text.metric(name, Kind::Counter, help);
        for volume in &volumes {
            metric.value(&[("volume", &volume.name)], value(volume));
        }
    };
    each("lunet_volume_timed_operations", "Operations that were timed.", &|volume| {
        volume.time.timed as f64
    });
    let help = "Time with operations at work, added up over the shards.";
    each("lunet_volume_busy_seconds", help, &|volume| volume.time.busy_us as f64 / 1e6);
    let help = "Operations that have waited for buffer memory.";
    each("lunet_volume_memory_waits", help, &|volume| volume.time.memory_waits as f64);
    let help = "How often something waited because the storage had as much to do as it may have.";
    each("lunet_volume_storage_full", help, &|volume| volume.time.storage_full as f64);
    let help = "How often an operation has waited for a limit that is configured.";
    each("lunet_volume_limit_waits", help, &|volume| volume.time.limit_waits as f64);
    let help = "How long operations have waited for limits that are configured.";
    each("lunet_volume_limit_wait_seconds", help, &|volume| volume.time.limit_us as f64 / 1e6);
}

/// What binds the server and its volumes.
pub(crate) fn verdict(text: &mut Text, verdict: &Verdict) {
    let help = "1 for what binds the server now.";
    let mut metric = text.metric("lunet_server_bound_by", Kind::Gauge, help);
    if let Some(word) = known(&verdict.server.bound_by) {
        metric.count(&[("resource", word)], 1);
    }
    let help = "1 for what binds a volume now.";
    let mut metric = text.metric("lunet_bound_by", Kind::Gauge, help);
    for volume in &verdict.volumes {
        if let Some(word) = known(&volume.binding.bound_by) {
            metric.count(&[("volume", &volume.name), ("resource", word)], 1);
        }
    }
    let help = "1 for the resource that is at its limit and binds the server now.";
    let mut metric = text.metric("lunet_server_at_limit", Kind::Gauge, help);
    if let Some((kind, name)) = at_limit(&verdict.server) {
        metric.count(&[("kind", kind), ("name", name)], 1);
    }
    let help = "1 for the resource that is at its limit and binds a volume now.";
    let mut metric = text.metric("lunet_at_limit", Kind::Gauge, help);
    for volume in &verdict.volumes {
        if let Some((kind, name)) = at_limit(&volume.binding) {
            metric.count(&[("volume", &volume.name), ("kind", kind), ("name", name)], 1);
        }
    }
    let help = "The part of a volume's time that goes to a stage now, 0 to 1.";
    let mut metric = text.metric("lunet_volume_stage_ratio", Kind::Gauge, help);
    for volume in &verdict.volumes {
        for one in &volume.binding.stages {
            let labels = [("volume", volume.name.as_str()), ("stage", one.stage.as_str())];
            metric.value(&labels, one.share);
        }
    }
}

/// What is at its limit, if this version has a word for it.
fn at_limit(binding: &Binding) -> Option<(&str, &str)> {
    let limit = binding.at_limit.as_ref()?;
    let is_known = !matches!(limit.kind, LimitKind::Other(_));
    is_known.then(|| (limit.kind.as_str(), limit.name.as_str()))
}

/// The word, if it is one of this version: labels have no others.
fn known(bound: &BoundBy) -> Option<&str> {
    (!matches!(bound, BoundBy::Other(_))).then(|| bound.as_str())
}
