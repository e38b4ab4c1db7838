//! What happened between two samples, per second.

use std::time::{Duration, Instant};

use crate::{
    Bucket, OperationRates, Operations, Rates, Session, SessionRates, ShardLoad, ShardRates, Stats,
    VolumeRates, VolumeStats,
};

/// What a running server has counted, at one moment.
#[derive(Clone, Debug)]
pub struct Sample {
    /// When the counts were asked for.
    pub at: Instant,
    /// Everything but the sessions.
    pub stats: Stats,
    /// Normal and discovery sessions.
    pub sessions: Vec<Session>,
}

/// What happened between two samples; `None` if the server was started anew in between, or no time has passed.
pub fn between(before: &Sample, after: &Sample) -> Option<Rates> {
    let length = after.at.saturating_duration_since(before.at);
    if !after.stats.goes_on_from(&before.stats) || length.is_zero() {
        return None;
    }
    let volumes = after.stats.volumes.iter().map(|now| {
        let then = before.stats.volumes.iter().find(|then| then.name == now.name);
        volume(then, now, length)
    });
    let sessions = after.sessions.iter().filter_map(|now| {
        let then =
            before.sessions.iter().find(|then| then.tsih == now.tsih && then.peer == now.peer)?;
        Some(session(then, now, length))
    });
    let loads = before.stats.loads.iter().zip(&after.stats.loads);
    Some(Rates {
        seconds: length.as_secs_f64(),
        volumes: volumes.collect(),
        sessions: sessions.collect(),
        shards: loads.map(|(then, now)| shard(then, now, length)).collect(),
    })
}

/// Of a counter that may have begun anew: a volume that was removed and made again counts from 0.
fn per_second(then: u64, now: u64, length: Duration) -> f64 {
    now.checked_sub(then).unwrap_or(now) as f64 / length.as_secs_f64()
}

fn volume(then: Option<&VolumeStats>, now: &VolumeStats, length: Duration) -> VolumeRates {
    VolumeRates {
        name: now.name.clone(),
        read: operations(then.map(|then| &then.read), &now.read, length),
        write: operations(then.map(|then| &then.write), &now.write, length),
        flushes_per_second: per_second(then.map_or(0, |then| then.flushes), now.flushes, length),
        limit_waits_per_second: per_second(
            then.map_or(0, |then| then.time.limit_waits),
            now.time.limit_waits,
            length,
        ),
        errors: now.errors.saturating_sub(then.map_or(0, |then| then.errors)),
        commands_in_flight: now.commands_in_flight,
    }
}

fn operations(then: Option<&Operations>, now: &Operations, length: Duration) -> OperationRates {
    // A volume that was made anew has fewer than before.
    let then = then.filter(|then| then.ops <= now.ops);
    let (ops, bytes, mean) = then.map_or((0, 0, 0.0), |then| (then.ops, then.bytes, then.mean_us));
    let added = now.ops - ops;
    let time = now.mean_us * now.ops as f64 - mean * ops as f64;
    OperationRates {
        ops_per_second: added as f64 / length.as_secs_f64(),
        bytes_per_second: per_second(bytes, now.bytes, length),
        mean_us: (added > 0).then(|| (time / added as f64).max(0.0)),
        p99_us: p99(then.map_or(&[], |then| &then.histogram), &now.histogram),
    }
}

/// The bar in which the last of 99 of 100 operations is that came between two histograms.
fn p99(then: &[Bucket], now: &[Bucket]) -> Option<u64> {
    let old = |bound| then.iter().find(|old| old.up_to_us == bound).map_or(0, |old| old.count);
    let added = |bar: &Bucket| bar.count.saturating_sub(old(bar.up_to_us));
    let total: u64 = now.iter().map(added).sum();
    let wanted = total - total / 100;
    let mut sum = 0;
    let reached = |bar: &&Bucket| {
        sum += added(bar);
        sum >= wanted
    };
    (total > 0).then(|| now.iter().find(reached).map(|bar| bar.up_to_us)).flatten()
}

fn session(then: &Session, now: &Session, length: Duration) -> SessionRates {
    SessionRates {
        initiator: now.initiator.clone(),
        peer: now.peer.clone(),
        shard: now.shard,
        commands_per_second: per_second(then.commands, now.commands, length),
        read_bytes_per_second: per_second(then.read_bytes, now.read_bytes, length),
        written_bytes_per_second: per_second(then.written_bytes, now.written_bytes, length),
        commands_in_flight: now.commands_in_flight,
    }
}

