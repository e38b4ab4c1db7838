//! Distributions of times.

use std::time::Duration;

use hdrhistogram::Histogram;

/// The longest time that is told apart: an hour.
const LONGEST: u64 = 3_600_000_000_000;

/// How long operations took. Times are counted in classes that are at most 1/128 wide: any time
/// that is told is right within 0.8 %. Everything from 1 ns to an hour is counted, at nanosecond
/// resolution for the shortest.
#[derive(Clone, Debug)]
pub struct Latency {
    counts: Histogram<u64>,
    /// In nanoseconds: the mean needs no classes.
    sum: u64,
}

impl Default for Latency {
    fn default() -> Self {
        let counts = Histogram::new_with_bounds(1, LONGEST, 2).expect("the bounds are valid");
        Self { counts, sum: 0 }
    }
}

impl Latency {
    /// Counts a time.
    pub fn record(&mut self, time: Duration) {
        let nanos = time.as_nanos() as u64;
        self.counts.saturating_record(nanos.max(1));
        self.sum += nanos;
    }

    /// Adds all of another one.
    pub fn add(&mut self, other: &Self) {
        if other.count() > 0 {
            // The bounds are the same: it cannot fail.
            let _ = self.counts.add(&other.counts);
            self.sum += other.sum;
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        if self.count() > 0 {
            self.counts.reset();
            self.sum = 0;
        }
    }

    /// How many were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.len()
    }

    /// The mean; zero if nothing was counted.
    #[must_use]
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(self.sum.checked_div(self.count()).unwrap_or(0))
    }

    /// The shortest; zero if nothing was counted.
    #[must_use]
    pub fn min(&self) -> Duration {
        Duration::from_nanos(if self.count() > 0 { self.counts.min() } else { 0 })
    }

    /// The longest; zero if nothing was counted.
    #[must_use]
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.counts.max())
    }

    /// The time within which this part of operations ended, in percent: 99.9 is the 99.9th
    /// percentile. Zero if nothing was counted.
    #[must_use]
    pub fn percentile(&self, percent: f64) -> Duration {
        match self.count() {
            0 => Duration::ZERO,
            _ => Duration::from_nanos(self.counts.value_at_percentile(percent)),
        }
    }

    /// The classes that have something in them: their upper end, and how many.
    pub fn classes(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        self.counts.iter_recorded().map(|class| {
            (Duration::from_nanos(class.value_iterated_to()), class.count_since_last_iteration())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn times_are_right_within_the_error_that_is_told(nanos in 1u64..LONGEST) {
            let mut latency = Latency::default();
            latency.record(Duration::from_nanos(nanos));
            for told in [latency.percentile(50.0), latency.min(), latency.max()] {
                let told = told.as_nanos() as f64;
                prop_assert!((told / nanos as f64 - 1.0).abs() <= 0.008, "{told} for {nanos}");
            }
            prop_assert_eq!(latency.mean(), Duration::from_nanos(nanos));
        }
    }

    #[test]
    fn parts_add_up() {
        let (mut a, mut b) = (Latency::default(), Latency::default());
        assert_eq!((a.mean(), a.min(), a.percentile(50.0)), Default::default());
        for ms in 1..=100 {
            a.record(Duration::from_millis(ms));
            b.record(Duration::from_millis(100 + ms));
        }
        a.add(&b);
        assert_eq!((a.count(), a.classes().map(|(_, n)| n).sum::<u64>()), (200, 200));
        let median = a.percentile(50.0).as_secs_f64() * 1e3;
        assert!((99.0..101.0).contains(&median), "{median}");
        a.clear();
        assert_eq!(a.count(), 0);
    }
}
