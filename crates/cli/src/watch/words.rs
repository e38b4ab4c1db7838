//! Figures as people read them, in cells.

use std::time::Duration;

use lunet_api::{OperationRates, Rates, SessionRates, ShardRates, VolumeRates};

use crate::tables::layout::harmless;
use lunet_config::units;

/// The heads of a volume's cells.
pub const VOLUME: [&str; 12] = [
    "volume",
    "reads/s",
    "read",
    "mean",
    "99 %",
    "writes/s",
    "written",
    "mean",
    "99 %",
    "flushes/s",
    "limited/s",
    "at work",
];

/// The heads of a session's cells.
pub const SESSION: [&str; 7] =
    ["initiator", "from", "shard", "commands/s", "read", "written", "at work"];

/// The heads of a shard's cells.
pub const SHARD: [&str; 7] =
    ["shard", "processor", "waits/s", "per wait", "connections", "at work", "buffers"];

/// A volume's cells.
pub fn volume(volume: &VolumeRates) -> Vec<String> {
    let mut cells = vec![harmless(&volume.name)];
    cells.extend(operations(&volume.read));
    cells.extend(operations(&volume.write));
    cells.push(number(volume.flushes_per_second));
    cells.push(number(volume.limit_waits_per_second));
    cells.push(volume.commands_in_flight.to_string());
    cells
}

fn operations(kind: &OperationRates) -> [String; 4] {
    let micros =
        |us: f64| units::duration(Duration::try_from_secs_f64(us / 1e6).unwrap_or_default());
    let bound =
        |us: u64| format!("<{}", units::duration(Duration::from_micros(us.saturating_add(1))));
    [
        number(kind.ops_per_second),
        bytes(kind.bytes_per_second),
        kind.mean_us.map(micros).unwrap_or_default(),
        kind.p99_us.map(bound).unwrap_or_default(),
    ]
}

/// A session's cells.
pub fn session(session: &SessionRates) -> Vec<String> {
    vec![
        harmless(&session.initiator),
        harmless(&session.peer),
        session.shard.to_string(),
        number(session.commands_per_second),
        bytes(session.read_bytes_per_second),
        bytes(session.written_bytes_per_second),
        session.commands_in_flight.to_string(),
    ]
}

/// A shard's cells.
pub fn shard(shard: &ShardRates) -> Vec<String> {
    vec![
        shard.shard.to_string(),
        format!("{:.0} %", shard.cpu_percent),
        number(shard.waits_per_second),
        shard.operations_per_wait.map(|n| format!("{n:.1}")).unwrap_or_default(),
        shard.connections.to_string(),
        shard.commands_in_flight.to_string(),
        format!("{:.0} %", shard.buffers_percent),
    ]
}

/// A rate of bytes.
pub fn bytes(per_second: f64) -> String {
    match per_second as u64 {
        0 => "-".to_owned(),
        bytes => format!("{}/s", units::size(bytes)),
    }
}

/// A rate of something that is counted.
pub fn number(per_second: f64) -> String {
    match per_second {
        0.0 => "-".to_owned(),
        few if few < 10.0 => format!("{few:.1}"),
        many => units::count(many.round() as u64),
    }
}

/// Bytes per second of all volumes: read, written.
pub fn total(rates: &Rates) -> (f64, f64) {
    let sum = |of: fn(&VolumeRates) -> f64| rates.volumes.iter().map(of).sum();
    (sum(|v| v.read.bytes_per_second), sum(|v| v.write.bytes_per_second))
}
