//! Upper limits on what a job does.

use std::time::Duration;

use crate::workload::Rate;

/// What was not done in time is made up for, but not more than this.
const BURST: Duration = Duration::from_millis(10);

/// Says when the next operation may begin.
pub(super) struct Pacer {
    rate: Rate,
    jobs: f64,
    next: Duration,
}

impl Pacer {
    /// The share of one of `jobs` jobs.
    pub fn new(rate: Rate, jobs: u32) -> Self {
        Self { rate, jobs: jobs.into(), next: Duration::ZERO }
    }

    pub fn next(&self) -> Duration {
        self.next
    }

    /// Whether an operation may begin now.
    pub fn allows(&self, now: Duration) -> bool {
        now >= self.next
    }

    /// An operation of so many bytes begins.
    pub fn take(&mut self, now: Duration, bytes: u64) {
        let time = |amount: u64, limit: Option<u64>| {
            limit.map_or(0.0, |limit| amount as f64 * self.jobs / limit as f64)
        };
        let cost = time(1, self.rate.operations).max(time(bytes, self.rate.bytes));
        self.next = self.next.max(now.saturating_sub(BURST)) + Duration::from_secs_f64(cost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(rate: Rate, jobs: u32) -> u32 {
        let mut pacer = Pacer::new(rate, jobs);
        let mut done = 0;
        // A look every 3 ms for a second.
        for ms in (0..1000).step_by(3) {
            let now = Duration::from_millis(ms);
            while pacer.allows(now) {
                pacer.take(now, 4096);
                done += 1;
            }
        }
        done
    }

    #[test]
    fn the_rate_is_kept() {
        let operations = Some(2000);
        assert!((1980..=2040).contains(&count(Rate { operations, bytes: None }, 1)));
        assert!((990..=1020).contains(&count(Rate { operations, bytes: None }, 2)));
        let bytes = Some(4096 * 500);
        assert!((495..=515).contains(&count(Rate { operations, bytes }, 1)));
    }
}
