//! fio's logs: how a run went on.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::model::Moment;

/// What all jobs did in one moment.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    /// KiB/s, read and written.
    kib_per_s: [f64; 2],
    iops: [f64; 2],
    /// Sum and number of mean latencies, in nanoseconds.
    latency: (f64, u32),
}

/// Lines of a log: milliseconds, value, direction.
fn lines(text: &str) -> impl Iterator<Item = (u64, f64, usize)> {
    text.lines().filter_map(|line| {
        let mut parts = line.split(',').map(str::trim);
        let (ms, value, direction) = (parts.next()?, parts.next()?, parts.next()?);
        Some((ms.parse().ok()?, value.parse().ok()?, direction.parse().ok()?))
    })
}

fn file(prefix: &Path, kind: &str) -> String {
    let mut name = prefix.as_os_str().to_owned();
    name.push(format!("_{kind}.log"));
    fs::read_to_string(PathBuf::from(name)).unwrap_or_default()
}

/// The moments of a run, whose jobs wrote a line every `step` milliseconds. Empty if there are no logs, or the run was too short for a line.
pub(super) fn timeline(prefix: &Path, step: u64) -> Vec<Moment> {
    merge(step, &file(prefix, "bw"), &file(prefix, "iops"), &file(prefix, "lat"))
}

/// Jobs write a line each; their clocks differ by a few milliseconds.
fn merge(step: u64, rates: &str, operations: &str, latencies: &str) -> Vec<Moment> {
    let mut sums: BTreeMap<u64, Sum> = BTreeMap::new();
    let slot = |ms: u64| (ms + step / 2) / step;
    for (ms, value, direction) in lines(rates).filter(|(_, _, direction)| *direction < 2) {
        sums.entry(slot(ms)).or_default().kib_per_s[direction] += value;
    }
    for (ms, value, direction) in lines(operations).filter(|(_, _, direction)| *direction < 2) {
        sums.entry(slot(ms)).or_default().iops[direction] += value;
    }
    for (ms, value, _) in lines(latencies) {
        if let Some(sum) = sums.get_mut(&slot(ms)) {
            sum.latency = (sum.latency.0 + value, sum.latency.1 + 1);
        }
    }
    let Some(first) = sums.keys().next().copied() else { return Vec::new() };
    let moment = |(at, sum): (u64, Sum)| Moment {
        at_s: ((at - first + 1) * step) as f64 / 1e3,
        read_mib_per_s: sum.kib_per_s[0] / 1024.0,
        write_mib_per_s: sum.kib_per_s[1] / 1024.0,
        read_iops: sum.iops[0],
        write_iops: sum.iops[1],
        latency_us: (sum.latency.1 > 0).then(|| sum.latency.0 / f64::from(sum.latency.1) / 1e3),
    };
    sums.into_iter().map(moment).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_and_directions_are_added_up() {
        let rates = "1000, 1024, 0, 0, 0\n1000, 2048, 1, 0, 0\n2001, 1024, 0, 0, 0\n\
                     1003, 3072, 0, 0, 0\n1999, 1024, 0, 0, 0, 0\n2000, 9, 2, 0, 0\nbroken\n";
        let operations = "1000, 10, 0\n1001, 30, 0\n2000, 5, 1\n";
        let latencies = "1000, 10000, 0\n1002, 30000, 1\n9000, 5, 0\n";
        let moments = merge(1000, rates, operations, latencies);
        assert_eq!(moments.len(), 2);
        assert_eq!((moments[0].at_s, moments[1].at_s), (1.0, 2.0), "{moments:?}");
        assert_eq!((moments[0].read_mib_per_s, moments[0].write_mib_per_s), (4.0, 2.0));
        assert_eq!((moments[0].read_iops, moments[1].write_iops), (40.0, 5.0));
        assert_eq!((moments[0].latency_us, moments[1].latency_us), (Some(20.0), None));
        assert!(merge(50, "", "", "").is_empty());
    }
}
