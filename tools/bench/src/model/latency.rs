//! Latencies: from when an operation was handed over to when it was answered.

use serde::{Deserialize, Serialize};

/// The percentiles that are kept.
pub const PERCENTS: [f64; 8] = [1.0, 50.0, 90.0, 95.0, 99.0, 99.9, 99.99, 99.999];

/// Buckets of a doubling: each is 9 % wide, which no plot shows finer.
const PER_DOUBLING: f64 = 8.0;

/// How long operations took.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// How many operations.
    pub count: u64,
    /// The mean, in microseconds.
    pub mean_us: f64,
    /// The quickest, in microseconds.
    pub min_us: f64,
    /// The slowest, in microseconds.
    pub max_us: f64,
    /// What so many of 100 do not exceed.
    pub percentiles: Vec<Percentile>,
    /// The histogram: buckets without operations are left out, the others rise.
    pub buckets: Vec<Bucket>,
}

/// So many of 100 operations took no longer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Percentile {
    /// How many of 100.
    pub percent: f64,
    /// Microseconds.
    pub us: f64,
}

/// So many operations took at least `from_us` and less than `to_us`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bucket {
    /// Microseconds.
    pub from_us: f64,
    /// Microseconds.
    pub to_us: f64,
    /// Operations.
    pub count: u64,
}

impl Latency {
    /// Of single latencies or a finer histogram: nanoseconds, and how many operations took that long. `None` if there was
    /// no operation.
    pub fn of(counts: impl IntoIterator<Item = (u64, u64)>) -> Option<Self> {
        let mut counts: Vec<(u64, u64)> =
            counts.into_iter().filter(|(_, count)| *count > 0).collect();
        counts.sort_unstable();
        let (first, last) = (counts.first()?.0, counts.last()?.0);
        let count: u64 = counts.iter().map(|(_, count)| count).sum();
        let sum: f64 = counts.iter().map(|(ns, count)| *ns as f64 * *count as f64).sum();
        let us = |ns: u64| ns as f64 / 1e3;
        Some(Self {
            count,
            mean_us: sum / count as f64 / 1e3,
            min_us: us(first),
            max_us: us(last),
            percentiles: percentiles(&counts, count),
            buckets: buckets(&counts),
        })
    }

    /// Several together, as if they were one run. Percentiles come from the buckets and are no finer than these.
    pub fn merged<'a>(parts: impl IntoIterator<Item = &'a Self>) -> Option<Self> {
        let parts: Vec<&Self> = parts.into_iter().filter(|part| part.count > 0).collect();
        let count: u64 = parts.iter().map(|part| part.count).sum();
        let all = parts.iter().flat_map(|part| &part.buckets);
        // The middle of a bucket stands for what is in it.
        let middle = |bucket: &Bucket| ((bucket.from_us * bucket.to_us).sqrt() * 1e3) as u64;
        let mut merged = Self::of(all.map(|bucket| (middle(bucket), bucket.count)))?;
        let sum: f64 = parts.iter().map(|part| part.mean_us * part.count as f64).sum();
        merged.mean_us = sum / count as f64;
        merged.min_us = parts.iter().map(|part| part.min_us).fold(f64::INFINITY, f64::min);
        merged.max_us = parts.iter().map(|part| part.max_us).fold(0.0, f64::max);
        // The middle of the last bucket may lie beyond what is really the slowest.
        for at in &mut merged.percentiles {
            at.us = at.us.clamp(merged.min_us, merged.max_us.max(merged.min_us));
        }
        Some(merged)
    }

    /// What so many of 100 do not exceed, in microseconds.
    pub fn percentile_us(&self, percent: f64) -> Option<f64> {
        let near = |at: &&Percentile| (at.percent - percent).abs() < 1e-6;
        self.percentiles.iter().find(near).map(|at| at.us)
    }
}

/// Only those that the number of operations can tell: of 100 operations there is no 99.99th percentile.
fn percentiles(counts: &[(u64, u64)], all: u64) -> Vec<Percentile> {
    let mut told = Vec::new();
    for percent in PERCENTS {
        let beyond = (100.0 - percent).min(percent) / 100.0 * all as f64;
        // A whole operation, but for rounding.
        if percent != 50.0 && beyond < 0.999 {
            continue;
        }
        let rank = (percent / 100.0 * all as f64 - 1e-6).ceil().max(1.0) as u64;
        let mut seen = 0;
        let at = counts.iter().find(|(_, count)| {
            seen += count;
            seen >= rank
        });
        told.extend(at.map(|(ns, _)| Percentile { percent, us: *ns as f64 / 1e3 }));
    }
    told
}

fn buckets(counts: &[(u64, u64)]) -> Vec<Bucket> {
    let mut told: Vec<(i32, u64)> = Vec::new();
    for (ns, count) in counts {
        let at = ((*ns).max(1) as f64).log2() * PER_DOUBLING;
        let at = at.floor() as i32;
        match told.last_mut() {
            Some((last, sum)) if *last == at => *sum += count,
            _ => told.push((at, *count)),
        }
    }
    let edge = |at: i32| round((f64::from(at) / PER_DOUBLING).exp2() / 1e3);
    let bucket = |(at, count)| Bucket { from_us: edge(at), to_us: edge(at + 1), count };
    told.into_iter().map(bucket).collect()
}

/// To a millionth: edges of neighbours stay equal, and the file stays readable.
fn round(value: f64) -> f64 {
    let scale = 10f64.powf(6.0 - value.abs().max(1e-9).log10().ceil());
    (value * scale).round() / scale
}
