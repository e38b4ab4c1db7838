//! `lunet stats --follow`: a few lines for each interval.

use lunet_api::{Rates, Verdict};

use super::words;
use crate::tables::layout::{Columns, harmless};

/// Describes an interval: a line for each volume that had something to do, one for the shards, and what has bound.
pub fn lines(rates: &Rates, verdict: Option<&Verdict>, clock: &str) -> String {
    let mut columns = Columns::default();
    columns.row(words::VOLUME);
    let mut idle = 0;
    for volume in &rates.volumes {
        let busy =
            volume.read.ops_per_second + volume.write.ops_per_second + volume.flushes_per_second
                > 0.0;
        if busy || volume.errors > 0 || volume.commands_in_flight > 0 {
            columns.row(words::volume(volume));
        } else {
            idle += 1;
        }
    }
    let mut out = format!("{clock}, {:.1} s\n", rates.seconds);
    if idle < rates.volumes.len() {
        columns.write(&mut out);
    }
    if idle > 0 {
        out.push_str(&format!("  {} idle\n", plural(idle, "volume")));
    }
    for volume in rates.volumes.iter().filter(|volume| volume.errors > 0) {
        let name = harmless(&volume.name);
        out.push_str(&format!(
            "  {} failed on {name}\n",
            plural(volume.errors as usize, "command")
        ));
    }
    let load: Vec<String> =
        rates.shards.iter().map(|s| format!("{:.0} %", s.cpu_percent)).collect();
    out.push_str(&format!("  processor time of the shards: {}\n", load.join(", ")));
    if let Some(verdict) = verdict {
        out.push_str(&format!("  {}\n", harmless(&verdict.server.sentence)));
    }
    out
}

fn plural(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

#[cfg(test)]
mod tests {
    use lunet_api::{Binding, OperationRates, ShardRates, VolumeRates};

    use super::*;

    fn volume(name: &str, ops: f64, errors: u64) -> VolumeRates {
        let read = OperationRates {
            ops_per_second: ops,
            bytes_per_second: ops * 4096.0,
            mean_us: (ops > 0.0).then_some(85.5),
            p99_us: (ops > 0.0).then_some(127),
        };
        let write = OperationRates::default();
        VolumeRates {
            name: name.into(),
            read,
            write,
            flushes_per_second: 0.0,
            limit_waits_per_second: 250.0,
            errors,
            commands_in_flight: 0,
        }
    }

    #[test]
    fn busy_volumes_have_a_line_and_idle_ones_are_counted() {
        let shard = ShardRates {
            shard: 0,
            cpu_percent: 12.4,
            waits_per_second: 1.0,
            operations_per_wait: None,
            connections: 1,
            commands_in_flight: 0,
            buffers_percent: 0.0,
        };
        let mut rates = Rates {
            seconds: 1.0,
            volumes: vec![volume("vm\u{1b}", 12345.0, 2), volume("idle", 0.0, 0)],
            sessions: Vec::new(),
            shards: vec![shard.clone(), shard],
        };
        let sentence = "Bound by the storage.".to_owned();
        let server = Binding { sentence, ..Binding::default() };
        let told = Verdict { server, ..Verdict::default() };
        assert_eq!(
            lines(&rates, Some(&told), "10:00:00"),
            "10:00:00, 1.0 s\n  \
               volume  reads/s        read     mean     99 %  writes/s  written  mean  99 %  flushes/s  limited/s  at work\n  \
               vm?      12 345  48.2 MiB/s  85.5 us  <128 us         -        -                      -        250        0\n  \
               1 volume idle\n  \
               2 commands failed on vm?\n  \
               processor time of the shards: 12 %, 12 %\n  \
               Bound by the storage.\n"
        );
        rates.volumes.remove(0);
        assert_eq!(
            lines(&rates, None, "x"),
            "x, 1.0 s\n  1 volume idle\n  processor time of the shards: 12 %, 12 %\n"
        );
    }
}