fn shard(then: &ShardLoad, now: &ShardLoad, length: Duration) -> ShardRates {
    let waits = now.waits.saturating_sub(then.waits);
    let operations = now.operations.saturating_sub(then.operations);
    ShardRates {
        shard: now.shard,
        cpu_percent: per_second(then.cpu_us, now.cpu_us, length) / 1e4,
        waits_per_second: waits as f64 / length.as_secs_f64(),
        operations_per_wait: (waits > 0).then(|| operations as f64 / waits as f64),
        connections: now.connections,
        commands_in_flight: now.commands_in_flight,
        buffers_percent: now.buffer_used_bytes as f64 / now.buffer_bytes.max(1) as f64 * 100.0,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn volume(ops: u64, mean: f64, histogram: &Value) -> Value {
        let kind =
            json!({"ops": ops, "bytes": ops * 4096, "mean_us": mean, "histogram": histogram});
        let idle = json!({"ops": 0, "bytes": 0, "mean_us": 0.0, "histogram": []});
        json!([{"name": "vm", "read": kind, "write": idle, "flushes": ops / 10, "errors": 1,
                "commands_in_flight": 3, "time": {"limit_waits": ops / 20}}])
    }

    fn sample(at: Instant, uptime: u64, cpu: u64, volumes: &Value, commands: u64) -> Sample {
        let load = json!({"shard": 0, "cpu_us": cpu, "waits": cpu / 10, "operations": cpu, "connections": 1,
                          "commands_in_flight": 3, "buffer_used_bytes": 1, "buffer_bytes": 4});
        let stats = json!({"uptime_seconds": uptime, "driver": "epoll", "loads": [load], "volumes": volumes});
        let session = json!([{"initiator": "iqn.a", "target": "iqn.b", "peer": "10.0.0.1:5", "tsih": 1, "shard": 0,
                              "commands_in_flight": 3, "commands": commands, "read_bytes": commands * 4096,
                              "written_bytes": 0}]);
        Sample {
            at,
            stats: serde_json::from_value(stats).unwrap(),
            sessions: serde_json::from_value(session).unwrap(),
        }
    }

    #[test]
    fn rates_are_of_the_interval_and_not_since_the_start() {
        let start = Instant::now();
        // 1,000 reads of 100 us, and then 200 of 400 us in two seconds.
        let then = volume(1000, 100.0, &json!([{"up_to_us": 127, "count": 1000}]));
        let bars = json!([{"up_to_us": 127, "count": 1000}, {"up_to_us": 511, "count": 199}, {"up_to_us": 1023, "count": 1}]);
        let now = volume(1200, 150.0, &bars);
        let then = sample(start, 10, 0, &then, 1000);
        let now = sample(start + Duration::from_secs(2), 12, 500_000, &now, 1200);
        let rates = between(&then, &now).unwrap();
        let read = rates.volumes[0].read;
        assert_eq!((read.ops_per_second, read.bytes_per_second), (100.0, 409_600.0));
        assert_eq!((read.mean_us, read.p99_us), (Some(400.0), Some(511)));
        assert_eq!(rates.volumes[0].write, OperationRates::default());
        assert_eq!((rates.volumes[0].flushes_per_second, rates.volumes[0].errors), (10.0, 0));
        assert_eq!(rates.volumes[0].limit_waits_per_second, 5.0);
        assert_eq!(rates.sessions[0].commands_per_second, 100.0);
        assert_eq!(
            (rates.shards[0].cpu_percent, rates.shards[0].operations_per_wait),
            (25.0, Some(10.0))
        );
        assert_eq!(rates.shards[0].buffers_percent, 25.0);
    }

    #[test]
    fn a_server_that_was_started_anew_has_no_rates_and_a_new_volume_counts_from_zero() {
        let start = Instant::now();
        let later = start + Duration::from_secs(1);
        let some = volume(100, 10.0, &json!([{"up_to_us": 15, "count": 100}]));
        let old = sample(start, 100, 900, &some, 7);
        assert_eq!(between(&old, &sample(later, 1, 1000, &some, 7)), None);
        assert_eq!(between(&old, &sample(later, 101, 10, &some, 7)), None);
        assert_eq!(between(&old, &old.clone()), None);
        let fewer = volume(50, 10.0, &json!([{"up_to_us": 15, "count": 50}]));
        let rates = between(&old, &sample(later, 101, 1000, &fewer, 8)).unwrap();
        assert_eq!(
            (rates.volumes[0].read.ops_per_second, rates.volumes[0].read.p99_us),
            (50.0, Some(15))
        );
        let none =
            between(&sample(start, 100, 900, &json!([]), 7), &sample(later, 101, 1000, &fewer, 7))
                .unwrap();
        assert_eq!(none.volumes[0].read.mean_us, Some(10.0));
    }
}
